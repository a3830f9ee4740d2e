"""What the constants of a graph took the place of: other constants, or what was computed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from modelexport.graph.index import Node
from modelexport.lineage.matching import Matching
from modelexport.record.evidence import Confidence
from modelexport.record.lineage import Link, Relation


class ConstantHeirs:
    """Told by the nodes that read them, which are linked already."""

    def __init__(self, matching: Matching, nodes: Mapping[str, Link]) -> None:
        self._before, self._after = matching.before, matching.after
        self._anchors = matching.anchors
        self._alive = frozenset(matching.anchors.known.values())
        self._replaced: dict[str, dict[str, None]] = {}
        self._mixed: dict[str, dict[str, None]] = {}
        for node in self._after.graph.nodes:
            for now, was in self._replacements(node, nodes[node.key]):
                self._replaced.setdefault(now, {})[was] = None
            for now, was in self._mixtures(node, nodes[node.key]):
                self._mixed.setdefault(now, {})[was] = None

    def stands_for(self) -> dict[str, tuple[str, ...]]:
        """By the name of an initializer after: those before that it is a copy of or was made from, unless it is just
        the one of its name."""
        held: dict[int, list[str]] = {}
        for name in self._before.graph.initializers:
            held.setdefault(self._before.of[name], []).append(name)
        found: dict[str, tuple[str, ...]] = {}
        for name in self._after.graph.initializers:
            same = held.get(self._anchors.get(self._after.of[name]), [])
            kept = [name] if name in same else []
            others = filter(self._is_gone, self._replaced.get(name, ()))
            names = tuple(dict.fromkeys((*kept, *others, *self._mixed.get(name, ())))) or tuple(same)
            if names and names != (name,):
                found[name] = names
        return found

    def folded(self) -> dict[str, Link]:
        """Initializers after that stand where something was computed, with the nodes that computed it."""
        found: dict[str, dict[str, None]] = {}
        for name in self._after.graph.initializers:
            for was in self._replaced.get(name, (name,)):
                if was in self._before.graph.producers:
                    found.setdefault(name, {}).update(dict.fromkeys(self._computed_by(was)))
        by_key = self._before.graph.by_key
        return {
            name: Link(tuple(sorted(keys, key=lambda key: by_key[key].position)), Relation.FOLDED, Confidence.STRONG)
            for name, keys in found.items()
        }

    def _replacements(self, node: Node, link: Link) -> Iterator[tuple[str, str]]:
        """Constants that a node reads, each with what its sources read in its place."""
        weights = [value for value in node.inputs if value in self._after.graph.initializers]
        if not weights or link.relation is Relation.INTRODUCED:
            return
        sources = [self._before.graph.by_key[key] for key in link.sources]
        alike = [source for source in sources if source.op_type == node.op_type]
        if link.relation is not Relation.SHARED and len(alike) > 1:
            alike = [source for source in alike if source.key == node.key]
        for origin in alike:
            for now, was in zip(node.inputs, origin.inputs, strict=False):
                if was and now in weights and self._can_replace(now, was, node, origin):
                    yield now, was

    def _mixtures(self, node: Node, link: Link) -> Iterator[tuple[str, str]]:
        """Weights that a fused node brought along, each with the weights of its sources, if any of those is gone."""
        sources = [self._before.graph.by_key[key] for key in link.sources] if link.relation is Relation.FUSED else []
        theirs = [value for source in sources for value in source.inputs if self._is_weight(value)]
        if any(self._before.of[value] not in self._alive for value in theirs):
            mine = [value for value in node.inputs if value in self._after.graph.initializers]
            strange = (value for value in mine if self._after.of[value] not in self._anchors)
            yield from ((now, was) for now in strange for was in theirs)

    def _can_replace(self, now: str, was: str, node: Node, origin: Node) -> bool:
        """Whether two values in the same place may be one: the places mean nothing where inputs are interchangeable."""
        known, place = self._anchors.get(self._after.of[now]), self._before.of[was]
        theirs = self._before.inputs(origin)
        if known != place and known in theirs:
            return False
        if self._is_constant(was):
            return True
        others = {self._anchors.get(one) for one in self._after.data_inputs(node)}
        return place not in others and others <= set(theirs)

    def _is_constant(self, value: str) -> bool:
        """Whether a value does not depend on what the model is fed."""
        place = self._before.of[value]
        fixed = place in self._before.constants or place in self._before.fixed
        return fixed or value not in self._before.graph.computed

    def _is_gone(self, name: str) -> bool:
        """Whether it is an initializer before, and none that the graph after has under its name."""
        if name not in self._before.graph.initializers:
            return False
        return name not in self._after.of or self._anchors.get(self._after.of[name]) != self._before.of[name]

    def _is_weight(self, value: str) -> bool:
        tensor = self._before.graph.initializers.get(value)
        return tensor is not None and math.prod(tensor.shape) > 1

    def _computed_by(self, value: str) -> Iterable[str]:
        """The node that made a value, and those before it as far back as nothing but constants is read."""
        graph = self._before.graph
        found: dict[str, None] = {}
        waiting = [graph.producers[value]]
        while waiting:
            node = waiting.pop()
            if node.key not in found:
                found[node.key] = None
                # A literal is data, not work: several modules may share one.
                near = [one for one in graph.predecessors(node) if one.inputs]
                waiting += (one for one in near if one.key not in graph.computed)
        return found
