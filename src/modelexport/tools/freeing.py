"""Nodes that were to stay in float, where pairs of QuantizeLinear and DequantizeLinear tell how a graph is quantized.

ONNX Runtime's quantizer asks for no pair around a node that it is to leave alone, but neighbours ask for theirs. If all
of them do, the node reads and makes nothing but quantized values, and ONNX Runtime runs it in integers all the same: to
exclude Softmax between two quantized products changes nothing. Here such nodes get back what they read in float.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx

from modelexport.graph.opened import ModelFile
from modelexport.graph.value_types import ValueTypes

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


def free_nodes(model: onnx.ModelProto, before: onnx.ModelProto, names: frozenset[str]) -> int:
    """Let the nodes of these names read floats, in place; how many inputs were changed. No two nodes have one name.

    before  the model as it was given to the quantizer
    """
    was = {node.name: node for node in before.graph.node if node.name in names}
    nodes = [(node, was[node.name]) for node in model.graph.node if node.name in was]
    surroundings = _Surroundings.of(model, before, names)
    changed = sum(surroundings.free(node, old) for node, old in nodes)
    if changed:
        _remove_unread(model.graph)
    return changed


@dataclass
class _Surroundings:
    """
    makers   by value: the node that makes it
    needed   values that the model returns, or that a node reads which is not to be free
    paired   values that came out of a DequantizeLinear before
    weights  of the model before
    types    of its values
    stored   what the graph holds now
    """

    graph: onnx.GraphProto
    makers: dict[str, onnx.NodeProto]
    needed: set[str]
    paired: set[str]
    weights: dict[str, onnx.TensorProto]
    types: ValueTypes
    stored: set[str]

    @classmethod
    def of(cls, model: onnx.ModelProto, before: onnx.ModelProto, names: frozenset[str]) -> _Surroundings:
        needed = {value.name for value in model.graph.output}
        for node in model.graph.node:
            needed.update(_inner_inputs(node) if node.name in names else [*node.input, *_inner_inputs(node)])
        return cls(
            model.graph,
            {output: node for node in model.graph.node for output in node.output},
            needed,
            {output for node in before.graph.node if node.op_type == _DEQUANTIZE for output in node.output},
            {tensor.name: tensor for tensor in before.graph.initializer},
            ValueTypes(ModelFile(before, {})),
            {tensor.name for tensor in model.graph.initializer},
        )

    def free(self, node: onnx.NodeProto, before: onnx.NodeProto) -> int:
        """How many of its inputs were changed."""
        places = list(self._places(node))
        changed = [place for place in places if self._weight_back(node, before, place) or self._own_back(node, place)]
        floats = [place for place, name in enumerate(before.input) if self.types.is_float(name)]
        # A node with a float to read is not run in integers; what it shares with quantized nodes may stay rounded.
        if places and not changed and set(floats) <= set(places):
            changed = [place for place in places if self._value_back(node, place)]
        return len(changed)

    def _places(self, node: onnx.NodeProto) -> Iterator[int]:
        """Where a node reads out of a DequantizeLinear that the quantizer has put there."""
        for place, name in enumerate(node.input):
            maker = self.makers.get(name)
            if maker is not None and maker.op_type == _DEQUANTIZE and name not in self.paired:
                yield place

    def _weight_back(self, node: onnx.NodeProto, before: onnx.NodeProto, place: int) -> bool:
        """A weight that others read in fewer bits is stored in float as well."""
        name = before.input[place] if place < len(before.input) else ""
        if self.makers[node.input[place]].input[0] in self.makers or name not in self.weights:
            return False
        # A bias that others read in fewer bits comes out of a node under its own name.
        again = f"{name}_in_float" if name in self.makers else name
        if again not in self.stored:
            added = self.graph.initializer.add()
            added.CopyFrom(self.weights[name])
            added.name = again
            self.stored.add(again)
        node.input[place] = again
        return True

    def _own_back(self, node: onnx.NodeProto, place: int) -> bool:
        """A value that no quantized node reads needs no pair."""
        return node.input[place] not in self.needed and self._value_back(node, place)

    def _value_back(self, node: onnx.NodeProto, place: int) -> bool:
        maker = self.makers.get(self.makers[node.input[place]].input[0])
        if maker is None or maker.op_type != _QUANTIZE:
            return False
        node.input[place] = maker.input[0]
        return True


def _inner_inputs(node: onnx.NodeProto) -> Iterator[str]:
    """What the nodes in the bodies of a node read."""
    for attribute in node.attribute:
        for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            for inner in body.node:
                yield from inner.input
                yield from _inner_inputs(inner)


def _remove_unread(graph: onnx.GraphProto) -> None:
    """Pairs that nobody reads any more, and the scales that were for them."""
    kept = list(graph.node)
    while True:
        read = {value.name for value in graph.output}
        read.update(name for node in kept for name in (*node.input, *_inner_inputs(node)))
        left = [
            node for node in kept if node.op_type not in (_QUANTIZE, _DEQUANTIZE) or not read.isdisjoint(node.output)
        ]
        if len(left) == len(kept):
            break
        kept = left
    gone = {name for node in graph.node for name in node.input} - read
    holder = onnx.GraphProto(node=kept, initializer=[one for one in graph.initializer if one.name not in gone])
    del graph.node[:]
    del graph.initializer[:]
    graph.node.extend(holder.node)
    graph.initializer.extend(holder.initializer)
