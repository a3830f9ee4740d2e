"""Where the time of a file goes, module by module."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from modelexport.api.relink import ancestor_in, ancestor_of, relinked
from modelexport.api.surroundings import Clock, Progress
from modelexport.errors import RecordMismatch, UserError
from modelexport.graph.index import index_model
from modelexport.graph.model_file import open_model
from modelexport.profiling.joining import join_events
from modelexport.profiling.timing import module_times, node_times, spread
from modelexport.record.profile import Profile


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
    seed: int = 0,
    progress: Progress | None = None,
) -> Profile:
    """Run a tagged file in ONNX Runtime and charge the time of every kernel to the module whose work it does.

    before        a tagged file that this one was made from, if it carries no record of its own nodes
    optimization  ONNX Runtime's: all, extended, basic or none
    inputs        an .npz file; made from the file where it is left out, `input` giving shapes: NAME=SHAPE
    """
    from modelexport.capture.graph_inputs import SampleRequest, graph_samples
    from modelexport.capture.profiling import OPTIMIZATIONS, ProfileRequest, profiled_run

    if runs < 1 or warmup < 0:
        raise UserError(f"runs is {runs} and warmup is {warmup}", "Give at least one run, and no fewer than 0 before.")
    if optimization not in OPTIMIZATIONS:
        raise UserError(f"unknown optimization {optimization!r}", f"Known: {', '.join(OPTIMIZATIONS)}.")
    path = Path(file)
    clock = Clock(progress)
    with clock.step("read"):
        opened = open_model(path)
        ancestor = ancestor_of(opened, path) if before is None else ancestor_in(Path(before))
        files = () if inputs is None else (Path(inputs),)
        request = SampleRequest(1, seed, tuple(input), files)
        feed = next(graph_samples(opened.proto, index_model(opened.proto), request))
    with tempfile.TemporaryDirectory() as folder:
        with clock.step("run"):
            asked = ProfileRequest(runs, warmup, optimization, tuple(providers), threads)
            ran = profiled_run(path, feed, asked, Path(folder))
        with clock.step("link"):
            optimized = open_model(ran.optimized)
            graph = index_model(optimized.proto)
            found = relinked(ancestor, optimized, f"ort:{optimization}")
            if not found.related:
                raise RecordMismatch(
                    f"{path} was not made from {ancestor.name}: {found.lineage.kinship}",
                    "Give the tagged file that it was made from: --before FILE.",
                )
            events, runners = join_events(ran.events, ran.spans, graph)
    nodes = node_times(events, found.provenance, runners, runs)
    return Profile(
        file=str(path),
        runs=runs,
        warmup=warmup,
        optimization=optimization,
        providers=ran.providers,
        time=sum(node.time for node in nodes),
        wall=statistics.median(span.duration for span in ran.spans),
        spread=spread([span.duration for span in ran.spans]),
        nodes=nodes,
        modules=module_times(nodes, events, found.provenance, runs),
        events=tuple(events),
        seconds=clock.seconds,
    )
