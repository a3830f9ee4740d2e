"""Who runs a body: the module in whose call an If, Loop or Scan stands, told by what was issued inside and outside.

    def forward(self, x):                            issued inside     yes.fc, yes
        return cond(x.sum() > 0, self.yes, self.no)  issued outside    the module itself: sum

The runner called all that was issued inside. So it is their innermost common caller, or a module around that one; but
no module around one that did something outside of the body, because the body lies inside of its call:

    common caller    yes   all that it did is inside ─► it may be called there, or run the body
    its caller       the module itself: it did something outside ─► it is the outermost that can run the body
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property

import numpy as np

from modelexport.graph.index import MAIN, Node
from modelexport.graph.sample import Sample
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.verify.evidence import Frontier, NodeEvidence, SeenValues
from modelexport.verify.witness import OperatorSources

_NOBODY: Frontier = frozenset()


class BodyRunners:
    """The modules that can run the bodies of one graph, as far as values tell."""

    def __init__(
        self,
        values: SeenValues,
        hierarchy: Hierarchy,
        sources: OperatorSources,
        evidence: Mapping[str, NodeEvidence],
    ) -> None:
        self._values, self._graph, self._hierarchy = values, values.graph, hierarchy
        self._sources, self._evidence = sources, evidence
        self._found: dict[str, tuple[ModuleCall, ...]] = {}

    def of(self, holder: Node) -> tuple[ModuleCall, ...]:
        """The calls that can run the bodies of a node of the main graph, innermost first; none if values do not tell.

        A body inside of a body may run in several calls.
        """
        if holder.key not in self._found:
            self._found[holder.key] = tuple(self._find(holder))
        return self._found[holder.key]

    def has_counterparts(self, holder: Node) -> bool:
        """Whether something inside holds what the run has: if not, an operator was broken down into it."""
        return any(self._evidence[node.key].issuers for node in self._graph.subgraph_nodes(holder))

    def _find(self, holder: Node) -> Iterator[ModuleCall]:
        if holder.graph != MAIN:
            return
        inside = [*self._graph.subgraph_nodes(holder)]
        issued = {call for node in inside for call in self._issuer(node)}
        around = self._hierarchy.common_ancestor(issued) if issued else None
        if around is None:
            return
        keys = {holder.key, *(node.key for node in inside)}
        for caller in reversed(self._hierarchy.stack(around)):
            yield caller
            if self._worked_outside(caller, keys):
                return

    def _issuer(self, node: Node) -> Frontier:
        """The one call that made the value of a node; what several made does not tell."""
        evidence = self._evidence[node.key]
        return evidence.makers if evidence.new and len(evidence.makers) == 1 else _NOBODY

    def _worked_outside(self, caller: ModuleCall, inside: Collection[str]) -> bool:
        """Whether a call, or one inside of it, issued something that nodes outside of a body make, and none inside."""
        return any(
            caller in self._hierarchy.stack(self._sources.issued[number].op.call) and keys.isdisjoint(inside)
            for number, keys in self._makers.items()
        )

    @cached_property
    def _makers(self) -> Mapping[int, frozenset[str]]:
        """By the number of a value of the run: the keys of the nodes that make it; a single number is enough."""
        makers: dict[int, set[str]] = {}
        for node in self._graph.nodes:
            for made, _ in self._values.per_round(node):
                for sample in filter(_is_telling, made):
                    same = self._sources.issued_like(sample)
                    # What is equal to something else, or handed on, may have been made elsewhere.
                    if len(same) == 1 and same[0].new:
                        makers.setdefault(same[0].number, set()).add(node.key)
        return {number: frozenset(keys) for number, keys in makers.items()}


def _is_telling(sample: Sample) -> bool:
    """Whether it is no integer: these are equal by chance."""
    return sample.kind == "float" and bool(np.any(sample.values % 1 != 0))
