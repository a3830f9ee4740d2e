"""Profile: where the time of a file goes, module by module.

ONNX Runtime fuses nodes before it runs them, and its profiler times what is left. The optimized graph is saved, traced
back to the tagged file as `relink` does, and every kernel's time is charged to the modules whose work it does.
https://onnxruntime.ai/docs/performance/tune-performance/profiling-tools.html
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from modelexport.api.environment import Clock, Progress, need_torch
from modelexport.api.opening import note_source, open_file
from modelexport.api.prepare_file import fit_dtype, prepare_for_file
from modelexport.api.relink import relink_graph
from modelexport.errors import RecordMismatch, UserError
from modelexport.graph.file.tagged_file import TaggedFile, find_ancestor, open_tagged
from modelexport.inspect.profile import Timeline, join_events, spread
from modelexport.record.model_source import ModelSource
from modelexport.record.results.files import RelinkResult
from modelexport.record.results.profile import RUNS_FOR_SPREAD, Profile, SumCheck

if TYPE_CHECKING:
    import torch


def profile(  # noqa: PLR0913 - the keywords are the command line's options
    file: str | Path,
    *,
    before: str | Path | None = None,
    runs: int = 20,
    warmup: int = 5,
    optimization: str = "all",
    providers: Sequence[str] = (),
    threads: int = 0,
    inputs: str | Path | None = None,
    input: Sequence[str] = (),
    model: torch.nn.Module | str | Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Profile:
    """Run a file in ONNX Runtime and charge the time of every kernel to the module whose work it does.

    before        a tagged file that this one was made from; it is asked instead of the record in the file
    warmup        runs before the timed ones: the first allocate memory and choose kernels
    optimization  ONNX Runtime's: all, extended, basic or none
    providers     execution providers, the first that can run a node does; those of ONNX Runtime's own choice if empty
    threads       within a kernel; 0 leaves it to ONNX Runtime
    inputs        an .npz file; made from the file where it is left out, `input` giving shapes: NAME=SHAPE
    model         that the file was made from: inputs are those of a run of it, and a cache is the one that it had
    """
    from modelexport.capture.onnxruntime.inputs import SampleRequest, describe_made, sample_feeds

    settings = ProfileSettings(runs, warmup, optimization, tuple(providers), threads)
    if inputs is not None and input:
        raise UserError(
            f"{inputs} has the inputs themselves, and {input[0]!r} is about one that is made",
            "Give either --inputs or --input.",
        )
    if model is not None and (inputs is not None or input):
        raise UserError("the inputs are given, and would also be made by the model", "Leave --model out.")
    path, clock = Path(file), Clock(progress)
    with clock.step("read"):
        opened = open_file(path) if before is None else open_tagged(path)
        origin = opened if before is None else open_file(Path(before))
        request = SampleRequest(1, seed, tuple(input), () if inputs is None else (Path(inputs),))
        feed = next(sample_feeds(opened.proto, opened.graph, request)) if model is None else {}
    if model is not None:
        feed = _run_inputs(opened, ModelSource(model, seed=seed), clock)
    made = describe_made(feed) if inputs is None and model is None else ""
    return profile_feed(opened, origin, feed, settings, clock, made)


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
            relinked = relink_graph(ancestor, optimized, f"ort:{optimization}")
            if not relinked.related:
                raise RecordMismatch(
                    f"{path} was not made from {ancestor.name}: {relinked.lineage.overlap}",
                    "Give the tagged file that it was made from: --before FILE.",
                )
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
        spread=spread(walls),
        check=SumCheck(sum(run.busy for run in ran.runs), sum(module.charged for module in modules)),
        nodes=nodes,
        modules=modules,
        events=tuple(events),
        notes=(*(opened.stale_notes if is_fitted else ()), *_notes(relinked, runs), *note_source(origin)),
        seconds=clock.seconds,
    )


def _run_inputs(file: TaggedFile, source: ModelSource, clock: Clock) -> dict[str, np.ndarray]:
    """Inputs that the model was run on as well."""
    need_torch("running a model")
    from modelexport.capture.onnxruntime.session import bind_inputs

    return bind_inputs(file.proto, prepare_for_file(file, fit_dtype(file, source), clock).inputs.arrays)


def _notes(relinked: RelinkResult, runs: int) -> Iterator[str]:
    """The file ran with its own weights, but who owns what was learned from a file with others."""
    if relinked.differing:
        named = ", ".join(relinked.differing[:3]) + (", …" if len(relinked.differing) > 3 else "")
        yield f"{len(relinked.differing)} weights hold other numbers than in {relinked.before}: {named}"
    if runs < RUNS_FOR_SPREAD:
        yield f"{runs} of {RUNS_FOR_SPREAD} runs that it takes to say how far times are apart: give more --runs"
