"""What became of the weights of nodes that others do the work of now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from modelexport.diffing.flow import Constant
from modelexport.diffing.pairing import Pairs
from modelexport.diffing.regions import Region
from modelexport.diffing.weighing import Weighing, weight_ref
from modelexport.record.changes import WeightChange, WeightForm

# A weight that is paired with more others than these is not looked for any further.
_TRIED = 24
# So near, two weights are the same as far as tools keep them.
_NEAR = 0.25


class ReplacedWeights:
    def __init__(self, pairs: Pairs, folded: Mapping[str, list[Constant]], weighing: Weighing) -> None:
        self._pairs, self._folded, self._weighing = pairs, folded, weighing

    def changes(self, region: Region) -> Iterator[WeightChange]:
        """Weights that hold the same, whoever reads them, are left out."""
        readers = self._readers(region)
        mine = {one.name: one for node in region.left for _, one in self._pairs.left_flow.read_constants(node)}
        theirs = {one.name: one for node in region.right for _, one in self._pairs.right_flow.read_constants(node)}
        theirs.update((one.name, one) for node in region.left for one in self._folded.get(node.key, ()))
        left, right = _without_same(mine, theirs)
        for one in left:
            found = self._nearest(one, right, readers.get(one.name, ()))
            if found is None:
                continue
            right.remove(found[0])
            if found[1] is not None:
                yield found[1]
            readers.pop(one.name, None)
        for one in (constant for constant in left if constant.name in readers):
            yield WeightChange(WeightForm.REMOVED, weight_ref(one), None, readers=readers[one.name])

    def _readers(self, region: Region) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for node in region.left:
            for _, one in self._pairs.left_flow.read_constants(node):
                found[one.name] = (*found.get(one.name, ()), node.key)
        return found

    def _nearest(
        self, one: Constant, others: list[Constant], readers: tuple[str, ...]
    ) -> tuple[Constant, WeightChange | None] | None:
        """The weight that one has become: of the same size, and with the least loss."""
        best: tuple[float, Constant, WeightChange | None] | None = None
        alike = [other for other in others if prod(other.shape) == prod(one.shape)]
        for other in alike[:_TRIED]:
            change = self._weighing.change(one, other, readers)
            loss = 0.0 if change is None else change.relative
            if loss is None:
                loss = float(len(alike) > 1)
            if best is None or loss < best[0]:
                best = loss, other, change
        return (best[1], best[2]) if best is not None and (best[0] <= _NEAR or len(alike) == 1) else None


def _without_same(
    mine: Mapping[str, Constant], theirs: Mapping[str, Constant]
) -> tuple[list[Constant], list[Constant]]:
    """Weights of both sides that the other does not hold as they are."""
    known = {one.digest for one in mine.values() if one.digest is not None}
    present = {one.digest for one in theirs.values() if one.digest is not None}
    return (
        [one for one in mine.values() if not one.small and one.digest not in present],
        [one for one in theirs.values() if not one.small and one.digest not in known],
    )
