"""Nodes that a tool brought along: they serve those beside them, and belong to these."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from modelexport.graph.index import Node
from modelexport.lineage.links import Links
from modelexport.record.evidence import Confidence
from modelexport.record.lineage import Link, Relation

# How often all that is left is looked at, from front to back and back to front.
_ROUNDS = 3


class Neighbours:
    """Links for what is left."""

    def __init__(self, links: Links) -> None:
        self._matching = links.matching
        self._after = links.after
        self._graph = links.after.graph
        self._passing = frozenset(links.after.passing)
        self._found = links.found

    def link(self) -> None:
        """What a tool brought along belongs to its neighbours. What comes from another model does not."""
        left = [node for node in self._graph.nodes if node.key not in self._found]
        foreign = self._foreign(left)
        left = [node for node in left if node.key not in foreign]
        for node in reversed(left):
            if not self._is_handed_on(node):
                self._join(node, self._graph.successors(node))
        for _ in range(_ROUNDS):
            for node in left:
                self.join_makers(node)
            for node in reversed(left):
                self._join(node, self._graph.successors(node))
            left = [node for node in left if node.key not in self._found]
        self._spread(left)

    def _spread(self, left: Sequence[Node]) -> None:
        """What is far from everything that is known, step by step."""
        near = {one.key for node in left for one in self._around(node) if one.key in self._found}
        waiting = deque(self._graph.by_key[key] for key in sorted(near))
        open_ = {node.key for node in left}
        while waiting:
            for node in self._around(waiting.popleft()):
                if node.key in open_ and node.key not in self._found:
                    self._join(node, self._around(node))
                    waiting.append(node)

    def _around(self, node: Node) -> Iterable[Node]:
        return (*self._graph.predecessors(node), *self._graph.successors(node))

    def join_makers(self, node: Node) -> None:
        """Link a node to what made the values that it reads, unless it has a link."""
        self._join(node, self._graph.predecessors(node))

    def _foreign(self, left: Sequence[Node]) -> set[str]:
        """Nodes with weights that nobody knows, before or behind everything that is known. What only hands a value on
        reads scales, one for each channel perhaps, and no weights of its own: it goes where its value goes."""
        fed, used = set(self._found), set(self._found)
        for node in self._graph.nodes if left else ():
            if any(one.key in fed for one in self._graph.predecessors(node)):
                fed.add(node.key)
        for node in reversed(self._graph.nodes) if left else ():
            if any(one.key in used for one in self._graph.successors(node)):
                used.add(node.key)
        working = [node for node in left if node not in self._passing]
        outside = [node for node in working if not (node.key in fed and node.key in used)]
        return {node.key for node in outside if self._matching.has_unknown_weight(node)}

    def _is_handed_on(self, node: Node) -> bool:
        """A quantizer or cast of something computed belongs to who computed it."""
        return node in self._passing and self._after.inputs(node)[0] not in self._after.constants

    def _join(self, node: Node, others: Iterable[Node]) -> None:
        if node.key in self._found:
            return
        keys = dict.fromkeys(
            key for other in others if other.key in self._found for key in self._found[other.key].sources
        )
        if keys:
            self._found[node.key] = Link(tuple(keys), Relation.INTRODUCED, Confidence.INFERRED)
