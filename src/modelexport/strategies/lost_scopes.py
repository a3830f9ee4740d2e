"""Mending scopes that an exporter closed too early.

Where a module runs inside a construct that the exporter cannot look into (re-entrant checkpointing is one), its nodes
are credited to the module outside. It shows: the module was seen running, no node carries its scope, and a node that
is credited to a module around it reads its parameters. Such nodes go back to it, and parameterless nodes that lie
between such nodes go to the call that encloses them.
"""

from __future__ import annotations

from collections.abc import Mapping

from modelexport.graph.index import Graph, Node
from modelexport.record.evidence import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.strategies.dataflow import dataflow_claims
from modelexport.strategies.parameters import parameter_claims


def mend_lost_scopes(
    graph: Graph, hierarchy: Hierarchy, claims: Mapping[str, Claim], strategy: str
) -> dict[str, Claim]:
    """Replacements for claims that contradict what was seen running; empty for a sound export."""
    unseen = _calls_without_scope(hierarchy, claims)
    if not unseen:
        return {}
    suspects = [node for node in graph.nodes if _reads_from(node, hierarchy, unseen) and node.key in claims]
    found = {
        key: claim
        for key, claim in parameter_claims(hierarchy, suspects, strategy).items()
        if _runs_inside(claim, claims[key], hierarchy)
    }
    return found | _between(graph, hierarchy, claims, found, strategy)


def _calls_without_scope(hierarchy: Hierarchy, claims: Mapping[str, Claim]) -> set[str]:
    named = {call.path for claim in claims.values() for call in claim.owners}
    ran = {site.call.path for site in hierarchy.calls if hierarchy.modules[site.call.path].parameters}
    return ran - named


def _reads_from(node: Node, hierarchy: Hierarchy, unseen: set[str]) -> bool:
    return any(path in unseen for value in node.inputs for path in hierarchy.tensor_owners.get(value, ()))


def _runs_inside(claim: Claim, scope: Claim, hierarchy: Hierarchy) -> bool:
    return all(scope.owners[0] in hierarchy.stack(call) for call in claim.owners)


def _between(
    graph: Graph, hierarchy: Hierarchy, claims: Mapping[str, Claim], found: Mapping[str, Claim], strategy: str
) -> dict[str, Claim]:
    """What the closed scopes say of the nodes around is doubtful too: settle those by dataflow."""
    doubtful = {call for key in found for call in claims[key].owners}
    firm = {key: claim for key, claim in claims.items() if not doubtful & set(claim.owners)} | dict(found)
    guesses = dataflow_claims(graph, hierarchy, firm, strategy)
    # A guess that leads to a module with a sound scope says nothing against the scope.
    around = {call for claim in found.values() for owner in claim.owners for call in hierarchy.stack(owner)}
    kept = {key: guess for key, guess in guesses.items() if key in claims and around.issuperset(guess.owners)}
    return {key: _doubted(claims[key], guess) for key, guess in kept.items()}


def _doubted(scope: Claim, guess: Claim) -> Claim:
    evidence = Evidence(EvidenceKind.SCOPE, "closed early", _name(scope.owners[0]))
    return Claim(guess.owners, Confidence.INFERRED, (*guess.evidence, evidence), guess.strategy)


def _name(call: ModuleCall) -> str:
    return str(call) or "root"
