"""Claims from parameters: a node that reads a module's weight was, as a rule, issued by that module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from modelexport.graph.index import Graph, Node
from modelexport.record.evidence import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.hierarchy import Hierarchy, ModuleCall


def parameter_claims(hierarchy: Hierarchy, nodes: Iterable[Node], strategy: str) -> dict[str, Claim]:
    """Claims for those of `nodes` that read, or pass on under its own name, the parameter of exactly one module."""
    by_module: dict[str, list[Node]] = {}
    for node in nodes:
        holders = _holders(node, hierarchy)
        if len(holders) == 1:
            by_module.setdefault(next(iter(holders)), []).append(node)
    claims: dict[str, Claim] = {}
    for path, readers in by_module.items():
        claims.update(_claims_of(path, readers, hierarchy, strategy))
    return claims


def initializer_claims(graph: Graph, hierarchy: Hierarchy, strategy: str) -> dict[str, Claim]:
    """Initializers that carry a parameter's name belong to the module that holds it."""
    claims: dict[str, Claim] = {}
    for name in graph.initializers:
        holders = hierarchy.tensor_owners.get(name, ())
        if holders:
            evidence = Evidence(EvidenceKind.PARAMETER, "name")
            owners = tuple(ModuleCall(path) for path in holders)
            claims[name] = Claim(owners, Confidence.EXACT, (evidence,), strategy)
    return claims


def folded_parameter_claims(
    claims: Mapping[str, Claim], sources: Mapping[str, Iterable[Node]], hierarchy: Hierarchy
) -> dict[str, Claim]:
    """Claims of folded initializers, with the modules whose parameters were folded into them as owners too."""
    widened: dict[str, Claim] = {}
    for name, nodes in sources.items():
        values = [value for node in nodes for value in node.inputs]
        holders = [ModuleCall(path) for value in values for path in hierarchy.parameter_owners.get(value, ())]
        claim = claims.get(name)
        known = set() if claim is None else {call.path for call in claim.owners}
        added = [call for call in dict.fromkeys(holders) if call.path not in known]
        if claim is not None and added:
            evidence = (*claim.evidence, Evidence(EvidenceKind.PARAMETER, "folded"))
            widened[name] = Claim((*claim.owners, *added), claim.confidence, evidence, claim.strategy)
    return widened


def _holders(node: Node, hierarchy: Hierarchy) -> set[str]:
    # A copy of a de-duplicated weight reads one parameter and bears the name of another: the name counts.
    named = [value for value in node.outputs if _plain(value) in hierarchy.tensor_owners]
    values = named or node.inputs
    return {path for value in values for path in hierarchy.tensor_owners.get(_plain(value), ())}


def _plain(value: str) -> str:
    """A value's own name, without the graph that it is defined in."""
    return value.rpartition("|")[2]


def _claims_of(path: str, readers: list[Node], hierarchy: Hierarchy, strategy: str) -> Mapping[str, Claim]:
    calls = hierarchy.calls_of(path) or (ModuleCall(path),)
    evidence = (Evidence(EvidenceKind.PARAMETER, "reads", path),)
    # One reader for each call, in the order of the calls; otherwise nothing tells the calls apart.
    paired = [(call,) for call in calls] if len(readers) == len(calls) else [calls] * len(readers)
    return {
        node.key: Claim(owners, Confidence.STRONG, evidence, strategy)
        for node, owners in zip(readers, paired, strict=True)
    }
