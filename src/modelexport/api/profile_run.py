"""One profiled run of a file in ONNX Runtime, and its kernels charged to modules.

    profile_feed(opened, opened, feed, ProfileSettings(runs=20), clock)

The graph that is timed is saved by the same session, and traced back to the tagged file as `relink` does.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from modelexport.api.environment import Clock
from modelexport.api.opening import note_source
from modelexport.api.relink import relink_graph
from modelexport.errors import RecordMismatch, UserError
from modelexport.graph.file.tagged_file import Ancestor, TaggedFile, find_ancestor, open_tagged
from modelexport.inspect.kernel_events import join_events
from modelexport.inspect.profile import Timeline, spread
from modelexport.record.results.files import RelinkResult
from modelexport.record.results.profile import RUNS_FOR_SPREAD, Profile, SumCheck


@dataclass(frozen=True)
class ProfileSettings:
    """How a file is run; see `profile`."""

    runs: int = 20
    warmup: int = 5
    optimization: str = "all"
    providers: tuple[str, ...] = ()
    threads: int = 0

    def __post_init__(self) -> None:
        from modelexport.transform.tools.optimizers import LEVELS

        if self.runs < 1 or self.warmup < 0:
            raise UserError(
                f"runs is {self.runs} and warmup is {self.warmup}", "Give at least one run, and no fewer than 0 before."
            )
        if self.optimization not in LEVELS:
            raise UserError(f"unknown optimization {self.optimization!r}", f"Known: {', '.join(LEVELS)}.")


def profile_feed(
    opened: TaggedFile,
    origin: TaggedFile,
    feed: Mapping[str, np.ndarray],
    settings: ProfileSettings,
    clock: Clock,
    made: str = "",
) -> Profile:
    """Run a file on these inputs.

    origin  the file whose record is asked
    made    the inputs as options of the command line, if they were made up
    """
    from modelexport.capture.onnxruntime.session import ProfileRequest, profile_file
    from modelexport.transform.tools.optimizers import saving_options

    path, runs, optimization = opened.path, settings.runs, settings.optimization
    with clock.step("read"):
        ancestor = find_ancestor(origin)
        # The optimized graph is relinked in any case: from the graph before a tool, if the file has its outline.
        is_fitted = origin is opened and opened.outline is None
    with tempfile.TemporaryDirectory() as folder:
        with clock.step("run"):
            target = Path(folder) / "optimized.onnx"
            # The graph that is timed is the one that is saved; a second optimization could give another one.
            options = saving_options(target, optimization, weights_beside=True)
            request = ProfileRequest(runs, settings.warmup, settings.providers, settings.threads, made)
            ran = profile_file(path, feed, options, request)
        with clock.step("link"):
            optimized = open_tagged(target)
            relinked = _relink_optimized(ancestor, optimized, path, optimization)
            events = join_events(ran.runs, optimized.graph)
    timeline = Timeline.of(events, relinked.provenance, runs)
    nodes = timeline.nodes()
    modules = timeline.modules(nodes)
    walls = [run.duration for run in ran.runs]
    # The check holds the time of all kernels against what modules were charged: none may be lost or counted twice.
    return Profile(
        file=str(path),
        runs=runs,
        warmup=settings.warmup,
        optimization=optimization,
        providers=tuple(dict.fromkeys(event.provider for event in events)),
        requested=ran.requested,
        time=sum(node.time for node in nodes),
        busy=statistics.median(run.busy for run in ran.runs),
        wall=statistics.median(walls),
        spread=spread(walls, statistics.median(walls)),
        noise=timeline.noise(nodes),
        check=SumCheck(sum(run.busy for run in ran.runs), sum(module.charged for module in modules)),
        nodes=nodes,
        modules=modules,
        events=tuple(events),
        notes=(*(opened.stale_notes if is_fitted else ()), *_notes(relinked, runs), *note_source(origin)),
        seconds=clock.seconds,
    )


def _relink_optimized(ancestor: Ancestor, optimized: TaggedFile, path: Path, optimization: str) -> RelinkResult:
    relinked = relink_graph(ancestor, optimized, f"ort:{optimization}")
    if not relinked.related:
        raise RecordMismatch(
            f"{path} was not made from {ancestor.name}: {relinked.lineage.overlap}",
            "Give the tagged file that it was made from: --before FILE.",
        )
    return relinked


def _notes(relinked: RelinkResult, runs: int) -> Iterator[str]:
    """The file ran with its own weights, but who owns what was learned from a file with others."""
    if relinked.differing:
        named = ", ".join(relinked.differing[:3]) + (", …" if len(relinked.differing) > 3 else "")
        yield f"{len(relinked.differing)} weights hold other numbers than in {relinked.before}: {named}"
    if runs < RUNS_FOR_SPREAD:
        yield f"{runs} of {RUNS_FOR_SPREAD} runs that it takes to say how far times are apart: give more --runs"
