"""Pass-through: linkers of nodes that do no work of their own, and of nodes that share the work of one.

`PassThroughLinker` links what hands a value on, `SplitLinker` marks several nodes in the place of one, and
`NeighbourLinker`, which comes last, gives what a tool brought along to the nodes around it. `descent.py`
says how to add one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from modelexport.graph.index import Node
from modelexport.graph.operators import family
from modelexport.lineage.links import Links, NodeLinker, match_relation
from modelexport.lineage.value_classes import NO_CLASS
from modelexport.record.lineage import Relation
from modelexport.record.provenance import Confidence

# Congruent nodes that one node may stand for without a word about which of them it is.
_CROWD = 48


@dataclass(frozen=True, slots=True)
class _CopyGroup:
    """Nodes before that hand on, or hold, one value by one kind of operator.

    by_attributes  then by their keys
    by_chain       by the cast chain of what they make
    """

    by_attributes: dict[bytes, dict[str, Node]] = field(default_factory=dict)
    by_chain: dict[int | None, list[Node]] = field(default_factory=dict)


class PassThroughLinker(NodeLinker):
    """Casts, identities, quantizers and literals: they come from such nodes before that handed on the same value.

        before    x ──► Cast ──► c1 ──► MatMul          after    x ──► Cast ──► c ──► MatMul
                  x ──► Cast ──► c2 ──► Add                                     └───► Add

    The one Cast that is left comes from both (SHARED). Where as many are left as there were, a name or a reader says
    which is which (KEPT, RENAMED). One that has no such node before was brought along: see NeighbourLinker.
    """

    def __init__(self, links: Links) -> None:
        super().__init__(links)
        self._groups: dict[tuple[int, str], _CopyGroup] = {}
        for node in self._links.drop_cut_off((*self._before.pass_through, *self._before.literals)):
            group_key = self._before.class_of[node.outputs[0]], family(node.op_type)
            group = self._groups.setdefault(group_key, _CopyGroup())
            group.by_attributes.setdefault(node.attributes, {})[node.key] = node
            group.by_chain.setdefault(self._before.cast_chain.get(node.outputs[0]), []).append(node)

    def link_nodes(self) -> None:
        # Backwards: readers have their links by then, and tell which of several casts they read.
        for node in reversed((*self._after.literals, *self._after.pass_through)):
            keys = ((class_before, family(node.op_type)) for class_before in self._origin_classes(node))
            groups = [self._groups[key] for key in keys if key in self._groups]
            sources = self._choose_sources(node, groups) or self._all_sources(node, groups)
            if node.key in self._links.by_node:
                self._links.add_sources(node, sources)  # it has taken in what lay before it
            elif len(sources) == 1 or (sources and node in self._links.handing_on):
                relation = Relation.SHARED if len(sources) > 1 else match_relation(node, sources[0])
                self._links.add(node, sources, relation, Confidence.EXACT)

    def _choose_sources(self, node: Node, groups: Sequence[_CopyGroup]) -> Sequence[Node]:
        """The one that a name or a reader tells; if some that did the same are gone, it stands for them too."""
        for group in groups:
            for candidates in _candidates(node, groups, group):
                origin_key = self._links.choose_origin(node, candidates)
                if origin_key is not None:
                    origin = candidates[origin_key]
                    copies = group.by_chain[self._before.cast_chain.get(origin.outputs[0])]
                    fewer = node in self._links.handing_on and len(self._after.copies[node.key]) < len(copies)
                    return copies if fewer else [origin]
        return ()

    def _all_sources(self, node: Node, groups: Sequence[_CopyGroup]) -> Sequence[Node]:
        pools = [candidates for group in groups for candidates in _candidates(node, groups, group)]
        if sum(map(len, pools)) > _CROWD:
            chain = self._after.cast_chain.get(node.outputs[0])
            copies = [group.by_chain.get(chain, ())[:_CROWD] for group in groups if chain is not None]
            pools = [{origin.key: origin for origin in origins} for origins in copies]
        sources = [origin for candidates in pools for origin in candidates.values()]
        return sources if len(sources) <= _CROWD else ()

    def _origin_classes(self, node: Node) -> list[int]:
        """The classes before that may be what a node hands on: what is known, and what its name says if that fits."""
        class_after = self._after.class_of[node.outputs[0]]
        known = self._anchors.get(class_after)
        named = self._before.class_of.get(node.outputs[0], NO_CLASS)
        fits = known != NO_CLASS and known in self._before.walk_up(named)
        return [known, *self._anchors.merged.get(class_after, ()), *([named] if fits else [])]


def _candidates(node: Node, groups: Sequence[_CopyGroup], group: _CopyGroup) -> Iterable[Mapping[str, Node]]:
    """Those of a group with a node's attributes; all of them if there are none in any group."""
    if any(node.attributes in each.by_attributes for each in groups):
        return [group.by_attributes[node.attributes]] if node.attributes in group.by_attributes else []
    return group.by_attributes.values()


class SplitLinker(NodeLinker):
    """Nodes that do a part of the work of one node each: they read each other, and all come from that one (SPLIT).

    before    x ──► Gelu ──► y          after    x ──► Div ──► Erf ──► Add ──► Mul ──► y
    """

    def link_nodes(self) -> None:
        nodes_of: dict[str, list[Node]] = {}
        for node in self._after.nodes:
            link = self._links.by_node.get(node.key)
            if link is not None and len(link.sources) == 1:
                nodes_of.setdefault(link.sources[0], []).append(node)
        for nodes in nodes_of.values():
            for part in self._after.adjacent_nodes(nodes, nodes) if len(nodes) > 1 else ():
                for node in self._after.congruent[part.key]:
                    self._links.by_node[node.key] = replace(self._links.by_node[node.key], relation=Relation.SPLIT)


# How often all that is left is looked at, from front to back and back to front.
_ROUNDS = 3


class NeighbourLinker(NodeLinker):
    """What a tool brought along belongs to the nodes that it serves (INTRODUCED), unless it comes from another model.

        before    x ──► Conv ──► y          after    x ──► Transpose ──► Conv ──► Transpose ──► y

    Both Transposes serve the Conv. A cast of a computed value goes with its producer, one of a weight with its reader.
    """

    def link_nodes(self) -> None:
        left = [node for node in self._after.graph.nodes if node.key not in self._links.by_node]
        foreign = self._find_foreign(left)
        left = [node for node in left if node.key not in foreign]
        # Readers first: tools put a Transpose or a shape computation before the node that needs it.
        for node in reversed(left):
            if node not in self._links.handing_on or self._after.inputs(node)[0] in self._after.constants:
                self._links.add_introduced(node, self._after.graph.successors(node))
        for _ in range(_ROUNDS):
            for node in left:
                self._links.add_introduced(node, self._after.graph.predecessors(node))
            for node in reversed(left):
                self._links.add_introduced(node, self._after.graph.successors(node))
            left = [node for node in left if node.key not in self._links.by_node]
        self._spread(left)

    def _spread(self, left: Sequence[Node]) -> None:
        linked = self._links.by_node
        near = {each.key for node in left for each in self._around(node) if each.key in linked}
        waiting = deque(self._after.graph.by_key[key] for key in sorted(near))
        unlinked = {node.key for node in left}
        while waiting:
            for node in self._around(waiting.popleft()):
                if node.key in unlinked and node.key not in linked:
                    self._links.add_introduced(node, self._around(node))
                    waiting.append(node)

    def _around(self, node: Node) -> Iterable[Node]:
        return (*self._after.graph.predecessors(node), *self._after.graph.successors(node))

    def _find_foreign(self, left: Sequence[Node]) -> set[str]:
        """Nodes with unknown weights, before or behind all that is known; what hands on reads scales, not weights."""
        fed, used = set(self._links.by_node), set(self._links.by_node)
        for node in self._after.graph.nodes if left else ():
            if any(producer.key in fed for producer in self._after.graph.predecessors(node)):
                fed.add(node.key)
        for node in reversed(self._after.graph.nodes) if left else ():
            if any(reader.key in used for reader in self._after.graph.successors(node)):
                used.add(node.key)
        working = [node for node in left if node not in self._links.handing_on]
        outside = [node for node in working if not (node.key in fed and node.key in used)]
        return {node.key for node in outside if self._matching.operands.has_unknown_weight(node)}
