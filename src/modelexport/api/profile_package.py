"""Profile of a package: where the time goes when it generates, prefill and decode steps apart.

    profile_package("qwen3/", prompt=512, new_tokens=64, past=(128, 1024, 4096))

Inputs come from the package itself: tokens are made up, and caches are what its files make of them. No model is needed.
Each file is profiled as `profile` does a file; tokens per second are measured without the profiler.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from modelexport.api.environment import Clock, Progress
from modelexport.api.package import Package, open_package
from modelexport.api.profile import ProfileSettings, profile_feed
from modelexport.errors import UserError
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.record.hierarchy import ROOT, lineage_of
from modelexport.record.provenance import Provenance
from modelexport.record.results.package_profile import ChainTime, PackageProfile, PhaseProfile
from modelexport.record.results.profile import NodeTime, Profile

if TYPE_CHECKING:
    from modelexport.capture.onnxruntime.generated_feeds import GeneratedFeeds

# Roles of nodes that only attention has; the modules of these nodes attend.
_ATTENDING = frozenset({"attention.scores", "attention.softmax", "attention.context"})
_PREFILL, _DECODE = "prefill", "decode"


def profile_package(  # noqa: PLR0913 - the keywords are the command line's options
    package: str | Path | Package,
    *,
    prompt: int = 512,
    new_tokens: int = 64,
    past: Sequence[int] = (),
    batch: int = 1,
    runs: int = 20,
    warmup: int = 5,
    optimization: str = "all",
    providers: Sequence[str] = (),
    threads: int = 0,
    seed: int = 0,
    progress: Progress | None = None,
) -> PackageProfile:
    """Run a package on made-up tokens, and charge the time of every kernel to the module whose work it does.

    prompt      tokens of the prefill
    new_tokens  decode steps behind it
    past        lengths of the past at which one more decode step is profiled
    Other keywords are those of `profile`.
    """
    from modelexport.capture.onnxruntime.generated_feeds import GeneratedFeeds

    for name, number in (
        ("prompt", prompt),
        ("new_tokens", new_tokens),
        ("batch", batch),
        *(("past", n) for n in past),
    ):
        if number < 1:
            raise UserError(f"{name} is {number}", "Give 1 or more.")
    opened = package if isinstance(package, Package) else open_package(package)
    settings = ProfileSettings(runs, warmup, optimization, tuple(providers), threads)
    clock = Clock(progress)
    files = {name: component.file for name, component in opened.components.items()}
    phases = _Phases(GeneratedFeeds(opened.info, files, seed), files, settings, batch, clock)
    times = phases.time_chain(prompt, new_tokens)
    profiled = (*phases.profile_prompt(prompt), phases.profile_step(prompt + new_tokens // 2))
    profiled += tuple(phases.profile_step(length) for length in past)
    notes = tuple(dict.fromkeys(note for phase in profiled for note in phase.profile.notes))
    return PackageProfile(
        str(opened.folder), batch, prompt, new_tokens, *times, profiled, notes=notes, seconds=clock.seconds
    )


class _Phases:
    def __init__(
        self,
        feeds: GeneratedFeeds,
        files: Mapping[str, TaggedFile],
        settings: ProfileSettings,
        batch: int,
        clock: Clock,
    ) -> None:
        self._feeds, self._files, self._settings, self._batch, self._clock = feeds, files, settings, batch, clock

    def time_chain(self, prompt: int, new_tokens: int) -> tuple[ChainTime, ChainTime]:
        """Prefill and decode steps, from outside. The first run of a session allocates, and does not count."""
        with self._clock.step("chain"):
            self._feeds.run_prompt(self._batch, prompt)
            self._feeds.run_step(self._batch)
            start = time.perf_counter()
            self._feeds.run_prompt(self._batch, prompt)
            middle = time.perf_counter()
            for _ in range(new_tokens):
                self._feeds.run_step(self._batch)
            end = time.perf_counter()
        return ChainTime(self._batch * prompt, middle - start), ChainTime(self._batch * new_tokens, end - middle)

    def profile_prompt(self, prompt: int) -> Iterator[PhaseProfile]:
        for component, feed in self._feeds.run_prompt(self._batch, prompt).items():
            is_decoder = component in self._feeds.components
            query = self._feeds.query if is_decoder else prompt
            yield self._profile(_PREFILL, component, feed, prompt - query, query)

    def profile_step(self, past: int) -> PhaseProfile:
        self._feeds.run_prompt(self._batch, past)
        component, feed = list(self._feeds.run_step(self._batch).items())[-1]
        return self._profile(_DECODE, component, feed, past, 1)

    def _profile(
        self, phase: str, component: str, feed: Mapping[str, np.ndarray], past: int, query: int
    ) -> PhaseProfile:
        file = self._files[component]
        result = profile_feed(file, file, feed, self._settings, self._clock)
        return PhaseProfile(phase, component, past, query, result, _attention_share(result, file.provenance))


def _attention_share(profile: Profile, record: Provenance) -> float | None:
    """Of the time of all kernels, what is spent inside of modules that attend."""
    entries = record.nodes.values()
    paths = {entry.attribution.module for entry in entries if entry.attribution.role in _ATTENDING}
    attending = {path for path in paths if path is not None and path != ROOT}
    if not attending or not profile.time:
        return None

    def attends(node: NodeTime) -> bool:
        # One kernel may do the work of several layers, and is charged to the module around them.
        paths = {owner.path for owner in node.owners} or {node.module or ROOT}
        return all(attending.intersection(lineage_of(path)) for path in paths)

    return sum(node.time for node in profile.nodes if attends(node)) / profile.time
