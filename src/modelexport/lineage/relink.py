"""Linking the nodes of a graph to the nodes of the graph that it was made from.

Four observations, each cheap and each checked against the next:

1. A node that makes the same value by the same operator from the same constants was *kept*.
2. A node that makes a known value some other way replaced everything between that value and the values that still
   exist: it was *fused* from (or rewritten from) that region.
3. A kept node that now reads another value shows that the two values are equal: either what lay between was a no-op,
   or its twin elsewhere was *shared*, or it was absorbed into the constants of the node before it.
4. A constant that stands where a computed value stood was *folded* from the nodes that computed it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from modelexport.graph.index import Graph, Node
from modelexport.lineage.congruence import value_classes
from modelexport.record.lineage import Lineage, Link, Relation


def relink(before: Graph, after: Graph) -> Lineage:
    """Link every node and every computed initializer of `after` to its sources in `before`."""
    return _Relinker(before, after).run()


class _Relinker:
    """One linking under way.

    sources        for each node after, the keys of the nodes before that it does the work of
    kept           nodes after that are still what they were, mapped to the node before
    same_operator  nodes after that make a known value by the operator that made it before; the kept ones among them
    known_output   nodes after that make a value which was there before
    absorbed       nodes before that went into the weights of a node after
    folded         for each constant after, the nodes before that computed it
    stands_for     for each weight after, the weights before whose place it took
    replaced       pairs of values that have been looked at: what stood there before, what stands there now
    """

    def __init__(self, before: Graph, after: Graph) -> None:
        self.before = before
        self.after = after
        self.sources: dict[str, dict[str, None]] = {node.key: {} for node in after.nodes}
        self.relations: dict[str, Relation] = {}
        self.kept: dict[str, Node] = {}
        self.known_output: set[str] = set()
        self.absorbed: dict[str, str] = {}
        self.same_operator: dict[str, Node] = {}
        self.folded: dict[str, dict[str, None]] = {}
        self.stands_for: dict[str, dict[str, None]] = {}
        self.replaced: set[tuple[str, str]] = set()

    def run(self) -> Lineage:
        for node in self.after.nodes:
            self._find_origin(node)
        self._link_twins()
        for node in self.after.nodes:
            self._link_replaced_inputs(node)
        self._link_graph_outputs()
        for node in self.after.nodes:
            self._link_region(node)
        for node in reversed(self.after.nodes):
            self._link_introduced(node)
        for name in self.after.initializers:
            self._link_initializer(name)
        for node in self.after.nodes:
            self._link_weights(node)
        return Lineage(
            {key: Link(self._ordered(sources), self._relation(key)) for key, sources in self.sources.items()},
            {name: Link(self._ordered(sources), Relation.FOLDED) for name, sources in self.folded.items()},
            {name: tuple(others) for name, others in self.stands_for.items()},
        )

    # 1 and 2: by the value that a node makes

    def _find_origin(self, node: Node) -> None:
        origins = {self.before.producers[out].key: None for out in node.outputs if out in self.before.producers}
        if not origins:
            return
        origin = self.before.by_key[next(iter(origins))]
        self.known_output.add(node.key)
        if origin.op_type == node.op_type:
            self.same_operator[node.key] = origin
        if len(origins) == 1 and self._is_kept(origin, node):
            self.kept[node.key] = origin
            self._add(node, [origin.key], Relation.KEPT)

    def _link_region(self, node: Node) -> None:
        if node.key in self.known_output and node.key not in self.kept:
            region = self._region(node)
            single = len(region) == 1 and not self.sources[node.key]
            self._add(node, region, Relation.REWRITTEN if single else Relation.FUSED)

    def _is_kept(self, origin: Node, node: Node) -> bool:
        same = (origin.op_type, origin.domain, origin.attributes) == (
            node.op_type,
            node.domain,
            node.attributes,
        )
        return same and len(origin.inputs) == len(node.inputs)

    def _region(self, node: Node) -> list[str]:
        """Everything before that the node now does by itself: back from its outputs to values that still exist."""
        reached = {self.classes[value] for value in node.inputs if value in self.classes}
        region: dict[str, None] = {}
        waiting = [self.before.producers[out] for out in node.outputs if out in self.before.producers]
        while waiting:
            here = waiting.pop()
            # What went into the weights of another node ends where that node begins.
            if here.key in region or self.absorbed.get(here.key, node.key) != node.key:
                continue
            region[here.key] = None
            for value in here.inputs:
                gone = value in self.before.producers and value not in self.alive
                if gone and self.classes[value] not in reached:
                    waiting.append(self.before.producers[value])
        doing = [key for key in region if key in self.before.computed and self.before.by_key[key].op_type != "Identity"]
        return doing or list(region)

    # 3: by the values that kept nodes read

    def _link_twins(self) -> None:
        """Nodes that were equal before and are gone now live on in the one that was kept."""
        survivors: dict[int, Node] = {}
        for node in self.after.nodes:
            if node.key in self.kept:
                survivors.setdefault(self.classes[self.kept[node.key].key], node)
        for node in self.before.nodes:
            kept = survivors.get(self.classes[node.key]) if node.key not in self.alive else None
            if kept is not None:
                self._add(kept, [node.key], Relation.SHARED)

    def _link_replaced_inputs(self, node: Node) -> None:
        origin = self.same_operator.get(node.key)
        for was, now in zip(origin.inputs if origin else (), node.inputs, strict=False):
            self._link_replaced(was, now)

    def _link_graph_outputs(self) -> None:
        for was, now in zip(self.before.outputs, self.after.outputs, strict=False):
            self._link_replaced(was, now)

    def _link_replaced(self, was: str, now: str) -> None:
        """The value `now` stands where the value `was` stood."""
        if was == now or not was or not now or was not in self.before.producers or was in self.alive:
            return
        if (was, now) in self.replaced:
            return
        self.replaced.add((was, now))
        if now in self.after.initializers:
            self._fold(now, self.before.producers[was])
            return
        heir = self.after.producers.get(now)
        between = self._between(now, was)
        if heir is None:
            return
        if between is None:
            self._link_equal(self.before.producers[was], heir)
        elif self._constants_changed(heir):
            absorbed = [node.key for node in between if self._reads_constant(node)]
            self.absorbed.update(dict.fromkeys(absorbed, heir.key))
            self._add(heir, absorbed, Relation.FUSED)

    def _link_equal(self, was: Node, heir: Node) -> None:
        """Two nodes make equal values by the same operator: so do, pair by pair, the nodes before them."""
        if was.op_type != heir.op_type and heir.key not in self.known_output:
            # A new operator makes the value: it does the work of everything that went with the old one.
            self._add(heir, self._vanished_behind(was), Relation.FUSED)
            return
        waiting = [(was, heir)]
        while waiting:
            old, new = waiting.pop()
            if old.op_type != new.op_type or old.key in self.sources[new.key] or old.key in self.alive:
                continue
            self._add(new, [old.key], Relation.SHARED)
            for value, other in zip(old.inputs, new.inputs, strict=False):
                if value in self.before.producers and other in self.after.producers:
                    waiting.append((self.before.producers[value], self.after.producers[other]))

    def _vanished_behind(self, node: Node) -> list[str]:
        found: dict[str, None] = {}
        waiting = [node]
        while waiting:
            here = waiting.pop()
            if here.key not in found and here.key in self.before.computed:
                found[here.key] = None
                gone = [value for value in here.inputs if value not in self.alive]
                waiting.extend(self.before.producers[value] for value in gone if value in self.before.producers)
        return list(found)

    def _between(self, start: str, end: str) -> list[Node] | None:
        """The vanished nodes on the way from `start` to `end`; None where there is no such way."""
        found: dict[str, Node] = {}
        reached = False
        waiting = [end]
        while waiting:
            value = waiting.pop()
            reached = reached or value == start
            node = self.before.producers.get(value)
            if value == start or node is None or value in self.alive or node.key in found:
                continue
            found[node.key] = node
            waiting.extend(value for value in node.inputs if value)
        return list(found.values()) if reached else None

    def _constants_changed(self, node: Node) -> bool:
        """Whether a node with the same operator as before now reads another weight, or one more."""
        origin = self.same_operator.get(node.key)
        if origin is None:
            return False
        more = len(node.inputs) > len(origin.inputs)
        return more or any(map(self._is_other_weight, origin.inputs, node.inputs))

    def _is_other_weight(self, was: str, now: str) -> bool:
        if was == now or was not in self.before.initializers or now not in self.after.initializers:
            return False
        content = self.after.initializers[now].content
        return content is None or content != self.before.initializers[was].content

    def _reads_constant(self, node: Node) -> bool:
        return any(value and value not in self.before.computed for value in node.inputs)

    # the rest: helpers that a rewrite added, and constants

    def _link_introduced(self, node: Node) -> None:
        """A node nobody knew before was made for the nodes that read it."""
        if self.sources[node.key]:
            return
        readers = [reader for reader in self.after.successors(node) if reader.position != node.position]
        self._add(node, [key for reader in readers for key in self.sources[reader.key]], Relation.INTRODUCED)

    def _link_initializer(self, name: str) -> None:
        if name not in self.before.initializers and name in self.before.producers:
            self._fold(name, self.before.producers[name])

    def _link_weights(self, node: Node) -> None:
        """A weight that a node reads in the place of another one that is gone stands for it."""
        origin = self.same_operator.get(node.key)
        for was, now in zip(origin.inputs if origin else (), node.inputs, strict=False):
            gone = was in self.before.initializers and was not in self.after.initializers
            if gone and now in self.after.initializers:
                self.stands_for.setdefault(now, {})[was] = None

    def _fold(self, name: str, origin: Node) -> None:
        """The node that computed a constant, and those before it as far back as nothing but constants is read."""
        found = self.folded.setdefault(name, {})
        waiting = [origin]
        while waiting:
            node = waiting.pop()
            if node.key not in found:
                found[node.key] = None
                # A literal is data, not work: several modules may share one.
                near = [node for node in self.before.predecessors(node) if node.inputs]
                waiting.extend(node for node in near if node.key not in self.before.computed)

    # shared look-ups

    @cached_property
    def classes(self) -> Mapping[str, int]:
        return value_classes(self.before)

    @cached_property
    def alive(self) -> frozenset[str]:
        """Values of the graph before that the graph after still computes or is given."""
        return frozenset(self.after.producers) | frozenset(self.after.inputs)

    def _add(self, node: Node, keys: Iterable[str], relation: Relation) -> None:
        keys = list(keys)
        self.sources[node.key].update(dict.fromkeys(keys))
        if keys and (relation is not Relation.SHARED or self.relations.get(node.key) is Relation.KEPT):
            self.relations[node.key] = relation

    def _relation(self, key: str) -> Relation:
        return self.relations.get(key, Relation.INTRODUCED)

    def _ordered(self, keys: Mapping[str, None]) -> tuple[str, ...]:
        return tuple(sorted(keys, key=lambda key: self.before.by_key[key].position))
