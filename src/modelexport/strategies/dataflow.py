"""Claims for nodes that nothing names, from what lies around them.

A constant, or arithmetic on shapes alone, exists for the nodes that read it. Any other node lies between what it reads
and what reads it, and belongs to the innermost call that encloses both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from modelexport.graph.index import Graph, Node
from modelexport.record.evidence import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.hierarchy import ROOT, Hierarchy, ModuleCall


def dataflow_claims(graph: Graph, hierarchy: Hierarchy, known: Mapping[str, Claim], strategy: str) -> dict[str, Claim]:
    """Claims for every node without one in `known` that is connected, by whatever way, to a node with one."""
    claims: dict[str, Claim] = {}
    # One round reaches what lies up or down the flow. The next ones turn corners: a constant whose one reader was
    # inferred from its other inputs, the body of a node that was inferred itself.
    while found := _one_round(graph, hierarchy, {**known, **claims}, strategy):
        claims |= found
    return claims


def _one_round(graph: Graph, hierarchy: Hierarchy, known: Mapping[str, Claim], strategy: str) -> dict[str, Claim]:
    field = _Field(graph, hierarchy, known)
    open_nodes = [node for node in graph.nodes if node.key not in known]
    above = field.sweep(open_nodes, graph.predecessors)
    below = field.sweep(reversed(open_nodes), graph.successors)
    claims: dict[str, Claim] = {}
    for node in open_nodes:
        claim = _decide(field, node, above.get(node.key), below.get(node.key), node.key in graph.computed, strategy)
        if claim is not None:
            claims[node.key] = claim
    return claims


def initializer_dataflow(
    graph: Graph, hierarchy: Hierarchy, nodes: Mapping[str, Claim], known: Mapping[str, Claim], strategy: str
) -> dict[str, Claim]:
    """Initializers without a parameter's name belong to the nodes that read them."""
    field = _Field(graph, hierarchy, nodes)
    claims: dict[str, Claim] = {}
    for name in graph.initializers:
        readers = graph.consumers.get(name, ()) if name not in known else ()
        claimed = [nodes[reader.key] for reader in readers if reader.key in nodes]
        paths = {call.path for claim in claimed for call in claim.owners}
        enclosing = field.enclosing(claimed)
        # A weight is a module's, not a call's: several calls of one module read the same one. And what is read by
        # one fused node belongs to all that it was fused from.
        if len(paths) == 1 or len(claimed) == 1:
            claims[name] = _inferred(tuple(map(ModuleCall, sorted(paths))), "read by", strategy)
        elif enclosing is not None:
            claims[name] = _inferred((enclosing,), "read by", strategy)
    return claims


class _Field:
    """Enclosing calls of claims, found once per set of owners."""

    def __init__(self, graph: Graph, hierarchy: Hierarchy, known: Mapping[str, Claim]) -> None:
        self.graph = graph
        self.hierarchy = hierarchy
        self.known = known

    def enclosing(self, claims: Iterable[Claim]) -> ModuleCall | None:
        return self.hierarchy.common_ancestor({call for claim in claims for call in claim.owners})

    def sweep(self, nodes: Iterable[Node], neighbours: Callable[[Node], Iterable[Node]]) -> dict[str, ModuleCall]:
        """For each unclaimed node, the call that encloses its nearest claimed neighbours on one side."""
        near: dict[str, ModuleCall] = {}
        for node in nodes:
            found = [call for other in neighbours(node) if (call := self._call_of(other, near)) is not None]
            call = self.hierarchy.common_ancestor(found)
            if call is not None:
                near[node.key] = call
        return near

    def _call_of(self, node: Node, near: Mapping[str, ModuleCall]) -> ModuleCall | None:
        claim = self.known.get(node.key)
        return near.get(node.key) if claim is None else self.enclosing([claim])

    def holders(self, node: Node) -> tuple[ModuleCall, ...]:
        """For a node in a body or a function, the calls of the nodes that run it; a function may have several."""
        claims = [self.known[key] for key in self.graph.runners.get(node.graph, ()) if key in self.known]
        calls = (self.enclosing([claim]) for claim in claims)
        return tuple(dict.fromkeys(call for call in calls if call is not None))

    def held(self, node: Node, call: ModuleCall) -> ModuleCall:
        """The call, or the one of the node in whose body a node is, if that ran inside: so did all of its body."""
        holders = self.holders(node)
        inside = len(holders) == 1 and call in self.hierarchy.stack(holders[0])
        return holders[0] if inside else call


def _decide(
    field: _Field,
    node: Node,
    above: ModuleCall | None,
    below: ModuleCall | None,
    is_data: bool,
    strategy: str,
) -> Claim | None:
    if above is not None and below is not None and is_data:
        enclosing = field.hierarchy.common_ancestor((above, below))
        return None if enclosing is None else _inferred((field.held(node, enclosing),), "between", strategy)
    if below is not None:
        return _inferred((field.held(node, below),), "made for", strategy)
    if above is not None:
        return _inferred((field.held(node, above),), "made from", strategy)
    holders = field.holders(node)
    if holders:
        return _inferred(holders, "inside the body of", strategy)
    # Whatever leaves the graph was handed out by the model itself.
    returned = not set(node.outputs).isdisjoint(field.graph.outputs)
    return _inferred((ModuleCall(ROOT),), "returned by", strategy) if returned else None


def _inferred(calls: tuple[ModuleCall, ...], how: str, strategy: str) -> Claim:
    return Claim(calls, Confidence.INFERRED, (Evidence(EvidenceKind.DATAFLOW, how),), strategy)
