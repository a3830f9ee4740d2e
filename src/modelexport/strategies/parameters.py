"""Claims from parameters: a node that reads a module's weight was, as a rule, issued by that module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from modelexport.graph.index import KEY_SEPARATOR, Graph, Node
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
    read = {name: [value for node in nodes for value in node.inputs] for name, nodes in sources.items()}
    holders = {name: _holders_of(values, hierarchy) for name, values in read.items()}
    return _widened(claims, holders, Evidence(EvidenceKind.PARAMETER, "folded"))


def replaced_parameter_claims(
    claims: Mapping[str, Claim], stands_for: Mapping[str, Iterable[str]], hierarchy: Hierarchy
) -> dict[str, Claim]:
    """Claims of initializers that took the place of other parameters, with the modules that hold those as owners."""
    holders = {name: _holders_of(others, hierarchy) for name, others in stands_for.items()}
    firm = {name: claim for name, claim in claims.items() if claim.confidence > Confidence.INFERRED}
    evidence = Evidence(EvidenceKind.PARAMETER, "replaced")
    # Where only the readers had been known, the parameter itself is the better witness.
    found = {
        name: Claim(tuple(map(ModuleCall, paths)), Confidence.STRONG, (evidence,), claims[name].strategy)
        for name, paths in holders.items()
        if paths and name in claims and name not in firm
    }
    return found | _widened(firm, holders, evidence)


def absorbed_parameter_claims(
    graph: Graph, hierarchy: Hierarchy, claims: Mapping[str, Claim], fused: Mapping[str, Claim], weights: Iterable[str]
) -> dict[str, Claim]:
    """Claims of those `weights` that a fused node reads; modules whose parameters are gone into it own them too."""
    there = {path for name in graph.initializers for path in hierarchy.parameter_owners.get(name, ())}
    holders: dict[str, list[str]] = {}
    for name in weights:
        readers = [fused[node.key] for node in graph.consumers.get(name, ()) if node.key in fused]
        paths = dict.fromkeys(call.path for claim in readers for call in claim.owners)
        holders[name] = [path for path in paths if hierarchy.modules[path].parameters and path not in there]
    return _widened(claims, holders, Evidence(EvidenceKind.PARAMETER, "absorbed"))


def _holders_of(names: Iterable[str], hierarchy: Hierarchy) -> list[str]:
    return [path for name in names for path in hierarchy.parameter_owners.get(name, ())]


def _widened(claims: Mapping[str, Claim], holders: Mapping[str, Iterable[str]], evidence: Evidence) -> dict[str, Claim]:
    """Claims with further owners; those that have them already are left out."""
    widened: dict[str, Claim] = {}
    for name, paths in holders.items():
        claim = claims.get(name)
        known = set() if claim is None else {call.path for call in claim.owners}
        added = [ModuleCall(path) for path in dict.fromkeys(paths) if path not in known]
        if claim is not None and added:
            widened[name] = Claim(
                (*claim.owners, *added), claim.confidence, (*claim.evidence, evidence), claim.strategy
            )
    return widened


def _holders(node: Node, hierarchy: Hierarchy) -> set[str]:
    # A copy of a de-duplicated weight reads one parameter and bears the name of another: the name counts.
    named = [value for value in node.outputs if _plain(value) in hierarchy.tensor_owners]
    values = named or node.inputs
    return {path for value in values for path in hierarchy.tensor_owners.get(_plain(value), ())}


def _plain(value: str) -> str:
    """A value's own name, without the graph that it is defined in."""
    return value.rpartition(KEY_SEPARATOR)[2]


def _claims_of(path: str, readers: list[Node], hierarchy: Hierarchy, strategy: str) -> Mapping[str, Claim]:
    calls = hierarchy.calls_of(path) or (ModuleCall(path),)
    evidence = (Evidence(EvidenceKind.PARAMETER, "reads", path),)
    # One reader for each call, in the order of the calls; otherwise nothing tells the calls apart.
    paired = [(call,) for call in calls] if len(readers) == len(calls) else [calls] * len(readers)
    return {
        node.key: Claim(owners, Confidence.STRONG, evidence, strategy)
        for node, owners in zip(readers, paired, strict=True)
    }
