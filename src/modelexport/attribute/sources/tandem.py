"""Tandem repeats in rows of tokens, and the layers that they are.

    row         repeat          layers
    ABABAB      AB, 3 times     3 of size 2
    SCMSCM      SCM, twice      2 of size 3
    RMRMAM…     RMRMAM, twice   6 of size 2: the three parts of the repeat share their M, so each is a layer of its own
    ADAEAE      AE, twice       3 of size 2: AD stands beside them and shares its A

Of all periods the one that covers most counts, of equal ones the shortest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

# A repeat is no longer than this, and the same token is looked for among so many that came before.
_LONGEST_PERIOD = 64
_FARTHEST = 8

Row = Sequence[Hashable]


@dataclass(frozen=True, slots=True, order=True)
class Repeat:
    """Tokens of a row that repeat: `count` times the `period` tokens from `start`."""

    start: int
    period: int
    count: int

    @property
    def length(self) -> int:
        return self.period * self.count


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """One layer: tokens of a row."""

    row: int
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


def find_repeats(row: Row) -> list[Repeat]:
    """The repeat that covers most, then those left and right of it."""
    repeats: list[Repeat] = []
    waiting = [(0, len(row))]
    while waiting:
        start, end = waiting.pop()
        largest = _largest_repeat(row, start, end)
        if largest is not None:
            repeats.append(largest)
            waiting += [(start, largest.start), (largest.start + largest.length, end)]
    return sorted(repeats)


def _largest_repeat(row: Row, start: int, end: int) -> Repeat | None:
    largest: Repeat | None = None
    for period in _candidate_periods(row, start, end):
        index = start
        while index + period < end:
            length = 0
            while index + length + period < end and row[index + length] == row[index + length + period]:
                length += 1
            count, rest = divmod(length + period, period)
            if count > 1 and (largest is None or count * period > largest.length):
                # What does not begin where the row does, but ends where it does, is complete at its end.
                at_end = index > 0 and index + length + period == len(row)
                largest = Repeat(index + rest if at_end else index, period, count)
            index += length + 1
    return largest


def _candidate_periods(row: Row, start: int, end: int) -> list[int]:
    """Distances between a token and the same one further on, the shortest first."""
    distances: set[int] = set()
    places: dict[Hashable, list[int]] = {}
    for index in range(start, end):
        earlier = places.setdefault(row[index], [])
        distances.update(index - place for place in earlier[-_FARTHEST:])
        earlier.append(index)
    return sorted(distance for distance in distances if distance <= _LONGEST_PERIOD)


def group_layers(
    rows: Sequence[Row], repeats: Sequence[Iterable[Repeat]], firm: Sequence[Sequence[bool]]
) -> list[list[Span]]:
    """The layers of each kind, those that cover most first.

    A kind is a repeat, wherever it occurs in the rows, or a whole row that occurs more than once.

    firm  which tokens may be part of a layer that only resembles the others
    """
    layers: dict[tuple[Hashable, ...], list[Span]] = {}
    for number, (row, found) in enumerate(zip(rows, repeats, strict=True)):
        for repeat in found:
            unit = tuple(row[repeat.start : repeat.start + repeat.period])
            layers.setdefault(unit, []).extend(_cut(number, repeat.start, repeat.length, layer_size(unit)))
    for whole, count in Counter(map(tuple, rows)).items():
        if count > 1:
            layers.setdefault(whole, [])
    taken = [[False] * len(row) for row in rows]
    _take(taken, (span for spans in layers.values() for span in spans))
    for unit, spans in sorted(layers.items(), key=lambda item: -sum(span.size for span in item[1])):
        elsewhere = _find_elsewhere(unit, rows, taken)
        _take(taken, elsewhere)
        beside = _find_beside([*spans, *elsewhere], rows, taken, firm)
        _take(taken, beside)
        spans.extend((*elsewhere, *beside))
        spans.sort()
    return sorted(layers.values(), key=lambda spans: -sum(span.size for span in spans))


def layer_size(unit: Row) -> int:
    """How many tokens of a repeat make a layer: all, unless it consists of parts that resemble each other."""
    for size in range(2, len(unit) // 2 + 1):
        if len(unit) % size == 0:
            parts = [unit[start : start + size] for start in range(0, len(unit), size)]
            if all(resemble(parts[0], part) for part in parts[1:]):
                return size
    return len(unit)


def resemble(first: Row, second: Row) -> bool:
    """Whether half of the tokens, or more, are the same in the same place."""
    same = sum(token == other for token, other in zip(first, second, strict=True))
    return 2 * same >= len(first)


def _cut(row: int, start: int, length: int, size: int) -> list[Span]:
    return [Span(row, place, size) for place in range(start, start + length, size)]


def _take(taken: Sequence[list[bool]], spans: Iterable[Span]) -> None:
    for span in spans:
        taken[span.row][span.start : span.end] = [True] * span.size


def _find_elsewhere(unit: tuple[Hashable, ...], rows: Sequence[Row], taken: Sequence[Sequence[bool]]) -> list[Span]:
    """Where the unit stands once, in what is not taken: a stage of one layer."""
    spans: list[Span] = []
    for number, row in enumerate(rows):
        start = 0
        while start + len(unit) <= len(row):
            if tuple(row[start : start + len(unit)]) == unit and not any(taken[number][start : start + len(unit)]):
                spans += _cut(number, start, len(unit), layer_size(unit))
                start += len(unit)
            else:
                start += 1
    return spans


def _find_beside(
    spans: Sequence[Span], rows: Sequence[Row], taken: Sequence[Sequence[bool]], firm: Sequence[Sequence[bool]]
) -> list[Span]:
    """Groups right before and right behind the layers that resemble them: the first layer may be of another kind."""
    beside: list[Span] = []
    for row in {span.row for span in spans}:
        inside = [span for span in spans if span.row == row]
        for outermost, step in ((min(inside), -1), (max(inside), 1)):
            beside += _walk_outwards(outermost, step, rows[row], taken[row], firm[row])
    return beside


def _walk_outwards(outermost: Span, step: int, row: Row, taken: Sequence[bool], firm: Sequence[bool]) -> Iterator[Span]:
    size = outermost.size
    pattern = row[outermost.start : outermost.end]
    start = outermost.start + step * size
    # One token alone resembles nothing but itself.
    while size > 1 and start >= 0 and start + size <= len(row):
        places = range(start, start + size)
        if any(taken[place] or not firm[place] for place in places):
            return
        if not resemble(pattern, row[start : start + size]):
            return
        yield Span(outermost.row, start, size)
        start += step * size
