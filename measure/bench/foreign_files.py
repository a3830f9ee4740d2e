"""Files as another tool would have left them: a plain `torch.onnx.export`, and one without any name in it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx
import torch
from torch.export import Dim

from measure.bench.judged_export import JudgedExport
from modelexport.capture.arguments import CallArguments
from modelexport.capture.experts import exportable_experts
from modelexport.capture.state import quiet, undisturbed
from modelexport.capture.torchscript import called_by_position


def write_plain(export: JudgedExport, path: Path) -> None:
    """What plain `torch.onnx.export` makes of the same model, inputs and names of outputs."""
    try:
        # As a user would run it: with gradients. Some models torch can export only without.
        _export(export, path, gradients=True)
    except torch.onnx.OnnxExporterError:
        _export(export, path, gradients=False)


def _export(export: JudgedExport, path: Path, *, gradients: bool) -> None:
    model, arguments = export.model, dict(export.run.arguments.kwargs)
    outputs = [value.name for value in export.file.proto.graph.output]
    grad = torch.set_grad_enabled(gradients)
    with quiet(), undisturbed(model), grad, exportable_experts(model):
        if export.exporter == "dynamo":
            _dynamo(model, arguments, export.axes, outputs, path)
        else:
            _torchscript(model, arguments, export.axes, outputs, path)


def _dynamo(
    model: torch.nn.Module,
    arguments: Mapping[str, object],
    axes: Mapping[str, Mapping[int, str]],
    outputs: list[str],
    path: Path,
) -> None:
    shapes = {name: dict.fromkeys(axes.get(name, {}), Dim.AUTO) or None for name in arguments}
    torch.onnx.export(
        model,
        (),
        path,
        kwargs=dict(arguments),
        dynamo=True,
        verbose=False,
        dynamic_shapes=shapes,
        output_names=outputs,
        external_data=False,
    )


def _torchscript(
    model: torch.nn.Module,
    arguments: Mapping[str, object],
    axes: Mapping[str, Mapping[int, str]],
    outputs: list[str],
    path: Path,
) -> None:
    tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    with called_by_position(model, CallArguments(dict(arguments))):
        torch.onnx.export(
            model,
            tuple(tensors.values()),
            str(path),
            dynamo=False,
            input_names=list(tensors),
            output_names=outputs,
            dynamic_axes={name: dict(named) for name, named in axes.items()},
        )


def write_nameless(source: Path, path: Path) -> None:
    """The same model, its nodes in the same order, with nothing left that a name or metadata could tell.

    Inputs and outputs keep their names: a model is fed and read by them.
    """
    model = onnx.load(source)
    if model.functions:
        raise NotImplementedError("functions keep the names of what they are called with")
    model.ClearField("metadata_props")
    model.ClearField("doc_string")
    numbers = itertools.count()
    fixed = [value.name for value in (*model.graph.input, *model.graph.output)]
    _rename(model.graph, {name: name for name in fixed}, numbers)
    onnx.save(model, path)


def _rename(graph: onnx.GraphProto, outer: Mapping[str, str], numbers: Iterator[int]) -> None:
    """Rename what a graph makes; `outer` are names that are decided already."""
    names = dict(outer)
    for name in _made_in(graph):
        if name and name not in outer:
            names[name] = f"v{next(numbers)}"
    for value in (*graph.input, *graph.output):
        value.name = names[value.name]
        _forget(value)
    for tensor in graph.initializer:
        tensor.name = names[tensor.name]
        _forget(tensor)
    _forget(graph)
    # Shapes of values inside, by their names, and what quantizers say of them: nobody needs either to run a graph.
    graph.ClearField("value_info")
    graph.ClearField("quantization_annotation")
    graph.name = "graph"
    for node in graph.node:
        node.name = f"n{next(numbers)}"
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        _forget(node)
        for attribute in node.attribute:
            attribute.doc_string = ""
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _rename(body, names, numbers)


def _made_in(graph: onnx.GraphProto) -> Iterable[str]:
    """Every name that a graph gives to something."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from node.output


def _forget(holder: onnx.GraphProto | onnx.NodeProto | onnx.ValueInfoProto | onnx.TensorProto) -> None:
    holder.ClearField("metadata_props")
    holder.ClearField("doc_string")
