"""Attach: tag an ONNX file that another tool exported, and compare the strategies on such a file.

Nothing is known of how the file was made, so the model and the file both run on the same inputs, and values tell which
module call issued a node:

    model   encoder.layer.0.fc  ─► tensor t        recorded by hooks (capture/op_trace)
    file    MatMul_17           ─► value  v        run node by node (capture/onnxruntime/piecewise)
    t == v, so MatMul_17 is encoder.layer.0.fc's

Steps: prepare the model with inputs that the file takes, trace it, record signals, judge, write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from modelexport.api.environment import Clock, Progress, need_torch, tool_versions
from modelexport.api.options import ensure_known, parse_embedding, parse_tag_policy
from modelexport.api.signals import Recorded, SignalOptions, record_signals
from modelexport.api.writing import write_tagged
from modelexport.attribute.judge import AttributionInput, AttributionResult, StrategyResult, attribute_graph
from modelexport.attribute.resolve import Agreement, agreement, disagreements
from modelexport.attribute.strategies import ALL, CATALOGUE, NAMES, strategies_named
from modelexport.errors import InputError, ModelMismatch
from modelexport.graph.file.tagged_file import TaggedFile, open_tagged
from modelexport.graph.file.writing import ensure_model_target
from modelexport.graph.index import index_model
from modelexport.inspect.compare import Dispute, Score, Scores
from modelexport.record.model_source import ModelSource
from modelexport.record.provenance import NodeEntry, Origin, Provenance
from modelexport.record.results.files import ExportResult
from modelexport.record.signals import ExporterScopes

if TYPE_CHECKING:
    import torch

    from modelexport.capture.export import PreparedModel

_UNKNOWN = "unknown"


def attach(  # noqa: PLR0913 - the keywords are the command line's options
    file: str | Path,
    model: torch.nn.Module | str | Path,
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
    """Tag an ONNX file that any tool made from `model`. Nothing but metadata, and names if asked for, is changed."""
    # A misspelt strategy is said before anything is opened.
    strategy = ensure_known("strategy", strategy, NAMES)
    policy = parse_tag_policy(tag_policy, torch_nn, torch_nn_exception, keep, drop)
    embedding = parse_embedding(embed, names, strip_exporter_metadata)
    target = Path(output)
    ensure_model_target(target)
    clock = Clock(progress)
    source = ModelSource(
        model, inputs, task, dtype, device, seed, trust_remote_code, allow_pickle, text, image, input, input_specs
    )
    tagged = open_tagged(Path(file))
    verdict = judge_file(tagged, source, strategy, clock)
    with clock.step("write"):
        provenance = replace(verdict.provenance, policy=policy)
        written = write_tagged(tagged, provenance, target, embedding)
    return ExportResult(target, written.files, written.provenance, None, verdict.notes, clock.seconds)


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
    """What each strategy says of a file that was made from `model`, and where they contradict each other."""
    clock = Clock(progress)
    source = ModelSource(
        model, inputs, task, dtype, device, seed, trust_remote_code, allow_pickle, text, image, input, input_specs
    )
    verdict = judge_file(open_tagged(Path(file)), source, ALL, clock)
    return score_strategies(verdict, str(file), clock.seconds["trace"] + clock.seconds["record"])


def judge_file(file: TaggedFile, source: ModelSource, strategy: str, clock: Clock) -> AttributionResult:
    """Judge a file by a strategy; a model that the file was not made from is an error."""
    need_torch("running a model")
    prepared = prepare_for_file(file.proto, source, clock)
    from modelexport.capture.export import trace_model

    with clock.step("trace"):
        run = trace_model(prepared.module, prepared.inputs)
    graph = file.graph
    with clock.step("record"):
        # Values are recorded whatever the strategy: they tell whether the model is the right one.
        wanted = (CATALOGUE["htp"], *strategies_named(strategy))
        recorded = record_signals(wanted, run, file, ExporterScopes(), SignalOptions(own_file=False))
    _check_overlap(file, prepared.source, recorded)
    with clock.step("attribute"):
        origin = Origin(strategy, _UNKNOWN, graph.fingerprint, prepared.source, tool_versions())
        verdict = attribute_graph(AttributionInput(graph, run.hierarchy, recorded.signals, foreign=True), origin)
    return replace(verdict, notes=(*prepared.notes, *run.notes, *verdict.notes))


def prepare_for_file(proto: onnx.ModelProto, source: ModelSource, clock: Clock) -> PreparedModel:
    """The model, with inputs that the file can be run on as well."""
    from modelexport.capture.export import prepare_model

    # The file has one graph for one run: dynamic axes are the exporter's business.
    source = replace(source, static=True)
    try:
        prepared = prepare_model(source, clock.step)
    except InputError:
        stated = _stated_shapes(proto) if source.leaves_inputs_open else ()
        if not stated:
            raise
        # What the model leaves open, the file may say.
        prepared = prepare_model(replace(source, input=stated), clock.step)
    fixed = tuple(_fixed_inputs(proto, prepared)) if source.leaves_inputs_open else ()
    if fixed:
        # The file takes inputs of one size only: make such ones.
        again = prepare_model(replace(source, model=prepared.module, input=fixed), clock.step)
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
    """The model without inputs that the file does not take: there, they had their defaults."""
    from modelexport.capture.arguments import to_array
    from modelexport.capture.hierarchy import run_model
    from modelexport.capture.onnxruntime.session import assign_inputs

    arrays = {name: to_array(tensor) for name, tensor in prepared.inputs.tensors.items()}
    try:
        taken = set(assign_inputs(proto, arrays).values())
        untaken = [name for name in prepared.inputs.kwargs if name in arrays and name not in taken]
        kept = {name: value for name, value in prepared.inputs.kwargs.items() if name not in untaken}
        reduced = replace(prepared.inputs, kwargs=kept)
        if untaken:
            run_model(prepared.module, reduced)
    except InputError:
        return prepared  # it needs them all, or the file wants what is not there: what is wrong shows when it is run
    note = (f"run without {', '.join(untaken)}: the file does not take them",) if untaken else ()
    return replace(prepared, inputs=reduced, notes=(*prepared.notes, *note))


def _fixed_inputs(proto: onnx.ModelProto, prepared: PreparedModel) -> Iterator[str]:
    """Shapes that the file insists on and the made inputs do not have, as `--input` takes them."""
    made = dict(prepared.inputs.tensors)
    data = {tensor.name for tensor in proto.graph.initializer}
    for value in proto.graph.input:
        dims = value.type.tensor_type.shape.dim
        # Inputs that were renamed are told by their order.
        ranked = [name for name, tensor in made.items() if tensor.dim() == len(dims)]
        name = value.name if value.name in made else next(iter(ranked), None)
        if name is None or value.name in data or len(dims) != made[name].dim():
            continue
        tensor = made.pop(name)
        sizes = [dim.dim_value or size for dim, size in zip(dims, tensor.shape, strict=True)]
        if sizes != list(tensor.shape):
            yield f"{name}={'x'.join(map(str, sizes))}:{str(tensor.dtype).removeprefix('torch.')}"


def _check_overlap(file: TaggedFile, model: str, recorded: Recorded) -> None:
    assert recorded.overlap is not None
    if not recorded.overlap.belongs:
        raise ModelMismatch(
            f"{file.path} was not made from {model}: {recorded.overlap} of the file were found in the model",
            "Give the model, with the weights, that the file was exported from.",
        )


def score_strategies(verdict: AttributionResult, path: str, recording: float) -> Scores:
    provenance = verdict.provenance
    scores = tuple(score_strategy(judged, provenance) for judged in verdict.judged)
    entries = provenance.nodes.values()
    split = [entry for entry in entries if disagreements(entry.attribution, provenance.hierarchy)]
    disputes = tuple(_dispute(entry, verdict.judged) for entry in split)
    return Scores(path, provenance, scores, disputes, recording, verdict.notes)


def score_strategy(judged: StrategyResult, answers: Provenance) -> Score:
    """How one strategy's claims stand to the answers."""
    claims = judged.claims.nodes
    standing = Counter(
        agreement(claim, answers.nodes[key].attribution, answers.hierarchy) for key, claim in claims.items()
    )
    return Score(
        judged.strategy,
        Counter(claim.confidence for claim in claims.values()),
        standing[Agreement.SAME],
        standing[Agreement.LESS],
        standing[Agreement.OTHER],
        judged.seconds,
    )


def _dispute(entry: NodeEntry, judged: Sequence[StrategyResult]) -> Dispute:
    said = [item.claims.nodes[entry.key] for item in judged if entry.key in item.claims.nodes]
    return Dispute(entry, tuple(said))
