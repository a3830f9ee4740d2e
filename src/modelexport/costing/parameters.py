"""How many parameters of the model each initializer holds.

Weights of four bits may be packed into bytes, and quantization puts scales and zero points beside the weights: what an
initializer is, its place among the inputs of what reads it says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import onnx

from modelexport.costing.unfolded import Unfolded
from modelexport.graph.index import Node, Tensor
from modelexport.graph.trained import NEVER_WEIGHTS, is_folded_weight, is_of_trained
from modelexport.record.evidence import Attribution
from modelexport.record.hierarchy import join
from modelexport.record.provenance import Provenance

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
    def __init__(self, unfolded: Unfolded, record: Provenance | None) -> None:
        self._unfolded = unfolded
        self._record = record
        self._uses: dict[str, list[Use]] = {}
        initializers = unfolded.graph.initializers
        for node in unfolded.graph.nodes:
            for place, name in enumerate(node.inputs):
                if name in initializers:
                    self._uses.setdefault(name, []).append((node, place))
        self._counts = {name: self._count(name, tensor) for name, tensor in initializers.items()}

    def stands_for(self, name: str) -> str:
        """The parameter that an initializer holds, under one of its names; the initializer's own if nobody knows.

        An exporter may store a weight that two modules share twice, once of them transposed.
        """
        if self._record is None or name in self._names:
            return self._names.get(name, name)
        owners = self._record.initializers[name].owners if name in self._record.initializers else ()
        modules = self._record.hierarchy.modules
        alike = {
            self._names[join(owner.path, parameter.name)]
            for owner in owners
            if owner.path in modules
            for parameter in modules[owner.path].parameters
            if parameter.size == self[name]
        }
        return alike.pop() if len(alike) == 1 else name

    @cached_property
    def _names(self) -> Mapping[str, str]:
        """Every name of every parameter, mapped to the first of its names."""
        found: dict[str, str] = {}
        for module in () if self._record is None else self._record.hierarchy.modules.values():
            for parameter in module.parameters:
                names = {join(path, parameter.name) for path in (module.path, *module.aliases)} | {*parameter.tied}
                first = min(found.get(name, name) for name in names)
                found.update(dict.fromkeys(names, first))
        return found

    def __getitem__(self, name: str) -> int:
        return self._counts[name]

    def _count(self, name: str, tensor: Tensor) -> int:
        uses = self._uses.get(name, ())
        if uses and all(place in _BESIDE.get(node.op_type, ()) for node, place in uses):
            return 0
        if not self._is_weight(name, tensor):
            return 0
        return max((self._unpacked(tensor, use) for use in uses), default=math.prod(tensor.shape))

    def _unpacked(self, tensor: Tensor, use: Use) -> int:
        """How many numbers there are, for what reads them."""
        node, place = use
        size = math.prod(tensor.shape)
        if place == 1 and node.op_type in ("MatMulNBits", "MatMulBnb4"):
            attributes = self._unfolded.attributes(node)
            return int(attributes.get("K", 0) * attributes.get("N", 0)) or size
        if place in _PACKED.get(node.op_type, ()) and tensor.dtype == onnx.TensorProto.UINT8:
            bits = self._unfolded.attributes(node).get(_BITS[node.op_type], 4)
            return size * (_BYTE // bits) if bits in (1, 2, 4, 8) else size
        return size

    def _is_weight(self, name: str, tensor: Tensor) -> bool:
        wide = tensor.dtype == onnx.TensorProto.INT32 and self._is_bias(name)
        record = self._record
        if record is None:
            return wide or (tensor.dtype not in NEVER_WEIGHTS and math.prod(tensor.shape) > 1)
        if name in record.hierarchy.parameter_owners:
            return True
        if name not in record.initializers:
            return False
        attribution = record.initializers[name]
        if is_folded_weight(tensor, attribution, record.hierarchy):
            return self._may_stand_for_one(tensor, attribution)
        return wide and is_of_trained(attribution, record.hierarchy)

    def _may_stand_for_one(self, tensor: Tensor, attribution: Attribution) -> bool:
        """If all parameters of its modules are there under their names, it is one of them again, or none."""
        modules = {} if self._record is None else self._record.hierarchy.modules
        held = [
            (self._names[join(owner.path, parameter.name)], parameter.size)
            for owner in attribution.owners
            if owner.path in modules
            for parameter in modules[owner.path].parameters
        ]
        size = math.prod(tensor.shape)
        return any(name not in self._present or one == size for name, one in held)

    @cached_property
    def _present(self) -> frozenset[str]:
        """Parameters that the file holds under one of their names."""
        return frozenset(self._names[name] for name in self._unfolded.graph.initializers if name in self._names)

    def _is_bias(self, name: str) -> bool:
        return any(_WIDE.get(node.op_type) == place for node, place in self._uses.get(name, ()))
