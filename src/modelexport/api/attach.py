"""Attach: tag an ONNX file that another tool exported, and compare the strategies on such a file.

Nothing is known of how the file was made, so the model and the file both run on the same inputs, and values tell which
module call issued a node:

    model   encoder.layer.0.fc  ─► tensor t        recorded by hooks (capture/op_trace)
    file    MatMul_17           ─► value  v        run node by node (capture/onnxruntime/piecewise)
    t == v, so MatMul_17 is encoder.layer.0.fc's

Steps: prepare the model with inputs that the file takes, trace it, record signals, judge, write. Without a model, what
the file says of its modules itself is written down (`api/opening`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from modelexport.api.environment import Clock, Progress, need_torch, tool_versions
from modelexport.api.opening import note_source, open_file
from modelexport.api.options import ensure_known, parse_embedding, parse_tag_policy
from modelexport.api.signals import SignalOptions, record_signals
from modelexport.api.writing import write_tagged
from modelexport.attribute.judge import AttributionInput, AttributionResult, StrategyResult, attribute_graph
from modelexport.attribute.resolve import Agreement, agreement, disagreements
from modelexport.attribute.strategies import ALL, CATALOGUE, NAMES, strategies_named
from modelexport.errors import InputError, ModelMismatch, UserError
from modelexport.graph.file.reading import ModelFile
from modelexport.graph.file.tagged_file import TaggedFile, open_tagged
from modelexport.graph.file.writing import ensure_model_target
from modelexport.graph.index import FLOATS, index_model
from modelexport.graph.types import type_name
from modelexport.inspect.compare import Dispute, Score, Scores
from modelexport.record.model_source import ModelSource
from modelexport.record.provenance import Origin, Provenance
from modelexport.record.results.files import ExportResult
from modelexport.record.signals import ExporterScopes

if TYPE_CHECKING:
    import torch

    from modelexport.capture.export import PreparedModel


def attach(  # noqa: PLR0913 - the keywords are the command line's options
    file: str | Path,
    model: torch.nn.Module | str | Path | None,
    output: str | Path,
    *,
    inputs: object = None,
    task: str | None = None,
    strategy: str = ALL,
    dtype: str | None = None,
    device: str = "cpu",
    seed: int = 0,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    text: str | None = None,
    image: str | Path | None = None,
    input: Sequence[str] = (),
    input_specs: str | Path | None = None,
    torch_nn: str = "exceptions",
    torch_nn_exception: Sequence[str] = (),
    tag_policy: str = "default",
    keep: Sequence[str] = (),
    drop: Sequence[str] = (),
    embed: str = "full",
    names: str = "torch",
    strip_exporter_metadata: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Tag an ONNX file that any tool made from `model`. Nothing but metadata, and names if asked for, is changed.

    model     None: modules are what the file itself tells of, by metadata, names and structure; nothing is run, and
              keywords that are about a model are refused
    strategy  `all` asks every one of them, because none is known to suit a file of unknown making
    names     `hierarchical` renames nodes after their modules; the default leaves the names of the file
    The other keywords are those of `export`, and mean the same.
    """
    strategy = ensure_known("strategy", strategy, NAMES)
    policy = parse_tag_policy(tag_policy, torch_nn, torch_nn_exception, keep, drop)
    embedding = parse_embedding(embed, names, strip_exporter_metadata)
    target = Path(output)
    ensure_model_target(target)
    clock = Clock(progress)
    source = ModelSource(
        model, inputs, task, dtype, device, seed, trust_remote_code, allow_pickle, text, image, input, input_specs
    )
    if model is None:
        _ensure_no_model_options(source, strategy)
        tagged, provenance, notes = _read_file(Path(file), clock)
    else:
        tagged = open_tagged(Path(file))
        verdict = judge_file(tagged, source, strategy, clock)
        provenance, notes = verdict.provenance, verdict.notes
    with clock.step("write"):
        written = write_tagged(tagged, replace(provenance, policy=policy), target, embedding)
    return ExportResult(target, written.files, written.provenance, None, notes, clock.seconds)


def _ensure_no_model_options(source: ModelSource, strategy: str) -> None:
    """An option about the model would look as if it had been obeyed."""
    unset = ModelSource()
    pairs = ((item.name, getattr(source, item.name), getattr(unset, item.name)) for item in fields(ModelSource))
    given = [name for name, value, default in pairs if _is_given(value, default)]
    given += ["strategy"] if strategy != ALL else []
    if given:
        option = f"--{given[0].replace('_', '-')}"
        raise UserError(
            f"{option} is about a model, and none was given", f"Give one (-m MODEL), or leave {option} out."
        )


def _is_given(value: object, default: object) -> bool:
    # Inputs may be arrays, which cannot be compared; of what is repeatable, none at all is nothing.
    return value is not default if default is None else value != default and bool(value or default)


def _read_file(path: Path, clock: Clock) -> tuple[TaggedFile, Provenance, tuple[str, ...]]:
    """What a file says of its modules itself."""
    with clock.step("read"):
        tagged = open_file(path)
    if tagged.believed is None:
        raise UserError(
            f"{path} has a record already, and what the file says by itself is less than that",
            "Give the model to make another (-m MODEL), or remove it first: modelexport strip.",
        )
    return tagged, tagged.believed, note_source(tagged)


def compare_strategies(  # noqa: PLR0913 - the keywords are the command line's options
    file: str | Path,
    model: torch.nn.Module | str | Path,
    *,
    inputs: object = None,
    task: str | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    seed: int = 0,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    text: str | None = None,
    image: str | Path | None = None,
    input: Sequence[str] = (),
    input_specs: str | Path | None = None,
    progress: Progress | None = None,
) -> Scores:
    """What each strategy says of a file that was made from `model`, and where they contradict each other.

    The answers are those of all of them together; a strategy is scored by how its own claims stand to these.
    """
    clock = Clock(progress)
    source = ModelSource(
        model, inputs, task, dtype, device, seed, trust_remote_code, allow_pickle, text, image, input, input_specs
    )
    verdict = judge_file(open_tagged(Path(file)), source, ALL, clock)
    return score_strategies(verdict, str(file), clock.seconds["trace"] + clock.seconds["record"])


def judge_file(file: TaggedFile, source: ModelSource, strategy: str, clock: Clock) -> AttributionResult:
    """Judge a file by a strategy; a model that the file was not made from is an error.

    Two models of one class with other weights have the same modules, and names would fit either: only values tell.
    """
    need_torch("running a model")
    prepared = prepare_for_file(file, fit_dtype(file, source), clock)
    from modelexport.capture.export import trace_prepared

    with clock.step("trace"):
        run = trace_prepared(prepared)
    with clock.step("record"):
        # Values are recorded whatever the strategy: they tell whether the model is the right one.
        wanted = (CATALOGUE["htp"], *strategies_named(strategy))
        options = SignalOptions(own_file=False, as_given=prepared.entry is not None)
        recorded = record_signals(wanted, run, file, ExporterScopes(), options)
    overlap = recorded.overlap
    assert overlap is not None  # it is measured whenever values are recorded, and htp asks for these
    if not overlap.belongs:
        raise ModelMismatch(
            f"{file.path} was not made from {prepared.source}: {overlap} of the file were found in the model",
            "Give the model, with the weights, that the file was exported from.",
        )
    with clock.step("attribute"):
        origin = Origin(strategy, "unknown", file.graph.fingerprint, prepared.source, tool_versions())
        verdict = attribute_graph(AttributionInput(file.graph, run.hierarchy, recorded.signals, foreign=True), origin)
    return replace(verdict, notes=(*prepared.notes, *run.notes, *verdict.notes))


# ONNX has names of its own for the types of C.
_TORCH_NAMES = {"float": "float32", "double": "float64"}
_FLOAT_NAMES = frozenset(_TORCH_NAMES.get(name, name) for name in map(type_name, FLOATS))


def fit_dtype(file: TaggedFile, source: ModelSource) -> ModelSource:
    """The source, to be loaded in the type that the model had when the file was made, unless another is asked for.

    record     q_proj.weight float16, …     the model was exported in float16, whatever a tool made of the file since
    no record  initializers                 the type of most bytes of floats
    """
    if source.dtype is not None or not isinstance(source.model, str | Path):
        return source  # a live module has its type
    stored = file.embedded.provenance or file.sidecar.provenance
    sizes: Counter[str] = Counter()
    for module in () if stored is None else stored.hierarchy.modules.values():
        for tensor in module.parameters:
            sizes[_TORCH_NAMES.get(tensor.dtype, tensor.dtype)] += tensor.nbytes
    if not any(name in _FLOAT_NAMES for name in sizes):
        for weight in file.graph.initializers.values():
            sizes[_TORCH_NAMES.get(type_name(weight.dtype), type_name(weight.dtype))] += weight.nbytes
    floats = [name for name, _ in sizes.most_common() if name in _FLOAT_NAMES]
    return replace(source, file_dtype=floats[0]) if floats else source


def prepare_for_file(file: ModelFile, source: ModelSource, clock: Clock) -> PreparedModel:
    """The model, with inputs that the file can be run on as well.

    file    ids: int64[1, 128]       an axis of a fixed size
    model   makes ids of 1 x 16      so they are made again, as `--input ids=1x128:int64` would

    A file with a cache is a step of generation: then the model generates, and the cache is the one that it had.
    """
    from modelexport.capture.export import prepare_model
    from modelexport.capture.generation.file_entry import prepare_step, takes_more
    from modelexport.capture.generation.prepare import can_generate

    proto = file.proto

    # The file has one graph for one run: dynamic axes are the exporter's business.
    source = replace(source, static=True)
    try:
        prepared = prepare_model(source, clock.step)
    except InputError:
        stated = _stated_shapes(proto) if source.leaves_inputs_open else ()
        if not stated:
            raise
        prepared = prepare_model(replace(source, input=stated), clock.step)
    if takes_more(proto, prepared.inputs.tensors) and can_generate(prepared.module):
        return prepare_step(file, source, prepared, clock.step)
    fixed = tuple(_fixed_inputs(proto, prepared)) if source.leaves_inputs_open else ()
    if fixed:
        again = prepare_model(replace(source.with_module(prepared.module), input=fixed), clock.step)
        prepared = replace(again, source=prepared.source, notes=(*prepared.notes, *again.notes))
    return _without_untaken(proto, prepared)


def _stated_shapes(proto: onnx.ModelProto) -> tuple[str, ...]:
    """The inputs as the file takes them, as `--input` does: none where it does not say how many axes there are."""
    from modelexport.capture.onnxruntime.inputs import make_feed

    try:
        feed = make_feed(proto, index_model(proto), seed=0)
    except InputError:
        return ()
    return tuple(f"{name}={'x'.join(map(str, array.shape))}:{array.dtype}" for name, array in feed.items())


def _without_untaken(proto: onnx.ModelProto, prepared: PreparedModel) -> PreparedModel:
    """The model without inputs that the file does not take: there, they had their defaults.

    An exporter drops an input that nothing depends on. With it, the model might compute something else than the file.
    """
    from modelexport.capture.hierarchy import run_model
    from modelexport.capture.onnxruntime.session import assign_inputs

    arrays = prepared.inputs.arrays
    try:
        file_inputs = set(assign_inputs(proto, arrays).values())
        # Arguments that are no tensors (flags, None) are no inputs of a graph, and stay.
        untaken = [name for name in prepared.inputs.kwargs if name in arrays and name not in file_inputs]
        kept = {name: value for name, value in prepared.inputs.kwargs.items() if name not in untaken}
        reduced = replace(prepared.inputs, kwargs=kept)
        if untaken:
            run_model(prepared.module, reduced)
    except InputError:
        return prepared  # it needs them all, or the file wants what is not there: what is wrong shows when it is run
    note = (f"run without {', '.join(untaken)}: the file does not take them",) if untaken else ()
    return replace(prepared, inputs=reduced, notes=(*prepared.notes, *note))


def _fixed_inputs(proto: onnx.ModelProto, prepared: PreparedModel) -> Iterator[str]:
    """Shapes that the file insists on and the made inputs do not have, as `--input` takes them.

    An input of the file that has another name in the model is paired with the first tensor of as many axes.
    """
    tensors = dict(prepared.inputs.tensors)
    # Files of an IR version before 4 list their weights among the inputs.
    data = {tensor.name for tensor in proto.graph.initializer}
    for value in proto.graph.input:
        dims = value.type.tensor_type.shape.dim
        # Inputs that were renamed are told by their order.
        ranked = [name for name, tensor in tensors.items() if tensor.dim() == len(dims)]
        name = value.name if value.name in tensors else next(iter(ranked), None)
        if name is None or value.name in data or len(dims) != tensors[name].dim():
            continue
        tensor = tensors.pop(name)
        # A size of 0 is one that the file leaves open: protobuf's default for a dim_param.
        sizes = [dim.dim_value or size for dim, size in zip(dims, tensor.shape, strict=True)]
        if sizes != list(tensor.shape):
            yield f"{name}={'x'.join(map(str, sizes))}:{str(tensor.dtype).removeprefix('torch.')}"


def score_strategies(verdict: AttributionResult, path: str, recording: float) -> Scores:
    provenance, claims = verdict.provenance, [judged.claims.nodes for judged in verdict.judged]
    disputes = tuple(
        Dispute(entry, tuple(by_node[entry.key] for by_node in claims if entry.key in by_node))
        for entry in provenance.nodes.values()
        if disagreements(entry.attribution, provenance.hierarchy)
    )
    scores = tuple(score_strategy(judged, provenance) for judged in verdict.judged)
    return Scores(path, provenance, scores, disputes, recording, verdict.notes)


def score_strategy(judged: StrategyResult, answers: Provenance) -> Score:
    """How one strategy's claims stand to the answers: the same module, one around it, or another."""
    claims, nodes = judged.claims.nodes, answers.nodes
    standing = Counter(agreement(claim, nodes[key].attribution, answers.hierarchy) for key, claim in claims.items())
    confidence = Counter(claim.confidence for claim in claims.values())
    same, less, other_module = (standing[kind] for kind in (Agreement.SAME, Agreement.LESS, Agreement.OTHER))
    return Score(judged.strategy, confidence, same, less, other_module, judged.seconds)
