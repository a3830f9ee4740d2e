"""Run tool: an optimizer, converter or quantizer on a file, and its record carried to what comes out.

    run_tool("bert.onnx", "onnxslim+ort:extended", "out.onnx")

Tools run one after the other on temporary files, silenced; the last file is run once in ONNX Runtime and relinked to
the first. Nothing is written if a tool fails, or if what it made has nothing to do with the file.
"""

from __future__ import annotations

import importlib.util
import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from modelexport.api.asked_and_done import check_tool
from modelexport.api.environment import Clock, Progress
from modelexport.api.keywords import RunToolKeywords
from modelexport.api.opening import ensure_runnable, note_source, open_file
from modelexport.api.options import parse_embedding
from modelexport.api.package import Package, find_package, not_a_package
from modelexport.api.relink import relink_graph
from modelexport.api.tool_call import call_tool, find_failure
from modelexport.api.writing import ensure_apart, write_tagged
from modelexport.errors import ExtraMissing, FileUnreadable, ModelExportError, ToolFailed, UserError, quote_argument
from modelexport.graph.file.external import KEEP_DATA, explain_missing_data
from modelexport.graph.file.metadata import EmbedOptions, ensure_flat
from modelexport.graph.file.tagged_file import TaggedFile, find_ancestor, open_tagged
from modelexport.graph.file.writing import ensure_model_target, save_model
from modelexport.graph.soundness import are_same, ensure_sound
from modelexport.record.lineage import is_changed_by
from modelexport.record.results.files import PackageChange, RelinkResult, ToolInfo, Unmet

if TYPE_CHECKING:
    from modelexport.transform.tools.tool import Feed, Tool


@overload
def run_tool(
    file: str | Path, tool: str, output: str | Path, **options: Unpack[RunToolKeywords]
) -> RelinkResult | Any: ...
@overload
def run_tool(
    file: Package, tool: str, output: str | Path, **options: Unpack[RunToolKeywords]
) -> PackageChange[RelinkResult]: ...
def run_tool(  # noqa: PLR0913 - the keywords are the command line's options
    file: str | Path | Package,
    tool: str,
    output: str | Path,
    *,
    inputs: str | Path | None = None,
    input: Sequence[str] = (),
    samples: int = 4,
    seed: int = 0,
    embed: str = "full",
    check: bool = True,
    components: Sequence[str] = (),
    force: bool = False,
    progress: Progress | None = None,
) -> RelinkResult | PackageChange[RelinkResult]:
    """Run a tool, or several one after the other (`int8+ort:all`), and carry the record to what comes out.

    inputs, input  for quantizers that look at the model while it runs, and for the check; made where they are left out
    samples        how many inputs are made
    check          whether ONNX Runtime can run what the tool made
    components     of a package, the names of those that the tool runs on; others are copied
    force          of a package: write into a folder that is not empty
    """
    from modelexport.transform.tools.catalogue import parse_chain

    if samples < 1:
        raise UserError(f"samples is {samples}", "Give 1 or more.")
    request = _ToolRequest(
        tool,
        parse_chain(tool),
        parse_embedding(embed, "torch", False),
        tuple(input),
        None if inputs is None else Path(inputs),
        samples,
        seed,
        check,
    )
    clock = Clock(progress)
    if (package := find_package(file)) is not None:
        return _run_on_package(package, request, Path(output), (tuple(components), force), clock)
    if components:
        raise not_a_package(file, components[0])
    return _run_on_file(Path(file), request, Path(output), clock)


@dataclass(frozen=True)
class _ToolRequest:
    """What is asked for; see `run_tool`.

    feeds  inputs that somebody has made already, in place of those that are made here
    """

    label: str
    chain: Sequence[tuple[Tool, str]]
    embedding: EmbedOptions
    input: tuple[str, ...]
    inputs: Path | None
    samples: int
    seed: int
    check: bool
    feeds: tuple[Feed, ...] = ()

    @property
    def wants_inputs(self) -> bool:
        return self.check or any(step.calibrates for step, _ in self.chain)


def _run_on_package(
    package: Package, request: _ToolRequest, output: Path, where: tuple[tuple[str, ...], bool], clock: Clock
) -> PackageChange[RelinkResult]:
    """The tool on every component; a cache is one that the package itself has made."""
    from modelexport.api.package_tools import (
        PackageTarget,
        ToolOptions,
        ensure_one_component,
        find_number_type,
        make_component_feeds,
        run_on_package,
    )

    components, force = where
    ensure_one_component(package, components, "--inputs", request.inputs)
    target = PackageTarget(output, components, find_number_type(request.label), force)
    # The same as in quantize: given inputs and shapes go before steps of the package.
    is_made = request.wants_inputs and not request.input and request.inputs is None
    feeds = make_component_feeds(package, request.samples, request.seed) if is_made else {}

    def run_on_component(file: Path, path: Path, options: ToolOptions) -> RelinkResult:
        asked = replace(request, input=options.input, feeds=feeds.get(file, ()))
        return _run_on_file(file, asked, path, clock)

    return run_on_package(package, target, ToolOptions(input=request.input), run_on_component)


def _run_on_file(path: Path, request: _ToolRequest, target: Path, clock: Clock) -> RelinkResult:
    from modelexport.capture.onnxruntime.generated_feeds import sample_steps
    from modelexport.capture.onnxruntime.inputs import SampleRequest, describe_made

    ensure_model_target(target)
    with clock.step("read"):
        opened = open_file(path)
        ensure_runnable(opened)
        ensure_apart(target, path)
        # Most tools inline functions or leave them alone; either way the modules inside could not be followed.
        ensure_flat(opened.proto, str(path))
        # Inputs are made before the first tool runs: the check and every calibrating tool get the same ones.
        given = () if request.inputs is None else (request.inputs,)
        sampled = SampleRequest(request.samples, request.seed, request.input, given)
        feeds = request.feeds
        if not feeds and request.wants_inputs:
            feeds = tuple(sample_steps(opened, sampled))
    made = describe_made(feeds[0]) if feeds and not given and not request.feeds else ""
    run = ToolRun(request.chain, request.label, target, request.embedding, feeds, request.check, made=made)
    return run_tools(opened, run, clock)


def list_tools() -> tuple[ToolInfo, ...]:
    """All tools that `run_tool` knows, and whether they are installed."""
    from modelexport.transform.tools.catalogue import TOOLS

    def describe(tool: Tool) -> ToolInfo:
        options = f":{'|'.join(tool.options)}" if tool.options else ":…" if tool.any_option else ""
        installed = importlib.util.find_spec(tool.package) is not None
        return ToolInfo(f"{tool.name}{options}", tool.does, tool.makes, tool.package, tool.extra, installed)

    return tuple(map(describe, TOOLS.values()))


@dataclass(frozen=True)
class ToolRun:
    """What is to be done with a file.

    chain     tools with their options, in the order in which they run
    label     what they are called together, for messages and for the evidence
    feeds     inputs, for tools that look at the model while it runs and for the check
    check     whether ONNX Runtime can run what comes out
    renamed   whether nodes were given other names since the file was opened
    giving    the option with which whoever asked for this can give inputs themselves; empty if there is none
    made      the inputs as options of the command line, if they were made up
    """

    chain: Sequence[tuple[Tool, str]]
    label: str
    target: Path
    embedding: EmbedOptions
    feeds: tuple[Feed, ...]
    check: bool = True
    renamed: bool = False
    giving: str = "--inputs FILE.npz"
    made: str = ""


def run_tools(opened: TaggedFile, run: ToolRun, clock: Clock) -> RelinkResult:
    """Run a chain of tools, check and relink what comes out, and write it.

        bert.onnx ─► onnxslim ─► 0.onnx ─► ort:extended ─► 1.onnx ─► run once ─► relinked to bert.onnx ─► out.onnx

    The last file is linked to the first one, not step by step.
    """
    with clock.step("read"):
        ancestor = find_ancestor(opened)
    with tempfile.TemporaryDirectory() as folder:
        steps = _Steps(opened, Path(folder), run, clock)
        # Tools read files, and the names that a quantizer is told are in memory so far.
        if run.renamed:
            renamed = Path(folder) / "renamed.onnx"
            save_model(opened, renamed)
            steps.last = open_tagged(renamed)
        for tool, option in run.chain:
            steps.run(tool, option)
        with clock.step("check"):
            if run.check:
                steps.check()
        with clock.step("link"):
            last = steps.last
            ensure_sound(last.proto, last.graph, f"what {run.label} made")
            result = replace(relink_graph(ancestor, last, run.label), after=str(run.target), idle=tuple(steps.idle))
            result = replace(result, notes=note_source(opened), unmet=tuple(steps.unmet))
        if not result.related:
            return replace(result, seconds=clock.seconds)
        with clock.step("write"):
            written = write_tagged(last, result.provenance, run.target, run.embedding)
    files, provenance = written.files, written.provenance
    return replace(result, path=run.target, files=files, provenance=provenance, seconds=clock.seconds)


class _Steps:
    """
    last  the file that came out last
    idle  tools that changed nothing
    unmet what tools were to do, and did not
    """

    def __init__(self, opened: TaggedFile, folder: Path, run: ToolRun, clock: Clock) -> None:
        self.last = self._first = opened
        self.idle: list[str] = []
        self.unmet: list[Unmet] = []
        self._folder, self._run, self._feeds, self._clock = folder, run, run.feeds, clock
        self._numbers = itertools.count()

    def run(self, tool: Tool, option: str) -> None:
        with self._clock.step(tool.name):
            target = self._folder / f"{next(self._numbers)}.onnx"
            try:
                call_tool(tool, option, self.last.path.resolve(), target, self._feeds)
            except ToolFailed as error:
                if missing := explain_missing_data(self._first.proto, self._first.path.parent):
                    raise FileUnreadable(f"{tool.name} cannot read {self._first.path}: {missing}", KEEP_DATA) from error
                explained = self._with_reason(error)
                raise (self._with_cleaning(error, tool) if explained is error else explained) from error.__cause__
            try:
                result = open_tagged(target)
            except FileUnreadable as error:
                message = f"{tool.name} wrote a file that is no ONNX model: {error.message}"
                raise ToolFailed(message, "Nothing was written.") from error
            self.unmet += check_tool(self.last, result, tool, option)
            if are_same(self.last, result):
                self.idle.append(f"{tool.name}:{option}" if option else tool.name)
            self.last = result

    def _with_cleaning(self, error: ToolFailed, tool: Tool) -> ToolFailed:
        """With the advice to clean the file up first, where that was tried and helps.

        Not where a remedy is known, or for a file that was cleaned up before: a second time changes nothing.
        """
        from modelexport.transform.tools.tool import CLEANER

        entries = self._first.record.nodes.values()
        has_run = CLEANER in (step.name for step, _ in self._run.chain)
        if tool.remedy or has_run or is_changed_by((entry.attribution for entry in entries), CLEANER):
            return error
        if not self._works_cleaned(tool):
            return error
        command = f"modelexport run-tool {quote_argument(self._first.path)} --tool {CLEANER}+{self._run.label} -o FILE"
        return ToolFailed(
            error.message, f"{error.hint} It gets along with what another tool has cleaned up: {command}."
        )

    def _works_cleaned(self, failed: Tool) -> bool:
        """Whether the chain comes past the tool that failed if it starts with the cleaner."""
        from modelexport.transform.tools.catalogue import parse_chain
        from modelexport.transform.tools.tool import CLEANER

        source = self._first.path.resolve()
        for step, option in (*parse_chain(CLEANER), *self._run.chain):
            target = self._folder / f"tried.{next(self._numbers)}.onnx"
            try:
                call_tool(step, option, source, target, self._feeds)
            except ModelExportError:
                return False
            if step is failed:
                return True
            source = target
        return False

    def check(self) -> None:
        """Run what came out once: tools may write a graph that is valid ONNX and that no runtime takes."""
        tool = self._run.label
        try:
            failure = find_failure(self.last.path, self._feeds[0])
        except ImportError as error:
            remedy = "Install it: pip install 'modelexport[runtime]'; or leave the check out: --no-check."
            check = f"the check of what {tool} made"
            raise ExtraMissing.of_import(check, "onnxruntime", error, remedy) from error
        if failure:
            remedy = self._run.chain[-1][0].remedy or "The tool broke the model."
            hint = f"{remedy} Nothing was written; --no-check writes it all the same."
            raise self._with_reason(ToolFailed(f"ONNX Runtime cannot run what {tool} made: {failure.text}", hint))

    def _with_reason(self, error: ToolFailed) -> ToolFailed:
        """No tool is to blame for a file that could not be run before either."""
        try:
            before = find_failure(self._first.path, self._feeds[0]) if self._feeds else None
        except ImportError:
            return error
        if before is None:
            return error
        path, run, written = self._first.path, self._run, "Nothing was written; --no-check writes what the tool made "
        written += "all the same, if it made anything."
        is_told = before.text in error.message.replace(str(path), "it")
        if before.is_loaded and run.made:
            # Most likely it is the inputs: they come first, before all that the runtime has to say.
            more = "" if is_told else f"\n{error.message}"
            themselves = f", or the inputs themselves: {run.giving}" if run.giving else ""
            return ToolFailed(
                f"ONNX Runtime cannot run {path} on inputs that were made up ({run.made}): {before.text}{more}",
                f"Give other shapes in the same way{themselves}. {written}",
            )
        reason = "" if is_told else f" ONNX Runtime says: {before.text}"
        return ToolFailed(
            f"{error.message}\nONNX Runtime cannot run {path} either, as it was before.{reason}",
            f"Mend the file first, or give inputs that it takes: {run.giving or '--input NAME=SHAPE'}. {written}",
        )
