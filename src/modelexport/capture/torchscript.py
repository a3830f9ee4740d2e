"""TorchScript exporter: `torch.onnx.export(dynamo=False)`, torch's older exporter, which traces a run of the model.

It calls models by position, which models with many optional arguments do not survive. So while it runs, the model's own
`forward` is replaced by one that takes the tensors by position and calls the original by keyword. Unlike a wrapping
module, this leaves every scope and every parameter name as it is:

    export_torchscript(bert, input_ids=…, return_dict=False)
        torch calls   forward(input_ids)                              what call_by_position put there
        which calls   bert.forward(input_ids=…, return_dict=False)    the original
        a node is     /encoder/layer.0/attention/self/query/MatMul

`export_unfolded` gives the graph before constant folding, in which weights still have their own values;
`jit_graph_text` the graph that the exporter starts from, for people to read.
https://github.com/pytorch/pytorch/blob/main/torch/onnx/_internal/torchscript_exporter/utils.py
"""

from __future__ import annotations

import io
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from modelexport.capture.arguments import CallArguments, Exported, ExportRequest
from modelexport.capture.entry_point import call_by_position
from modelexport.capture.hierarchy import name_scopes, read_scope_names
from modelexport.capture.isolation import export_failed, isolate_model
from modelexport.graph.file.reading import ModelFile, open_model, parse_model
from modelexport.graph.index import Graph, index_model
from modelexport.record.signals import ExporterScopes

# Protobuf's limit is 2 GB; the graph itself needs some of it.
_IN_MEMORY = 1_900_000_000
_NO_MAP = "this torch has no module map that can be read: scopes are taken from module paths"
# The other exporters propose this one: what is proposed here must not lead back to them.
_NEXT_STEP = "Try --exporter dynamo; if that refused the model as well, change the model where the message says."


def export_torchscript(model: torch.nn.Module, arguments: CallArguments, request: ExportRequest) -> Exported:
    """Export, and read the names that torch gives to scopes: they are known only while the model runs."""
    scopes: dict[str, str] = {}
    file = _torch_export(model, arguments, request, {}, lambda: scopes.update(read_scope_names(model)))
    unknown = not scopes and any(True for _ in model.children())
    return Exported(file, "torchscript", scopes=ExporterScopes(parts=scopes), notes=(_NO_MAP,) if unknown else ())


def export_unfolded(model: torch.nn.Module, arguments: CallArguments, request: ExportRequest) -> Graph:
    """The graph before TorchScript's constant folding and its fusion of convolution and batch normalization.

    The fusion is left out only in a mode that may be training: PRESERVE is evaluation here, as the model is.
    """
    options = {"do_constant_folding": False, "training": torch.onnx.TrainingMode.PRESERVE}
    return index_model(_torch_export(model, arguments, request, options, lambda: None).proto)


def _torch_export(
    model: torch.nn.Module,
    arguments: CallArguments,
    request: ExportRequest,
    options: Mapping[str, Any],
    at_call: Callable[[], None],
) -> ModelFile:
    tensors = arguments.tensors
    size = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))
    folder = Path(tempfile.mkdtemp(prefix="modelexport-")) if size > _IN_MEMORY else None
    target = io.BytesIO() if folder is None else str(folder / "model.onnx")
    try:
        with call_by_position(model, arguments, at_call), _without_graph_log():
            torch.onnx.export(
                model,
                tuple(tensors.values()),
                target,  # type: ignore[arg-type]
                dynamo=False,
                input_names=list(tensors),
                output_names=list(request.output_names) or None,
                opset_version=request.opset,
                dynamic_axes={name: dict(axes) for name, axes in request.axes.items() if name in tensors} or None,
                **options,
            )
    except BaseException as error:
        _remove_folder(folder)
        if isinstance(error, Exception):
            raise export_failed(model, "torchscript", error, _NEXT_STEP) from error
        raise
    if isinstance(target, io.BytesIO):
        return parse_model(target.getbuffer())
    file = open_model(Path(target))
    # The weights stay in the folder until nobody can ask for them any more.
    weakref.finalize(file, _remove_folder, folder)
    return file


def _remove_folder(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _without_graph_log() -> Iterator[None]:
    """torch switches a log on that prints the whole graph when an operator is not supported, and never off again."""
    switch = torch._C._jit_set_onnx_log_enabled
    torch._C._jit_set_onnx_log_enabled = lambda enabled: None  # noqa: ARG005
    try:
        yield
    finally:
        torch._C._jit_set_onnx_log_enabled = switch


def jit_graph_text(model: torch.nn.Module, arguments: CallArguments) -> str:
    """The traced graph; each node ends in its scope, the paths of the modules that were open: `layer.0/layer.0.fc`."""
    with isolate_model(model):
        try:
            graph = _trace_graph(model, arguments.copy_tensors())
        except Exception as error:
            raise export_failed(model, "torchscript", error, "Without --jit-graph this graph is not needed.") from error
    # Source ranges are paths of the machine that the trace was made on.
    return str(graph.str(False))


def _trace_graph(model: torch.nn.Module, arguments: CallArguments) -> Any:
    jit: Any = torch.jit
    tensors = arguments.tensors
    paths = {part: path for path, part in model.named_modules()}
    with call_by_position(model, arguments), name_scopes(paths):
        graph = jit._get_trace_graph(model, tuple(tensors.values()), strict=False, _force_outplace=False)[0]
    names = [*tensors, *jit._unique_state_dict(model)]
    for value, name in zip(graph.inputs(), names, strict=True):
        value.setDebugName(name)
    return graph
