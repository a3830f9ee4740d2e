"""Which node of the one graph is which of the other, and what that makes the same thing in both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from modelexport.diffing.flow import Flow
from modelexport.diffing.signatures import Signatures
from modelexport.graph.index import Node


@dataclass(frozen=True)
class Pairs:
    """
    right  by the key of a node of the first graph: the node of the second
    left   the other way round
    ends   inputs and outputs of the first graph (`i:name`, `o:name`), mapped to their names in the second
    exact  the signatures of both, with what weights hold
    """

    left_flow: Flow
    right_flow: Flow
    ends: Mapping[str, str]
    exact: tuple[Signatures, Signatures]
    right: dict[str, Node] = field(default_factory=dict)
    left: dict[str, Node] = field(default_factory=dict)

    def add(self, one: Node, other: Node) -> None:
        self.right[one.key] = other
        self.left[other.key] = one

    def are_same(self, value: str, other: str) -> bool:
        """Whether two values that are no constants are the same thing in both graphs; one may have several makers."""
        if not value or not other:
            return value == other
        mine, theirs = self.left_flow.producers.get(value), self.right_flow.producers.get(other)
        if mine is None or theirs is None:
            return mine is None and theirs is None and self._are_given(value, other)
        if mine[1] != theirs[1]:
            return False
        partner, origin = self.right.get(mine[0].key), self.left.get(theirs[0].key)
        if partner is None or origin is None:
            return False
        if partner is theirs[0]:
            return True
        # Several nodes may compute one value: it does not matter which of them is read.
        left, right = self.exact[0].down, self.exact[1].down
        twins = right.get(partner.outputs[theirs[1]]) == right.get(other)
        return twins or left.get(origin.outputs[mine[1]]) == left.get(value)

    def _are_given(self, value: str, other: str) -> bool:
        if self.ends.get(f"i:{value}") == other:
            return True
        mine, theirs = _place_in_body(value, self.left_flow), _place_in_body(other, self.right_flow)
        if mine is None or theirs is None:
            return False
        owner, body, place = mine
        partner = self.right.get(owner)
        return partner is not None and (partner.key, body, place) == theirs


def _place_in_body(value: str, flow: Flow) -> tuple[str, str, int] | None:
    """For what a body is given: the node that runs it, which of its bodies, and the place."""
    body = value.rpartition("|")[0]
    if body not in flow.graph.owners or value not in flow.graph.takes[body]:
        return None
    owner = flow.graph.owners[body]
    return owner, body.removeprefix(owner), flow.graph.takes[body].index(value)
