"""Quantized nodes: which nodes of a file became ones that work on numbers of few bits, told from the two graphs alone.

    before   x, W ─► MatMul ─► y
    after    x ─► DynamicQuantizeLinear ─► MatMulInteger (W_quantized) ─► Cast ─► Mul ─► y

Quantizers keep the names of the values that nodes exchange. What lies between `y` and the next values that were there
before is what the MatMul became: it is quantized if a tensor of few bits is read there, or made.
https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx

from modelexport.graph.index import Graph, Node
from modelexport.graph.protos import find_attribute

_TYPE_NAMES: dict[int, str] = {
    onnx.TensorProto.INT8: "int8",
    onnx.TensorProto.UINT8: "uint8",
    onnx.TensorProto.INT16: "int16",
    onnx.TensorProto.UINT16: "uint16",
    onnx.TensorProto.INT4: "int4",
    onnx.TensorProto.UINT4: "uint4",
    onnx.TensorProto.FLOAT8E4M3FN: "float8",
}
NARROW = frozenset(_TYPE_NAMES)
QUANTIZING = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})
_ROUNDING = QUANTIZING | {"DequantizeLinear"}
_ZERO_POINT = 2  # of QuantizeLinear and DequantizeLinear


def count_narrow(graph: Graph) -> int:
    """Tensors of few bits. Whatever a quantizer does, it stores some, or adds nodes that make them at run time."""
    stored = sum(tensor.dtype in NARROW for tensor in graph.initializers.values())
    return stored + sum(node.op_type in QUANTIZING for node in graph.nodes)


class QuantizedNodes:
    """Nodes before, looked up in the graph after."""

    def __init__(self, before: Graph, after: Graph) -> None:
        self._after = after
        self._known = {value for node in before.nodes for value in node.outputs} | {*before.inputs}

    def is_quantized(self, node: Node) -> bool:
        """Whether it works on numbers of few bits, be they weights or what it is fed."""
        region = list(self._region(node))
        # A value that is gone was between two nodes that are quantized both, and stays in few bits.
        return not region or any(
            part.op_type in _ROUNDING or any(self._is_narrow(value) for value in part.inputs) for part in region
        )

    def has_narrow_weights(self, node: Node) -> bool:
        """Whether weights of it are stored in few bits now: several numbers, of which one alone is a zero point."""
        return any(
            self._is_narrow(value) and len(self._after.initializers[value].shape) > 1
            for part in self._region(node)
            for value in part.inputs
        )

    def _is_narrow(self, value: str) -> bool:
        return value in self._after.initializers and self._after.initializers[value].dtype in NARROW

    def _region(self, node: Node) -> Iterator[Node]:
        """What the node became: from its results back to values that were there before."""
        waiting, seen = [value for value in node.outputs if value], set()
        while waiting:
            producer = self._after.producers.get(waiting.pop())
            if producer is None or producer.key in seen:
                continue
            seen.add(producer.key)
            yield producer
            waiting += [value for value in producer.inputs if value and value not in self._known]


def weight_types(before: Graph, after: onnx.ModelProto, after_graph: Graph) -> Counter[str]:
    """By type: how many numbers of weights are stored in it that were not there before.

    Weights of four bits that are packed in bytes are told by the attribute of the operator that unpacks them.
    """
    packed = _packed_bits(after)
    numbers: Counter[str] = Counter()
    for name, tensor in after_graph.initializers.items():
        if tensor.dtype in NARROW and name not in before.initializers and len(tensor.shape) > 1:
            numbers[packed.get(name, _TYPE_NAMES[tensor.dtype])] += tensor.nbytes
    return numbers


def _packed_bits(model: onnx.ModelProto) -> dict[str, str]:
    """By weight of MatMulNBits and the like: `int4`, or `uint4` where it has zero points."""
    packed: dict[str, str] = {}
    for node in model.graph.node:
        bits = find_attribute(node, "bits")
        if bits is not None:
            has_zero_points = len(node.input) > 3 and bool(node.input[3])
            packed |= dict.fromkeys(node.input[1:], f"{'u' if has_zero_points else ''}int{bits.i}")
    return packed


def activation_types(graph: Graph) -> Counter[str]:
    """By type: how many QuantizeLinear make it, by their zero points."""
    zero_points = (
        node.inputs[_ZERO_POINT] for node in graph.nodes if node.op_type == "QuantizeLinear" and node.inputs[2:]
    )
    tensors = (graph.initializers[value] for value in zero_points if value in graph.initializers)
    return Counter(_TYPE_NAMES[tensor.dtype] for tensor in tensors if tensor.dtype in NARROW)
