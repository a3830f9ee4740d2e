"""Running a tool on a tagged file, and relinking what it made, in one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from modelexport.api.choices import embed_options
from modelexport.api.opening import OpenedFile, open_file
from modelexport.api.relink import RelinkResult
from modelexport.api.surroundings import Clock, Progress
from modelexport.api.tooling import ToolRun, run_tools
from modelexport.api.writing import ensure_apart
from modelexport.errors import UserError
from modelexport.graph.folded import ensure_flat
from modelexport.graph.saving import ensure_model_target

if TYPE_CHECKING:
    from modelexport.tools.tool import Feed


def run_tool(  # noqa: PLR0913 - the keywords are the command line's options
    file: str | Path,
    tool: str,
    output: str | Path,
    *,
    inputs: str | Path | None = None,
    input: Sequence[str] = (),
    samples: int = 4,
    seed: int = 0,
    embed: str = "full",
    check: bool = True,
    progress: Progress | None = None,
) -> RelinkResult:
    """Run a tool, or several one after the other (`int8+ort:all`), and carry the record to what comes out.

    inputs, input  for quantizers that look at the model while it runs, and for the check; made where they are left out
    samples        how many inputs are made
    check          whether ONNX Runtime can run what the tool made
    """
    from modelexport.tools.catalogue import parse_chain

    chain = parse_chain(tool)
    embedding = embed_options(embed, "torch", False)
    target = Path(output)
    path = Path(file)
    ensure_model_target(target)
    if samples < 1:
        raise UserError(f"samples is {samples}", "Give 1 or more.")
    clock = Clock(progress)
    with clock.step("read"):
        opened = open_file(path)
        ensure_apart(target, path)
        ensure_flat(opened.file.proto, str(path))
        wanted = check or any(one.calibrates for one, _ in chain)
        feeds = tuple(_feeds(opened, inputs, input, samples, seed)) if wanted else ()
    return run_tools(opened, ToolRun(chain, tool, target, embedding, feeds, check), clock)


def _feeds(
    opened: OpenedFile, inputs: str | Path | None, shapes: Sequence[str], samples: int, seed: int
) -> Iterator[Feed]:
    from modelexport.capture.graph_inputs import SampleRequest, graph_samples

    files = () if inputs is None else (Path(inputs),)
    yield from graph_samples(opened.file.proto, opened.graph, SampleRequest(samples, seed, tuple(shapes), files))
