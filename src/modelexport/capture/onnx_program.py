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

import inspect
import operator
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import onnx
import onnx_ir as ir
import torch

from modelexport.capture.arguments import Exported, ExportRequest
from modelexport.capture.isolation import explain_optimizer, export_failed, root_cause
from modelexport.capture.linear_optimizer import linear_rewriting, linear_signatures
from modelexport.capture.recorded_lineage import RewriteRecorder
from modelexport.capture.traced_arrays import declared_weights, folding_recipes, trace_initializers
from modelexport.errors import ExportFailed
from modelexport.graph.file.declared import declare
from modelexport.graph.file.reading import DETACHED_ABOVE, ModelFile
from modelexport.graph.file.weights import Lazy, WeightData
from modelexport.graph.index import index_model
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.signals import ExporterScopes

_CALL_NUMBER = re.compile(r"@(\d+)$")
# As Python prints a traceback: File "model.py", line 12, in forward
_FRAME = re.compile(r'File "(.+?)", line (\d+), in')
Stack = tuple[ModuleCall | None, ...]


def fx_stacks(nodes: Iterable[torch.fx.Node], hierarchy: Hierarchy, model: torch.nn.Module) -> dict[str, Stack]:
    """The calls that were open for each FX node, outermost first; None in the place of one that is not certain."""
    stacks: dict[str, Stack] = {}
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
    depths = _TracedFrames(nodes, model).depths()
    return {
        name: tuple(None if call is None or call.path in unclear else call for call in stack[: depths.get(name)])
        for name, stack in stacks.items()
    }


class _TracedFrames:
    """Python frames: what issued an FX node, whatever module was open when torch made the node.

        p, q = h.unbind(0)      line 1 of the model
        h.mul_(2)
        self.norm(q)            line 3 of the model, line 9 of norm

    After h was written into, torch takes p and q again where they are read: `unbind` has the module stack of norm, and
    the frames of line 1. Whatever norm issues has a frame in the code of norm's `forward`.
    """

    def __init__(self, nodes: Sequence[torch.fx.Node], model: torch.nn.Module) -> None:
        self._frames = {node: _FRAME.findall(node.meta.get("stack_trace") or "") for node in nodes}
        self._forwards = {path: _forward_code(module) for path, module in model.named_modules(remove_duplicate=False)}

    def depths(self) -> dict[str, int]:
        """By the name of a node that has frames of an outer call alone: how many calls of its stack were open."""
        entered = {node: self._count_entered(node) for node, frames in self._frames.items() if frames}
        visible = {path for node, depth in entered.items() for path in _stack_paths(node)[:depth]}
        short = {node: depth for node, depth in entered.items() if depth < len(_stack_paths(node))}
        taken_again = {node: depth for node, depth in short.items() if _is_view(node)}
        return {
            node.name: depth
            for node, depth in taken_again.items()
            # A forward that is not written in Python, or was exchanged for the export, leaves no frame anywhere.
            if _stack_paths(node)[depth] in visible or self._has_fewest_frames(node, depth)
        }

    def _has_fewest_frames(self, node: torch.fx.Node, depth: int) -> bool:
        """Whether all that the module does besides views has more frames than a node."""
        call = _stack_paths(node)[: depth + 1]
        inside = (other for other in self._frames if _stack_paths(other)[: depth + 1] == call and not _is_view(other))
        counts = [len(self._frames[other]) for other in inside if self._frames[other]]
        return bool(counts) and len(self._frames[node]) < min(counts)

    def _count_entered(self, node: torch.fx.Node) -> int:
        """How many calls of a node's stack, from the model on, have a frame of their own, in this order."""
        frames = iter(self._frames[node])
        paths = _stack_paths(node)
        for depth, path in enumerate(paths):
            file, lines = self._forwards.get(path, ("", range(0)))
            # Whatever is in a frame of the model's forward or before it, the model was open.
            if depth and not any(name == file and int(line) in lines for name, line in frames):
                return depth
        return len(paths)


def _is_view(node: torch.fx.Node) -> bool:
    """Whether it shows a part of a tensor, or picks one of several such views. Nothing else is made a second time."""
    source = node.args[0] if node.target is operator.getitem else node
    return isinstance(source, torch.fx.Node) and bool(getattr(source.target, "is_view", False))


def _stack_paths(node: torch.fx.Node) -> list[str]:
    return [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]


def _forward_code(module: torch.nn.Module) -> tuple[str, range]:
    """The file and the lines of a module's `forward`."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    if code is None:
        return "", range(0)
    lines = [line for _, _, line in code.co_lines() if line is not None]
    return code.co_filename, range(code.co_firstlineno, max(lines, default=code.co_firstlineno) + 1)


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
            with linear_signatures():
                return _made(export(True))
        except Exception as error:
            if request.must_dynamic:
                raise export_failed(model, exporter, error, "Without --dynamic the export is static.") from error
            refusal = root_cause(error, lines=1)
    try:
        with linear_signatures():
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
    model: torch.nn.Module,
    mend: Callable[[torch.onnx.ONNXProgram], None] = lambda program: None,  # noqa: ARG005
) -> Exported:
    """Record the graph and its scopes, optimize it as torch would, and put its names right.

    mend  what an exporter changes about the optimized graph
    """
    made = program.made
    trace_initializers(made.model, model)
    fixed = _fixed_symbols(made)
    _copy_returned_inputs(made.model.graph)
    _name_outputs(made.model, request.output_names)
    before = index_model(_to_file(made.model).proto)
    stacks = {} if made.exported_program is None else fx_stacks(made.exported_program.graph.nodes, hierarchy, model)
    # Only the innermost call of a node counts; where that is not certain, the node is left out.
    calls = {name: stack[-1] for name, stack in stacks.items() if stack and stack[-1] is not None}
    recorder = RewriteRecorder(made.model)
    # Both exporters that come here end in the same optimizer; sizes that are numbers leave it less to go wrong with.
    next_step = f"Try --exporter torchscript{', or --static' if request.axes else ''}."
    with explain_optimizer(model, exporter, next_step), recorder.recording(), linear_rewriting(), folding_recipes():
        if request.optimize:
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
    declared = declared_weights(model)
    with _detach_weights(model) as weights:
        proto = ir.to_proto(model)
    for tensor in proto.graph.initializer:
        if tensor.name in weights:
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
        recipe, known = declared.get(tensor.name, (None, False))
        # A small weight that was read is in the file as every constant of its size.
        if recipe is not None and not (known and tensor.name not in weights):
            weights.pop(tensor.name, None)
            declare(tensor, recipe)
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
            weights[name] = Lazy(tensor.nbytes, partial(tensor_bytes, tensor))
            value.const_value = ir.ExternalTensor(
                "_", 0, 0, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name
            )
        yield weights
    finally:
        for value, tensor in large.values():
            value.const_value = tensor


def tensor_bytes(tensor: ir.TensorProtocol) -> bytes | memoryview:
    """Where they lie, if they lie there as in a file; else a copy. An embedding alone may have some 100 MB."""
    raw = tensor.raw
    is_plain = type(raw) in (torch.Tensor, torch.nn.Parameter) and raw.device.type == "cpu" and not raw.is_quantized
    if is_plain and raw.is_contiguous() and not (raw.is_conj() or raw.is_neg()) and sys.byteorder == "little":
        return memoryview(raw.detach().reshape(-1).view(torch.uint8).numpy())
    return tensor.tobytes()


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
