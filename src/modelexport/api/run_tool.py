"""Run tool: an optimizer, converter or quantizer on a tagged file, and its record carried to what comes out.

    run_tool("bert.onnx", "onnxslim+ort:extended", "out.onnx")

Tools run one after the other on temporary files, silenced; the last file is run once in ONNX Runtime and relinked to
the first. Nothing is written if a tool fails, or if what it made has nothing to do with the file.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from modelexport.api.environment import Clock, Progress
from modelexport.api.options import parse_embedding
from modelexport.api.relink import relink_graph
from modelexport.api.writing import ensure_apart, write_tagged
from modelexport.errors import ExtraMissing, FileUnreadable, ModelExportError, ToolFailed, UserError
from modelexport.graph.file.metadata import EmbedOptions, ensure_flat
from modelexport.graph.file.tagged_file import TaggedFile, find_ancestor, open_tagged
from modelexport.graph.file.writing import ensure_model_target, save_model
from modelexport.graph.soundness import are_same, ensure_sound
from modelexport.record.results.files import RelinkResult

if TYPE_CHECKING:
    from modelexport.transform.tools.tool import Feed, Tool

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
    from modelexport.transform.tools.catalogue import parse_chain

    chain = parse_chain(tool)
    embedding = parse_embedding(embed, "torch", False)
    target = Path(output)
    path = Path(file)
    ensure_model_target(target)
    if samples < 1:
        raise UserError(f"samples is {samples}", "Give 1 or more.")
    clock = Clock(progress)
    with clock.step("read"):
        opened = open_tagged(path)
        ensure_apart(target, path)
        ensure_flat(opened.proto, str(path))
        wanted = check or any(step.calibrates for step, _ in chain)
        # Inputs are made before the first tool runs: the check and every calibrating tool get the same ones.
        feeds = tuple(_feeds(opened, inputs, input, samples, seed)) if wanted else ()
    return run_tools(opened, ToolRun(chain, tool, target, embedding, feeds, check), clock)


def _feeds(
    opened: TaggedFile, inputs: str | Path | None, shapes: Sequence[str], samples: int, seed: int
) -> Iterator[Feed]:
    from modelexport.capture.onnxruntime.inputs import SampleRequest, sample_feeds

    files = () if inputs is None else (Path(inputs),)
    yield from sample_feeds(opened.proto, opened.graph, SampleRequest(samples, seed, tuple(shapes), files))


@dataclass(frozen=True)
class ToolRun:
    """What is to be done with a file.

    chain     tools with their options, in the order in which they run
    label     what they are called together, for messages and for the evidence
    feeds     inputs, for tools that look at the model while it runs and for the check
    check     whether ONNX Runtime can run what comes out
    renamed   whether nodes were given other names since the file was opened
    giving    how whoever asked for this can give other inputs
    """

    chain: Sequence[tuple[Tool, str]]
    label: str
    target: Path
    embedding: EmbedOptions
    feeds: tuple[Feed, ...]
    check: bool = True
    renamed: bool = False
    giving: str = "--inputs FILE.npz"


def run_tools(opened: TaggedFile, run: ToolRun, clock: Clock) -> RelinkResult:
    """Nothing is written if a tool fails, or if what comes out has nothing to do with the file."""
    with clock.step("read"):
        ancestor = find_ancestor(opened)
    with tempfile.TemporaryDirectory() as folder:
        steps = _Steps(opened, Path(folder), run, clock)
        # The names that a quantizer is told are in memory so far.
        if run.renamed:
            steps.write_first()
        for tool, option in run.chain:
            steps.run(tool, option)
        with clock.step("check"):
            if run.check:
                steps.check()
        with clock.step("link"):
            made = steps.last
            ensure_sound(made.proto, made.graph, f"what {run.label} made")
            result = replace(relink_graph(ancestor, made, run.label), after=str(run.target), idle=tuple(steps.idle))
        if not result.related:
            return replace(result, seconds=clock.seconds)
        with clock.step("write"):
            written = write_tagged(made, result.provenance, run.target, run.embedding)
    files, provenance = written.files, written.provenance
    return replace(result, path=run.target, files=files, provenance=provenance, seconds=clock.seconds)


class _Steps:
    """Tools one after the other, each on what the one before it made.

    last  the file that came out last
    idle  tools that changed nothing
    """

    def __init__(self, opened: TaggedFile, folder: Path, run: ToolRun, clock: Clock) -> None:
        self.last = self._first = opened
        self.idle: list[str] = []
        self._folder, self._run, self._feeds, self._clock = folder, run, run.feeds, clock
        self._count = 0

    def write_first(self) -> None:
        """Tools read files, not memory."""
        path = self._folder / "renamed.onnx"
        save_model(self.last, path)
        self.last = open_tagged(path)

    def run(self, tool: Tool, option: str) -> None:
        with self._clock.step(tool.name):
            target = self._folder / f"{self._count}.onnx"
            self._count += 1
            try:
                _call_tool(tool, option, self.last.path.resolve(), target, self._feeds)
            except ToolFailed as error:
                raise self._with_reason(error) from error.__cause__
            made = _open_result(target, tool)
            if are_same(self.last, made):
                self.idle.append(f"{tool.name}:{option}" if option else tool.name)
            self.last = made

    def check(self) -> None:
        tool = self._run.label
        try:
            failure = _find_failure(self.last.path, self._feeds[0])
        except ModuleNotFoundError as error:
            raise ExtraMissing(
                f"the check of what {tool} made needs {error.name}, which is not installed",
                "Install it: pip install 'modelexport[runtime]'; or leave the check out: --no-check.",
            ) from error
        if failure:
            raise self._with_reason(
                ToolFailed(
                    f"ONNX Runtime cannot run what {tool} made: {failure}",
                    f"{self._broken()} Nothing was written; --no-check writes it all the same.",
                )
            )

    def _broken(self) -> str:
        return self._run.chain[-1][0].remedy or "The tool broke the model."

    def _with_reason(self, error: ToolFailed) -> ToolFailed:
        """No tool is to blame for a file that could not be run before either."""
        try:
            before = _find_failure(self._first.path, self._feeds[0]) if self._feeds else ""
        except ModuleNotFoundError:
            return error
        if not before:
            return error
        reason = "" if before in error.message.replace(str(self._first.path), "it") else f" ONNX Runtime says: {before}"
        return ToolFailed(
            f"{error.message}\nONNX Runtime cannot run {self._first.path} either, as it was before.{reason}",
            f"Mend the file first, or give inputs that it takes: {self._run.giving}. Nothing was written; --no-check "
            "writes what the tool made all the same, if it made anything.",
        )


def _call_tool(tool: Tool, option: str, source: Path, target: Path, feeds: tuple[Feed, ...]) -> None:
    from modelexport.transform.tools.tool import Job

    if importlib.util.find_spec(tool.package) is None:
        raise _missing_package(tool, tool.package)
    try:
        # Some tools leave files where they are called when they fail.
        with _silence(), contextlib.chdir(target.parent):
            tool.run(Job(source, target, option, feeds))
    except ModelExportError:
        raise
    except ModuleNotFoundError as error:
        raise _missing_package(tool, error.name or str(error)) from error
    except Exception as error:
        raise ToolFailed(
            f"{tool.name} failed: {_first_lines(error)}",
            f"Nothing was written. The message is the tool's own. {tool.remedy or _suggest_cleanup(tool)}",
        ) from error
    if not target.is_file():
        raise ToolFailed(f"{tool.name} wrote nothing, and did not say why", "Nothing was written.")


def _suggest_cleanup(tool: Tool) -> str:
    return (
        "Some tools get along with what another one has cleaned up: "
        f"try modelexport run-tool FILE --tool onnxslim+{tool.name}."
    )


def _open_result(path: Path, tool: Tool) -> TaggedFile:
    try:
        return open_tagged(path)
    except FileUnreadable as error:
        raise ToolFailed(
            f"{tool.name} wrote a file that is no ONNX model: {error.message}", "Nothing was written."
        ) from error


def _missing_package(tool: Tool, package: str) -> ExtraMissing:
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


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return " ".join(lines[:_MESSAGE_LINES]) or type(error).__name__


def _find_failure(path: Path, feed: Feed) -> str:
    """Why ONNX Runtime cannot run a file; empty if it can. Raises ModuleNotFoundError if it is not there."""
    from modelexport.capture.onnxruntime.session import run_file

    try:
        run_file(path, feed)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # noqa: BLE001 - the runtime raises whatever it likes, and what it says is the answer
        return _first_lines(error).replace(str(path), "it")
    return ""
