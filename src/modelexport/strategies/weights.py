"""Claims on initializers by what they hold: a file that was renamed throughout still has the model's weights."""

from __future__ import annotations

from collections.abc import Sequence

from modelexport.graph.index import Graph
from modelexport.record.evidence import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.signals import GraphValues, Trace
from modelexport.strategies.projection.content import ValueIndex, data_values


def weight_claims(
    graph: Graph, hierarchy: Hierarchy, trace: Trace, values: GraphValues, strategy: str
) -> dict[str, Claim]:
    """Initializers that hold one module's weight, or what a module made of weights alone."""
    index = ValueIndex(trace)
    data = data_values(trace)
    holders = _Holders(trace, hierarchy)
    claims: dict[str, Claim] = {}
    for name in graph.initializers:
        print_ = values.prints.get(name)
        if print_ is None or not print_.telling:
            continue
        copies = index.copies(print_)
        owners = holders.of([number for number in copies or index.matches(print_) if number not in data])
        if owners:
            # What is nearly the same was made narrower, or has something else folded into it.
            sure = Confidence.EXACT if copies else Confidence.STRONG
            evidence = Evidence(EvidenceKind.PARAMETER, "content")
            claims[name] = Claim(tuple(map(ModuleCall, owners)), sure, (evidence,), strategy)
    return claims


class _Holders:
    """Whose the values of a run are that depend on weights alone."""

    def __init__(self, trace: Trace, hierarchy: Hierarchy) -> None:
        self._of: dict[int, frozenset[str]] = {}
        self._derived: set[int] = set()
        for name, number in trace.tensors.items():
            self._of[number] = self._of.get(number, frozenset()).union(hierarchy.tensor_owners.get(name, ()))
        for op in trace.ops:
            if op.inputs and all(value in self._of for value in op.inputs):
                # Whoever rearranges a weight for its own use: a tied weight has several holders, its transposition one.
                self._of.update({output: frozenset({op.call.path}) for output in op.outputs})
                self._derived.update(op.outputs)

    def of(self, numbers: Sequence[int]) -> list[str]:
        """The modules whose weight it is; none where several weights hold the same, or a constant and a weight."""
        known = [number for number in numbers if number in self._of]
        weights = [number for number in known if number not in self._derived]
        if len(weights) > 1 or any(number not in self._of for number in numbers):
            return []
        return sorted(set().union(*(self._of[number] for number in weights or known)))
