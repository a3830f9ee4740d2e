"""Quantize: ONNX Runtime's quantizers, told by module what to leave in float; what comes out keeps its record.

    quantize("bert.onnx", "int8.onnx", exclude="module=encoder.layer.0")

Queries become names of nodes, because that is what a quantizer is told; nodes without a usable name get one first.
https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from modelexport.api.asked_and_done import NOTHING_QUANTIZED, AskedQuantization, QuantizationCheck
from modelexport.api.environment import Clock, Progress
from modelexport.api.keywords import QuantizeKeywords
from modelexport.api.opening import ensure_runnable, open_file
from modelexport.api.options import as_sequence, ensure_known, parse_embedding
from modelexport.api.package import Package, find_package, not_a_package
from modelexport.api.package_tools import (
    PackageTarget,
    ToolOptions,
    ensure_one_component,
    make_component_feeds,
    run_on_package,
)
from modelexport.api.run_tool import ToolRun, run_tools
from modelexport.api.writing import ensure_apart
from modelexport.capture.onnxruntime.calibration import calibration_feeds
from modelexport.capture.onnxruntime.generated_feeds import sample_steps
from modelexport.capture.onnxruntime.inputs import SampleRequest, describe_made
from modelexport.errors import ExtraMissing, UnknownName, UserError, quote_argument, some_of
from modelexport.graph.file.metadata import EmbedOptions, ensure_flat
from modelexport.graph.file.tagged_file import TaggedFile, open_tagged
from modelexport.graph.file.writing import ensure_model_target
from modelexport.graph.quantized import QUANTIZING
from modelexport.inspect.query.answer import find_nodes
from modelexport.record.lineage import is_changed_by
from modelexport.record.provenance import NodeEntry
from modelexport.record.results.files import PackageChange, QuantizeResult, Unmet
from modelexport.transform.select.catalogue import ORT_EXCLUDE, names_of
from modelexport.transform.select.dialect import Selection, name_problems
from modelexport.transform.select.dialect import check as check_selection
from modelexport.transform.tools import quantizers
from modelexport.transform.tools.quantizers import Quantization
from modelexport.transform.tools.tool import CLEANER

if TYPE_CHECKING:
    from modelexport.transform.tools.tool import Feed

# Weights of four bits that share a scale. https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
_USUAL_BLOCK = 32
_MOST_REPORTED = 4


@overload
def quantize(file: str | Path, output: str | Path, **options: Unpack[QuantizeKeywords]) -> QuantizeResult | Any: ...
@overload
def quantize(
    file: Package, output: str | Path, **options: Unpack[QuantizeKeywords]
) -> PackageChange[QuantizeResult]: ...
def quantize(  # noqa: PLR0913 - the keywords are the command line's options
    file: str | Path | Package,
    output: str | Path,
    *,
    exclude: str | Sequence[str] = (),
    include: str | Sequence[str] = (),
    static: bool = False,
    calibration: str | Path | Sequence[str | Path] = (),
    quant_format: str | None = None,
    method: str | None = None,
    weight_type: str | None = None,
    activation_type: str | None = None,
    op_types: Sequence[str] = (),
    per_channel: bool = False,
    reduce_range: bool = False,
    block_size: int | None = None,
    input: Sequence[str] = (),
    samples: int = 4,
    seed: int = 0,
    embed: str = "full",
    check: bool = True,
    report: bool = False,
    components: Sequence[str] = (),
    force: bool = False,
    progress: Progress | None = None,
) -> QuantizeResult | PackageChange[QuantizeResult]:
    """Quantize a file with ONNX Runtime, and carry its record to what comes out.

    file         or a package: every component is quantized, and what comes out is a package for the same consumer
    exclude      queries; what any of them means is left in float; modules named by path or class with all inside
    include      queries, in the same way; nothing but what one of them means is quantized
    static       activations too, by what they are while the model runs
    calibration  .npz files with samples for that; made where they are left out
    quant_format qdq (the default) or qoperator, for a static one
    method       minmax (the default), entropy, percentile or distribution, for a static one
    weight_type  int8 by default; int4 and uint4 without `static`: matrix products become MatMulNBits
    block_size   how many weights share a scale, for int4 and uint4 without `static`; 32 if left out
    report       compare with `file` module by module
    components   of a package, the names of those that are quantized; others are copied
    force        of a package: write into a folder that is not empty
    """
    types = tuple(as_sequence(op_types, "op_types"))
    settings = _settings(static, quant_format, method, weight_type, activation_type)
    settings = replace(settings, per_channel=per_channel, reduce_range=reduce_range, op_types=types)
    settings = _with_block(settings, block_size)
    data = tuple(Path(path) for path in as_sequence(calibration, "calibration"))
    _refuse_unused_inputs(bool(data), bool(input), static, runs=static or check or report)
    if samples < 1:
        raise UserError(f"samples is {samples}", "Give 1 or more.")
    queries = tuple(as_sequence(exclude, "exclude")), tuple(as_sequence(include, "include"))
    embedding, made = parse_embedding(embed, "torch", False), SampleRequest(samples, seed, tuple(input))
    request = _QuantizeRequest(settings, static, *queries, data, made, embedding, check, report)
    if (package := find_package(file)) is not None:
        target = PackageTarget(Path(output), tuple(components), weight_type or "int8", force)
        return _quantize_package(package, request, target, progress)
    if components:
        raise not_a_package(file, components[0])
    return _quantize_file(Path(file), request, Path(output), progress)


def _with_block(settings: Quantization, block_size: int | None) -> Quantization:
    """The size of blocks as asked for; UserError where weights are not quantized in blocks."""
    if block_size is not None and not settings.is_blockwise:
        raise UserError(
            f"--block-size {block_size} is for weights of four bits",
            "Add --weight-type int4 or uint4 without --static, or leave --block-size out.",
        )
    settings = replace(settings, block=_USUAL_BLOCK if block_size is None else block_size)
    if settings.is_blockwise:
        quantizers.ensure_blockwise(settings)
    return settings


def _refuse_unused_inputs(has_data: bool, has_shapes: bool, static: bool, *, runs: bool) -> None:
    """What nobody would look at, and whoever gave it thinks is obeyed."""
    if has_data and not static:
        raise UserError("a dynamic quantizer looks at no samples", "Add --static, or leave --calibration out.")
    if has_data and has_shapes:
        raise UserError("--input is for inputs that are made, and --calibration gives them", "Leave one of them out.")
    if has_shapes and not runs:
        raise UserError("--input is for runs of the file, and nothing is run", "Leave --input or --no-check out.")


@dataclass(frozen=True)
class _QuantizeRequest:
    """What is asked for; see `quantize`.

    data   files with samples
    made   inputs that are made where there are no files
    feeds  inputs that a package has made for one of its files
    """

    settings: Quantization
    static: bool
    exclude: tuple[str, ...]
    include: tuple[str, ...]
    data: tuple[Path, ...]
    made: SampleRequest
    embedding: EmbedOptions
    check: bool
    report: bool
    feeds: tuple[Feed, ...] = ()

    @property
    def wants_inputs(self) -> bool:
        """A dynamic quantizer that is not checked needs none, and making some may fail."""
        return self.static or self.check or self.report

    def make_inputs(self, opened: TaggedFile) -> tuple[Feed, ...]:
        if self.feeds or not self.wants_inputs:
            return self.feeds
        # A calibration file holds many samples along its first axis, a file of inputs is a single one.
        return tuple(calibration_feeds(opened.proto, self.data) if self.data else sample_steps(opened, self.made))


def _quantize_package(
    package: Package, request: _QuantizeRequest, target: PackageTarget, progress: Progress | None
) -> PackageChange[QuantizeResult]:
    """Every component; a cache is one that the package itself has made."""
    ensure_one_component(package, target.only, "--calibration", request.data)
    # Whoever gives shapes wants inputs in them, and a run of the package would have others.
    is_made = request.wants_inputs and not request.data and not request.made.shapes
    feeds = make_component_feeds(package, request.made.count, request.made.seed) if is_made else {}

    def quantize_component(file: Path, path: Path, options: ToolOptions) -> QuantizeResult:
        asked = replace(
            request,
            settings=replace(request.settings, op_types=options.op_types),
            exclude=options.exclude,
            include=options.include,
            made=replace(request.made, shapes=options.input),
            feeds=feeds.get(file, ()),
        )
        return _quantize_file(file, asked, path, progress)

    options = ToolOptions(request.exclude, request.include, request.settings.op_types, request.made.shapes)
    change = run_on_package(package, target, options, quantize_component)
    return change if target.only else _excuse_components(change)


def _excuse_components(change: PackageChange[QuantizeResult]) -> PackageChange[QuantizeResult]:
    """That some of the components have nothing to quantize is worth a note, unless all of them do."""
    idle = [name for name, made in change.components.items() if any(_is_idle(item) for item in made.unmet)]
    if len(idle) == len(change.components):
        return change
    components = dict(change.components)
    for name in idle:
        made = components[name]
        kept = tuple(item for item in made.unmet if not _is_idle(item))
        relinked = replace(made.relinked, unmet=kept)
        components[name] = replace(made, relinked=relinked, notes=(*made.notes, NOTHING_QUANTIZED))
    return replace(change, components=components)


def _is_idle(item: Unmet) -> bool:
    return item.done == NOTHING_QUANTIZED


def _quantize_file(path: Path, request: _QuantizeRequest, target: Path, progress: Progress | None) -> QuantizeResult:
    ensure_model_target(target)
    clock = Clock(progress)
    with clock.step("read"):
        opened = open_file(path)
        ensure_runnable(opened)
        ensure_apart(target, path)
        ensure_flat(opened.proto, str(path))  # quantizers do not look into functions
        job = _Job(opened, request.settings)
        job.choose(request.exclude, request.include)
        feeds = request.make_inputs(opened)
    if request.static and not request.data:
        job.notes.append(f"calibrated on {len(feeds)} made-up inputs: give samples of real ones with --calibration")
    tool = quantizers.make_quantizer(job.settings)
    tool = replace(tool, remedy=tool.remedy or _propose_remedy(opened, job.settings))
    giving = "--calibration FILE.npz" if request.static else ""
    made = describe_made(feeds[0]) if feeds and not request.data and not request.feeds else ""
    run = ToolRun([(tool, "")], tool.name, target, request.embedding, feeds, request.check, job.renamed, giving, made)
    result = QuantizeResult(run_tools(opened, run, clock), job.excluded, job.included, tuple(job.notes))
    written = result.path
    if written is None:
        return result
    done = QuantizationCheck(opened, open_tagged(written), job.asked())
    result = replace(
        result,
        relinked=replace(result.relinked, unmet=(*result.unmet, *done.find_unmet())),
        notes=(*result.notes, *done.note_float_nodes(), *done.note_float_weights()),
    )
    if not request.report:
        return result
    from modelexport.api.verify import verify

    inputs = [dict(feed) for feed in feeds[:_MOST_REPORTED]]
    return replace(result, report=verify(written, against=path, inputs=inputs, progress=progress))


def _propose_remedy(opened: TaggedFile, settings: Quantization) -> str:
    """What to try where the quantizer fails. What cannot help is not proposed: it would fail once more."""
    op_types = Counter(node.op_type for node in opened.graph.nodes)
    quantized = sum(count for op_type, count in op_types.items() if op_type in QUANTIZING | {"DequantizeLinear"})
    if quantized:
        nodes = "1 node quantizes or dequantizes" if quantized == 1 else f"{quantized} nodes quantize or dequantize"
        return f"The file is quantized already ({nodes}): quantize the one that it was made from."
    # A quantizer that is not installed is not there to fail.
    if find_spec("onnxruntime") and not op_types.keys() & quantizers.quantizable_operators(settings):
        return "The file has no node of a kind that this quantizer quantizes."
    leave_out = "Leave out what it stumbles over (--exclude QUERY)"
    if is_changed_by((entry.attribution for entry in opened.record.nodes.values()), CLEANER):
        return f"{leave_out}."
    return (
        f"{leave_out}, or clean the file up first: "
        f"modelexport run-tool {quote_argument(opened.path)} --tool {CLEANER} -o CLEAN, and quantize CLEAN."
    )


def _settings(
    static: bool, form: str | None, method: str | None, weight_type: str | None, activation_type: str | None
) -> Quantization:
    # A dynamic quantizer computes scales at run time, so there is no format, method or type of activations to choose.
    for option, value in (("--quant-format", form), ("--method", method), ("--activation-type", activation_type)):
        if value is not None and not static:
            raise UserError(f"{option} {value} is for static quantization", f"Add --static, or leave {option} out.")
    return Quantization(
        ensure_known("format", form or "qdq", list(quantizers.FORMS)) if static else "",
        weight_type=ensure_known("type", weight_type, list(quantizers.TYPES)) if weight_type else "",
        activation_type=ensure_known("type", activation_type, list(quantizers.TYPES)) if activation_type else "",
        method=ensure_known("method", method, list(quantizers.METHODS)) if method else "",
    )


class _Job:
    """What the quantizer is told, and what is said about it.

    notes     what the user should know of the choice
    excluded  the nodes that stay in float, of all queries together
    included  the only ones that are quantized; None if nobody asked for that
    renamed  whether nodes had to be given names, because it goes by these
    """

    def __init__(self, opened: TaggedFile, settings: Quantization) -> None:
        self.settings = settings
        self.renamed = False
        self.notes: list[str] = []
        self.excluded: tuple[NodeEntry, ...] = ()
        self.included: tuple[NodeEntry, ...] | None = None
        self._queries: dict[str, dict[str, tuple[NodeEntry, ...]]] = {"exclude": {}, "include": {}}
        self._opened = opened
        there = {node.op_type for node in opened.graph.nodes}
        for name in settings.op_types:
            if name not in there:
                raise UnknownName("operator of the file", name, sorted(there))

    def choose(self, exclude: Sequence[str], include: Sequence[str]) -> None:
        self.excluded = self._meant("exclude", exclude)
        self.included = self._meant("include", include) if include else None
        left_over = {entry.key for entry in self.included or ()} - {entry.key for entry in self.excluded}
        if include and not left_over:
            raise UserError("nothing is left to quantize: all that is included is excluded as well", "Exclude less.")
        if not exclude and not include:
            return
        self._give_names()
        self.settings = replace(
            self.settings,
            exclude=self._names(self.excluded),
            include=self._names(entry for entry in self.included or () if entry.key in left_over),
        )
        self._refuse_what_is_never_quantized()

    def asked(self) -> AskedQuantization:
        """For the check of what came out."""
        keys = {
            option: {text: frozenset(entry.key for entry in entries) for text, entries in queries.items()}
            for option, queries in self._queries.items()
        }
        return AskedQuantization(self.settings, keys["include"], keys["exclude"])

    def _meant(self, option: str, queries: Sequence[str]) -> tuple[NodeEntry, ...]:
        """Who names a module wants all that is inside of it in float, and not its own nodes alone."""
        graph = self._opened.provenance_with_edges
        meant = {text: tuple(find_nodes(text, graph, whole_modules=True).nodes) for text in queries}
        self._queries[option] = meant
        return tuple({entry.key: entry for entries in meant.values() for entry in entries}.values())

    def _selection(self, entries: Sequence[NodeEntry] | Iterator[NodeEntry]) -> Selection:
        graph = self._opened.graph
        return Selection(graph, (tuple(graph.by_key[entry.key] for entry in entries),))

    def _give_names(self) -> None:
        groups = [self._selection(group) for group in (self.excluded, self.included or ()) if group]
        # ONNX lets several nodes have one name, or none: the quantizer would leave out too much, or nothing.
        if any(True for group in groups for _ in name_problems(group, ORT_EXCLUDE)):
            self._opened, count = self._opened.with_names(ORT_EXCLUDE.refuses)
            self.notes.append(f"{count} nodes without a name of their own were given one: quantizers go by names")
            self.renamed = True

    def _names(self, entries: Sequence[NodeEntry] | Iterator[NodeEntry]) -> tuple[str, ...]:
        selection = self._selection(entries)
        check_selection(selection, ORT_EXCLUDE)
        return names_of(selection)

    def _kinds(self) -> frozenset[str]:
        """Operators that the quantizer quantizes."""
        try:
            return frozenset(self.settings.op_types) or quantizers.quantizable_operators(self.settings)
        except ImportError as error:
            remedy = "Install it: pip install 'modelexport[runtime]'."
            raise ExtraMissing.of_import("quantizing", "onnxruntime", error, remedy) from error

    def _refuse_what_is_never_quantized(self) -> None:
        """An error for what is to be quantized and cannot be; what is to stay in float and would anyway is a note."""
        kinds = self._kinds()
        for text, entries in self._queries["include"].items():
            if not any(entry.op_type in kinds for entry in entries):
                there = some_of(sorted({entry.op_type for entry in entries}))
                raise UserError(
                    f"none of the {len(entries)} nodes that --include {text} means is of a kind that this quantizer "
                    f"quantizes: {there}",
                    f"It quantizes {some_of(sorted(kinds), 12)}. Try the query with `modelexport query`.",
                )
        if self.excluded and not any(entry.op_type in kinds for entry in self.excluded):
            self.notes.append(
                f"none of the {len(self.excluded)} nodes that are excluded is of a kind that this quantizer quantizes"
            )
