"""One export from start to end: run the model once, export it, and say what was seen."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from modelexport.capture.arguments import CallArguments, bind_arguments, has_named_outputs, output_tensors
from modelexport.capture.dynamo import export_dynamo
from modelexport.capture.experts import exportable_experts
from modelexport.capture.exported import Exported, ExportRequest
from modelexport.capture.hierarchy import trace_run
from modelexport.capture.probing import with_work_to_do
from modelexport.capture.state import EXPORT_LOCK, quiet, undisturbed
from modelexport.capture.torchscript import export_torchscript, unfolded_torchscript
from modelexport.errors import InputError
from modelexport.graph.index import Graph
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.signals import Trace

_PLAIN = (torch.Tensor, int, float, bool, str, complex, type(None))


@dataclass(frozen=True)
class Probe:
    """A run with every operator recorded: what went in, and what happened."""

    arguments: CallArguments
    trace: Trace


@dataclass(frozen=True)
class TracedRun:
    """One run of a model: what went in, what came out, and the calls in between."""

    model: torch.nn.Module
    arguments: CallArguments
    hierarchy: Hierarchy
    outputs: Mapping[str, torch.Tensor]
    output_names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def trace(model: torch.nn.Module, inputs: object) -> TracedRun:
    """Run a model once."""
    arguments = bind_arguments(model, inputs)
    with EXPORT_LOCK, quiet(), exportable_experts(model):
        seen = trace_run(model, arguments)
        notes: tuple[str, ...] = ()
        if _is_opaque(seen.outputs) and _takes(model, "use_cache"):
            # Neither exporter can return the cache object that generation uses.
            arguments = replace(arguments, kwargs={**arguments.kwargs, "use_cache": False})
            notes = ("exported without the key/value cache (use_cache=False): exporters cannot return it",)
            seen = trace_run(model, arguments)
    tensors = output_tensors(seen.outputs)
    names = _output_names(tensors, arguments) if has_named_outputs(seen.outputs) else ()
    return TracedRun(model, arguments, seen.hierarchy, tensors, names, notes)


def probe(run: TracedRun, taken: Collection[str]) -> Probe:
    """Run the model again with every operator recorded, on inputs that leave it all of its work if possible.

    taken  the inputs that the graph takes too; the others must stay as they were when it was made
    """
    with EXPORT_LOCK, quiet(), exportable_experts(run.model):
        busy = with_work_to_do(run.arguments, taken)
        found = None if busy is None else _probe(run, busy)
        found = found or _probe(run, run.arguments)
    if found is None:
        raise InputError(
            f"{type(run.model).__name__} calls other modules when it runs on the same inputs again",
            "The strategy htp needs a model whose path does not change from run to run; try enhanced_semantic.",
        )
    return found


def _probe(run: TracedRun, arguments: CallArguments) -> Probe | None:
    """None where the model took another path than before: then the calls would not be those of the hierarchy."""
    try:
        seen = trace_run(run.model, arguments, operators=True)
    except InputError:
        if arguments is run.arguments:
            raise
        return None  # a model may have every right to refuse other inputs
    same = seen.trace is not None and seen.hierarchy.calls == run.hierarchy.calls
    return Probe(arguments, seen.trace) if same and seen.trace is not None else None


def export_traced(run: TracedRun, exporter: str, request: ExportRequest) -> Exported:
    request = replace(request, output_names=run.output_names)
    with EXPORT_LOCK, quiet(request.verbose), undisturbed(run.model), exportable_experts(run.model):
        if exporter == "dynamo":
            exported = export_dynamo(run.model, run.arguments.copied(), request, run.hierarchy)
        else:
            exported = export_torchscript(run.model, run.arguments.copied(), request)
    remarks = (*_input_notes(exported, run.arguments), *_opset_notes(exported, request.opset))
    return replace(exported, notes=(*exported.notes, *remarks))


def unfolded(run: TracedRun, request: ExportRequest) -> Graph:
    """The TorchScript graph before folding."""
    request = replace(request, output_names=run.output_names)
    with EXPORT_LOCK, quiet(request.verbose), undisturbed(run.model), exportable_experts(run.model):
        return unfolded_torchscript(run.model, run.arguments.copied(), request)


def _output_names(outputs: Mapping[str, torch.Tensor], arguments: CallArguments) -> tuple[str, ...]:
    """A model may return an input under the same name; a graph cannot have both."""
    taken = arguments.tensors
    return tuple(f"{name}_output" if name in taken else name for name in outputs)


def _input_notes(exported: Exported, arguments: CallArguments) -> list[str]:
    """Inputs that the graph has and nobody asked for, and the other way round."""
    given = arguments.tensors
    found = {value.name for value in exported.model.proto.graph.input}
    extra = [f"the graph has an input that was not asked for: {name}" for name in sorted(found - set(given))]
    return extra + [f"the graph does not read the input {name}" for name in given if name not in found]


def _opset_notes(exported: Exported, wanted: int | None) -> list[str]:
    written = next((item.version for item in exported.model.proto.opset_import if not item.domain), None)
    if wanted is None or written == wanted:
        return []
    return [f"the file has opset {written}: torch could not convert it to the opset asked for, {wanted}"]


def _takes(model: torch.nn.Module, name: str) -> bool:
    parameters = inspect.signature(model.forward).parameters
    return name in parameters or any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values())


def _is_opaque(outputs: Any) -> bool:
    return any(not isinstance(leaf, _PLAIN) for leaf in pytree.tree_leaves(outputs))
