"""Profile of a package: where the time goes when it generates, prefill and decode steps apart.

    profile_package("qwen3/", prompt=512, new_tokens=64, past=(128, 1024, 4096))

Inputs come from the package itself: tokens are made up, and caches are what its files make of them. No model is needed.
Each file is profiled as `profile` does a file; tokens per second are measured without the profiler.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from modelexport.api.environment import Clock, Progress
from modelexport.api.package import Package, open_files, open_package
from modelexport.api.profile_run import ProfileSettings, profile_feed
from modelexport.errors import InputError, RuntimeFailed, UserError
from modelexport.graph.file.context import Context, find_context
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
_PROMPT, _NEW_TOKENS = 512, 64
# Of the prompt, of which the median counts; decode steps are many already.
_PREFILLS = 3


@dataclass(frozen=True)
class GenerationSizes:
    """Numbers of tokens; see `profile_package`."""

    prompt: int | None = None
    new_tokens: int | None = None
    past: tuple[int, ...] = ()
    batch: int = 1

    def __post_init__(self) -> None:
        numbers = {"prompt": self.prompt, "new_tokens": self.new_tokens, "batch": self.batch}
        for name, number in (*numbers.items(), *(("past", length) for length in self.past)):
            if number is not None and number < 1:
                raise UserError(f"{name} is {number}", "Give 1 or more.")

    def fit(self, context: Context | None) -> tuple[int, int]:
        """The prompt and the new tokens; what nobody asked for is what there is room for. UserError for more."""
        if context is None:
            return self.prompt or _PROMPT, self.new_tokens or _NEW_TOKENS
        room, is_shared = context.length, context.is_shared
        # A fourth of a small context is for new tokens, as 64 of 512 and more would leave no room for a prompt.
        new_tokens = self.new_tokens or min(_NEW_TOKENS, max(room // 4, 1))
        prompt = self.prompt or max(min(_PROMPT, room - new_tokens if is_shared else room), 1)
        longest = max(prompt + new_tokens if is_shared else max(prompt, new_tokens), *(n + 1 for n in self.past), 0)
        if longest > room:
            raise InputError(
                f"{longest} tokens are more than the model's context of {room}",
                "Give a shorter --prompt, fewer --new-tokens, or a shorter --past.",
            )
        return prompt, new_tokens


def profile_package(  # noqa: PLR0913 - the keywords are the command line's options
    package: str | Path | Package,
    *,
    prompt: int | None = None,
    new_tokens: int | None = None,
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

    prompt      tokens of the prefill; 512 if it is left out, or what the model's context has room for
    new_tokens  decode steps behind it; 64 if it is left out, or fewer in the same way
    past        lengths of the past at which one more decode step is profiled
    Other keywords are those of `profile`.
    """
    opened = package if isinstance(package, Package) else open_package(package)
    settings = ProfileSettings(runs, warmup, optimization, tuple(providers), threads)
    lengths = GenerationSizes(prompt, new_tokens, tuple(past), batch)
    return profile_opened_package(opened, lengths, settings, seed, Clock(progress))


def profile_opened_package(
    package: Package, lengths: GenerationSizes, settings: ProfileSettings, seed: int, clock: Clock
) -> PackageProfile:
    from modelexport.capture.onnxruntime.generated_feeds import GeneratedFeeds

    files = open_files(package)
    prompt, new_tokens = lengths.fit(find_context(package.folder))
    phases = _Phases(GeneratedFeeds(package.info, files, seed), files, settings, lengths.batch, clock)
    try:
        times = phases.time_chain(prompt, new_tokens)
    except RuntimeFailed as error:
        phases.explain_length(prompt + new_tokens, error)
        raise
    profiled = (*phases.profile_prompt(prompt), phases.profile_step(prompt + new_tokens // 2))
    profiled += tuple(phases.profile_step(length) for length in lengths.past)
    notes = tuple(dict.fromkeys(note for phase in profiled for note in phase.profile.notes))
    return PackageProfile(
        str(package.folder), lengths.batch, prompt, new_tokens, *times, profiled, notes=notes, seconds=clock.seconds
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
        """Prefill and decode steps, from outside: medians, as of kernels. The first run of a session allocates, and
        does not count.
        """
        with self._clock.step("chain"):
            self._feeds.run_prompt(self._batch, prompt)
            self._feeds.run_step(self._batch)
            prefills = [_measure_seconds(lambda: self._feeds.run_prompt(self._batch, prompt)) for _ in range(_PREFILLS)]
            steps = [_measure_seconds(lambda: self._feeds.run_step(self._batch)) for _ in range(new_tokens)]
        decoding = statistics.median(steps) * new_tokens if steps else 0.0
        return (
            ChainTime(self._batch * prompt, statistics.median(prefills)),
            ChainTime(self._batch * new_tokens, decoding),
        )

    def explain_length(self, tokens: int, error: RuntimeFailed) -> None:
        """Raise InputError if a shorter prompt runs: files whose table of positions ends fail inside ONNX Runtime."""
        runs, fails = 0, tokens + 1
        while fails - runs > 1:
            middle = (runs + fails) // 2
            try:
                self._feeds.run_prompt(self._batch, middle)
                runs = middle
            except RuntimeFailed:
                fails = middle
        if 0 < runs < tokens:
            raise InputError(
                f"the files cannot run {tokens} tokens: {runs} are the most that they have positions for",
                "Give a shorter --prompt, or fewer --new-tokens.",
            ) from error

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


def _measure_seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


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
