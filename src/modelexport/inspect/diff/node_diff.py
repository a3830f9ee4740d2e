"""Paired nodes, field by field: attributes, inputs, subgraphs, types of results.

A difference is told once, where it begins. A node that reads a value of another shape gives one of another shape as
well; that follows, and is not told again. A node without a partner explains what its neighbours read instead of it.

    before   x ─► Transpose(perm=0,2,1) ─► MatMul ─► Relu        one difference: attribute perm of Transpose
    after    x ─► Transpose(perm=2,0,1) ─► MatMul ─► Relu        MatMul and Relu give other shapes: that follows

Texts for readers (`doc_string`) and metadata of nodes are left out on purpose: every tool writes others.

`NodePairs` is what `pairing.py` fills; `NodeComparison` reads it in the order of the first graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import onnx

from modelexport.graph.index import KEY_SEPARATOR, Node
from modelexport.inspect.diff.io_matching import Opsets, compare_attributes, list_opsets, shapes_differ, types_differ
from modelexport.inspect.diff.match_keys import Constant, DiffGraph, NodeSignatures, by_content, reads_unordered
from modelexport.inspect.diff.sides import DiffSide, MatchedIO
from modelexport.record.results.diff import FieldChange


@dataclass(frozen=True)
class NodePairs:
    """
    right  by the key of a node of the first graph: the node of the second
    left   the other way round
    exact  the signatures of both, with what weights hold
    """

    left_graph: DiffGraph
    right_graph: DiffGraph
    io: MatchedIO
    exact: tuple[NodeSignatures, NodeSignatures]
    right: dict[str, Node] = field(default_factory=dict)
    left: dict[str, Node] = field(default_factory=dict)

    def add(self, node: Node, other: Node) -> None:
        self.right[node.key] = other
        self.left[other.key] = node

    def are_same(self, value: str, other: str) -> bool:
        """Whether two values that are no constants are the same thing in both graphs; one may have several makers."""
        if not value or not other:
            return value == other
        made, other_made = self.left_graph.producers.get(value), self.right_graph.producers.get(other)
        if made is None or other_made is None:
            return made is None and other_made is None and self._are_given(value, other)
        (maker, index), (other_maker, other_index) = made, other_made
        partner, origin = self.right.get(maker.key), self.left.get(other_maker.key)
        if index != other_index or partner is None or origin is None:
            return False
        # Several nodes may compute one value: it does not matter which of them is read.
        left, right = self.exact[0].down, self.exact[1].down
        twins = right.get(partner.outputs[index]) == right.get(other)
        return partner is other_maker or twins or left.get(origin.outputs[index]) == left.get(value)

    def aligned_inputs(self, node: Node, other: Node) -> list[tuple[str, str]]:
        """What two paired nodes read in the same place; an input that only one of them has goes with an empty name.

        The inputs of a commutative operator have no places: `Max(a, b)` beside `Max(b, c)` gives `(b, b), (a, c)`.
        """
        length = max(len(node.inputs), len(other.inputs))
        left, right = ([*reader.inputs, *[""] * (length - len(reader.inputs))] for reader in (node, other))
        if reads_unordered(node):
            right = self._reordered(left, right)
        return list(zip(left, right, strict=True))

    def _reordered(self, left: list[str], right: list[str]) -> list[str]:
        """The inputs of the second node, each in the place of the one that is the same; the rest as they come."""
        spare = dict(enumerate(right))
        matches: dict[int, str] = {}
        for index, value in enumerate(left):
            candidates = sorted(spare, key=lambda other: other != index)
            match = next((other for other in candidates if self._are_equal(value, spare[other])), None)
            if match is not None:
                matches[index] = spare.pop(match)
        rest = iter(spare.values())
        return [matches[index] if index in matches else next(rest) for index in range(len(left))]

    def _are_equal(self, value: str, other: str) -> bool:
        """The same value, or constants of the same content."""
        constant, now = self.left_graph.constants.get(value), self.right_graph.constants.get(other)
        if constant is None and now is None:
            return self.are_same(value, other)
        return constant is not None and now is not None and (constant.digest, constant.shape) == (now.digest, now.shape)

    def _are_given(self, value: str, other: str) -> bool:
        if self.io.inputs.get(value) == other:
            return True
        left, right = _subgraph_input(value, self.left_graph), _subgraph_input(other, self.right_graph)
        if left is None or right is None or left[0] not in self.right:
            return False
        return (self.right[left[0]].key, *left[1:]) == right


def _subgraph_input(value: str, flow: DiffGraph) -> tuple[str, str, int] | None:
    """For what a body is given: the node that runs it, which of its bodies, and the place."""
    body = value.rpartition("|")[0]
    if body not in flow.graph.body_owner or value not in flow.graph.body_inputs[body]:
        return None
    owner = flow.graph.body_owner[body]
    return owner, body.removeprefix(owner), flow.graph.body_inputs[body].index(value)


@dataclass(frozen=True, slots=True)
class ConstantPair:
    """Two constants that one node reads in one place in both files; none if the model returns them as they are."""

    left: Constant
    right: Constant
    reader: str | None


class NodeComparison:
    """
    constants  pairs that are not known to be equal, by the names of both: the readers of the first file
    folded     by the key of a node of the first file without partner: constants of the second that stand for its result
    unfolded   by the key of a node of the second file without partner: constants of the first in whose place it is
    altered    keys of paired nodes of the second file that read other constants, or work in another way
    """

    def __init__(self, left: DiffSide, right: DiffSide, pairs: NodePairs) -> None:
        self._left, self._right, self._pairs = left, right, pairs
        self.constants: dict[tuple[str, str], list[ConstantPair]] = {}
        self.folded: dict[str, list[Constant]] = {}
        self.unfolded: dict[str, list[Constant]] = {}
        self.altered: set[str] = set()
        self._retyped: set[str] = set()  # values of the first file whose type or shape is another one

    def right_proto(self, node: Node) -> onnx.NodeProto:
        """What the second file says of a node."""
        return self._right.model.node_proto(node)

    def compare_nodes(self) -> Iterator[tuple[Node, Node, tuple[FieldChange, ...]]]:
        """Every paired node that is not the same, in the order of the first file."""
        # From the inputs on: what is read has been compared before its reader, so that its new shape explains that.
        self._retyped.update(value for value, now in self._pairs.io.inputs.items() if self._differ(value, now))
        for node in self._pairs.left_graph.order:
            other = self._pairs.right.get(node.key)
            changes = () if other is None else tuple(self._compare_node(node, other))
            if other is not None and changes:
                self.altered.add(other.key)
                yield node, other, changes

    def _compare_node(self, node: Node, other: Node) -> Iterator[FieldChange]:
        if node.attributes != other.attributes:
            # Equal attributes need no look at the protos, and nearly all nodes have equal ones.
            protos = self._left.model.node_proto(node), self.right_proto(other)
            yield from compare_attributes(*protos, self._opsets)
        explained = False
        for index, values in enumerate(self._pairs.aligned_inputs(node, other)):
            change, explains = self._compare_values(f"input {index}", values, (node, other))
            explained |= explains
            if change is not None:
                yield change
        yield from self._compare_subgraphs(node, other)
        yield from self._compare_results(node, other, explained=explained)

    def compare_outputs(self) -> Iterator[FieldChange]:
        """Outputs of the model that are other values than before, where no other nodes have taken over."""
        changes = (
            self._compare_values(output_label(pair[0]), pair, None)[0] for pair in self._pairs.io.outputs.items()
        )
        return (change for change in changes if change is not None)

    def _compare_subgraphs(self, node: Node, other: Node) -> Iterator[FieldChange]:
        """What the bodies of a node return."""
        left, right = self._left.graph, self._right.graph
        for body in left.subgraphs.get(node.key, ()):
            name = body.removeprefix(node.key)
            both = zip(left.body_outputs[body], right.body_outputs.get(f"{other.key}{name}", ()), strict=False)
            for index, values in enumerate(both):
                change, _ = self._compare_values(f"{name.lstrip(KEY_SEPARATOR)} output {index}", values, (node, other))
                if change is not None:
                    yield change

    @cached_property
    def _opsets(self) -> tuple[Opsets, Opsets]:
        return list_opsets(self._left.proto), list_opsets(self._right.proto)

    def _compare_values(
        self, what: str, values: tuple[str, str], readers: tuple[Node, Node] | None
    ) -> tuple[FieldChange | None, bool]:
        """What is different about the values in one place of both files, and whether that explains another result."""
        value, other_value = values
        constant = self._pairs.left_graph.constants.get(value)
        now = self._pairs.right_graph.constants.get(other_value)
        if constant is not None and now is not None:
            return None, self._note_constants(constant, now, readers)
        if self._pairs.are_same(value, other_value):
            return None, value in self._retyped
        maker, other_maker = self._pairs.left_graph.maker(value), self._pairs.right_graph.maker(other_value)
        # A maker without a partner has an entry of its own, as removed or added: the reader has nothing to add.
        if maker is not None and maker.key not in self._pairs.right:
            if now is not None:
                self.folded.setdefault(maker.key, []).append(now)
            return None, True
        if other_maker is not None and other_maker.key not in self._pairs.left:
            if constant is not None:
                self.unfolded.setdefault(other_maker.key, []).append(constant)
            return None, True
        return FieldChange(what, _value_text(value, self._pairs.left_graph), self._right_text(other_value)), True

    def _note_constants(self, constant: Constant, now: Constant, readers: tuple[Node, Node] | None) -> bool:
        # Where none was read, type and shape are all that can differ.
        if by_content(constant) == by_content(now):
            return False
        reader = None if readers is None else readers[0].key
        self.constants.setdefault((constant.name, now.name), []).append(ConstantPair(constant, now, reader))
        if readers is not None:
            self.altered.add(readers[1].key)
        return True

    def _right_text(self, value: str) -> str:
        """As the first file calls it, if it is there: names of two files do not go together."""
        maker, index = self._pairs.right_graph.producers.get(value, (None, 0))
        partner = None if maker is None else self._pairs.left.get(maker.key)
        if partner is None or index >= len(partner.outputs) or not partner.outputs[index]:
            return _value_text(value, self._pairs.right_graph)
        return _value_text(partner.outputs[index], self._pairs.left_graph)

    def _compare_results(self, node: Node, other: Node, *, explained: bool) -> Iterator[FieldChange]:
        """Types and shapes that do not follow from what is different before."""
        for index, (value, other_value) in enumerate(zip(node.outputs, other.outputs, strict=False)):
            if self._differ(value, other_value):
                self._retyped.add(value)
                if not explained:
                    yield FieldChange(
                        f"output {index}", str(self._left.types[value]), str(self._right.types[other_value])
                    )
        # An output that nothing reads may be left out, or written as an empty name.
        if len(list(filter(None, node.outputs))) != len(list(filter(None, other.outputs))):
            yield FieldChange("outputs", str(len(node.outputs)), str(len(other.outputs)))

    def _differ(self, value: str, other_value: str) -> bool:
        """Whether both files state a type, and not the same."""
        stated, now = self._left.types.get(value), self._right.types.get(other_value)
        return stated is not None and now is not None and (types_differ(stated, now) or shapes_differ(stated, now))


def output_label(output: str) -> str:
    """What to call the maker of an output."""
    return f"output {output} is made by"


def _value_text(value: str, flow: DiffGraph) -> str:
    """A value for people: its name, and what makes it."""
    maker = flow.maker(value)
    kind = "constant" if value in flow.constants else "" if maker is None else maker.op_type
    return f"{value} ({kind})" if kind else value
