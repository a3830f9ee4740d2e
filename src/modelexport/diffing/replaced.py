"""What became of the weights of nodes that others do the work of now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np

from modelexport.diffing.comparing import Comparing
from modelexport.diffing.flow import Constant
from modelexport.diffing.packed import packed_place, unpacked
from modelexport.diffing.pairs import Pairs
from modelexport.diffing.regions import Region
from modelexport.diffing.weighing import Weighing, weight_ref
from modelexport.record.changes import WeightChange, WeightForm

# A weight that is paired with more others than these is not looked for any further.
_TRIED = 24
# So near, two weights are the same as far as tools keep them.
_NEAR = 0.25


class ReplacedWeights:
    def __init__(self, pairs: Pairs, comparing: Comparing, weighing: Weighing) -> None:
        self._pairs, self._comparing, self._weighing = pairs, comparing, weighing

    def changes(self, region: Region) -> Iterator[WeightChange]:
        """Weights that hold the same, whoever reads them, are left out; so are those that are gone with their nodes."""
        readers = self._readers(region)
        mine = {one.name: one for node in region.left for _, one in self._pairs.left_flow.read_constants(node)}
        theirs = {one.name: one for node in region.right for _, one in self._pairs.right_flow.read_constants(node)}
        theirs.update((one.name, one) for node in region.left for one in self._comparing.folded.get(node.key, ()))
        mine.update((one.name, one) for node in region.right for one in self._comparing.unfolded.get(node.key, ()))
        if not mine or not theirs:
            return
        left, right = _without_same(mine, theirs)
        packed = dict(self._unpacked(region)) if left else {}
        for one in left:
            known = readers.get(one.name, ())
            found = self._packed(one, right, packed, known) or self._nearest(one, right, known)
            if found is None:
                continue
            right.remove(found[0])
            if found[1] is not None:
                yield found[1]
            readers.pop(one.name, None)
        for one in (constant for constant in left if constant.name in readers):
            yield WeightChange(WeightForm.REMOVED, weight_ref(one), None, readers=readers[one.name])

    def _unpacked(self, region: Region) -> Iterator[tuple[str, np.ndarray]]:
        """By the name of a packed weight: the numbers that it stands for."""
        for node in region.right:
            proto = self._comparing.right_proto(node)
            place = None if proto is None else packed_place(proto)
            if proto is None or place is None or not self._is_read(node.inputs[place]):
                continue
            stored = (value if value in self._pairs.right_flow.constants else "" for value in node.inputs)
            numbers = unpacked(proto, self._weighing.stored(stored))
            if numbers is not None:
                yield node.inputs[place], numbers

    def _is_read(self, value: str) -> bool:
        constant = self._pairs.right_flow.constants.get(value)
        return constant is not None and constant.digest is not None

    def _packed(
        self, one: Constant, others: list[Constant], numbers: Mapping[str, np.ndarray], readers: tuple[str, ...]
    ) -> tuple[Constant, WeightChange] | None:
        for other in others:
            change = self._weighing.packed(one, other, numbers[other.name], readers) if other.name in numbers else None
            if change is not None:
                return other, change
        return None

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
