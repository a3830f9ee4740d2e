"""How many trained numbers each initializer has.

Weights of four bits may be packed into bytes, and quantization puts scales and zero points beside the weights: what an
initializer is, its place among the inputs of what reads it says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx

from modelexport.costing.unfolded import Unfolded
from modelexport.graph.index import Node, Tensor
from modelexport.graph.trained import NEVER_WEIGHTS

Use = tuple[Node, int]

# Places of scales, zero points and the order of columns.
_BESIDE: Mapping[str, frozenset[int]] = {
    "QuantizeLinear": frozenset((1, 2)),
    "DequantizeLinear": frozenset((1, 2)),
    "QLinearConv": frozenset((1, 2, 4, 5, 6, 7)),
    "QLinearMatMul": frozenset((1, 2, 4, 5, 6, 7)),
    "QLinearAdd": frozenset((1, 2, 4, 5, 6, 7)),
    "QLinearMul": frozenset((1, 2, 4, 5, 6, 7)),
    "ConvInteger": frozenset((2, 3)),
    "MatMulInteger": frozenset((2, 3)),
    "DynamicQuantizeMatMul": frozenset((2, 3)),
    "MatMulIntegerToFloat": frozenset((2, 3, 4, 5)),
    "QGemm": frozenset((1, 2, 4, 5, 7, 8)),
    "QAttention": frozenset((3, 4, 6, 7)),
    "DynamicQuantizeLSTM": frozenset((8, 9, 10, 11)),
    "MatMulNBits": frozenset((2, 3, 4)),
    "MatMulBnb4": frozenset((2,)),
    "GatherBlockQuantized": frozenset((2, 3)),
    "QMoE": frozenset((3, 6, 9, 11, 12, 13)),
}
# Places of biases that are whole numbers of 32 bits, a type that other weights never have.
_WIDE = {"QLinearConv": 8, "QGemm": 6, "DequantizeLinear": 0}
# Places of weights that are packed into bytes.
_PACKED = {"GatherBlockQuantized": (0,), "QMoE": (2, 5, 8)}
_BITS = {"GatherBlockQuantized": "bits", "QMoE": "expert_weight_bits"}
_BYTE = 8


class Parameters:
    def __init__(self, unfolded: Unfolded) -> None:
        self._unfolded = unfolded
        self._uses: dict[str, list[Use]] = {}
        initializers = unfolded.graph.initializers
        for node in unfolded.graph.nodes:
            for place, name in enumerate(node.inputs):
                if name in initializers:
                    self._uses.setdefault(name, []).append((node, place))

    def uses(self, name: str) -> Sequence[Use]:
        """The nodes that read it, functions put in the place of their calls, and where they do."""
        return self._uses.get(name, ())

    def is_beside(self, name: str) -> bool:
        """Whether it is stored beside weights, and is no weight itself."""
        uses = self.uses(name)
        return bool(uses) and all(place in _BESIDE.get(node.op_type, ()) for node, place in uses)

    def may_be_weight(self, name: str, tensor: Tensor) -> bool:
        """By its type and size; exporters make constants of whole numbers and single numbers."""
        if self.is_beside(name):
            return False
        wide = tensor.dtype == onnx.TensorProto.INT32 and self._is_bias(name)
        return wide or (tensor.dtype not in NEVER_WEIGHTS and math.prod(tensor.shape) > 1)

    def numbers(self, name: str, tensor: Tensor) -> int:
        """How many numbers it holds, for what reads them."""
        return max((self._unpacked(tensor, use) for use in self.uses(name)), default=math.prod(tensor.shape))

    def _unpacked(self, tensor: Tensor, use: Use) -> int:
        node, place = use
        size = math.prod(tensor.shape)
        if place == 1 and node.op_type in ("MatMulNBits", "MatMulBnb4"):
            attributes = self._unfolded.attributes(node)
            return int(attributes.get("K", 0) * attributes.get("N", 0)) or size
        if place in _PACKED.get(node.op_type, ()) and tensor.dtype == onnx.TensorProto.UINT8:
            bits = self._unfolded.attributes(node).get(_BITS[node.op_type], 4)
            return size * (_BYTE // bits) if bits in (1, 2, 4, 8) else size
        return size

    def _is_bias(self, name: str) -> bool:
        return any(_WIDE.get(node.op_type) == place for node, place in self.uses(name))
