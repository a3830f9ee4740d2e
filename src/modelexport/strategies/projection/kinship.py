"""Whether a graph was made from a model: how much of what the one holds the other holds too."""

from __future__ import annotations

from dataclasses import dataclass

from modelexport.graph.index import Graph
from modelexport.record.signals import GraphValues, Trace
from modelexport.strategies.projection.content import ValueIndex, match_values

# A file that was fused, quantized or partly retrained still shares more than this; a stranger shares next to nothing.
_ENOUGH = 0.2


@dataclass(frozen=True)
class Kinship:
    """How many telling weights and computed values of a graph there are, and how many were found in the run."""

    weights: int
    weights_found: int
    values: int
    values_found: int

    @property
    def belongs(self) -> bool:
        # A graph without anything telling cannot be told from another.
        if not self.weights:
            return self.computes_the_same
        return self.weights_found > _ENOUGH * self.weights or (self.values > 0 and self.computes_the_same)

    @property
    def computes_the_same(self) -> bool:
        """Whether enough of what the graph computes was computed in the run; a graph of nothing telling is believed."""
        return self.values_found > _ENOUGH * self.values or not self.values

    def __str__(self) -> str:
        weights = f"{self.weights_found} of {self.weights} weights"
        return f"{weights} and {self.values_found} of {self.values} computed values" if self.values else weights


def kinship(graph: Graph, trace: Trace, values: GraphValues) -> Kinship:
    telling = {name: print_ for name, print_ in values.prints.items() if print_.telling}
    found = match_values(ValueIndex(trace), telling)
    weights = [name for name in telling if name in graph.initializers]
    computed = [name for name in telling if name in graph.computed and name not in graph.inputs]
    return Kinship(
        len(weights), sum(name in found for name in weights), len(computed), sum(name in found for name in computed)
    )
