"""Anchors: nodes that the run explains by themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from modelexport.graph.index import Node
from modelexport.record.evidence import Evidence, EvidenceKind
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.signals import Trace
from modelexport.strategies.projection.matched import Matched


@dataclass(frozen=True, slots=True)
class Anchor:
    """The operators that a node does the work of, all of one call, and how that is known."""

    places: tuple[int, ...]
    call: ModuleCall
    evidence: Evidence


def value_anchors(matched: Matched) -> dict[str, Anchor]:
    """Nodes that make a value which one call alone made."""
    evidence = Evidence(EvidenceKind.VALUE, matched.trace.source)
    uses = weight_uses(matched.trace)
    anchors: dict[str, Anchor] = {}
    for node in matched.nodes:
        telling = [name for name in node.outputs if name in matched.prints and matched.prints[name].telling]
        if telling and node.key in matched.graph.computed:
            places = {place for name in telling for place in matched.makers(name)}
            if matched.passes_on(node):
                # A value that is merely passed on is not the node's own, unless by a weight that happens to change
                # nothing: a bias of zeros is still the bias of the call that made the value.
                made = {place for name in telling for place in matched.makers_in_any_shape(name)}
                places = made & {place for name in node.inputs for place in uses_of(name, matched, uses)}
            anchors.update(_of_one_call(node, places, matched, evidence))
    return anchors


def passing_anchors(matched: Matched) -> dict[str, Anchor]:
    """Nodes that pass a value on as one call alone did, by an operator that becomes such a node."""
    evidence = Evidence(EvidenceKind.TRACE, matched.trace.source, "passed on")
    uses = weight_uses(matched.trace)
    found: dict[str, Anchor] = {}
    for node in matched.nodes:
        # What a weight of zeros or ones lets through may be any of the calls that have such a weight.
        weighted = any(uses_of(name, matched, uses) for name in node.inputs)
        if node.key in matched.graph.computed and not weighted and matched.passes_on(node):
            passing = {place for name in node.outputs for place in matched.passers(name)}
            places = {place for place in passing if matched.fits_itself(node, place)}
            found.update(_of_one_call(node, places, matched, evidence))
    return found


def weight_anchors(matched: Matched, known: Mapping[str, Anchor]) -> dict[str, Anchor]:
    """Nodes that read a weight, or what the run made of it, which one call alone put to use."""
    evidence = Evidence(EvidenceKind.PARAMETER, matched.trace.source)
    uses = weight_uses(matched.trace)
    readers: dict[tuple[tuple[str, ...], tuple[int, ...]], list[Node]] = {}
    for node in matched.nodes:
        if node.key not in known and node.key in matched.graph.computed:
            # Zeros and ones are in many places, and a weight is only one of them.
            telling = [name for name in node.inputs if name in matched.prints and matched.prints[name].telling]
            weights = {name: found for name in telling if (found := uses_of(name, matched, uses))}
            places = set[int].intersection(*weights.values()) if weights else None
            if places:
                readers.setdefault((tuple(weights), tuple(sorted(places))), []).append(node)
    anchors: dict[str, Anchor] = {}
    for (_, shared), nodes in readers.items():
        for node, own in _paired(nodes, shared, matched):
            anchors.update(_of_one_call(node, own, matched, evidence))
    return anchors


def weight_uses(trace: Trace) -> dict[int, tuple[int, ...]]:
    """Values that depend on weights alone, mapped to the places of the operators that put them to use.

    An operator that only rearranges a weight (a transposition) leads to others; those are the ones that use it.
    """
    from_weights = set(trace.tensors.values())
    for op in trace.ops:
        if op.inputs and from_weights.issuperset(op.inputs):
            from_weights.update(op.outputs)
    uses: dict[int, set[int]] = {}
    for place in reversed(range(len(trace.ops))):
        op = trace.ops[place]
        folded = bool(op.inputs) and from_weights.issuperset(op.inputs)
        users = {use for output in op.outputs for use in uses.get(output, ())} if folded else {place}
        for value in op.inputs:
            if value in from_weights:
                uses.setdefault(value, set()).update(users)
    return {value: tuple(sorted(places)) for value, places in uses.items() if places}


def uses_of(name: str, matched: Matched, uses: Mapping[int, tuple[int, ...]]) -> set[int]:
    """Places of the operators that use a weight which holds what a constant of the graph holds."""
    numbers = () if name in matched.graph.computed else matched.matches.get(name, ())
    return {place for number in numbers for place in uses.get(number, ())}


def _paired(nodes: list[Node], places: Iterable[int], matched: Matched) -> Iterator[tuple[Node, list[int]]]:
    """The places that each node stands for: with as many nodes as calls, one call each, in their order."""
    by_call: dict[ModuleCall, list[int]] = {}
    for place in places:
        by_call.setdefault(matched.trace.ops[place].call, []).append(place)
    groups = list(by_call.values())
    if len(groups) == 1:
        yield from ((node, groups[0]) for node in nodes)
    elif len(groups) == len(nodes):
        yield from zip(nodes, groups, strict=True)


def _of_one_call(node: Node, places: Iterable[int], matched: Matched, evidence: Evidence) -> dict[str, Anchor]:
    """An anchor if the places are one call's, or those are whose operator becomes such a node."""
    own = sorted(places)
    if len(matched.calls(own)) > 1:
        own = [place for place in own if matched.fits(node, place)]
    calls = matched.calls(own)
    return {node.key: Anchor(tuple(own), calls.pop(), evidence)} if len(calls) == 1 else {}
