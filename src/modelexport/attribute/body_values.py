"""Values inside of bodies: whose work a node is that runs in an If, a Loop or a Scan.

Exporters name no modules there. A body is run with what it was given, and what a node makes in it is what one call of
the run made; of a body that runs again and again, one call each time:

    Scan (root) ─► body:  linear ─► sigmoid     round 0  sigmoid is what cell.act@0 made
                                                round 1                  cell.act@1          all of them own the node
"""

from __future__ import annotations

from collections.abc import Iterable

from modelexport.attribute.matched_values import MatchedRun, ValueIndex
from modelexport.graph.index import Node
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.signals import Fingerprint, GraphValues


def claim_bodies_by_value(matched: MatchedRun, values: GraphValues, strategy: str) -> dict[str, Claim]:
    """Claims for nodes in bodies of the main graph whose values one module alone made."""
    index = ValueIndex(matched.trace)
    evidence = (Evidence(EvidenceKind.VALUE, matched.trace.source, "in the body"),)
    claims: dict[str, Claim] = {}
    for node in matched.graph.nodes:
        rounds = [values.inside[name] for name in node.outputs if name in values.inside]
        if rounds and node.graph in matched.graph.body_owner and node.key in matched.graph.computed:
            calls = _find_makers(node, rounds[0], matched, values, index)
            if len({call.path for call in calls}) == 1:
                claims[node.key] = Claim(tuple(sorted(calls)), Confidence.EXACT, evidence, strategy)
    return claims


def _find_makers(
    node: Node, made: Iterable[Fingerprint], matched: MatchedRun, values: GraphValues, index: ValueIndex
) -> set[ModuleCall]:
    """The calls that made what a node makes, round by round; nobody where it is not one call alone each time."""
    makers: set[ModuleCall] = set()
    for number, fingerprint in enumerate(made):
        same = index.matches(fingerprint) if fingerprint.distinctive else ()
        read = {value for name in node.inputs for value in _held_in(name, number, matched, values, index)}
        issued = {matched.maker[value] for value in same if value in matched.maker}
        # What an operator or the node only passes on is not its own.
        issued = {op_index for op_index in issued if not set(same) & set(matched.trace.ops[op_index].inputs)} or issued
        if not issued or not read.isdisjoint(same):
            continue
        fitting = [op_index for op_index in issued if matched.fits(node, op_index)]
        calls = matched.calls(fitting or issued)
        if len(calls) != 1:
            return set()
        makers |= calls
    return makers


def _held_in(name: str, number: int, matched: MatchedRun, values: GraphValues, index: ValueIndex) -> Iterable[int]:
    """The values of the run that a value read in a body holds in that round."""
    rounds = values.inside.get(name)
    if rounds is None:
        return matched.matches.get(name, ())
    return index.matches(rounds[number]) if number < len(rounds) else ()
