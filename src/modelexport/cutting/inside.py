"""Which nodes are part of a cut, and which of them cannot be divided from their neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from modelexport.cutting.nest import Nest
from modelexport.cutting.selection import Selection
from modelexport.graph.index import Node
from modelexport.record.evidence import Attribution
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.lineage import Relation, descent_of
from modelexport.record.provenance import Provenance

# What they return holds the same numbers in the same order: whoever did it, the tensor is there.
_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
_LOOPS = frozenset({"Loop", "Scan", "SequenceMap"})


@dataclass(frozen=True)
class Fused:
    """A node that does the work of calls on both sides of the border."""

    node: Node
    owners: tuple[ModuleCall, ...]


class Inside:
    """The nodes of a selection.

    keys    credited to it, with all that is in their bodies
    in_functions  credited to it, in functions that nodes call
    shared  those of them that are also credited to others: they are copied, and stay where they are as well
    """

    def __init__(self, nest: Nest, provenance: Provenance, selection: Selection) -> None:
        self._nest = nest
        self._provenance = provenance
        self._selection = selection
        credited = {key for key, entry in provenance.nodes.items() if self._is_credited(key, entry.attribution)}
        # A constant in a body of somebody else's comes along if it is read, and says nothing of where the module is.
        odd = {key for key in credited if self._is_aside(nest.graph.by_key[key])}
        credited = (credited - odd) or credited
        self.in_functions = frozenset(key for key in credited if nest.is_in_function(nest.graph.by_key[key]))
        credited -= self.in_functions
        self.keys = nest.with_inner(credited)
        self.shared = frozenset(key for key in credited if self._others(provenance.nodes[key].attribution))

    def _is_credited(self, key: str, attribution: Attribution) -> bool:
        if self._selection.nodes is not None:
            return key in self._selection.nodes
        return any(map(self._selection.covers, attribution.owners))

    def _is_aside(self, node: Node) -> bool:
        return node.graph in self._nest.graph.owners and node.key not in self._nest.graph.computed

    def _others(self, attribution: Attribution) -> tuple[ModuleCall, ...]:
        return tuple(owner for owner in attribution.owners if not self._selection.covers(owner))

    def take_whole_branches(self) -> None:
        """Nodes that have several bodies, all of them the selection's work, are part of it whoever they belong to.

        An exporter may choose by an If between two ways to do one thing.
        """
        graph = self._nest.graph
        for holder, bodies in graph.bodies.items():
            inner = list(self._nest.inner(graph.by_key[holder])) if holder not in self.keys and len(bodies) > 1 else []
            used = {node.graph for node in inner if node.key in self.keys}
            others = [node for node in inner if node.key not in self.keys and node.key in graph.computed]
            if used.issuperset(bodies) and not others:
                self.keys |= self._nest.with_inner([holder])

    def copied(self) -> frozenset[str]:
        """Those of the shared nodes that stand for one of each module: they do nobody's work beside."""
        by_key, entries = self._nest.graph.by_key, self._provenance.nodes
        return frozenset(key for key in self.shared if not self._is_fusion(by_key[key], entries[key].attribution))

    def fused(self) -> Iterator[Fused]:
        """Nodes at the border that also do the work of somebody outside, so that there is no border to cut at."""
        if self._selection.nodes is not None:
            return  # whoever asks for nodes gets them whole
        graph = self._nest.graph
        for key in self._nest.outermost(self.keys):
            node = graph.by_key[key]
            attribution = self._provenance.nodes[key].attribution
            others = self._others(attribution)
            if (
                0 < len(others) < len(attribution.owners)
                and node.key in graph.computed
                and self._is_fusion(node, attribution)
                and self._at_border(node)
            ):
                yield Fused(node, attribution.owners)

    def _is_fusion(self, node: Node, attribution: Attribution) -> bool:
        descent = descent_of(attribution)
        if node.op_type in _VIEWS or (descent is not None and descent.relation is Relation.SHARED):
            return False
        if self._runs_repeatedly(node) and len({owner.path for owner in attribution.owners}) == 1:
            return False  # all calls of the module, by a node that is there once
        if descent is not None and descent.relation is Relation.FUSED:
            return True
        return self._follow_each_other(attribution.owners)

    def _runs_repeatedly(self, node: Node) -> bool:
        return any(holder.op_type in _LOOPS for holder in self._nest.holders(node))

    def _follow_each_other(self, owners: Iterable[ModuleCall]) -> bool:
        """Whether calls ran one after the other, with none in between: else they can only have work in common."""
        hierarchy = self._selection.hierarchy
        known = set(owners)
        places = [self._order.get(call, -1) for call in known]
        around = {call for one in known for call in hierarchy.stack(one)}
        between = (site.call for site in hierarchy.calls[min(places) + 1 : max(places)])
        return not any(call not in around and known.isdisjoint(hierarchy.stack(call)) for call in between)

    @cached_property
    def _order(self) -> Mapping[ModuleCall, int]:
        return {site.call: place for place, site in enumerate(self._selection.hierarchy.calls)}

    def _at_border(self, node: Node) -> bool:
        graph = self._nest.graph
        makers = (graph.producers.get(value) for value in self._nest.reads(node) if value in graph.computed)
        if any(maker is None or maker.key not in self.keys for maker in makers):
            return True
        readers = (reader for value in node.outputs for reader in self._nest.readers(value))
        return any(reader.key not in self.keys for reader in readers) or any(
            value in graph.outputs for value in node.outputs
        )
