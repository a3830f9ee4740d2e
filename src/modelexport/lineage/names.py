"""What names say. A name is a hint; it counts as evidence where a neighbour's name says the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from modelexport.graph.index import Node
from modelexport.lineage.classes import NOTHING, Classes
from modelexport.lineage.operators import family

# Names that are looked at to find out what a tool put before all of them.
_TRIED = 200
_FEWEST = 3
# Of so many names, at least one in so many must be on an operator like the one before.
_MANY = 12
_FEW = 6
# Nodes above a value among which one is looked for that its maker reads now.
_NEAR = 6
# No class, and not what stands for an input that is left out.
_UNKNOWN = -2


class NameLinker:
    def __init__(self, before: Classes, after: Classes, differ: Callable[[Node, Node], bool]) -> None:
        """differ  whether a node after reads other weights than one before, and is not that one, whatever its name"""
        self._before, self._after = before, after
        self._prefix = self._common_prefix()
        self._hints = self._sound(self._read(), differ)

    def known(self, value: str) -> int:
        """The class before of a value with this name, or NOTHING."""
        return self._before.of.get(value.removeprefix(self._prefix), NOTHING)

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Names with a neighbour whose name fits: what one makes the other reads, before and after."""
        for place, other in self._hints.items():
            if self._fits_above(place, other) or self._fits_below(place, other):
                yield place, other

    def unconfirmed(self) -> Iterator[tuple[int, int]]:
        yield from self._hints.items()

    def _read(self) -> dict[int, int]:
        """What names say of each class; nothing where they contradict each other."""
        found: dict[int, int] = {}
        torn: set[int] = set()
        for node in self._after.graph.nodes:
            for value in node.outputs:
                other = self.known(value) if value else NOTHING
                if other == NOTHING or other in self._before.constants:
                    continue
                place = self._after.of[value]
                if place in self._after.constants or found.setdefault(place, other) == other:
                    continue
                if found[place] not in self._before.made_from(other):  # else what lay between is gone
                    torn.add(place)
        return {place: other for place, other in found.items() if place not in torn}

    def _sound(self, hints: Mapping[int, int], differ: Callable[[Node, Node], bool]) -> dict[int, int]:
        """Hints that weights do not contradict; none at all if names were dealt anew."""
        made = {
            place: (self._after.makers.get(place), self._before.makers.get(other)) for place, other in hints.items()
        }
        pairs = {place: (one, other) for place, (one, other) in made.items() if one is not None and other is not None}
        alike = sum(family(node.op_type) == family(origin.op_type) for node, origin in pairs.values())
        weighed = {
            place: pair for place, pair in pairs.items() if self._after.weighs(pair[0]) and self._before.weighs(pair[1])
        }
        wrong = {place for place, pair in weighed.items() if differ(*pair)}
        if len(wrong) >= _FEWEST and len(wrong) > len(weighed) / 2:
            return {}
        if len(pairs) >= _MANY and alike < len(pairs) / _FEW:
            return {}
        return {place: other for place, other in hints.items() if place not in wrong}

    def _fits_above(self, place: int, other: int) -> bool:
        maker, origin = self._after.makers.get(place), self._before.makers.get(other)
        if maker is None or origin is None:
            return False
        hints = {read: self._hints[read] for read in self._after.inputs(maker) if read in self._hints}
        hinted = set(hints.values())
        if family(maker.op_type) == family(origin.op_type):
            return not hinted.isdisjoint(self._before.inputs(origin)) or any(
                self._are_joined(one, place) for one in hints
            )
        # A node that does by itself what several did: all that it reads is somewhere above.
        return bool(hinted) and hinted <= self._near_above(origin)

    def _near_above(self, origin: Node) -> set[int]:
        found: set[int] = set()
        waiting = [origin]
        for _ in range(_NEAR):
            if not waiting:
                break
            read = self._before.inputs(waiting.pop(0))
            found.update(read)
            waiting += filter(None, map(self._before.makers.get, read))
        return found

    def _fits_below(self, place: int, other: int) -> bool:
        for reader in self._after.readers_of(place):
            for made in self._after.outputs(reader):
                origin = self._before.makers.get(self._hints.get(made, _UNKNOWN))
                if origin is not None and (other in self._before.inputs(origin) or self._are_joined(place, made)):
                    return True
        return False

    def _are_joined(self, upper: int, lower: int) -> bool:
        """Whether two nodes are the same under their names, and what lay between them is gone."""
        if not (self._is_same(upper) and self._is_same(lower)):
            return False
        read = self._before.inputs(self._before.makers[self._hints[lower]])
        return any(self._hints[upper] in self._before.made_from(one) for one in read)

    def _is_same(self, place: int) -> bool:
        maker, origin = self._after.makers.get(place), self._before.makers.get(self._hints[place])
        if maker is None or origin is None:
            return False
        return (maker.op_type, maker.attributes) == (origin.op_type, origin.attributes)

    def _common_prefix(self) -> str:
        """What a tool put before every name, if it did."""
        values = [value for node in self._after.graph.nodes[:_TRIED] for value in node.outputs if value]
        strange = [value for value in values if value not in self._before.of]
        if len(strange) < len(values) / 2:
            return ""
        votes = Counter(
            value[:cut] for value in strange for cut in range(1, len(value)) if value[cut:] in self._before.of
        )
        prefix, count = max(votes.items(), key=lambda item: item[1], default=("", 0))
        return prefix if count >= _FEWEST and count > sum(votes.values()) / 2 else ""
