"""What is different about two nodes that are the same node of two files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import onnx

from modelexport.diffing.attributes import attribute_changes
from modelexport.diffing.ends import ValueType, shapes_differ, types_differ
from modelexport.diffing.flow import COMMUTATIVE, Constant
from modelexport.diffing.pairing import Pairs
from modelexport.diffing.sides import Compared
from modelexport.graph.index import Node, walk_nodes
from modelexport.record.changes import FieldChange


@dataclass(frozen=True, slots=True)
class ConstantPair:
    """Two constants that one node reads in one place in both files."""

    left: Constant
    right: Constant
    reader: str


class Comparing:
    """
    constants  pairs that are not known to be equal, by the names of both: the readers of the first file
    folded     by the key of a node of the first file without partner: constants of the second that stand for its result
    """

    def __init__(self, left: Compared, right: Compared, pairs: Pairs) -> None:
        self._left, self._right, self._pairs = left, right, pairs
        self.constants: dict[tuple[str, str], list[ConstantPair]] = {}
        self.folded: dict[str, list[Constant]] = {}
        self._moved: set[str] = set()  # values of the first file whose type or shape is another one
        self._altered: set[str] = set()  # keys of nodes of the second file

    def is_altered(self, key: str) -> bool:
        """Whether a paired node of the second file reads other constants, or works in another way."""
        return key in self._altered

    def fields(self) -> Iterator[tuple[Node, Node, tuple[FieldChange, ...]]]:
        """Every paired node that is not the same, in the order of the first file."""
        self._moved.update(self._moved_inputs())
        for node in self._pairs.left_flow.order:
            other = self._pairs.right.get(node.key)
            if other is not None:
                found = tuple(self._fields(node, other))
                if found:
                    self._altered.add(other.key)
                    yield node, other, found

    def _fields(self, node: Node, other: Node) -> Iterator[FieldChange]:
        if node.attributes != other.attributes:
            yield from self._attributes(node, other)
        unexplained = True
        for place, (value, theirs) in enumerate(self._inputs(node, other)):
            change, explains = self._input(node, other, place, value, theirs)
            unexplained &= not explains
            if change is not None:
                yield change
        yield from self._results(node, other, explained=not unexplained)

    def _attributes(self, node: Node, other: Node) -> Iterator[FieldChange]:
        mine, theirs = self._protos[0].get(node.key), self._protos[1].get(other.key)
        if mine is None or theirs is None:
            yield FieldChange("attributes", "", "")
        else:
            yield from attribute_changes(mine, theirs)

    @cached_property
    def _protos(self) -> tuple[Mapping[str, onnx.NodeProto], Mapping[str, onnx.NodeProto]]:
        left, right = (_protos_of(side) for side in (self._left, self._right))
        return left, right

    def _inputs(self, node: Node, other: Node) -> Iterator[tuple[str, str]]:
        """What is read in the same place; in which place does not matter where operators say so."""
        mine, theirs = list(node.inputs), list(other.inputs)
        length = max(len(mine), len(theirs))
        mine += [""] * (length - len(mine))
        theirs += [""] * (length - len(theirs))
        if node.op_type in COMMUTATIVE and length == 2 and not self._fits(mine[0], theirs[0]):
            if self._fits(mine[0], theirs[1]) or self._fits(mine[1], theirs[0]):
                theirs.reverse()
        yield from zip(mine, theirs, strict=True)

    def _fits(self, value: str, theirs: str) -> bool:
        one = self._pairs.left_flow.constants.get(value)
        other = self._pairs.right_flow.constants.get(theirs)
        if one is not None or other is not None:
            return one is not None and other is not None and one.digest == other.digest and one.shape == other.shape
        return self._pairs.are_same(value, theirs)

    def _input(self, node: Node, other: Node, place: int, value: str, theirs: str) -> tuple[FieldChange | None, bool]:
        """What is different in one place, and whether that explains another result."""
        one = self._pairs.left_flow.constants.get(value)
        now = self._pairs.right_flow.constants.get(theirs)
        if one is not None and now is not None:
            return None, self._constants(node, other, one, now)
        if self._pairs.are_same(value, theirs):
            return None, value in self._moved
        maker = self._pairs.left_flow.producers.get(value)
        other_maker = self._pairs.right_flow.producers.get(theirs)
        if maker is not None and maker[0].key not in self._pairs.right:
            if now is not None:
                self.folded.setdefault(maker[0].key, []).append(now)
            return None, True
        if other_maker is not None and other_maker[0].key not in self._pairs.left:
            return None, True
        return FieldChange(f"input {place}", self._told(value, 0), self._told(theirs, 1)), True

    def _constants(self, node: Node, other: Node, one: Constant, now: Constant) -> bool:
        if one.digest is not None and one.digest == now.digest:
            return False
        if one.digest is None and now.digest is None and (one.dtype, one.shape) == (now.dtype, now.shape):
            return False
        self.constants.setdefault((one.name, now.name), []).append(ConstantPair(one, now, node.key))
        self._altered.add(other.key)
        return True

    def _told(self, value: str, side: int) -> str:
        """A value for people: what makes it."""
        flow = (self._pairs.left_flow, self._pairs.right_flow)[side]
        if not value:
            return ""
        maker = flow.producers.get(value)
        return (
            f"{value} (constant)"
            if value in flow.constants
            else value
            if maker is None
            else f"{value} ({maker[0].op_type})"
        )

    # what a node makes

    def _results(self, node: Node, other: Node, *, explained: bool) -> Iterator[FieldChange]:
        """Types and shapes that do not follow from what is different before."""
        for place, (value, theirs) in enumerate(zip(node.outputs, other.outputs, strict=False)):
            one, now = self._left.types.get(value), self._right.types.get(theirs)
            if one is None or now is None or not (types_differ(one, now) or shapes_differ(one, now)):
                continue
            self._moved.add(value)
            if not explained:
                yield FieldChange(f"output {place}", str(one), str(now))
        if len([value for value in node.outputs if value]) != len([value for value in other.outputs if value]):
            yield FieldChange("outputs", str(len(node.outputs)), str(len(other.outputs)))

    def _moved_inputs(self) -> Iterator[str]:
        for end, theirs in self._pairs.ends.items():
            if end.startswith("i:"):
                one, now = self._left.types.get(end[2:]), self._right.types.get(theirs)
                if one is not None and now is not None and _differ(one, now):
                    yield end[2:]


def _differ(one: ValueType, other: ValueType) -> bool:
    return types_differ(one, other) or shapes_differ(one, other)


def _protos_of(side: Compared) -> dict[str, onnx.NodeProto]:
    found = dict(walk_nodes(side.file.proto))
    for key, origins in side.origins.items():
        if key not in found and origins[-1] in found:
            found[key] = found[origins[-1]]
    return found
