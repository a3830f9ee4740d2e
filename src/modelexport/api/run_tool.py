"""Running a tool on a tagged file, and relinking what it made, in one step."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from modelexport.api.choices import embed_options
from modelexport.api.opening import OpenedFile, open_file
from modelexport.api.relink import RelinkResult, ancestor_of, relinked
from modelexport.api.surroundings import Clock, Progress
from modelexport.api.writing import ensure_apart, write_tagged
from modelexport.errors import ExtraMissing, ModelExportError, ToolFailed, UserError
from modelexport.graph.saving import ensure_model_target
from modelexport.graph.soundness import ensure_sound

if TYPE_CHECKING:
    from modelexport.tools.tool import Feed, Tool

_MESSAGE_LINES = 3


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
        ancestor = ancestor_of(opened)
        feeds = tuple(_feeds(opened, inputs, input, samples, seed))
    with tempfile.TemporaryDirectory() as folder:
        here = path
        for number, (one, option) in enumerate(chain):
            with clock.step(one.name):
                here = _run(one, option, here, Path(folder) / f"{number}.onnx", feeds)
        with clock.step("check"):
            if check:
                _check(here, feeds[0], tool)
        with clock.step("link"):
            made = open_file(here)
            ensure_sound(made.file.proto, made.graph, f"what {tool} made")
            found = relinked(ancestor, made, tool)
        if not found.related:
            return replace(found, seconds=clock.seconds)
        with clock.step("write"):
            written = write_tagged(made.file, found.provenance, target, embedding)
    return replace(found, path=target, files=written.files, provenance=written.provenance, seconds=clock.seconds)


def _feeds(
    opened: OpenedFile, inputs: str | Path | None, shapes: Sequence[str], samples: int, seed: int
) -> Iterator[Feed]:
    from modelexport.capture.graph_inputs import SampleRequest, graph_samples

    files = () if inputs is None else (Path(inputs),)
    yield from graph_samples(opened.file.proto, opened.graph, SampleRequest(samples, seed, tuple(shapes), files))


def _run(tool: Tool, option: str, source: Path, target: Path, feeds: tuple[Feed, ...]) -> Path:
    from modelexport.tools.tool import Job

    if importlib.util.find_spec(tool.package) is None:
        raise _missing(tool, tool.package)
    try:
        with _silence():
            tool.run(Job(source, target, option, feeds))
    except ModelExportError:
        raise
    except ModuleNotFoundError as error:
        raise _missing(tool, error.name or str(error)) from error
    except Exception as error:
        raise ToolFailed(
            f"{tool.name} failed: {_told(error)}",
            "Nothing was written. The message is the tool's own; some tools get along with what another one has "
            "cleaned up: try onnxslim+" + tool.name + ".",
        ) from error
    if not target.is_file():
        raise ToolFailed(f"{tool.name} wrote nothing, and did not say why", "Nothing was written.")
    return target


def _missing(tool: Tool, package: str) -> ExtraMissing:
    return ExtraMissing(
        f"{tool.name} needs the package {package}, which is not installed",
        f"Install it: pip install 'modelexport[{tool.extra}]', or pip install {package}.",
    )


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Tools talk a lot; what they say when they fail comes as an exception."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _told(error: Exception) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return " ".join(lines[:_MESSAGE_LINES]) or type(error).__name__


def _check(path: Path, feed: Feed, tool: str) -> None:
    from modelexport.capture.running import run_file

    try:
        run_file(path, feed)
    except ModuleNotFoundError as error:
        raise ExtraMissing(
            f"the check of what {tool} made needs {error.name}, which is not installed",
            "Install it: pip install 'modelexport[runtime]'; or leave the check out: --no-check.",
        ) from error
    except Exception as error:
        raise ToolFailed(
            f"ONNX Runtime cannot run what {tool} made: {_told(error)}",
            "The tool broke the model. Nothing was written; --no-check writes it all the same.",
        ) from error
