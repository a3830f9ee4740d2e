"""Recording what the chosen strategies need beyond the export itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from modelexport.errors import InputError
from modelexport.record.signals import ExporterScopes, Signals
from modelexport.strategies.catalogue import Need, Strategy

if TYPE_CHECKING:
    from modelexport.capture.fx import FxCapture, FxKind
    from modelexport.capture.session import Probe, TracedRun
    from modelexport.graph.opened import ModelFile
    from modelexport.record.signals import GraphValues


_DEFAULT_FX: tuple[FxKind, ...] = ("torch_export",)


@dataclass(frozen=True)
class SignalOptions:
    """How to record.

    fx_kinds  the FX graphs that were asked for; the first that can be made is used
    own_file  the graph is our own export: inputs that do not fit it are no fault of the user's
    """

    fx_kinds: tuple[FxKind, ...] = ()
    own_file: bool = True


@dataclass(frozen=True)
class Recorded:
    """Signals, and the FX graphs that were asked for by their kind."""

    signals: Signals
    fx: Mapping[str, FxCapture]


def record_signals(
    strategies: Iterable[Strategy],
    run: TracedRun,
    file: ModelFile,
    scopes: ExporterScopes,
    options: SignalOptions,
) -> Recorded:
    """Run the model and the file again, as far as the strategies ask for it."""
    strategies = list(strategies)
    needs = {need for strategy in strategies for need in strategy.needs}
    needs_all = all(strategy.needs for strategy in strategies)
    if Need.TRACE not in needs and scopes.fx_calls:
        needs = set()  # the exporter's own FX nodes are all that fx_graph needs
    kinds = options.fx_kinds or (_DEFAULT_FX if Need.FX in needs and not scopes.fx_calls else ())
    if not needs and not kinds:
        return Recorded(Signals(scopes), {})
    from modelexport.capture.session import probe

    try:
        found = probe(run)
    except InputError as error:
        if needs_all:
            raise
        return Recorded(Signals(scopes, trace_failure=error.message), {})
    captures: dict[str, FxCapture] = {kind: _fx(run, found, kind) for kind in kinds}
    signals = Signals(scopes, trace=found.trace, values=_values(file, found, options))
    return Recorded(_with_fx(signals, captures), captures)


def _values(file: ModelFile, found: Probe, options: SignalOptions) -> GraphValues:
    from modelexport.capture.arrays import to_array
    from modelexport.capture.feeding import feed_for
    from modelexport.capture.graph_values import graph_values, weights_only

    arrays = {name: to_array(tensor) for name, tensor in found.arguments.tensors.items()}
    try:
        feed = feed_for(file.proto, arrays)
    except InputError as error:
        if not options.own_file:
            raise
        return weights_only(file, error.message)
    return graph_values(file, feed)


def _with_fx(signals: Signals, captures: Mapping[str, FxCapture]) -> Signals:
    """The signals with the first FX graph that could be made."""
    if not captures:
        return signals
    best = next((capture for capture in captures.values() if capture.trace is not None), None)
    if best is None or best.trace is None:
        return replace(signals, fx_failure=next(iter(captures.values())).failure)
    from modelexport.capture.operators import onnx_operators

    operators = onnx_operators(op.name for op in best.trace.ops)
    return replace(signals, fx=replace(best.trace, operators=operators))


def _fx(run: TracedRun, found: Probe, kind: FxKind) -> FxCapture:
    from modelexport.capture.fx import trace_fx

    return trace_fx(run.model, found.arguments, run.hierarchy, kind)
