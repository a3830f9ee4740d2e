"""From claims on a graph to its provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from modelexport.graph.index import Graph, Node
from modelexport.record.evidence import Attribution, Claim
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.provenance import NodeEntry, Origin, Provenance
from modelexport.resolve.merge import resolve


def build_provenance(
    graph: Graph,
    hierarchy: Hierarchy,
    nodes: Mapping[str, Sequence[Claim]],
    initializers: Mapping[str, Sequence[Claim]],
    origin: Origin,
) -> Provenance:
    """One attribution for every node and initializer of the graph, from all claims on it."""

    @cache
    def answer(claims: tuple[Claim, ...]) -> Attribution:
        # Most nodes of a module share their claims, and then one attribution.
        return resolve(claims, hierarchy, "not connected to any node with a known module")

    def entry(node: Node) -> NodeEntry:
        return NodeEntry(node.key, node.name, node.op_type, answer(tuple(nodes.get(node.key, ()))))

    entries = {node.key: entry(node) for node in graph.nodes}
    owners = {name: answer(tuple(initializers.get(name, ()))) for name in graph.initializers}
    return Provenance(hierarchy, entries, owners, origin)


def absent_modules(hierarchy: Hierarchy, owned: set[str], owned_before: set[str] | None) -> dict[str, str]:
    """Executed modules that own nothing in the graph, and why.

    owned_before: the modules that owned something before the exporter's optimizer ran, where that is known
    """
    reasons: dict[str, str] = {}
    for path in hierarchy.call_counts:
        if path not in owned:
            reasons[path] = _reason(hierarchy, path, owned, owned_before)
    return reasons


def _reason(hierarchy: Hierarchy, path: str, owned: set[str], owned_before: set[str] | None) -> str:
    if owned_before is not None and path in owned_before:
        return "the operators that it issues itself were removed by the exporter's optimizer, or became constants"
    prefix = f"{path}." if path else ""
    if any(other.startswith(prefix) for other in owned if other != path):
        return "the modules inside of it issue all of its operators"
    if any(tensor.size for tensor in hierarchy.modules[path].parameters):
        return "the operators that it issues itself were removed by the exporter, or became constants"
    if owned_before is None:
        return "no operator of it is in the graph: it issues none when evaluated, or the exporter shared or removed it"
    return "no operator names it: it issues none when evaluated, or runs where the exporter does not look"
