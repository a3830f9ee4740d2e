"""Where a graph is cut into pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class Cutting:
    """How many nodes a piece may have, so that what it makes takes no more than a given room.

    What is unknown of a value's size is learnt from the pieces before: it is taken to be as large as any so far.
    """

    def __init__(
        self, wanted: Sequence[Sequence[str]], sizes: Mapping[str, int], *, room: int, first: int, longest: int
    ) -> None:
        """How the nodes of a graph are cut.

        wanted   the values of each node that are kept
        sizes    the bytes of those that are known
        first    nodes in the first piece if some are not; each that follows may have twice as many
        longest  nodes in any piece
        """
        self._known = [sum(sizes.get(name, 0) for name in names) for names in wanted]
        self._unknown = [sum(name not in sizes for name in names) for names in wanted]
        self._largest = max(sizes.values(), default=0)
        self._room = room
        self._longest = longest
        self._length = min(first, longest) if any(self._unknown) else longest

    def end(self, start: int) -> int:
        """Where a piece that begins at `start` ends; it has one node at least."""
        last = min(start + self._length, len(self._known))
        room = self._room - self._expected(start)
        for end in range(start + 1, last):
            room -= self._expected(end)
            if room < 0:
                return end
        return last

    def ran(self, largest: int) -> None:
        """A piece was run whose largest value has so many bytes."""
        self._largest = max(self._largest, largest)
        self._length = min(2 * self._length, self._longest)

    def failed(self, length: int) -> None:
        """A piece of so many nodes could not be run; what comes before the node that fails is worth having."""
        self._length = length // 2

    def _expected(self, place: int) -> int:
        return self._known[place] + self._unknown[place] * self._largest
