"""Recording signals: what the chosen strategies need beyond the export itself.

    Need.TRACE  the model runs again with every operator recorded, and the file runs node by node
    Need.FX     the model is traced as an FX graph, unless the exporter has shown its own

A strategy says what it needs (`Strategy.needs`), and nothing else is run. If the graph computes other values than the
model (`ValueOverlap`), values prove nothing and only weights are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from modelexport.attribute.matched_values import ValueIndex
from modelexport.attribute.projection import measure_value_overlap
from modelexport.attribute.strategies import Need, Strategy
from modelexport.errors import InputError
from modelexport.graph.dequantize import stored_weight_input
from modelexport.graph.fingerprint import fingerprint
from modelexport.graph.index import Graph
from modelexport.graph.related import ValueOverlap
from modelexport.record.signals import ExporterScopes, GraphValues, Signals, Trace

if TYPE_CHECKING:
    from modelexport.capture.export import ProbedRun, TracedRun
    from modelexport.capture.fx import FxCapture, FxKind
    from modelexport.capture.onnxruntime.restored import RestoredModel
    from modelexport.graph.file.reading import ModelFile

# Of the two it traces more models: symbolic_trace stops at control flow that depends on shapes.
_DEFAULT_FX: tuple[FxKind, ...] = ("torch_export",)


@dataclass(frozen=True)
class SignalOptions:
    """How to record.

    fx_kinds  the FX graphs that were asked for; the first that can be made is used
    own_file  the graph is our own export: inputs that do not fit it are no fault of the user's
    as_given  inputs are not to be changed, not even a mask that hides nothing: they fit a cache
    """

    fx_kinds: tuple[FxKind, ...] = ()
    own_file: bool = True
    as_given: bool = False


@dataclass(frozen=True)
class Recorded:
    """Signals, the FX graphs that were asked for by their kind, and what the graph has in common with the model."""

    signals: Signals
    fx: Mapping[str, FxCapture]
    overlap: ValueOverlap | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Which FX graphs could not be made, and why; a strategy that misses one says so itself."""
        failed = {kind: capture.failure for kind, capture in self.fx.items() if capture.trace is None}
        known = self.signals.fx_failure
        return tuple(f"no FX graph by {kind}: {why}" for kind, why in failed.items() if why != known)


def record_signals(
    strategies: Sequence[Strategy], run: TracedRun, file: ModelFile, scopes: ExporterScopes, options: SignalOptions
) -> Recorded:
    needs = {need for strategy in strategies for need in strategy.needs}
    # dynamo's own FX nodes name ONNX nodes one by one, so that no run has to be matched with the graph.
    if Need.TRACE not in needs and _has_own_fx(scopes, options):
        needs = set()
    kinds = options.fx_kinds or (_DEFAULT_FX if Need.FX in needs and not scopes.fx_calls else ())
    if not needs and not kinds:
        return Recorded(Signals(scopes), {})
    try:
        probed = _probe_run(run, file, options)
    except InputError as error:
        # Strategies that go by names alone can still answer; the others say that they had nothing to go by.
        if all(strategy.needs for strategy in strategies):
            raise
        return Recorded(Signals(scopes, trace_failure=error.message), {})
    captures = _trace_fx(run, probed, kinds)
    if not needs:
        return Recorded(Signals(scopes), captures)
    values, graph = _record_values(file, run, probed, options), file.graph
    # Values that many graphs share (zeros, masks) prove nothing; the overlap counts the distinctive ones.
    common = measure_value_overlap(graph, probed.trace, values)
    signals = Signals(scopes, trace=probed.trace, values=_trusted_values(values, graph, common))
    return Recorded(signals if _has_own_fx(scopes, options) else _with_fx(signals, captures), captures, common)


def _has_own_fx(scopes: ExporterScopes, options: SignalOptions) -> bool:
    """Whether the exporter's own FX nodes are the ones that are wanted: they name ONNX nodes without any matching."""
    return bool(scopes.fx_calls) and options.fx_kinds[:1] in ((), _DEFAULT_FX)


def _probe_run(run: TracedRun, file: ModelFile, options: SignalOptions) -> ProbedRun:
    from modelexport.capture.export import probe_operators
    from modelexport.capture.onnxruntime.session import assign_inputs

    if options.as_given:
        return probe_operators(run, ())
    try:
        file_inputs = set(assign_inputs(file.proto, run.arguments.arrays).values())
    except InputError:
        file_inputs = set()  # the graph cannot be run; whoever has to know hears of it when values are recorded
    return probe_operators(run, file_inputs)


def _record_values(file: ModelFile, run: TracedRun, probed: ProbedRun, options: SignalOptions) -> GraphValues:
    from modelexport.capture.onnxruntime.bodies import fingerprint_values, fingerprint_weights
    from modelexport.capture.onnxruntime.session import bind_inputs

    weights = fingerprint_weights(file, "")
    try:
        feed = bind_inputs(file.proto, probed.arguments.arrays)
    except InputError as error:
        if not options.own_file:
            raise
        return replace(weights, failure=error.message)
    if options.own_file:
        return fingerprint_values(file, feed)
    restored = _restore_weights(file, run, probed.trace, weights)
    values = fingerprint_values(restored.file, {**feed, **restored.feed})
    originals = {name: fingerprint(array) for name, array in restored.weights.items()}
    prints = {name: print_ for name, print_ in values.prints.items() if name not in restored.feed}
    return GraphValues(prints | originals, values.failure, restored.parts, values.inside)


def _restore_weights(file: ModelFile, run: TracedRun, trace: Trace, weights: GraphValues) -> RestoredModel:
    """The file with the model's weights in the place of quantized ones; tools of others pack and round."""
    from modelexport.capture.arguments import to_array
    from modelexport.capture.hierarchy import state_tensors
    from modelexport.capture.onnxruntime.restored import RestoredModel, WeightRestorer

    index = ValueIndex(trace)
    distinctive = {name: print_ for name, print_ in weights.prints.items() if print_.distinctive}
    unknown = [name for name, print_ in distinctive.items() if not index.matches(print_)]
    stored = any(stored_weight_input(node) is not None for node in file.proto.graph.node)
    if not unknown and not stored:
        return RestoredModel(file)
    tensors = {id(tensor): (name, tensor) for name, tensor in state_tensors(run.model).items()}
    parameters = {name: to_array(tensor) for name, tensor in tensors.values() if tensor.is_floating_point()}
    return WeightRestorer(file, parameters).restore(unknown)


def _trusted_values(values: GraphValues, graph: Graph, common: ValueOverlap) -> GraphValues:
    """The values if the graph computes what the model computes; else its weights alone."""
    if values.failure or common.computes_the_same:
        return values
    weights = {name: print_ for name, print_ in values.prints.items() if name in graph.initializers}
    failure = f"the graph computes other values than the model: {common} were found"
    return replace(values, prints=weights, failure=failure, inside={})


def _with_fx(signals: Signals, captures: Mapping[str, FxCapture]) -> Signals:
    if not captures:
        return signals
    best = next((capture for capture in captures.values() if capture.trace is not None), None)
    if best is None or best.trace is None:
        return replace(signals, fx_failure=next(iter(captures.values())).failure)
    from modelexport.capture.op_trace import onnx_operators

    operators = onnx_operators(op.name for op in best.trace.ops)
    return replace(signals, fx=replace(best.trace, operators=operators))


def _trace_fx(run: TracedRun, probed: ProbedRun, kinds: Sequence[FxKind]) -> dict[str, FxCapture]:
    from modelexport.capture.fx import trace_fx

    with run.entered():
        return {kind: trace_fx(run.model, probed.arguments, run.hierarchy, kind) for kind in kinds}
