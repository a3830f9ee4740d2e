"""Excluded nodes kept in float between others that a quantizer has quantized.

    before   Q ─► DQ ─► Softmax ─► Q ─► DQ        ONNX Runtime runs this Softmax in integers, though it is excluded
    after           x ─► Softmax ─► Q ─► DQ        it reads what was rounded before

ONNX Runtime's quantizers ask for no QuantizeLinear or DequantizeLinear around a node that they are to leave alone, but
neighbours ask for theirs. If all of them do, the node reads and makes nothing but quantized values, and ONNX Runtime
runs it in integers all the same: to exclude Softmax between two quantized products changes nothing. Here such nodes get
back what they read in float, as far as this costs no neighbour the integers that it is run in. Where it would, the node
reads the rounded numbers through one that hands them on as they are, and that ONNX Runtime does not look through.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx

from modelexport.graph.file.reading import ModelFile
from modelexport.graph.operators import QDQ_PROPAGATED
from modelexport.graph.protos import captured, names_read, operator_name
from modelexport.graph.types import ValueTypes

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
# With one input, this is what goes in. ONNX Runtime removes Identity, and then sees what is behind it.
_SCREEN = "Max"
# ONNX Runtime runs these in integers even if they are to make floats.
_MAKING_FLOATS = frozenset({"MatMul", "Gemm"})
# ONNX Runtime rounds the weights of these by itself if all else is quantized.
_ROUNDED_LATER = frozenset({"Conv", "ConvTranspose", "Gemm"})
# Inputs from here on are biases, which no pair is needed for.
_BIAS = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2}


def keep_nodes_float(
    model: onnx.ModelProto, before: onnx.ModelProto, names: frozenset[str], in_integers: frozenset[str]
) -> int:
    """Let the nodes of these names read floats, in place; how many inputs were changed. No two nodes have one name.

    before       the model as it was given to the quantizer
    in_integers  operators that ONNX Runtime can run in integers
    """
    surroundings = _QuantizedGraph.of(model, before, names, in_integers)
    changed = sum(surroundings.free(node, old) for node, old in surroundings.to_be_free())
    if changed:
        _remove_unread_pairs(model.graph)
    return changed + _screen_nodes(model.graph, _QuantizedGraph.of(model, before, names, in_integers))


def _screen_nodes(graph: onnx.GraphProto, surroundings: _QuantizedGraph) -> int:
    # A node of no kind stands for whoever reads the outputs of the model: it reads floats.
    readers: dict[str, list[onnx.NodeProto]] = {value.name: [onnx.NodeProto()] for value in graph.output}
    for node in graph.node:
        for name in names_read(node):
            readers.setdefault(name, []).append(node)
    candidates = {node.name: surroundings.screen(node, old, readers) for node, old in surroundings.to_be_free()}
    screens = {name: screen for name, screen in candidates.items() if screen is not None}
    if screens:
        pairs = ((screens.get(node.name), node) for node in graph.node)
        _replace_nodes(graph, [kept for pair in pairs for kept in pair if kept is not None])
    return len(screens)


@dataclass
class _QuantizedGraph:
    """
    makers   by value: the node that makes it
    needed   values that the model returns, or that a node reads which is not to be free
    paired   values that came out of a DequantizeLinear before
    weights  of the model before
    types    of its values
    stored   what the graph holds now
    names    of the nodes that are to be free
    was      nodes of the model before, by name
    """

    graph: onnx.GraphProto
    makers: dict[str, onnx.NodeProto]
    needed: set[str]
    paired: set[str]
    weights: dict[str, onnx.TensorProto]
    types: ValueTypes
    stored: set[str]
    names: frozenset[str]
    was: dict[str, onnx.NodeProto]
    in_integers: frozenset[str]

    @classmethod
    def of(
        cls, model: onnx.ModelProto, before: onnx.ModelProto, names: frozenset[str], in_integers: frozenset[str]
    ) -> _QuantizedGraph:
        needed = {value.name for value in model.graph.output}
        for node in model.graph.node:
            needed.update(captured(node) if node.name in names else names_read(node))
        return cls(
            model.graph,
            {output: node for node in model.graph.node for output in node.output},
            needed,
            {output for node in before.graph.node if node.op_type == _DEQUANTIZE for output in node.output},
            {tensor.name: tensor for tensor in before.graph.initializer},
            ValueTypes(ModelFile(before, {})),
            {tensor.name for tensor in model.graph.initializer},
            names,
            {node.name: node for node in before.graph.node if node.name},
            in_integers,
        )

    def to_be_free(self) -> Iterator[tuple[onnx.NodeProto, onnx.NodeProto]]:
        return ((node, self.was[node.name]) for node in self.graph.node if node.name in self.names & self.was.keys())

    def free(self, node: onnx.NodeProto, before: onnx.NodeProto) -> int:
        """How many of its inputs were changed, at nobody's cost."""
        indices = list(self._quantized_inputs(node))  # a list, because the inputs change on the way
        return sum(self._weight_back(node, before, index) or self._own_back(node, index) for index in indices)

    def screen(
        self, node: onnx.NodeProto, before: onnx.NodeProto, readers: dict[str, list[onnx.NodeProto]]
    ) -> onnx.NodeProto | None:
        """A node through which this one reads a value, if it would be run in integers otherwise."""
        rounded = set(self._quantized_inputs(node))
        later = self.weights.keys() if before.op_type in _ROUNDED_LATER else ()
        floats = [index for index in self._floats(before) if before.input[index] not in later]
        if not floats or not rounded.issuperset(floats) or not self._ends_in_integers(node, readers):
            return None
        index = floats[0]  # one float input is enough to keep a node out of integers
        value = f"{node.output[0]}_reads_{index}"
        screen = onnx.helper.make_node(_SCREEN, [node.input[index]], [value], name=f"{node.name}_reads_{index}")
        node.input[index] = value
        return screen

    def _floats(self, before: onnx.NodeProto) -> Iterator[int]:
        """Where a node reads floats, but for a bias."""
        end = _BIAS.get(before.op_type, len(before.input))
        return (index for index, name in enumerate(before.input[:end]) if self.types.is_float(name))

    def _ends_in_integers(self, node: onnx.NodeProto, readers: dict[str, list[onnx.NodeProto]]) -> bool:
        """Whether what a node makes is rounded by all that read it, be it after it was moved."""
        if node.op_type in _MAKING_FLOATS:
            return True
        reading = [reader for output in node.output for reader in readers.get(output, ())]
        # ONNX Runtime moves a QuantizeLinear up through Reshape, Transpose and the like.
        moving = [reader for reader in reading if reader.op_type != _QUANTIZE]
        return bool(reading) and all(
            operator_name(reader.op_type, reader.domain) in QDQ_PROPAGATED and self._ends_in_integers(reader, readers)
            for reader in moving
        )

    def _is_quantized(self, node: onnx.NodeProto) -> bool:
        """Whether a node is run in integers as long as what it makes is rounded."""
        before = self.was.get(node.name)
        if before is None or node.name in self.names or node.op_type not in self.in_integers:
            return False
        rounded, floats = set(self._quantized_inputs(node)), list(self._floats(before))
        return bool(floats) and rounded.issuperset(floats)

    def _quantized_inputs(self, node: onnx.NodeProto) -> Iterator[int]:
        """Where a node reads out of a DequantizeLinear that the quantizer has put there."""
        for index, name in enumerate(node.input):
            maker = self.makers.get(name)
            if maker is not None and maker.op_type == _DEQUANTIZE and name not in self.paired:
                yield index

    def _weight_back(self, node: onnx.NodeProto, before: onnx.NodeProto, index: int) -> bool:
        """A weight that others read in fewer bits is stored in float as well."""
        name = before.input[index] if index < len(before.input) else ""
        if self.makers[node.input[index]].input[0] in self.makers or name not in self.weights:
            return False
        # A bias that others read in fewer bits comes out of a node under its own name.
        again = f"{name}_in_float" if name in self.makers else name
        if again not in self.stored:
            added = self.graph.initializer.add()
            added.CopyFrom(self.weights[name])
            added.name = again
            self.stored.add(again)
        node.input[index] = again
        return True

    def _own_back(self, node: onnx.NodeProto, index: int) -> bool:
        """A value that no quantized node reads needs no pair, unless the one that makes it does."""
        quantizer = self.makers.get(self.makers[node.input[index]].input[0])
        if quantizer is None or quantizer.op_type != _QUANTIZE or node.input[index] in self.needed:
            return False
        maker = self.makers.get(quantizer.input[0])
        if maker is not None and maker.op_type not in _MAKING_FLOATS and self._is_quantized(maker):
            return False
        node.input[index] = quantizer.input[0]
        return True


def _remove_unread_pairs(graph: onnx.GraphProto) -> None:
    """Pairs that nobody reads any more, and the scales that were for them."""
    kept = list(graph.node)
    pairs = (_QUANTIZE, _DEQUANTIZE)
    while True:  # without its DequantizeLinear, a QuantizeLinear is unread only in the next round
        read = {value.name for value in graph.output}.union(*map(names_read, kept))
        left = [node for node in kept if node.op_type not in pairs or not read.isdisjoint(node.output)]
        if len(left) == len(kept):
            break
        kept = left
    gone = {name for node in graph.node for name in node.input} - read
    holder = onnx.GraphProto(initializer=[tensor for tensor in graph.initializer if tensor.name not in gone])
    del graph.initializer[:]
    graph.initializer.extend(holder.initializer)
    _replace_nodes(graph, kept)


def _replace_nodes(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
    holder = onnx.GraphProto(node=nodes)  # they are gone as soon as the graph has let go of them
    del graph.node[:]
    graph.node.extend(holder.node)
