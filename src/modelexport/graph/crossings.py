"""Crossings: the values that go into each module call and come out of it, for all calls in one pass over the graph.

    model ┬ encoder ── MatMul ─► h        h was made in (model, encoder). It leaves encoder, because head reads it,
          └ head ───── Gemm(h) ─► y       and enters head. y leaves head and model: it is an output of the graph.

A node of several modules (a fusion) reads for the first of them and makes the result of the last. What a tool put in
and nobody owns, a quantizer say, continues what it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from modelexport.graph.algorithms import backward_slice
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
    around = _calls_around(graph, provenance)
    attributed = _attributed_readers(provenance)
    outputs = set(graph.outputs)
    made: dict[str, _Calls] = {}
    leaves: dict[str, _Calls] = {}
    enters: dict[str, _Calls] = {}
    for value in (*graph.inputs, *graph.producers):
        maker = graph.producers.get(value)
        made_in = made[value] = () if maker is None else around[maker.key]
        # Of a module and one that it calls, the value may be what the one hands to the other.
        stack = provenance.hierarchy.stack
        works = attributed[maker.key].works if maker is not None and maker.key in attributed else ()
        inside = {*made_in, *(call for call in works if made_in[-1] not in stack(call))}
        readers = list(_readers(value, graph, attributed))
        goes_out = value in outputs
        leaves[value] = tuple(call for call in made_in if goes_out or any(call not in node.works for node in readers))
        enters[value] = tuple(dict.fromkeys(call for node in readers for call in node.begins if call not in inside))
    guessed = frozenset(value for value, node in graph.producers.items() if node.key not in attributed)
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


def _attributed_readers(provenance: Provenance) -> Mapping[str, _ReadingNode]:
    stack, order = provenance.hierarchy.stack, provenance.hierarchy.call_order

    def reader(attribution: Attribution) -> _ReadingNode:
        owners = attribution.owners
        first = min(owners, key=lambda call: order.get(call, -1))
        works = frozenset(call for owner in owners for call in stack(owner))
        return _ReadingNode(stack(first), works, is_introduced(attribution))

    attributions = {key: entry.attribution for key, entry in provenance.nodes.items()}
    return {key: reader(attribution) for key, attribution in attributions.items() if attribution.owners}


def _calls_around(graph: Graph, provenance: Provenance) -> Mapping[str, _Calls]:
    """By node: the calls that were open when its value was ready.

    A node of nobody's, which a tool put in, does the work of the module whose weights it reads, or goes on with what
    the modules made that it reads from.
    """
    hierarchy = provenance.hierarchy
    around: dict[str, _Calls] = {}
    for node in graph.nodes:
        owners = provenance.nodes[node.key].attribution.owners
        if not owners:
            weights = filter(None, map(provenance.initializers.get, node.inputs))
            owners = tuple(owner for weight in weights for owner in weight.owners)
        if owners:
            around[node.key] = hierarchy.stack(last_owner(owners, hierarchy))
            continue
        before = [maker.key for maker in graph.predecessors(node)]
        # A shape that it reads beside data says nothing of whose work it does.
        data = [key for key in before if key in graph.computed] or before
        around[node.key] = common_prefix(around[key] for key in data if around.get(key))
    return around


def _readers(value: str, graph: Graph, attributed: Mapping[str, _ReadingNode]) -> Iterator[_ReadingNode]:
    """Whoever reads a value; what does nobody's work (a quantizer, say) reads for those behind it."""

    def reads_itself(node: Node) -> bool:
        return node.key in attributed and not attributed[node.key].passes

    readers = graph.consumers.get(value, ())
    reached = backward_slice(readers, lambda node: () if reads_itself(node) else graph.successors(node))
    return (attributed[node.key] for node in reached if reads_itself(node))


def last_owner(owners: Iterable[ModuleCall], hierarchy: Hierarchy) -> ModuleCall:
    """Whose result a node of several modules holds.

    Fused: that of the last of them, or of one that encloses it and may go on after it. If others ran in between, it is
    something that they share, and nobody's result: then that of the call around all of them.
    """
    distinct = set(owners)
    last = max(distinct, key=lambda call: hierarchy.call_order.get(call, -1))
    if len(distinct) > 1 and _others_between(distinct, hierarchy):
        return hierarchy.common_ancestor(distinct) or last
    return next((call for call in hierarchy.stack(last) if call in distinct), last)


def is_fused(owners: AbstractSet[ModuleCall], hierarchy: Hierarchy) -> bool:
    """Whether a node does the work of several modules one after the other, and nothing that they merely share."""
    return len(owners) > 1 and not _others_between(owners, hierarchy)


def _others_between(owners: AbstractSet[ModuleCall], hierarchy: Hierarchy) -> bool:
    """Whether a call that is neither around nor inside one of the owners began between the first and the last."""
    starts = [hierarchy.call_order.get(call, -1) for call in owners]
    between = (site.call for site in hierarchy.calls[min(starts) + 1 : max(starts)])
    around = {call for owner in owners for call in hierarchy.stack(owner)}
    return any(call not in around and owners.isdisjoint(hierarchy.stack(call)) for call in between)


def calls_by_end(hierarchy: Hierarchy) -> tuple[ModuleCall, ...]:
    """Calls in the order in which they end; a record has them in the order in which they begin."""
    ended: list[ModuleCall] = []
    waiting: list[ModuleCall] = []
    for site in hierarchy.calls:
        while waiting and waiting[-1] != site.parent:
            ended.append(waiting.pop())
        waiting.append(site.call)
    return (*ended, *reversed(waiting))
