"""Restored weights: a quantized file, run with the model's own weights in the place of the rounded ones.

Values of a quantized graph are near those of the model at best, and no two of them equal. But what a quantized weight
was made of can be found (graph/weight_parts.py), and with the original in its place the graph computes what the model
computes, node by node under the same names:

    MatMulNBits(x, q4, scales) -> y          FusedMatMul(x, o_proj.weight, transB=1) -> y
    DequantizeLinear(q8, scale) -> w         Identity(fc.weight) -> w
    GatherBlockQuantized(q4, ids, …) -> y    Gather(embed.weight, ids) -> y

Only values are taken from such a run. Weights are fed from where they lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from modelexport.graph.dequantize import dequantize_weight, stored_weight_input
from modelexport.graph.file.reading import ModelFile, initializer_array
from modelexport.graph.weight_parts import ParameterRows, list_matrices, read_rows
from modelexport.record.signals import WeightPart

_MICROSOFT = "com.microsoft"


@dataclass(frozen=True, eq=False)
class RestoredModel:
    """A model to run, with what to feed besides its inputs.

    feed      originals of quantized weights, under names of their own
    weights   the same by the name of the initializer
    parts     of initializers that hold other than one whole parameter
    """

    file: ModelFile
    feed: Mapping[str, np.ndarray] = field(default_factory=dict)
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    parts: Mapping[str, tuple[WeightPart, ...]] = field(default_factory=dict)


class WeightRestorer:
    """Finds what the weights of a file were made of, and puts originals in the place of quantized ones."""

    def __init__(self, file: ModelFile, parameters: Mapping[str, np.ndarray]) -> None:
        self._file, self._parameters = file, parameters
        self._rows = ParameterRows(parameters.items())
        self._tensors = {tensor.name: tensor for tensor in file.proto.graph.initializer}
        # A weight that several nodes share is given another shape for some of them.
        self._shared = {
            node.output[0]: node.input[0]
            for node in file.proto.graph.node
            if node.op_type in ("Reshape", "Identity") and node.input[0] in self._tensors
        }
        self._feed: dict[str, np.ndarray] = {}
        self._weights: dict[str, np.ndarray] = {}
        self._parts: dict[str, tuple[WeightPart, ...]] = {}

    def restore(self, unknown: Sequence[str]) -> RestoredModel:
        """`unknown` are initializers in floats that are no parameter by themselves."""
        for name in unknown:
            self._find_parts(name)
        nodes = [node for original in self._file.proto.graph.node for node in self._restore_node(original)]
        proto = onnx.ModelProto()
        proto.CopyFrom(self._file.proto)
        if self._feed:
            del proto.graph.node[:]
            proto.graph.node.extend(nodes)
        if all(item.domain != _MICROSOFT for item in proto.opset_import):
            proto.opset_import.append(onnx.helper.make_opsetid(_MICROSOFT, 1))
        file = replace(self._file, proto=proto) if self._feed else self._file
        return RestoredModel(file, self._feed, self._weights, self._parts)

    def _find_parts(self, name: str) -> None:
        array = initializer_array(self._file, self._tensors[name])
        # Tools store a linear layer's weight as it is multiplied, transposed, and those of experts in a stack.
        parts = next(filter(None, (self._rows.split(matrix) for _, matrix in list_matrices(array))), ())
        if parts:
            self._parts[name] = parts

    def _restore_node(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        index = stored_weight_input(node)
        stored = None if index is None or len(node.input) <= index else self._stored(node.input[index])
        original = None if stored is None else self._original(node, stored)
        if original is None:
            yield node
            return
        self._feed[f"{stored}/restored"] = original
        yield from _float_nodes(node, f"{stored}/restored")

    def _stored(self, value: str) -> str | None:
        """The initializer that a value is, or has another shape of."""
        name = self._shared.get(value, value)
        return name if name in self._tensors else None

    def _original(self, node: onnx.NodeProto, stored: str) -> np.ndarray | None:
        """The original of the weight that a node dequantizes; None if it is not the model's."""
        if stored not in self._weights:
            names = {position: self._stored(value) for position, value in enumerate(node.input)}
            arrays = {
                position: initializer_array(self._file, self._tensors[name])
                for position, name in names.items()
                if name is not None
            }
            weight = dequantize_weight(node, arrays)
            original = None if weight is None or weight.ndim != 2 else self._look_up(weight)
            if original is None:
                return None
            self._weights[stored], self._parts[stored] = original
        return self._weights[stored]

    def _look_up(self, weight: np.ndarray) -> tuple[np.ndarray, tuple[WeightPart, ...]] | None:
        for transposed, matrix in ((False, weight), (True, weight.T)):
            parts = self._rows.split(matrix, rounded=True)
            if parts:
                joined = (
                    np.concatenate([self._read(part) for part in parts]) if len(parts) > 1 else self._read(parts[0])
                )
                return np.ascontiguousarray(joined.T if transposed else joined), parts
        return None

    def _read(self, part: WeightPart) -> np.ndarray:
        return read_rows(self._parameters[part.parameter], part)


def _float_nodes(node: onnx.NodeProto, weight: str) -> Iterator[onnx.NodeProto]:
    """Nodes that do the same with a weight in floats."""
    if node.op_type == "DequantizeLinear":
        yield onnx.helper.make_node("Identity", [weight], node.output)
    elif node.op_type == "GatherBlockQuantized":
        yield onnx.helper.make_node("Gather", [weight, node.input[1]], node.output, axis=0)
    else:
        bias = node.input[5] if len(node.input) > 5 else ""
        product = f"{node.output[0]}/product" if bias else node.output[0]
        yield onnx.helper.make_node("FusedMatMul", [node.input[0], weight], [product], domain=_MICROSOFT, transB=1)
        if bias:
            yield onnx.helper.make_node("Add", [product, bias], node.output)
