"""Cut selection: what is to be cut out, as module calls or as the nodes of a query, and which nodes that means.

    encoder.layer.3          its first call, with all calls that ran inside
    shared_block#2           its third call
    nodes of a query         those nodes, whole, whoever else they work for

`NestedGraph` takes a node together with the subgraphs of If, Loop and Scan in it: what is cut is a node as a whole.
`Membership` says which nodes are inside, and which of them a fusion has made inseparable from their neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from modelexport.errors import UnknownName, UserError
from modelexport.graph.index import KEY_SEPARATOR, MAIN, Graph, Node
from modelexport.graph.operators import VIEWS
from modelexport.record.hierarchy import ROOT, Hierarchy, ModuleCall
from modelexport.record.lineage import Relation, descent_of
from modelexport.record.provenance import Attribution, NodeEntry, Provenance, is_within


@dataclass(frozen=True)
class CutSelection:
    """
    asked   as it was asked for
    calls   what is cut out with all that ran inside; for a query, the calls that own its nodes
    root    the innermost call that encloses them, or the container that was asked for: the root of what is cut out
    nodes   keys of the nodes that a query found; None where whole calls are meant
    notes   what whoever asked should know
    """

    asked: tuple[str, ...]
    hierarchy: Hierarchy
    calls: tuple[ModuleCall, ...]
    root: ModuleCall
    nodes: frozenset[str] | None = None
    notes: tuple[str, ...] = ()

    @cached_property
    def _calls(self) -> frozenset[ModuleCall]:
        return frozenset(self.calls)

    @cached_property
    def _around(self) -> frozenset[ModuleCall]:
        return frozenset(call for selected in self.calls for call in self.hierarchy.stack(selected))

    def covers(self, call: ModuleCall) -> bool:
        """Whether a call is one of those that were selected, or ran inside of one."""
        return not self._calls.isdisjoint(self.hierarchy.stack(call))

    def encloses(self, call: ModuleCall) -> bool:
        return call in self._around

    @property
    def is_one_call(self) -> bool:
        return self.nodes is None and len(self.calls) == 1


def select_modules(provenance: Provenance, names: Sequence[str]) -> CutSelection:
    """Module paths, and calls such as `encoder.block#2`."""
    hierarchy = provenance.hierarchy
    named = {name: tuple(_calls_named(name, provenance)) for name in names}
    notes = tuple(note for name, calls in named.items() for note in _repeated(name, calls, hierarchy))
    chosen = outermost_calls((call for calls in named.values() for call in calls), hierarchy)
    return CutSelection(tuple(names), hierarchy, chosen, _root(names, chosen, hierarchy), notes=notes)


def select_calls(hierarchy: Hierarchy, calls: Iterable[ModuleCall]) -> CutSelection:
    """Calls that are known to be there; those inside of others of them add nothing."""
    chosen = outermost_calls(calls, hierarchy)
    asked = tuple(map(str, chosen))
    return CutSelection(asked, hierarchy, chosen, _root(asked, chosen, hierarchy))


def select_nodes(provenance: Provenance, query: str, entries: Sequence[NodeEntry]) -> CutSelection:
    hierarchy = provenance.hierarchy
    owners = tuple(dict.fromkeys(owner for entry in entries for owner in entry.attribution.owners))
    if not owners:
        raise UserError(
            f"none of the {len(entries)} nodes that {query} means belongs to a module",
            "Ask for other nodes, or for modules.",
        )
    root = hierarchy.common_ancestor(owners) or ModuleCall(ROOT)
    return CutSelection((query,), hierarchy, owners, root, frozenset(entry.key for entry in entries))


def outermost_calls(calls: Iterable[ModuleCall], hierarchy: Hierarchy) -> tuple[ModuleCall, ...]:
    """The calls without those that ran inside of another of them."""
    chosen = set(calls)
    order = hierarchy.call_order
    outer = [call for call in chosen if chosen.isdisjoint(hierarchy.stack(call)[:-1])]
    return tuple(sorted(outer, key=lambda call: (order.get(call, len(order)), call)))


def _root(names: Sequence[str], calls: tuple[ModuleCall, ...], hierarchy: Hierarchy) -> ModuleCall:
    if len(calls) == 1:
        return calls[0]
    if len(names) == 1 and (path := hierarchy.path_of(names[0])) is not None:
        return ModuleCall(path)  # a container: nobody calls it, and it is what was asked for
    return hierarchy.common_ancestor(calls) or ModuleCall(ROOT)


def _calls_named(name: str, provenance: Provenance) -> Iterator[ModuleCall]:
    hierarchy = provenance.hierarchy
    path = hierarchy.path_of(name)
    if path is None:
        called = ModuleCall.parse(name)
        path = hierarchy.canonical.get(called.path)
        if path is None or called.path == name:
            raise UnknownName("module", name, hierarchy.canonical)
        count = hierarchy.call_counts.get(path, 0)
        if called.index and called.index >= count:
            known = f"Known: {path} to {path}#{count - 1}." if count > 1 else f"Give {path!r}."
            raise UserError(f"there is no call {called}: {path!r} was called {count} times", known)
        yield ModuleCall(path, called.index)
        return
    owners = (owner for entry in provenance.nodes.values() for owner in entry.attribution.owners)
    # A module whose `forward` is used without calling it has nodes and no recorded call.
    if hierarchy.call_counts.get(path) or any(owner.path == path for owner in owners):
        yield ModuleCall(path)
    else:
        yield from _called_below(path, hierarchy)


def _called_below(path: str, hierarchy: Hierarchy) -> Iterator[ModuleCall]:
    """A container is never called; what is in it is."""
    below = [site.call for site in hierarchy.calls if is_within(site.call.path, path)]
    if not below:
        module = hierarchy.modules[path]
        raise UserError(
            f"{path!r} ({module.class_name}) was never called when the model was exported: it has no nodes",
            "Give a module that the model uses; `modelexport analyze` lists them.",
        )
    yield from below


def _repeated(name: str, calls: tuple[ModuleCall, ...], hierarchy: Hierarchy) -> Iterator[str]:
    """A note for whoever names a module that ran several times: a cut is one run of it."""
    first_meant = len(calls) == 1 and not calls[0].index and name in hierarchy.canonical
    count = hierarchy.call_counts.get(calls[0].path, 0) if first_meant else 0
    if count > 1:
        last = ModuleCall(calls[0].path, count - 1)
        yield f"{name} was called {count} times; this is the first call, {last} is the last"


class NestedGraph:
    """A graph, asked for whole nodes. What lies in a body belongs to the node that holds the body."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def values_read(self, node: Node) -> tuple[str, ...]:
        """The values that a node, or something in its bodies, reads from outside of it."""
        bodies = self.graph.subgraphs.get(node.key, ())
        if not bodies:
            return tuple(dict.fromkeys(filter(None, node.inputs)))
        inner = list(self.graph.subgraph_nodes(node))
        below = [*bodies, *(body for member in inner for body in self.graph.subgraphs.get(member.key, ()))]
        read = [*node.inputs, *(value for member in inner for value in member.inputs)]
        read += [value for body in below for value in self.graph.body_outputs[body]]
        prefixes = tuple(f"{body}{KEY_SEPARATOR}" for body in bodies)
        return tuple(dict.fromkeys(value for value in read if value and not value.startswith(prefixes)))

    def graphs_around(self, graph_id: str) -> tuple[str, ...]:
        """A graph and the graphs around it, innermost first; the main graph or a function is the last."""
        graphs = [graph_id]
        while graphs[-1] in self.graph.body_owner:
            graphs.append(self.graph.by_key[self.graph.body_owner[graphs[-1]]].graph)
        return tuple(graphs)

    def outermost(self, keys: Iterable[str]) -> frozenset[str]:
        """Those of the nodes that are in no body of another of them."""
        chosen = frozenset(keys)
        holders = {key: self.graph.enclosing_nodes(self.graph.by_key[key]) for key in chosen}
        return frozenset(key for key in chosen if chosen.isdisjoint(holder.key for holder in holders[key]))

    def with_nodes_inside(self, keys: Iterable[str]) -> frozenset[str]:
        outer = frozenset(keys)
        inner = (self.graph.subgraph_nodes(self.graph.by_key[key]) for key in outer)
        return outer.union(node.key for nodes in inner for node in nodes)

    @cached_property
    def returned_by(self) -> dict[str, list[str]]:
        """By value: the keys of the nodes whose body returns it."""
        returned_by: dict[str, list[str]] = {}
        for body, holder in self.graph.body_owner.items():
            for value in filter(None, self.graph.body_outputs[body]):
                returned_by.setdefault(value, []).append(holder)
        return returned_by

    def readers(self, value: str) -> Iterator[Node]:
        """Every node that reads a value, wherever it is, and those whose body returns it."""
        yield from self.graph.consumers.get(value, ())
        yield from (self.graph.by_key[key] for key in self.returned_by.get(value, ()))


# What they return holds the same numbers in the same order: whoever did it, the tensor is there.
_SAME_TENSOR = VIEWS | {"Identity"}
# Operators that run a body many times; If runs one of its bodies once.
_LOOPS = frozenset({"Loop", "Scan", "SequenceMap"})


@dataclass(frozen=True)
class FusedNode:
    """A node that does the work of calls on both sides of the border."""

    node: Node
    owners: tuple[ModuleCall, ...]


class Membership:
    """The nodes of a selection.

    keys          credited to it, with all that is in their bodies
    in_functions  credited to it, in functions that nodes call
    shared        those of them that are also credited to others: they are copied, and stay where they are as well

        MatMul   owners (q)            cut q     keys
        Reshape  owners (q, k)         cut q     keys and shared: k has one of its own in the model
        Gemm     owners (fc, act)      cut fc    fused: no border lies between the two
    """

    def __init__(self, nest: NestedGraph, provenance: Provenance, selection: CutSelection) -> None:
        self._nest = nest
        self._provenance = provenance
        self._selection = selection
        graph = nest.graph
        credited = {key for key, entry in provenance.nodes.items() if self._is_credited(key, entry.attribution)}
        # A constant in a body of somebody else's comes along if it is read, and says nothing of where the module is.
        odd = {key for key in credited - graph.computed if graph.by_key[key].graph in graph.body_owner}
        credited = (credited - odd) or credited
        roots = {key: nest.graphs_around(graph.by_key[key].graph)[-1] for key in credited}
        self.in_functions = frozenset(key for key, root in roots.items() if root != MAIN)
        credited -= self.in_functions
        self.keys = nest.with_nodes_inside(credited)
        self.shared = frozenset(key for key in credited if self._others(provenance.nodes[key].attribution))

    def _is_credited(self, key: str, attribution: Attribution) -> bool:
        if self._selection.nodes is not None:
            return key in self._selection.nodes
        return any(map(self._selection.covers, attribution.owners))

    def _others(self, attribution: Attribution) -> tuple[ModuleCall, ...]:
        return tuple(owner for owner in attribution.owners if not self._selection.covers(owner))

    def include_whole_branches(self) -> None:
        """Of nodes whose bodies are all the selection's work: an If may choose between two ways to do one thing."""
        graph = self._nest.graph
        for holder, bodies in graph.subgraphs.items():
            if holder in self.keys or len(bodies) < 2:
                continue
            inner = {node.key: node.graph for node in graph.subgraph_nodes(graph.by_key[holder])}
            used = {graph_id for key, graph_id in inner.items() if key in self.keys}
            if used.issuperset(bodies) and graph.computed.isdisjoint(inner.keys() - self.keys):
                self.keys |= self._nest.with_nodes_inside([holder])

    def copied_keys(self) -> frozenset[str]:
        """Those of the shared nodes that stand for one of each module: they do nobody's work beside."""
        by_key, entries = self._nest.graph.by_key, self._provenance.nodes
        return frozenset(key for key in self.shared if not self._is_fusion(by_key[key], entries[key].attribution))

    def find_fused_nodes(self) -> Iterator[FusedNode]:
        """Nodes at the border that also do the work of somebody outside, so that there is no border to cut at."""
        if self._selection.nodes is not None:
            return  # whoever asks for nodes gets them whole
        for key in self._nest.outermost(self.keys) & self._nest.graph.computed:
            node = self._nest.graph.by_key[key]
            attribution = self._provenance.nodes[key].attribution
            split = 0 < len(self._others(attribution)) < len(attribution.owners)
            if split and self._is_fusion(node, attribution) and self._at_border(node):
                yield FusedNode(node, attribution.owners)

    def _is_fusion(self, node: Node, attribution: Attribution) -> bool:
        descent = descent_of(attribution)
        if node.operator in _SAME_TENSOR or (descent is not None and descent.relation is Relation.SHARED):
            return False
        repeated = any(holder.operator in _LOOPS for holder in self._nest.graph.enclosing_nodes(node))
        if repeated and len({owner.path for owner in attribution.owners}) == 1:
            return False  # all calls of the module, by a node that is there once
        fused = descent is not None and descent.relation is Relation.FUSED
        return fused or self._follow_each_other(attribution.owners)

    def _follow_each_other(self, owners: Iterable[ModuleCall]) -> bool:
        """Whether calls ran one after the other, with none in between: else they can only have work in common."""
        hierarchy = self._selection.hierarchy
        known = set(owners)
        positions = [hierarchy.call_order.get(call, -1) for call in known]
        around = {call for owner in known for call in hierarchy.stack(owner)}
        between = (site.call for site in hierarchy.calls[min(positions) + 1 : max(positions)])
        return not any(call not in around and known.isdisjoint(hierarchy.stack(call)) for call in between)

    def _at_border(self, node: Node) -> bool:
        """Inside of the cut, work that a fused node does for others is done for nobody and changes nothing."""
        graph = self._nest.graph
        makers = (graph.producers.get(value) for value in self._nest.values_read(node) if value in graph.computed)
        if any(maker is None or maker.key not in self.keys for maker in makers):
            return True
        readers = (reader for value in node.outputs for reader in self._nest.readers(value))
        return any(reader.key not in self.keys for reader in readers) or not set(node.outputs).isdisjoint(graph.outputs)
