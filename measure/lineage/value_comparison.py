"""What relinking says, against the numbers: a node must make what the nodes make that it is said to come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from measure.lineage.truth import Values, is_passing, nearness, tells
from modelexport.capture.onnxruntime.piecewise import PiecewiseRun
from modelexport.graph.difference import measure
from modelexport.graph.file.reading import ModelFile
from modelexport.graph.index import Graph, Node
from modelexport.record.lineage import Lineage, Relation
from modelexport.record.results.verification import Tolerance

# Decibels. Above it, nobody would call a tensor another one; below, another has to be above it, and so much nearer.
_NEAR = 20.0
_NEARER = 3.0
_COMPARED = (Relation.KEPT, Relation.RENAMED, Relation.REWRITTEN, Relation.FUSED, Relation.SHARED)


def run_values(file: ModelFile, feed: Values) -> dict[str, np.ndarray]:
    """All values of the main graph, computed as the file says, with no optimization."""
    arrays: dict[str, np.ndarray] = {}

    def see(name: str, array: np.ndarray) -> None:
        arrays[name] = array.copy()

    PiecewiseRun(file, often=False).run(feed, see)
    return arrays


@dataclass(frozen=True)
class Comparison:
    """
    compared      nodes whose result can be compared with that of a source
    contradicted  keys of those that make something else
    drifted       how many would seem to make something else under their own names as well: values do not tell
    """

    compared: int
    contradicted: tuple[str, ...]
    drifted: int = 0


class Comparer:
    def __init__(
        self, before: tuple[Graph, Values], after: tuple[Graph, Values], names: Mapping[str, str], *, lossy: bool
    ) -> None:
        """names  that the tool left to values after, whatever they are called now"""
        self._before, self._values_before = before
        self._after, self._values_after = after
        self._names = names
        self._lossy = lossy

    def compare(self, lineage: Lineage) -> Comparison:
        compared, drifted, contradicted = 0, 0, []
        for node in self._last_ones(lineage):
            link = lineage.nodes[node.key]
            mine = self._values_after.get(node.key)
            if link.relation not in _COMPARED or mine is None or not tells(mine) or is_passing(node):
                continue
            theirs = [array for array in self._made(link.sources) if array.size == mine.size]
            if self._has_drifted(node, mine):
                drifted += 1
            elif theirs:
                compared += 1
                if self._contradict(theirs, mine):
                    contradicted.append(node.key)
        return Comparison(compared, tuple(contradicted), drifted)

    def _has_drifted(self, node: Node, mine: np.ndarray) -> bool:
        """Whether a tool of few bits has made of a node with its name something that is more like another's."""
        origin = self._before.by_key.get(self._names.get(node.key, ""))
        if not self._lossy or origin is None or origin.op_type != node.op_type:
            return False
        return self._contradict(list(self._made([origin.key])), mine)

    def _contradict(self, theirs: Sequence[np.ndarray], mine: np.ndarray) -> bool:
        return not any(self._agrees(array, mine) for array in theirs) and self._is_another(theirs, mine)

    def _last_ones(self, lineage: Lineage) -> Iterator[Node]:
        """Nodes that are the last to do the work of some node: of several that share it, the others make less."""
        last = {source: node for node in self._after.nodes for source in lineage.nodes[node.key].sources}
        for node in self._after.nodes:
            if any(last[source] is node for source in self._ends(lineage.nodes[node.key].sources)):
                yield node

    def _ends(self, sources: Sequence[str]) -> Iterator[str]:
        """Those of some nodes that none of the others reads."""
        nodes = [self._before.by_key[key] for key in sources]
        read = {value for node in nodes for value in node.inputs}
        yield from (node.key for node in nodes if read.isdisjoint(node.outputs))

    def _made(self, sources: Iterable[str]) -> Iterator[np.ndarray]:
        for key in sources:
            for value in self._before.by_key[key].outputs:
                array = self._values_before.get(value)
                if array is not None and tells(array):
                    yield array

    def _agrees(self, reference: np.ndarray, mine: np.ndarray) -> bool:
        left, right = (array.astype(np.float64).ravel() for array in (reference, mine))
        # Another layout of memory is another order of the same numbers.
        return any(self._fits(a, b) for a, b in ((left, right), (np.sort(left), np.sort(right))))

    def _fits(self, left: np.ndarray, right: np.ndarray) -> bool:
        difference = measure(left, right, Tolerance())
        return difference.sqnr >= _NEAR if self._lossy else difference.agrees

    def _is_another(self, theirs: Iterable[np.ndarray], mine: np.ndarray) -> bool:
        """Of fewer bits, numbers may drift far: it is another tensor if another one is near, and much nearer."""
        if not self._lossy:
            return True
        best = max((nearness(array, mine) for array in theirs), default=-np.inf)
        enough = max(_NEAR, best + _NEARER)
        return any(nearness(array, mine) >= enough for array in self._values_before.values())
