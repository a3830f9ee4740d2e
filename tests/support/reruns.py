"""An export with the model run again beside it: what strategies that judge by a run are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.support.architectures import build
from torch import nn

from modelexport import ExportResult
from modelexport.capture.arguments import bind_arguments, to_array
from modelexport.capture.export import probe_operators, trace_model
from modelexport.capture.inputs.make import make_inputs
from modelexport.capture.inputs.specs import InputRequest
from modelexport.capture.onnxruntime.bodies import fingerprint_values
from modelexport.capture.onnxruntime.session import bind_inputs
from modelexport.graph.file.reading import ModelFile, open_model
from modelexport.graph.index import Graph, index_model
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.provenance import Provenance
from modelexport.record.signals import Signals


@dataclass(frozen=True, eq=False)
class Rerun:
    """An export, what the exporter itself says about it, and what a run of model and file showed."""

    file: ModelFile
    graph: Graph
    hierarchy: Hierarchy
    signals: Signals
    provenance: Provenance


Reruns = Callable[[str, str], Rerun]


def rerun_of(model: nn.Module, inputs: object, exported: ExportResult) -> Rerun:
    """Run a model and its export again."""
    run = trace_model(model, bind_arguments(model, inputs))
    found = probe_operators(run, set(run.arguments.tensors))
    file = open_model(exported.path)
    feed = bind_inputs(file.proto, {key: to_array(value) for key, value in found.arguments.tensors.items()})
    signals = Signals(trace=found.trace, values=fingerprint_values(file, feed))
    return Rerun(file, index_model(file.proto), run.hierarchy, signals, exported.provenance)


def rerun_export(name: str, exported: ExportResult) -> Rerun:
    """Run an architecture and its export again, on inputs that are made for it."""
    model = build(name)
    return rerun_of(model, make_inputs(model, None, InputRequest()).values, exported)
