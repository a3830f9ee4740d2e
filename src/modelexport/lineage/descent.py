"""Descent: the whole lineage of a graph, from matching its values to checking that it all fits together.

`trace_lineage` inlines functions, tells copies of the graph before apart (`copies.py`), then takes four steps for each:

1. *Hints and congruence* (`match_graphs`): values are anchored in this order, each from the more to the less certain.
   Constants by content; inputs and outputs; names that a neighbour confirms; congruence from all of these in both
   directions; names that nobody confirms; what is left, by guessing which work ends where, and by pairing nodes of one
   kind inside of regions (`align_regions`).
2. *Links* (`link_nodes`): each kind of evidence about nodes has a linker of its own. They run in this order:

       MatchLinker          matches and regions: what is known. All others add to it.
       DeduplicatedLinker   before the next ones, which take what has no node yet: a duplicate still has one
       NoOpLinker           what is in weights or quantizers, or did nothing
       DroppedLinker        what only a matched reader can have taken in
       BypassedLinker       what a reader does as well, wherever else it is done
       WeightFoldingLinker  last of its kind: a weight read elsewhere is the weakest sign of absorption
       LayoutLinker         views and transpositions take what none of the above has covered
       PassThroughLinker    casts and quantizers ask their readers' links which node they were
       SplitLinker          needs all links to see that several come from one
       NeighbourLinker      whoever is still without a link goes to its neighbours

   A new linker is a `NodeLinker` in `absorbed.py` (it does work) or `pass_through.py` (it does none). Put it into
   `LINKERS`, before the first one that would take what it knows better; give it a before/after graph and a test.
3. *Operand order* (`check_operand_order`): a node under its old name with two inputs swapped is not what it was.
4. *Constants and consistency*: what initializers have replaced, and what can be said against the lineage.

Then links are said of the functions and calls that the files have (`map_links_to_calls`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import chain

from modelexport.graph.functions import Inlined, inline_graph, root_of
from modelexport.graph.index import Graph, Node
from modelexport.graph.operators import family, is_commutative, is_moving, is_passing, is_rearranging, is_view
from modelexport.graph.related import node_overlap
from modelexport.lineage import absorbed, pass_through
from modelexport.lineage.copies import join_lineages, split_copies
from modelexport.lineage.fusion import FusedWorks
from modelexport.lineage.hints import ConstantHints, NameHints, pair_io
from modelexport.lineage.inherit import ConstantOrigins
from modelexport.lineage.links import Links, NodeLinker, reachable_nodes
from modelexport.lineage.matching import Matching
from modelexport.lineage.regions import align_regions
from modelexport.lineage.value_classes import ValueClasses
from modelexport.record.lineage import Consistency, Lineage, Link, NodeOverlap, Relation
from modelexport.record.outline import Sketches
from modelexport.record.provenance import Confidence

_NO_LINK = Link((), Relation.INTRODUCED, Confidence.NONE)
_NO_SKETCHES: tuple[Sketches, Sketches] = (lambda _: None, lambda _: None)
# The order matters, and is explained above.
LINKERS: tuple[type[NodeLinker], ...] = (
    absorbed.MatchLinker,
    absorbed.DeduplicatedLinker,
    absorbed.NoOpLinker,
    absorbed.DroppedLinker,
    absorbed.BypassedLinker,
    absorbed.WeightFoldingLinker,
    absorbed.LayoutLinker,
    pass_through.PassThroughLinker,
    pass_through.SplitLinker,
    pass_through.NeighbourLinker,
)


def trace_lineage(
    before: Graph,
    after: Graph,
    sketches: tuple[Sketches, Sketches] = _NO_SKETCHES,
    *,
    same_outputs: bool = False,
) -> Lineage:
    """Where everything in `after` comes from.

    sketches      of both graphs, in this order; without them, nobody looks into weights
    same_outputs  both return the same values in the same order, as two exports of one model do, whatever their names
    """
    flat_before, flat_after = inline_graph(before, after.body_outputs), inline_graph(after, before.body_outputs)
    lineage = _trace_copies(flat_before.graph, flat_after.graph, sketches, same_outputs=same_outputs)
    if not (flat_before.origins or flat_after.origins):
        return lineage
    return map_links_to_calls(lineage, (before, flat_before), (after, flat_after))


def _trace_copies(before: Graph, after: Graph, sketches: tuple[Sketches, Sketches], *, same_outputs: bool) -> Lineage:
    copies = [after] if same_outputs else split_copies(before, after)
    matchings = [match_graphs(before, copy, sketches, same_outputs=same_outputs) for copy in copies]
    distinct = {node.key: node for matching in matchings for node in matching.after.nodes}
    origins = {key: origin for each in matchings for key, origin in {**each.works, **each.matches}.items()}
    overlap = node_overlap(matchings[0].before.nodes, distinct.values(), origins)
    return join_lineages([_describe_lineage(matching, overlap) for matching in matchings], overlap)


def _describe_lineage(matching: Matching, overlap: NodeOverlap) -> Lineage:
    nodes = check_operand_order(link_nodes(matching), matching)
    constants = ConstantOrigins(matching, nodes)
    folded = constants.folded_from()
    return Lineage(nodes, folded, constants.stands_for(), check_consistency(matching, nodes, folded), overlap)


def match_graphs(
    before: Graph, after: Graph, sketches: tuple[Sketches, Sketches], *, same_outputs: bool = False
) -> Matching:
    classes = ValueClasses(before), ValueClasses(after)
    matching = Matching(*classes, ConstantHints(*classes, sketches))
    names = NameHints(matching.before, matching.after, matching.operands.weights_differ)
    interfaces = pair_io(matching.anchors, names, same_outputs=same_outputs)
    for class_after, class_before in chain(interfaces, names.pairs()):
        matching.anchor(class_after, class_before, certain=True)
    matching.propagate()
    for class_after, class_before in names.hints.items():
        node, origin = matching.after.producers.get(class_after), matching.before.producers.get(class_before)
        if class_after in matching.anchors or node is None or origin is None:
            continue
        if matching.anchors.agreement(node, origin) is not None or matching.operands.share_weight(node, origin):
            matching.anchor(class_after, class_before)
            matching.propagate()
    matching.match_later_results()
    matching.merge_above_constants()
    FusedWorks(matching).anchor_results()
    align_regions(matching)
    matching.merge_above_constants()  # more is matched by now
    return matching


def link_nodes(matching: Matching) -> dict[str, Link]:
    links = Links(matching)
    for linker in LINKERS:
        linker(links).link_nodes()
    return {node.key: links.by_node.get(node.key, _NO_LINK) for node in matching.after.graph.nodes}


def check_operand_order(links: Mapping[str, Link], matching: Matching) -> dict[str, Link]:
    """The same links, but for those of nodes whose inputs were swapped: names alone say that these are as they were.

    before    Sub(a, b) ──► y          after    Sub(b, a) ──► y          REWRITTEN, not KEPT
    """
    checked = dict(links)
    for node in matching.after.graph.nodes:
        link = links[node.key]
        if link.relation in (Relation.KEPT, Relation.RENAMED) and len(link.sources) == 1:
            origin = matching.before.graph.by_key[link.sources[0]]
            if not is_commutative(family(node.operator)) and matching.operands.has_swapped_inputs(node, origin):
                confidence = min(link.confidence, Confidence.STRONG)
                checked[node.key] = replace(link, relation=Relation.REWRITTEN, confidence=confidence)
    return checked


_SINGLE = (Relation.KEPT, Relation.RENAMED, Relation.REWRITTEN)


def map_links_to_calls(lineage: Lineage, before: tuple[Graph, Inlined], after: tuple[Graph, Inlined]) -> Lineage:
    """What was found with all functions inlined, said of the calls and of the nodes inside of functions.

        inlined    f/MatMul ◄── MatMul, f/Add ◄── Add          file    f (a call) ◄── MatMul, Add

    lineage  that of the inlined graphs; the other graphs are those of the files
    """
    sources = _SourceKeys(*before)
    consistency = lineage.consistency

    def outer_call(key: str) -> str:
        return after[1].origins.get(key, (key,))[0]

    return replace(
        lineage,
        nodes=_group_by_call(
            {key: sources.map_link(link, key) for key, link in lineage.nodes.items()}, sources, *after
        ),
        initializers={name: sources.map_link(link, name) for name, link in lineage.initializers.items()},
        consistency=replace(
            consistency,
            folded=tuple(map(sources.map_key, consistency.folded)),
            removed=tuple(map(sources.map_key, consistency.removed)),
            unexplained=tuple(map(sources.map_key, consistency.unexplained)),
            disorder=tuple(dict.fromkeys((outer_call(a), outer_call(b)) for a, b in consistency.disorder)),
            strayed=tuple(dict.fromkeys(map(outer_call, consistency.strayed))),
        ),
    )


class _SourceKeys:
    """The nodes of the file before, for those of its inlined graph; a call, if its function is called several times."""

    def __init__(self, graph: Graph, flat: Inlined) -> None:
        self._graph = graph
        self._origins = flat.origins
        inlined = graph.body_outputs.keys() - flat.graph.body_outputs.keys() - graph.body_owner.keys()
        self._calls = {key for function in inlined for key in graph.callers[function]}
        self._called_often = {function for function in inlined if len(graph.callers[function]) > 1}

    def map_key(self, key: str) -> str:
        origins = self._origins.get(key, (key,))
        functions = [root_of(self._graph.by_key[origin].graph, self._graph) for origin in origins]
        depths = [depth for depth, function in enumerate(functions) if function in self._called_often]
        return origins[depths[0] - 1] if depths else origins[-1]

    def sort_keys(self, keys: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(set(keys), key=lambda key: self._graph.by_key[key].position))

    def map_link(self, link: Link, key: str) -> Link:
        """The same link to nodes of the file. What is linked to a call does a part of its work."""
        keys = {self.map_key(source) for source in link.sources}
        ordered = self.sort_keys(keys)
        relation = link.relation
        if relation in _SINGLE and not keys.isdisjoint(self._calls):
            relation = Relation.SPLIT
        elif relation is Relation.KEPT and ordered != (key,):
            relation = Relation.RENAMED
        return replace(link, sources=ordered, relation=relation)


def _group_by_call(links: dict[str, Link], sources: _SourceKeys, graph: Graph, flat: Inlined) -> dict[str, Link]:
    """A link for every node of the file: a call comes from all that the nodes of its function come from there."""
    groups: dict[str, list[Link]] = {}
    for key, link in links.items():
        for origin in flat.origins.get(key, (key,)):
            groups.setdefault(origin, []).append(link)
    return {node.key: _join_links(groups.get(node.key, [_NO_LINK]), sources) for node in graph.nodes}


def _join_links(links: list[Link], sources: _SourceKeys) -> Link:
    if len(links) == 1:
        return links[0]
    keys = sources.sort_keys(key for link in links for key in link.sources)
    relation = Relation.FUSED if len(keys) > 1 else Relation.REWRITTEN
    return Link(keys, relation, min(link.confidence for link in links))


_ONE_TO_ONE = (Relation.KEPT, Relation.RENAMED, Relation.REWRITTEN, Relation.SPLIT)


def check_consistency(matching: Matching, nodes: Mapping[str, Link], folded: Mapping[str, Link]) -> Consistency:
    """What can be said against a lineage: work that nobody does any more, and links that do not fit each other."""
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
        disorder=tuple(find_disorder(before, matching.after.graph, nodes)),
        strayed=tuple(_find_strayed(matching, nodes)),
    )


class _Removal:
    """Dead code: whether a node that nobody stands for could be taken out, as it did nothing or nobody needs it."""

    def __init__(self, matching: Matching) -> None:
        self._matching, self._before = matching, matching.before

    def is_justified(self, node: Node) -> bool:
        if is_passing(node) or is_view(node) or self._before.is_neutral(node) or node.key not in self._reachable:
            return True
        moves = is_moving(node) or is_rearranging(node) or (node.operator == "Concat" and len(node.inputs) == 1)
        return moves and node.key in self._bypassed

    @cached_property
    def _reachable(self) -> frozenset[str]:
        return reachable_nodes(self._matching)

    @cached_property
    def _bypassed(self) -> frozenset[str]:
        """Keys of nodes whose readers now read what they were given."""
        before, after, anchors = self._before, self._matching.after, self._matching.anchors
        nodes: list[Node] = []
        for key, origin in {**self._matching.works, **self._matching.matches}.items():
            inputs = zip(after.inputs(after.graph.by_key[key]), before.inputs(origin), strict=False)
            for class_after, class_before in inputs:
                nodes += before.nodes_between(anchors.get(class_after), class_before)
        for class_after, merged in anchors.merged.items():
            for class_before in merged:
                nodes += before.nodes_joining(anchors.get(class_after), class_before)
        return frozenset(node.key for node in nodes)


def find_disorder(before: Graph, after: Graph, nodes: Mapping[str, Link]) -> Iterator[tuple[str, str]]:
    """Edges that run against the order of the graph before: who makes a value, and who reads it.

    What only hands on may stand anywhere between a value and those that read it.
    """

    def position(node: Node) -> int | None:
        link = nodes.get(node.key)
        if link is None or link.relation not in _ONE_TO_ONE or len(link.sources) != 1 or is_passing(node):
            return None
        return before.by_key[link.sources[0]].position

    for node in after.nodes:
        end = position(node)
        for producer in after.predecessors(node) if end is not None else ():
            start = position(producer)
            if start is not None and end is not None and start > end:
                yield producer.key, node.key


def _find_strayed(matching: Matching, nodes: Mapping[str, Link]) -> Iterator[str]:
    """Nodes that read a weight which none of their sources read, if any of them read one."""
    before, after, anchors = matching.before, matching.after, matching.anchors
    for node in after.nodes:
        link = nodes.get(node.key)
        if link is None or link.relation is Relation.INTRODUCED or not after.constants_above(node):
            continue
        single_numbers = {class_id for class_id in after.constant_inputs(node) if after.size(class_id) <= 1}
        constants = [class_id for class_id in _constants(after, node) if class_id in anchors]
        weights = [class_id for class_id in constants if class_id not in single_numbers]
        origins = [before.graph.by_key[key] for key in link.sources]
        read_before = {class_id for origin in origins for class_id in _constants(before, origin)}
        known = (anchors.get(class_id) for class_id in weights)
        if weights and read_before and not any(anchors.is_like(class_id, read_before) for class_id in known):
            yield node.key


def _constants(classes: ValueClasses, node: Node) -> Iterable[int]:
    """What a node reads that is no data, be it through nodes that work on constants alone."""
    return dict.fromkeys((*classes.constant_inputs(node), *classes.weights(node)))
