"""Export pipeline: load a model, make its inputs, run it once, export it, and compare the file with the model.

    prepare_model(source)      loads and makes inputs              -> PreparedModel
    trace_model(model, inputs) one run with forward hooks          -> TracedRun: hierarchy, outputs, their names
    export_traced(run, "dynamo", request)                          -> Exported: the file, its scopes, notes
    probe_operators(run, …)    a second run, operators recorded    -> ProbedRun, for strategies that judge by a run
    OutputChecker(path, run)   output_check.py: the written file   -> OutputCheck

A new exporter is a module beside dynamo.py, transformers_exporter.py and torchscript.py with one function
`export_NAME(model, arguments, request) -> Exported`; `export_traced` chooses between them by name, and the command
line offers it once it is among the choices of `--exporter`. A new kind of model source is a loader in
loading/models.py, a new kind of model input a recipe in inputs/make.py.

torch.onnx: https://docs.pytorch.org/docs/stable/onnx_export.html
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

from modelexport.capture.arguments import (
    CallArguments,
    Exported,
    ExportRequest,
    bind_arguments,
    output_tensors,
)
from modelexport.capture.dynamo import export_dynamo
from modelexport.capture.entry_point import EntryPoint, entered
from modelexport.capture.hierarchy import trace_run
from modelexport.capture.inputs.make import make_inputs
from modelexport.capture.inputs.specs import InputRequest, dynamic_axes, parse_input_spec
from modelexport.capture.isolation import EXPORT_LOCK, exportable_moe, isolate_model, without_full_collections
from modelexport.capture.loading.dtypes import convert_inputs
from modelexport.capture.loading.models import adopt_module, load_model
from modelexport.capture.loading.third_party import LoadedModel
from modelexport.capture.silence import quiet
from modelexport.capture.torchscript import export_torchscript, export_unfolded
from modelexport.capture.transformers_exporter import export_transformers
from modelexport.errors import InputError, ModelUnloadable, shorten, with_article
from modelexport.graph.file.checkpoint import Checkpoint
from modelexport.graph.index import Graph
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.model_source import ModelSource
from modelexport.record.signals import Trace

_PLAIN = (torch.Tensor, int, float, bool, str, complex, type(None))


@dataclass(frozen=True)
class ProbedRun:
    arguments: CallArguments
    trace: Trace


@dataclass(frozen=True)
class TracedRun:
    """One run of a model: what went in, what came out, and the calls in between.

    entry  the way in which the model was called, if not by its own `forward`
    """

    model: torch.nn.Module
    arguments: CallArguments
    hierarchy: Hierarchy
    outputs: Mapping[str, torch.Tensor]
    output_names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    entry: EntryPoint | None = None

    def entered(self) -> AbstractContextManager[None]:
        return _entered(self.model, self.entry)


def trace_model(model: torch.nn.Module, inputs: object) -> TracedRun:
    """Run a model once, on the inputs that it will be exported with."""
    arguments = bind_arguments(model, inputs)
    with EXPORT_LOCK, quiet(), exportable_moe(model):
        observed = trace_run(model, arguments)
        notes: tuple[str, ...] = ()
        # Objects that are neither tensors nor plain values: neither exporter can return the cache of generation.
        opaque = any(not isinstance(leaf, _PLAIN) for leaf in pytree.tree_leaves(observed.outputs))
        if opaque and _accepts(model, "use_cache"):
            arguments = replace(arguments, kwargs={**arguments.kwargs, "use_cache": False})
            notes = ("exported without the key/value cache (use_cache=False): give a folder as output to have it",)
            observed = trace_run(model, arguments)
    tensors = output_tensors(observed.outputs)
    names: tuple[str, ...] = ()
    if isinstance(observed.outputs, Mapping):
        # A model may return an input under the same name; a graph cannot have both.
        names = tuple(f"{name}_output" if name in arguments.tensors else name for name in tensors)
    return TracedRun(model, arguments, observed.hierarchy, tensors, names, notes)


def count_bytes(model: torch.nn.Module) -> int:
    """What the weights take in a file; those that are nowhere (device meta) take nothing."""
    held = (tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.device.type != "meta")
    return sum(tensor.numel() * tensor.element_size() for tensor in held)


def trace_prepared(prepared: PreparedModel) -> TracedRun:
    with _entered(prepared.module, prepared.entry):
        run = trace_model(prepared.module, prepared.inputs)
    return replace(run, entry=prepared.entry)


@contextmanager
def _entered(model: torch.nn.Module, entry: EntryPoint | None) -> Iterator[None]:
    """While this is open, calling the model is the call that was prepared."""
    if entry is None:
        yield
        return
    with entered(model, entry):
        yield


def probe_operators(run: TracedRun, graph_inputs: Collection[str]) -> ProbedRun:
    """Run again with operators recorded, on inputs that leave out no work; only those in `graph_inputs` may change."""
    with EXPORT_LOCK, quiet(), exportable_moe(run.model), run.entered():
        masked = run.arguments.with_mask(graph_inputs)
        probed = None if masked is None else _try_probe(run, masked)
        probed = probed or _try_probe(run, run.arguments)
    if probed is None:
        raise InputError(
            f"{type(run.model).__name__} calls other modules when it runs on the same inputs again",
            "The strategy htp needs a model whose path does not change from run to run; try enhanced_semantic.",
        )
    return probed


def _try_probe(run: TracedRun, arguments: CallArguments) -> ProbedRun | None:
    """None where the model took another path than before: then the calls would not be those of the hierarchy."""
    try:
        observed = trace_run(run.model, arguments, operators=True)
    except InputError:
        if arguments is run.arguments:
            raise
        return None  # a model may have every right to refuse other inputs
    same_calls = observed.hierarchy.calls == run.hierarchy.calls
    return ProbedRun(arguments, observed.trace) if same_calls and observed.trace is not None else None


def export_traced(run: TracedRun, exporter: str, request: ExportRequest) -> Exported:
    request = replace(request, output_names=run.output_names)
    with isolate_model(run.model, request.verbose), without_full_collections():
        arguments = run.arguments.copy_tensors()
        if exporter == "dynamo":
            exported = export_dynamo(run.model, arguments, request, run.hierarchy)
        elif exporter == "transformers":
            exported = export_transformers(run.model, arguments, request, run.hierarchy)
        else:
            exported = export_torchscript(run.model, arguments, request)
    notes = (*exported.notes, *_input_notes(exported, run.arguments), *_opset_notes(exported, request.opset))
    return replace(exported, notes=notes)


def export_unfolded_graph(run: TracedRun, request: ExportRequest) -> Graph:
    """The TorchScript graph before folding."""
    request = replace(request, output_names=run.output_names)
    with isolate_model(run.model, request.verbose):
        return export_unfolded(run.model, run.arguments.copy_tensors(), request)


def _input_notes(exported: Exported, arguments: CallArguments) -> list[str]:
    """Inputs that the graph has and nobody asked for, and the other way round."""
    asked = arguments.tensors
    present = {value.name for value in exported.model.proto.graph.input}
    extra = [f"the graph has an input that was not asked for: {name}" for name in sorted(present - set(asked))]
    return extra + [f"the graph does not read the input {name}" for name in asked if name not in present]


def _opset_notes(exported: Exported, wanted: int | None) -> list[str]:
    written = next((item.version for item in exported.model.proto.opset_import if not item.domain), None)
    if wanted is None or written == wanted:
        return []
    return [f"the file has opset {written}: torch could not convert it to the opset asked for, {wanted}"]


def _accepts(model: torch.nn.Module, name: str) -> bool:
    parameters = inspect.signature(model.forward).parameters
    return name in parameters or any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values())


Step = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class PreparedModel:
    """A module that can be run: its arguments, the axes of theirs that shall be dynamic, and what to know about it.

    others  the same tensors in other sizes, for a check of the file
    entry  the way in which it is called, if not by its own `forward`
    checkpoint  has the weights of a module without numbers
    """

    module: torch.nn.Module
    inputs: CallArguments
    axes: Mapping[str, Mapping[int, str]]
    source: str
    notes: tuple[str, ...] = ()
    others: tuple[Mapping[str, torch.Tensor], ...] = ()
    entry: EntryPoint | None = None
    checkpoint: Checkpoint | None = None


def prepare_model(source: ModelSource, step: Step) -> PreparedModel:
    """Load a model and make its inputs; `step` is told about each, for progress and timing."""
    with step("load"):
        loaded = load_source(source)
    names = [entry.name for entry in loaded.entries]
    if loaded.parts or len(names) > 1:
        raise ModelUnloadable(
            f"{loaded.source!r} has several modules ({', '.join(loaded.parts or names)}), and one file has one",
            "Give a folder as output (-o FOLDER), or a callable that returns one of them.",
        )
    with step("inputs"):
        return replace(bind_inputs(loaded, source), checkpoint=loaded.checkpoint)


def load_source(source: ModelSource) -> LoadedModel:
    """The model that a source names, or the live one that it holds."""
    model = source.model
    if not isinstance(model, torch.nn.Module | str | Path):
        raise ModelUnloadable(
            f"the model is {shorten(repr(model))}, {with_article(type(model).__name__)}",
            "Give a torch.nn.Module, or a folder, hub id or package.module:callable as text.",
        )
    return adopt_module(model, source) if isinstance(model, torch.nn.Module) else load_model(str(model), source)


def bind_inputs(loaded: LoadedModel, source: ModelSource) -> PreparedModel:
    inputs = source.inputs
    arrays = Path(inputs) if isinstance(inputs, (str, Path)) else None
    values = inputs if arrays is None and inputs is not None else loaded.inputs
    if values is not None and not (arrays or source.describes_inputs):
        arguments = convert_inputs(bind_arguments(loaded.module, values), loaded.dtype)
        return PreparedModel(loaded.module, arguments, dynamic_axes(arguments.tensors), loaded.source, loaded.notes)
    request = InputRequest(
        text=source.text,
        image=None if source.image is None else Path(source.image),
        shapes=tuple(map(parse_input_spec, source.input)),
        specs_file=None if source.input_specs is None else Path(source.input_specs),
        arrays_file=arrays,
        seed=source.seed,
        static=source.static,
        floating=loaded.dtype,
    )
    made = make_inputs(loaded.module, loaded.processing, request)
    arguments = bind_arguments(loaded.module, made.values)
    return PreparedModel(loaded.module, arguments, made.axes, loaded.source, (*loaded.notes, *made.notes))
