"""Dynamo exporter: `torch.onnx.export(dynamo=True)`, by way of torch.export and an FX graph.

The export is made without torch's optimizer, looked at, and then optimized by the same call that torch would have
made: the file is the one that plain `torch.onnx.export` writes, and the graph before it is known as well.

    torch.onnx.export(…, optimize=False)   program, its FX nodes with module stacks   -> scopes
    index_model(program.model)             the graph before                           -> Exported.before
    program.optimize()                     what torch writes                          -> Exported.model

Then names are put right: outputs have the names that the model returns them under, and symbols such as `s72` the names
of the axes that were asked for. An axis that torch made fixed is a note, or an error if it must be dynamic.

Module stack: which module call issued an FX node is read from `nn_module_stack`, which torch keeps with the node. Its
keys number the calls of a module (`L__self___layer@2` is the third), each name of a module by itself.

https://github.com/pytorch/pytorch/blob/main/torch/onnx/_internal/exporter/_core.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from modelexport.capture.arguments import CallArguments, Exported, ExportRequest, leaf_name
from modelexport.capture.isolation import export_failed, root_cause
from modelexport.errors import ExportFailed
from modelexport.graph.file.reading import DETACHED_ABOVE, ModelFile
from modelexport.graph.file.weights import Lazy, WeightData
from modelexport.graph.index import index_model
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.signals import ExporterScopes

_CALL_NUMBER = re.compile(r"@(\d+)$")
_Stack = tuple[ModuleCall | None, ...]


def fx_stacks(nodes: Iterable[torch.fx.Node], hierarchy: Hierarchy) -> dict[str, _Stack]:
    """The calls that were open for each FX node, outermost first; None in the place of one that is not certain."""
    stacks: dict[str, _Stack] = {}
    order: dict[str, dict[str, int]] = {}
    for node in nodes:
        entries: Mapping[str, tuple[str, object]] = node.meta.get("nn_module_stack") or {}
        stacks[node.name] = tuple(_module_call(key, path, hierarchy, order) for key, (path, _) in entries.items())
    # Each name of a module is numbered by itself. Their common order tells the calls only if every call left a node.
    unclear = {
        path
        for path, keys in order.items()
        if hierarchy.modules[path].aliases and len(keys) != hierarchy.call_counts.get(path, 0)
    }
    return {
        name: tuple(None if call is None or call.path in unclear else call for call in stack)
        for name, stack in stacks.items()
    }


def _module_call(key: str, path: str, hierarchy: Hierarchy, order: dict[str, dict[str, int]]) -> ModuleCall | None:
    own = hierarchy.canonical.get(path)
    if own is None:
        return None
    index = order.setdefault(own, {}).setdefault(key, len(order[own]))
    number = _CALL_NUMBER.search(key)
    call = ModuleCall(own, index if hierarchy.modules[own].aliases else int(number[1]) if number else 0)
    return call if call in hierarchy.stacks else None


def export_dynamo(
    model: torch.nn.Module, arguments: CallArguments, request: ExportRequest, hierarchy: Hierarchy
) -> Exported:
    program, notes = _export(model, arguments, request)
    fixed = _fixed_symbols(program)
    _copy_returned_inputs(program.model.graph)
    _name_outputs(program.model, request.output_names)
    before = index_model(_to_file(program.model).proto)
    stacks = {} if program.exported_program is None else fx_stacks(program.exported_program.graph.nodes, hierarchy)
    # Only the innermost call of a node counts; where that is not certain, the node is left out.
    calls = {name: stack[-1] for name, stack in stacks.items() if stack and stack[-1] is not None}
    program.optimize()
    _name_outputs(program.model, request.output_names)  # what is returned twice has become two values
    file = _to_file(program.model)
    # After a refusal every axis is fixed, and the note that says so is there.
    stuck = _name_axes(file.proto, {} if notes else request.axes, fixed)
    if stuck and request.must_dynamic:
        raise ExportFailed(f"torch cannot keep every axis dynamic: {'; '.join(stuck)}", "Leave --dynamic out.")
    return Exported(file, "dynamo", before, ExporterScopes(calls), (*notes, *stuck))


def _copy_returned_inputs(graph: ir.Graph) -> None:
    """An input or a weight that is returned keeps its name: what is returned is a copy of it.

    before  graph(x) -> x            after  graph(x) -> y    x ──► Identity ──► y
    """
    for index, value in enumerate(graph.outputs):
        if value.is_graph_input() or value.is_initializer():
            copy = ir.Value(type=value.type, shape=value.shape)
            graph.append(ir.node("Identity", [value], outputs=[copy]))
            graph.outputs[index] = copy


def _name_outputs(model: ir.Model, names: Sequence[str]) -> None:
    """Torch would give a value that is returned under several names the last of them; it is to have the first."""
    if len(names) == len(model.graph.outputs):
        for value, name in reversed(list(zip(model.graph.outputs, names, strict=True))):
            value.name = name


def _export(
    model: torch.nn.Module, arguments: CallArguments, request: ExportRequest
) -> tuple[torch.onnx.ONNXProgram, list[str]]:
    """Export with dynamic axes; statically where torch refuses them and nobody insists."""
    if not request.axes:
        return _torch_export(model, arguments, request, dynamic=False), []
    try:
        return _torch_export(model, arguments, request, dynamic=True), []
    except Exception as error:
        if request.must_dynamic:
            raise export_failed(model, "dynamo", error, "Without --dynamic the export is static.") from error
        refusal = error
    program = _torch_export(model, arguments, request, dynamic=False)
    return program, [f"static export: torch refused dynamic axes ({root_cause(refusal, lines=1)})"]


def _torch_export(
    model: torch.nn.Module, arguments: CallArguments, request: ExportRequest, *, dynamic: bool
) -> torch.onnx.ONNXProgram:
    shapes = _dynamic_shapes(model, arguments, request.axes) if dynamic else None
    try:
        program = torch.onnx.export(
            model,
            arguments.args,
            kwargs=dict(arguments.kwargs),
            dynamo=True,
            optimize=False,
            verbose=False,
            opset_version=request.opset,
            dynamic_shapes=shapes,
        )
    except Exception as error:
        if dynamic:
            raise
        raise export_failed(model, "dynamo", error, "Try --exporter torchscript.") from error
    assert program is not None
    return program


def _dynamic_shapes(model: torch.nn.Module, arguments: CallArguments, axes: Mapping[str, Mapping[int, str]]) -> Any:
    auto = torch.export.Dim.AUTO

    def shape_of(name: str, value: object) -> object:
        return pytree.tree_map_with_path(
            lambda path, _: dict.fromkeys(axes.get(leaf_name(name, path), {}), auto) or None, value
        )

    if not arguments.args:
        return {name: shape_of(name, value) for name, value in arguments.kwargs.items()}
    # The shapes are bound to the parameters of `forward` just as the arguments are: `*xs` has a tuple of them.
    shapes = [shape_of(name, value) for name, value in zip(arguments.positions, arguments.args, strict=True)]
    return dict(inspect.signature(model.forward).bind(*shapes).arguments)


def _to_file(model: ir.Model) -> ModelFile:
    """The model as protobuf, without copying its weights."""
    with _detach_weights(model) as weights:
        proto = ir.to_proto(model)
    for tensor in proto.graph.initializer:
        if tensor.name in weights:
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
    return ModelFile(proto, weights, None)


@contextmanager
def _detach_weights(model: ir.Model) -> Iterator[dict[str, WeightData]]:
    """While this is open, large initializers serialize as references to nowhere instead of their data.

    Protobuf cannot hold more than 2 GB, and a copy of all weights would double the memory that an export takes.
    """
    large = {
        name: (value, value.const_value)
        for name, value in model.graph.initializers.items()
        if value.const_value is not None and value.const_value.nbytes > DETACHED_ABOVE
    }
    weights: dict[str, WeightData] = {}
    try:
        for name, (value, tensor) in large.items():
            weights[name] = Lazy(tensor.nbytes, tensor.tobytes)
            value.const_value = ir.ExternalTensor(
                "_", 0, 0, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name
            )
        yield weights
    finally:
        for value, tensor in large.values():
            value.const_value = tensor


def _fixed_symbols(program: torch.onnx.ONNXProgram) -> dict[str, int]:
    """Symbols that can have one value only. torch leaves them symbols in the graph, although nothing else would run."""
    if program.exported_program is None:
        return {}
    ranges = program.exported_program.range_constraints
    return {str(symbol): int(bounds.lower) for symbol, bounds in ranges.items() if bounds.lower == bounds.upper}


def _name_axes(proto: onnx.ModelProto, axes: Mapping[str, Mapping[int, str]], fixed: Mapping[str, int]) -> list[str]:
    """Give torch's symbols (`s72`) the names that were asked for; report axes that torch made fixed."""
    _rename_symbols(proto, {}, fixed)
    names: dict[str, str] = {}
    notes: list[str] = []
    for value in proto.graph.input:
        dims = value.type.tensor_type.shape.dim
        for axis, wanted in axes.get(value.name, {}).items():
            if dims[axis].HasField("dim_param"):
                names.setdefault(dims[axis].dim_param, wanted)
            else:
                notes.append(f"axis {axis} ({wanted}) of {value.name} is fixed at {dims[axis].dim_value} by torch")
    _rename_symbols(proto, names, {})
    return notes


def _rename_symbols(proto: onnx.ModelProto, names: Mapping[str, str], fixed: Mapping[str, int]) -> None:
    symbols = re.compile(r"\b(" + "|".join(map(re.escape, names)) + r")\b") if names else None
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in fixed:
                dim.dim_value = fixed[dim.dim_param]
            elif symbols is not None and dim.dim_param:
                # A dimension may be an expression of symbols: `2*s72 + 1`.
                dim.dim_param = symbols.sub(lambda match: names[match[1]], dim.dim_param)
