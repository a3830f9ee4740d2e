"""The values that go into each module call and come out of it, for all calls in one pass over the graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from modelexport.graph.index import Graph, Node
from modelexport.record.hierarchy import Hierarchy, ModuleCall, common_prefix
from modelexport.record.lineage import is_introduced
from modelexport.record.provenance import Attribution, Provenance

_Calls = tuple[ModuleCall, ...]


@dataclass(frozen=True)
class Crossings:
    """What comes out of calls and goes into them, by value; calls are given outermost first.

    made     the calls that were open when a value was made
    leaves   those of them that it comes out of
    enters   the calls that it goes into
    guessed  values of nodes that are credited to nobody: they are taken for a continuation of what they read
    """

    made: Mapping[str, _Calls]
    leaves: Mapping[str, _Calls]
    enters: Mapping[str, _Calls]
    guessed: frozenset[str]


def find_crossings(graph: Graph, provenance: Provenance) -> Crossings:
    order = {site.call: place for place, site in enumerate(provenance.hierarchy.calls)}
    around = _around_nodes(graph, provenance, order)
    recorded = _around_readers(provenance, order)
    outputs = set(graph.outputs)
    made: dict[str, _Calls] = {}
    leaves: dict[str, _Calls] = {}
    enters: dict[str, _Calls] = {}
    for value in (*graph.inputs, *graph.producers):
        maker = graph.producers.get(value)
        made_in = made[value] = () if maker is None else around[maker.key]
        # Of a module and one that it calls, the value may be what the one hands to the other.
        stack = provenance.hierarchy.stack
        inside = {*made_in, *(one for one in _works(maker, recorded) if made_in[-1] not in stack(one))}
        readers = list(_readers(value, graph, recorded))
        goes_out = value in outputs
        leaves[value] = tuple(call for call in made_in if goes_out or any(call not in one.works for one in readers))
        enters[value] = tuple(dict.fromkeys(call for one in readers for call in one.begins if call not in inside))
    guessed = frozenset(value for value, node in graph.producers.items() if node.key not in recorded)
    return Crossings(made, leaves, enters, guessed)


@dataclass(frozen=True)
class _ReadingNode:
    """A node that is credited to somebody.

    begins  the calls that were open when it read: a fused one reads for its first
    works   all calls whose work it does, and those around them. What it reads of one of them is not yet that one's
            result: a bias, say, may be added together with what comes next
    passes  a tool put it in, and it reads for those behind it: a cast or quantizer ends no module
    """

    begins: _Calls
    works: frozenset[ModuleCall]
    passes: bool


def _around_readers(provenance: Provenance, order: Mapping[ModuleCall, int]) -> Mapping[str, _ReadingNode]:
    """By key of the node."""
    stack = provenance.hierarchy.stack

    def reader(attribution: Attribution) -> _ReadingNode:
        owners = attribution.owners
        first = min(owners, key=lambda call: order.get(call, -1))
        works = frozenset(call for owner in owners for call in stack(owner))
        return _ReadingNode(stack(first), works, is_introduced(attribution))

    attributions = {key: entry.attribution for key, entry in provenance.nodes.items()}
    return {key: reader(attribution) for key, attribution in attributions.items() if attribution.owners}


def _works(maker: Node | None, credited: Mapping[str, _ReadingNode]) -> frozenset[ModuleCall]:
    return credited[maker.key].works if maker is not None and maker.key in credited else frozenset()


def _around_nodes(graph: Graph, provenance: Provenance, order: Mapping[ModuleCall, int]) -> Mapping[str, _Calls]:
    """By node: the calls that were open when its value was ready.

    A node of nobody's, which a tool put in, does the work of the module whose weights it reads, or goes on with what
    the modules made that it reads from.
    """
    hierarchy = provenance.hierarchy
    found: dict[str, _Calls] = {}
    for node in graph.nodes:
        owners = provenance.nodes[node.key].attribution.owners or _weight_owners(node, provenance)
        if owners:
            found[node.key] = hierarchy.stack(last_owner(owners, hierarchy, order))
        else:
            found[node.key] = common_prefix(found[key] for key in _data_before(node, graph) if found.get(key))
    return found


def _data_before(node: Node, graph: Graph) -> list[str]:
    """The nodes whose results it works on; a shape that it reads beside them says nothing of whose work it does."""
    before = [other.key for other in graph.predecessors(node)]
    return [key for key in before if key in graph.computed] or before


def _weight_owners(node: Node, provenance: Provenance) -> _Calls:
    read = (provenance.initializers.get(value) for value in node.inputs)
    return tuple(owner for weight in read if weight is not None for owner in weight.owners)


def _readers(value: str, graph: Graph, credited: Mapping[str, _ReadingNode]) -> Iterator[_ReadingNode]:
    """Whoever reads a value; what does nobody's work (a quantizer, say) reads for those behind it."""
    waiting, seen = list(graph.consumers.get(value, ())), set[str]()
    while waiting:
        node = waiting.pop()
        if node.key in seen:
            continue
        seen.add(node.key)
        if node.key in credited and not credited[node.key].passes:
            yield credited[node.key]
        else:
            waiting += graph.successors(node)


def last_owner(owners: Iterable[ModuleCall], hierarchy: Hierarchy, order: Mapping[ModuleCall, int]) -> ModuleCall:
    """Whose result a node of several modules holds.

    Fused: that of the last of them, or of one that encloses it and may go on after it. If others ran in between, it is
    something that they share, and nobody's result: then that of the call around all of them.
    """
    known = set(owners)
    last = max(known, key=lambda call: order.get(call, -1))
    if len(known) > 1 and _others_between(known, hierarchy, order):
        return hierarchy.common_ancestor(known) or last
    return next((call for call in hierarchy.stack(last) if call in known), last)


def is_fused(owners: AbstractSet[ModuleCall], hierarchy: Hierarchy, order: Mapping[ModuleCall, int]) -> bool:
    """Whether a node does the work of several modules one after the other, and nothing that they merely share."""
    return len(owners) > 1 and not _others_between(owners, hierarchy, order)


def _others_between(known: AbstractSet[ModuleCall], hierarchy: Hierarchy, order: Mapping[ModuleCall, int]) -> bool:
    places = [order.get(call, -1) for call in known]
    between = (site.call for site in hierarchy.calls[min(places) + 1 : max(places)])
    around = {call for one in known for call in hierarchy.stack(one)}
    return any(call not in around and known.isdisjoint(hierarchy.stack(call)) for call in between)


def calls_by_end(hierarchy: Hierarchy) -> tuple[ModuleCall, ...]:
    """Calls in the order in which they end; a record has them in the order in which they begin."""
    ended: list[ModuleCall] = []
    waiting: list[ModuleCall] = []
    for site in hierarchy.calls:
        while waiting and waiting[-1] != site.parent:
            ended.append(waiting.pop())
        waiting.append(site.call)
    return (*ended, *reversed(waiting))
