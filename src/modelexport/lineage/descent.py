"""The whole lineage of a graph: its nodes, its constants, and whether it all fits together.

Linking every node of a graph to the nodes of the graph that it was made from.

First, values are paired: where the graphs begin and end, constants, names that confirm each other, congruence from all
of these in both directions, names that nobody confirms. Then nodes are linked, each kind of evidence by a linker of its
own, and what is left goes to its neighbours.

Links between graphs of which one has functions that the other has not.

They are linked with the functions put in the place of their calls. What was found there is said here of the calls and
of the nodes inside of functions.

What can be said against a lineage: work that nobody does any more, and links that do not fit each other.

Nodes under their old names that read the same values in other places: they compute something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Protocol

from modelexport.graph.constants import is_all, scalar_contents
from modelexport.graph.functions import Inlined, inline_graph, root_of
from modelexport.graph.index import Graph, Node
from modelexport.graph.operators import family, is_commutative, is_moving, is_passing, is_rearranging, is_view
from modelexport.graph.related import node_overlap
from modelexport.lineage.absorbed import Dropped, Idle, Merged, Placed, ReadThrough, Rearranged, Weighed
from modelexport.lineage.hints import ConstantLinker, EndLinker, NameLinker
from modelexport.lineage.inherit import ConstantHeirs
from modelexport.lineage.links import Links, NodeLinker, Regions, needed_keys
from modelexport.lineage.matching import Matching
from modelexport.lineage.pass_through import HandedOn, Neighbours, Parts
from modelexport.lineage.value_classes import NOTHING, Classes
from modelexport.record.lineage import Consistency, Lineage, Link, Relation
from modelexport.record.outline import Sketches
from modelexport.record.provenance import Confidence


class ValueLinker(Protocol):
    """One kind of evidence about values."""

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Classes after, each with the class before that it is."""


def matched(before: Graph, after: Graph, sketches: tuple[Sketches, Sketches]) -> Matching:
    matching = Matching(Classes(before), Classes(after))
    matching.anchor_constants(ConstantLinker(matching.before, matching.after, sketches))
    names = NameLinker(matching.before, matching.after, matching.weights_differ)
    # These do not follow from anything else.
    certain: tuple[ValueLinker, ...] = (EndLinker(matching.before, matching.after, names), names)
    for linker in certain:
        for place, other in linker.pairs():
            matching.anchor(place, other, certain=True)
    matching.settle()
    for place, other in names.unconfirmed():
        node, origin = matching.after.makers.get(place), matching.before.makers.get(other)
        if place in matching.anchors or node is None or origin is None:
            continue
        if matching.anchors.agreement(node, origin) is not None or matching.share_weight(node, origin):
            matching.anchor(place, other)
            matching.settle()
    matching.guess()
    return matching


def linked(matching: Matching) -> dict[str, Link]:
    """A link for every node."""
    links, regions = Links(matching), Regions(matching)
    linkers: tuple[NodeLinker, ...] = (
        Placed(links, regions),
        # Who has taken in what is gone: first where nodes stand for several, then what nobody does as yet.
        Merged(links),
        Idle(links),
        Dropped(links),
        ReadThrough(links),
        Weighed(links),
        # These do no work of their own: they take what is left.
        Rearranged(links, regions),
        HandedOn(links),
        Parts(links),
        Neighbours(links),
    )
    for linker in linkers:
        linker.link()
    nothing = Link((), Relation.INTRODUCED, Confidence.NONE)
    return {node.key: links.found.get(node.key, nothing) for node in matching.after.graph.nodes}


_SINGLE = (Relation.KEPT, Relation.RENAMED, Relation.REWRITTEN)


def called(lineage: Lineage, before: tuple[Graph, Inlined], after: tuple[Graph, Inlined]) -> Lineage:
    """`lineage` is that of the graphs without functions; the other graphs are those of the files."""
    sources = _Sources(*before)
    found = lineage.consistency

    def call(key: str) -> str:
        return after[1].origins.get(key, (key,))[0]

    return replace(
        lineage,
        nodes=_regrouped({key: sources.link(link, key) for key, link in lineage.nodes.items()}, sources, *after),
        initializers={name: sources.link(link, name) for name, link in lineage.initializers.items()},
        consistency=replace(
            found,
            folded=tuple(map(sources.key, found.folded)),
            removed=tuple(map(sources.key, found.removed)),
            unexplained=tuple(map(sources.key, found.unexplained)),
            disorder=tuple(dict.fromkeys((call(maker), call(reader)) for maker, reader in found.disorder)),
            strayed=tuple(dict.fromkeys(map(call, found.strayed))),
        ),
    )


class _Sources:
    """The nodes of the file before.

    A node of a function that is called once is one node. Of one that is called several times, the call tells more.
    """

    def __init__(self, graph: Graph, flat: Inlined) -> None:
        self._graph = graph
        self._origins = flat.origins
        gone = graph.body_outputs.keys() - flat.graph.body_outputs.keys() - graph.body_owner.keys()
        self._calls = {key for name in gone for key in graph.callers[name]}
        self._several = {name for name in gone if len(graph.callers[name]) > 1}

    def key(self, key: str) -> str:
        origins = self._origins.get(key, (key,))
        roots = [root_of(self._graph.by_key[one].graph, self._graph) for one in origins]
        shared = [place for place, root in enumerate(roots) if root in self._several]
        return origins[shared[0] - 1] if shared else origins[-1]

    def ordered(self, keys: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(set(keys), key=lambda one: self._graph.by_key[one].position))

    def link(self, link: Link, key: str) -> Link:
        """The same link to nodes of the file. What is linked to a call does a part of its work."""
        keys = {self.key(source) for source in link.sources}
        ordered = self.ordered(keys)
        relation = link.relation
        if relation in _SINGLE and not keys.isdisjoint(self._calls):
            relation = Relation.SPLIT
        elif relation is Relation.KEPT and ordered != (key,):
            relation = Relation.RENAMED
        return replace(link, sources=ordered, relation=relation)


def _regrouped(links: dict[str, Link], sources: _Sources, graph: Graph, flat: Inlined) -> dict[str, Link]:
    """A link for every node of the file: a call comes from all that the nodes of its function come from there."""
    groups: dict[str, list[Link]] = {}
    for key, link in links.items():
        for origin in flat.origins.get(key, (key,)):
            groups.setdefault(origin, []).append(link)
    nothing = Link((), Relation.INTRODUCED, Confidence.NONE)
    return {node.key: _joined(groups.get(node.key, [nothing]), sources) for node in graph.nodes}


def _joined(links: list[Link], sources: _Sources) -> Link:
    if len(links) == 1:
        return links[0]
    keys = sources.ordered(key for link in links for key in link.sources)
    relation = Relation.FUSED if len(keys) > 1 else Relation.REWRITTEN
    return Link(keys, relation, min(link.confidence for link in links))


_SAME = (Relation.KEPT, Relation.RENAMED, Relation.REWRITTEN, Relation.SPLIT)
# The number that leaves the others as they are, and the inputs that may be it.
_NEUTRAL = {
    "Add": (0, (0, 1)),
    "Sub": (0, (1,)),
    "Mul": (1, (0, 1)),
    "Div": (1, (1,)),
    "Pow": (1, (1,)),
    "And": (1, (0, 1)),
    "Or": (0, (0, 1)),
}


def consistency(matching: Matching, nodes: Mapping[str, Link], folded: Mapping[str, Link]) -> Consistency:
    before = matching.before.graph
    computing = [node.key for node in before.nodes if node.key in before.computed]
    covered = {key for link in nodes.values() for key in link.sources}
    constant = {key for link in folded.values() for key in link.sources}
    gone = [key for key in computing if key not in covered and key not in constant]
    removal = _Removal(matching)
    removed = {key for key in gone if removal.is_justified(before.by_key[key])}
    return Consistency(
        nodes=len(computing),
        folded=tuple(key for key in computing if key not in covered and key in constant),
        removed=tuple(key for key in gone if key in removed),
        unexplained=tuple(key for key in gone if key not in removed),
        disorder=tuple(_disorder(before, matching.after.graph, nodes)),
        strayed=tuple(_strayed(matching, nodes)),
    )


class _Removal:
    """Whether a node that nobody stands for could be taken out: it did nothing, or nobody needs what it made."""

    def __init__(self, matching: Matching) -> None:
        self._matching = matching
        self._before = matching.before
        self._graph = matching.before.graph

    def is_justified(self, node: Node) -> bool:
        if is_passing(node) or is_view(node) or self._is_neutral(node) or node.key not in self._needed:
            return True
        moves = is_moving(node) or is_rearranging(node) or (node.op_type == "Concat" and len(node.inputs) == 1)
        return moves and node.key in self._bypassed

    def _is_neutral(self, node: Node) -> bool:
        number, places = _NEUTRAL.get(node.op_type, (0, ()))
        return any(self._holds(node.inputs[place], number) for place in places if place < len(node.inputs))

    def _holds(self, value: str, number: int) -> bool:
        tensor = self._graph.initializers.get(value)
        if tensor is not None:
            return is_all(tensor, number)
        return self._before.constants.get(self._before.of.get(value, NOTHING)) in scalar_contents(number)

    @cached_property
    def _needed(self) -> frozenset[str]:
        return needed_keys(self._matching)

    @cached_property
    def _bypassed(self) -> frozenset[str]:
        """Keys of nodes whose readers now read what they were given."""
        return frozenset(_bypassed(self._matching))


def _bypassed(matching: Matching) -> Iterator[str]:
    before, after, anchors = matching.before, matching.after, matching.anchors
    for key, origin in {**matching.works, **matching.matches}.items():
        node = after.graph.by_key[key]
        for here, there in zip(after.inputs(node), before.inputs(origin), strict=False):
            yield from (one.key for one in before.between(anchors.get(here), there))
    for place, others in anchors.also.items():
        for other in others:
            known = anchors.get(place)
            yield from (one.key for one in before.between(known, other) or before.between(other, known))


def _disorder(before: Graph, after: Graph, nodes: Mapping[str, Link]) -> Iterator[tuple[str, str]]:
    """Edges that run against the order of the graph before: who makes a value, and who reads it.

    What only hands on may stand anywhere between a value and those that read it.
    """

    def place(node: Node) -> int | None:
        link = nodes.get(node.key)
        one = link is not None and link.relation in _SAME and len(link.sources) == 1 and not is_passing(node)
        return before.by_key[link.sources[0]].position if link is not None and one else None

    for node in after.nodes:
        end = place(node)
        for maker in after.predecessors(node) if end is not None else ():
            start = place(maker)
            if start is not None and end is not None and start > end:
                yield maker.key, node.key


def _strayed(matching: Matching, nodes: Mapping[str, Link]) -> Iterator[str]:
    """Nodes that read a weight which none of their sources read, if any of them read one."""
    before, after, anchors = matching.before, matching.after, matching.anchors
    for node in after.nodes:
        link = nodes.get(node.key)
        if link is None or link.relation is Relation.INTRODUCED:
            continue
        single = {place for place in after.constant_inputs(node) if after.size(place) <= 1}
        weights = [place for place in _constants(after, node) if place in anchors and place not in single]
        origins = [before.graph.by_key[key] for key in link.sources]
        theirs = {place for origin in origins for place in _constants(before, origin)}
        if weights and theirs and not any(anchors.is_like(anchors.get(place), theirs) for place in weights):
            yield node.key


def _constants(classes: Classes, node: Node) -> Iterable[int]:
    """What a node reads that is no data, be it through nodes that work on constants alone."""
    return dict.fromkeys((*classes.constant_inputs(node), *classes.weights(node)))


def doubted(links: Mapping[str, Link], matching: Matching) -> dict[str, Link]:
    """The same links, but for those of nodes whose inputs were swapped: names alone say that these are as they were."""
    found = dict(links)
    for node in matching.after.graph.nodes:
        link = links[node.key]
        if link.relation in (Relation.KEPT, Relation.RENAMED) and len(link.sources) == 1:
            origin = matching.before.graph.by_key[link.sources[0]]
            if not is_commutative(family(node.op_type)) and _is_swapped(node, origin, matching):
                found[node.key] = replace(
                    link, relation=Relation.REWRITTEN, confidence=min(link.confidence, Confidence.STRONG)
                )
    return found


def _is_swapped(node: Node, origin: Node, matching: Matching) -> bool:
    """Whether two inputs have changed places."""
    anchors = matching.anchors
    now = [anchors.get(place) for place in matching.after.inputs(node)]
    pairs = [pair for pair in zip(now, matching.before.inputs(origin), strict=False) if NOTHING not in pair]
    told = {(anchors.alike.get(here, here), anchors.alike.get(there, there)) for here, there in pairs}
    return any(here != there and (there, here) in told for here, there in told)


def _unseen(_: str) -> None:
    return None


def trace_lineage(before: Graph, after: Graph, sketches: tuple[Sketches, Sketches] = (_unseen, _unseen)) -> Lineage:
    """Where everything in `after` comes from.

    sketches  of both graphs, in this order; without them, nobody looks into weights
    """
    old, new = inline_graph(before, after.body_outputs), inline_graph(after, before.body_outputs)
    lineage = _traced(old.graph, new.graph, sketches)
    return called(lineage, (before, old), (after, new)) if old.origins or new.origins else lineage


def _traced(before: Graph, after: Graph, sketches: tuple[Sketches, Sketches]) -> Lineage:
    matching = matched(before, after, sketches)
    nodes = doubted(linked(matching), matching)
    constants = ConstantHeirs(matching, nodes)
    folded = constants.folded()
    overlap = node_overlap(matching.before.nodes, matching.after.nodes, {**matching.works, **matching.matches})
    return Lineage(nodes, folded, constants.stands_for(), consistency(matching, nodes, folded), overlap)
