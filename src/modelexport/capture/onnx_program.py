"""ONNX program: what torch returns from an export by way of torch.export, made into a file and its scopes.

dynamo.py and transformers_exporter.py ask torch for a program without its optimizer. It is looked at, and then
optimized by the same call that torch would have made: the file is the one that torch writes, and the graph before it
is known as well.

    torch.onnx.export(…, optimize=False)   program, its FX nodes with module stacks   -> scopes
    index_model(program.model)             the graph before                           -> Exported.before
    program.optimize()                     what torch writes                          -> Exported.model
    RewriteRecorder                        what became of which node on the way       -> Exported.lineage

Then names are put right: outputs have the names that the model returns them under, and symbols such as `s72` the names
of the axes that were asked for. An axis that torch made fixed is a note, or an error if it must be dynamic.

Module stack: which module call issued an FX node is read from `nn_module_stack`, which torch keeps with the node. Its
keys number the calls of a module (`L__self___layer@2` is the third), each name of a module by itself.

https://github.com/pytorch/pytorch/blob/main/torch/onnx/_internal/exporter/_core.py
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
import torch

from modelexport.capture.arguments import Exported, ExportRequest
from modelexport.capture.isolation import export_failed, root_cause
from modelexport.capture.recorded_lineage import RewriteRecorder
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
    nodes = list(nodes)
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
        for name, stack in _return_views(nodes, stacks).items()
    }


def _return_views(nodes: Sequence[torch.fx.Node], stacks: Mapping[str, _Stack]) -> dict[str, _Stack]:
    """Views under the calls that took them.

        y = x[0]; y is read by norm(y)    after x was written into, torch takes x[0] again where it is read, in norm

    Such a view has the module stack of its reader and the Python frames of its taker: fewer than all else in the call.
    """
    frames = {node.name: (node.meta.get("stack_trace") or "").count('File "') for node in nodes}
    views = {node.name for node in nodes if getattr(node.target, "is_view", False) and frames[node.name]}
    depths: dict[_Stack, int] = {}
    for name, stack in stacks.items():
        if name not in views and frames[name]:
            depths[stack] = min(frames[name], depths.get(stack, frames[name]))
    returned = dict(stacks)
    for name in views:
        stack, depth = stacks[name], frames[name]
        if depth < depths.get(stack, 0):
            outer = (stack[:end] for end in range(len(stack) - 1, 0, -1))
            returned[name] = next((calls for calls in outer if depths.get(calls, depth + 1) <= depth), stack)
    return returned


def _module_call(key: str, path: str, hierarchy: Hierarchy, order: dict[str, dict[str, int]]) -> ModuleCall | None:
    own = hierarchy.canonical.get(path)
    if own is None:
        return None
    index = order.setdefault(own, {}).setdefault(key, len(order[own]))
    number = _CALL_NUMBER.search(key)
    call = ModuleCall(own, index if hierarchy.modules[own].aliases else int(number[1]) if number else 0)
    return call if call in hierarchy.stacks else None


def translate_operators() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Translations of operators to ONNX that take the place of torch's own, which are wrong for some sizes."""
    return {torch.ops.aten.squeeze.dim: _translate_squeeze}


# torch binds arguments by the names that its operator has.
def _translate_squeeze(self: Any, dim: int) -> Any:
    """`x.squeeze(1)` of an axis that is not 1 does nothing in PyTorch; ONNX's Squeeze refuses it.

    Whether an axis is 1 was decided when the model was traced: one with a symbol for its size is not.
    """
    from onnxscript.onnx_opset import opset18

    operators: Any = opset18  # its types leave out plain lists, which it takes as well
    is_one = len(self.shape) > 0 and self.shape[dim] == 1
    return operators.Squeeze(self, [dim]) if is_one else operators.Identity(self)


@dataclass(frozen=True)
class Program:
    """A program before torch's optimizer; `refusal` says why it is static although axes were to be dynamic."""

    made: torch.onnx.ONNXProgram
    refusal: str = ""


def export_dynamic_or_static(
    model: torch.nn.Module,
    exporter: str,
    request: ExportRequest,
    export: Callable[[bool], torch.onnx.ONNXProgram | None],
    next_step: str,
) -> Program:
    """Export with dynamic axes; statically where torch refuses them and nobody insists.

    export     makes the program, with dynamic axes or without them
    next_step  what a user can do about a model that cannot be exported either way
    """
    refusal = ""
    if request.axes:
        try:
            return _made(export(True))
        except Exception as error:
            if request.must_dynamic:
                raise export_failed(model, exporter, error, "Without --dynamic the export is static.") from error
            refusal = root_cause(error, lines=1)
    try:
        return _made(export(False), refusal)
    except Exception as error:
        raise export_failed(model, exporter, error, next_step) from error


def _made(program: torch.onnx.ONNXProgram | None, refusal: str = "") -> Program:
    assert program is not None  # it is None only where torch is told to write a file
    return Program(program, refusal)


def finish_export(
    program: Program,
    exporter: str,
    request: ExportRequest,
    hierarchy: Hierarchy,
    mend: Callable[[torch.onnx.ONNXProgram], None] = lambda program: None,  # noqa: ARG005
) -> Exported:
    """Record the graph and its scopes, optimize it as torch would, and put its names right.

    mend  what an exporter changes about the optimized graph
    """
    made = program.made
    fixed = _fixed_symbols(made)
    _copy_returned_inputs(made.model.graph)
    _name_outputs(made.model, request.output_names)
    before = index_model(_to_file(made.model).proto)
    stacks = {} if made.exported_program is None else fx_stacks(made.exported_program.graph.nodes, hierarchy)
    # Only the innermost call of a node counts; where that is not certain, the node is left out.
    calls = {name: stack[-1] for name, stack in stacks.items() if stack and stack[-1] is not None}
    recorder = RewriteRecorder(made.model)
    with recorder.recording():
        made.optimize()
        mend(made)
    _name_outputs(made.model, request.output_names)  # what is returned twice has become two values
    file = _to_file(made.model)
    # After a refusal every axis is fixed, and the note says so.
    refused = [f"static export: torch refused dynamic axes ({program.refusal})"] if program.refusal else []
    stuck = _name_axes(file.proto, {} if refused else request.axes, fixed)
    if stuck and request.must_dynamic:
        raise ExportFailed(f"torch cannot keep every axis dynamic: {'; '.join(stuck)}", "Leave --dynamic out.")
    lineage = recorder.lineage(before, file.graph)
    return Exported(file, exporter, before, lineage, ExporterScopes(calls), (*refused, *stuck))


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
    single = [name for name in names if name.isidentifier()]
    symbols = re.compile(r"\b(" + "|".join(single) + r")\b") if single else None
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in fixed:
                dim.dim_value = fixed[dim.dim_param]
            elif dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]
            elif symbols is not None and dim.dim_param:
                # A dimension may be an expression of symbols, `2*s72 + 1`, and an input may have a name for it.
                dim.dim_param = symbols.sub(lambda match: names[match[1]], dim.dim_param)
