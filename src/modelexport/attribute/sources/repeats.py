"""Tandem repeats: equal groups of segments in a row are the layers of a network.

    segments   A M A M A M            attention, feed-forward, …: period 2, three layers
               S C M S C M            self-attention, cross attention, feed-forward: period 3
               A M A M │ A M A M A M  cut by a downsampling: one run in two stages
               B B B B B              blocks of convolutions; the number of channels says where a stage begins

Of all periods the one that covers most counts, of equal ones the shortest. A layer holds two products at least: a row
of single convolutions or linear layers is a network without layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from modelexport.attribute.sources.segments import Segment, Trunk, width_of
from modelexport.graph.algorithms import group_by_key

# A block is no larger than so many segments, and equal ones are looked for among so many that follow.
_LONGEST_PERIOD = 64
_FEWEST_PRODUCTS = 2


@dataclass(frozen=True)
class Block:
    """One layer: segments that follow each other. `stage` counts where the run is cut or changes its width."""

    segments: tuple[Segment, ...]
    stage: int = 0


@dataclass(frozen=True)
class Run:
    """Layers of one kind in the order in which they run."""

    blocks: tuple[Block, ...]

    @property
    def first(self) -> Segment:
        return self.blocks[0].segments[0]

    @property
    def last(self) -> Segment:
        return self.blocks[-1].segments[-1]


def find_runs(trunk: Trunk) -> list[Run]:
    runs = [run for chain in link_chains(trunk) for run in _find_in_chain(trunk, chain)]
    return sorted(runs, key=lambda run: run.first.number)


def link_chains(trunk: Trunk) -> list[list[Segment]]:
    """Segments that follow each other. Where several begin at one cut, the longest residual chain goes on."""
    following = group_by_key((before, number) for number, before in trunk.before.items())
    length: dict[int, int] = {}
    chosen: dict[int, int] = {}
    for segment in reversed(trunk.segments):
        number = segment.number
        candidates = following.get(number, ())
        if candidates:
            chosen[number] = max(candidates, key=lambda item: (trunk.segments[item].is_residual, length[item], -item))
        length[number] = 1 + (length[chosen[number]] if number in chosen else 0)
    continued = set(chosen.values())
    chains = []
    for segment in trunk.segments:
        if segment.number not in continued:
            chain = [segment]
            while chain[-1].number in chosen:
                chain.append(trunk.segments[chosen[chain[-1].number]])
            chains.append(chain)
    return chains


def _find_in_chain(trunk: Trunk, chain: Sequence[Segment]) -> Iterator[Run]:
    pieces = list(_split_into_pieces(trunk, chain))
    tokens = [[_token(trunk, segment) for segment in piece] for piece in pieces]
    units: Counter[tuple[Hashable, ...]] = Counter()
    for piece, row in zip(pieces, tokens, strict=True):
        for start, period, count in _repeats_of_piece(piece, row):
            units[tuple(row[start : start + period])] += period * count
    wholes = Counter(map(tuple, tokens))
    units.update({whole: len(whole) * count for whole, count in wholes.items() if count > 1 and whole not in units})
    taken: set[int] = set()
    for unit, _ in units.most_common():
        occurrences = [
            (number, piece[start : start + len(unit)])
            for number, (piece, row) in enumerate(zip(pieces, tokens, strict=True))
            for start in _occurrences(unit, row, [segment.number in taken for segment in piece])
        ]
        products = sum(len(segment.products) for _, group in occurrences[:1] for segment in group)
        if len(occurrences) > 1 and products >= _FEWEST_PRODUCTS:
            taken.update(segment.number for _, group in occurrences for segment in group)
            yield Run(tuple(_number_stages(trunk, occurrences)))


def _repeats_of_piece(piece: Sequence[Segment], row: Sequence[Hashable]) -> list[tuple[int, int, int]]:
    """Repeats of equal kinds; of equal sizes too where these cover as much: two kinds of mixing may look alike."""
    loose = list(find_tandem_repeats(row))
    exact = list(find_tandem_repeats([(token, segment.sizes) for token, segment in zip(row, piece, strict=True)]))
    if len(loose) == len(exact) == 1 and exact[0][1] * exact[0][2] >= loose[0][1] * loose[0][2]:
        return exact
    return loose


def _split_into_pieces(trunk: Trunk, chain: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Segments that nothing but a norm lies between."""
    piece: list[Segment] = []
    for segment in chain:
        if segment.is_residual or len(segment.products) >= _FEWEST_PRODUCTS:
            piece.append(segment)
        elif segment.products and piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _token(trunk: Trunk, segment: Segment) -> Hashable:
    """Segments of equal tokens are of one kind: equal products, and both or neither start where a skip ends."""
    before = trunk.before.get(segment.number)
    join = trunk.segments[before].join if before is not None else None
    return segment.token, join is not None and join.puts_beside


def find_tandem_repeats(tokens: Sequence[Hashable]) -> Iterator[tuple[int, int, int]]:
    """Start, period and count of groups that are repeated without a gap; the largest first, then left and right of it.

    >>> list(find_tandem_repeats("xABABAB"))
    [(1, 2, 3)]
    """
    waiting = [(0, len(tokens))]
    while waiting:
        start, end = waiting.pop()
        best = _largest_repeat(tokens, start, end)
        if best is not None:
            first, period, count = best
            yield best
            waiting += [(start, first), (first + period * count, end)]


def _largest_repeat(tokens: Sequence[Hashable], start: int, end: int) -> tuple[int, int, int] | None:
    best: tuple[int, int, int] | None = None
    covered = 0
    for period in _candidate_periods(tokens, start, end):
        index = start
        while index + period < end:
            length = 0
            while index + length + period < end and tokens[index + length] == tokens[index + length + period]:
                length += 1
            count = length // period + 1
            if count > 1 and count * period > covered:
                best, covered = (index, period, count), count * period
            index += length + 1
    return best


def _candidate_periods(tokens: Sequence[Hashable], start: int, end: int) -> list[int]:
    """Distances between a token and the same one further on, the shortest first."""
    distances: set[int] = set()
    places: dict[Hashable, list[int]] = {}
    for index in range(start, end):
        earlier = places.setdefault(tokens[index], [])
        distances.update(index - place for place in earlier[-8:])
        earlier.append(index)
    return sorted(distance for distance in distances if distance <= _LONGEST_PERIOD)


def _occurrences(unit: tuple[Hashable, ...], row: Sequence[Hashable], taken: Sequence[bool]) -> Iterator[int]:
    start = 0
    while start + len(unit) <= len(row):
        if tuple(row[start : start + len(unit)]) == unit and not any(taken[start : start + len(unit)]):
            yield start
            start += len(unit)
        else:
            start += 1


def _number_stages(trunk: Trunk, occurrences: Sequence[tuple[int, Sequence[Segment]]]) -> Iterator[Block]:
    """A stage begins in another piece of the chain, and where the last product has another width."""
    marks = [(piece, width_of(trunk.flow, _last_product(group))) for piece, group in occurrences]
    stage = 0
    for index, (_, group) in enumerate(occurrences):
        stage += index > 0 and marks[index] != marks[index - 1]
        yield Block(tuple(group), stage)


def _last_product(group: Sequence[Segment]) -> object:
    return [node for segment in group for node in segment.products][-1]
