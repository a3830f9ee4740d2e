"""Runs: layers are equal groups of segments in a row.

    segments   A M A M A M            attention, feed-forward, …: AM, three layers
               S C M S C M            self-attention, cross attention, feed-forward: SCM, two layers
               A M A M │ A M A M A M  cut by a downsampling: one run in two stages
               B B B B B              blocks of convolutions; the number of channels says where a stage begins

Segments of one kind are equal tokens, and what nothing cuts is a row of them. Layers are found in rows of tokens:

    row         repeat          layers
    ABABAB      AB, 3 times     3 of size 2
    RMRMAM…     RMRMAM, twice   6 of size 2: the three parts of the repeat share their M, so each is a layer of its own
    ADAEAE      AE, twice       3 of size 2: AD stands beside them and shares its A

Of all repeats the one that covers most counts, of equal ones the shortest. A layer holds two products at least: a row
of single convolutions or linear layers is a network without layers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import groupby, islice, pairwise

from modelexport.attribute.sources.chains import complete_tail, link_chains
from modelexport.attribute.sources.segments import FEWEST_PRODUCTS, Segment, Token, Trunk, width_of
from modelexport.attribute.sources.shortcuts import Join
from modelexport.graph.algorithms import group_by_key
from modelexport.graph.index import Node

# A token is alike to another of which it lacks no more than this; it is compared with so many kinds.
_LEAST_SHARE = 0.75
_MOST_KINDS = 64
# A repeat is no longer than this, and the same token is looked for among so many that came before.
_LONGEST_PERIOD = 64
_FARTHEST = 8

Row = Sequence[Hashable]


@dataclass(frozen=True)
class Block:
    """One layer: segments that follow each other.

    stage    counts where the run is cut or changes its width
    opening  the join that it starts from, if that puts a skip beside something
    """

    segments: tuple[Segment, ...]
    stage: int = 0
    opening: Join | None = None

    @property
    def nodes(self) -> Iterator[Node]:
        return (node for segment in self.segments for node in segment.members)


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
    """Runs of the whole network, in canonical order of what they start with."""
    runs = [run for chain in link_chains(trunk) for run in _find_in_chain(trunk, chain)]
    return sorted(runs, key=lambda run: run.first.number)


def _find_in_chain(trunk: Trunk, chain: Sequence[Segment]) -> Iterator[Run]:
    openings = {
        segment.number: before.join
        for before, segment in pairwise(chain)
        if before.join is not None and before.join.puts_beside
    }
    kinds = _kinds_of_segments(chain, openings)
    pieces = list(_split_into_pieces(chain))
    tokens = [[kinds[segment.number] for segment in piece] for piece in pieces]
    repeats = [_repeats_of_piece(piece, row) for piece, row in zip(pieces, tokens, strict=True)]
    residual = [[segment.is_residual for segment in piece] for piece in pieces]
    for spans in group_layers(tokens, repeats, residual):
        layers = [(span.row, pieces[span.row][span.start : span.end]) for span in spans]
        fewest = min((sum(len(segment.products) for segment in layer) for _, layer in layers), default=0)
        if len(layers) > 1 and fewest >= FEWEST_PRODUCTS:
            yield _complete(trunk, Run(tuple(_number_stages(trunk, layers, openings))))


def _kinds_of_segments(chain: Sequence[Segment], openings: Mapping[int, Join]) -> dict[int, int]:
    """By number of a segment: its kind. Both or neither start where a skip ends, and their products are alike."""
    described = {segment.number: (segment.number in openings, segment.token) for segment in chain}
    kinds: dict[tuple[bool, Token], int] = {}
    examples: list[tuple[bool, Token]] = []
    for description in dict.fromkeys(described.values()):
        skipped, token = description
        alike = (
            kind
            for kind, (flag, example) in enumerate(islice(examples, _MOST_KINDS))
            if flag == skipped and are_alike(example, token)
        )
        kinds[description] = next(alike, len(examples))
        if kinds[description] == len(examples):
            examples.append(description)
    return {number: kinds[description] for number, description in described.items()}


def are_alike(first: Token, second: Token) -> bool:
    """Whether tokens are equal, or one lacks little of the other: the first block of a network may have one more."""
    if first == second:
        return True
    short, long = sorted((first, second), key=len)
    fewest, most = len(short) - 1, len(long) - 1  # the first item is the number of products without weights
    if short[0] != long[0] or fewest < FEWEST_PRODUCTS or fewest < _LEAST_SHARE * most:
        return False
    rest = iter(long[1:])
    return all(product in rest for product in short[1:])


def _repeats_of_piece(piece: Sequence[Segment], row: Sequence[int]) -> list[Repeat]:
    """Repeats of equal kinds; of equal sizes too where these cover as much: two kinds of mixing may look alike."""
    loose = find_repeats(row)
    exact = find_repeats([(token, segment.sizes) for token, segment in zip(row, piece, strict=True)])
    return exact if len(loose) == len(exact) == 1 and exact[0].length >= loose[0].length else loose


def _split_into_pieces(chain: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Segments that nothing but a norm lies between; a single product, such as a downsampling, cuts."""
    piece: list[Segment] = []
    for segment in chain:
        if segment.is_residual or len(segment.products) >= FEWEST_PRODUCTS:
            piece.append(segment)
        elif segment.products and piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _number_stages(
    trunk: Trunk, occurrences: Sequence[tuple[int, Sequence[Segment]]], openings: Mapping[int, Join]
) -> Iterator[Block]:
    """A stage begins in another piece of the chain, and where the last product has another width."""
    marks = [(piece, width_of(trunk.flow, _last_product(group))) for piece, group in occurrences]
    stage = 0
    for index, (_, group) in enumerate(occurrences):
        stage += index > 0 and marks[index] != marks[index - 1]
        yield Block(tuple(group), stage, openings.get(group[0].number))


def _last_product(group: Sequence[Segment]) -> Node:
    return [node for segment in group for node in segment.products][-1]


def _complete(trunk: Trunk, run: Run) -> Run:
    """With the norm behind the last layer as part of it, if the layers before have one too."""
    earlier = [block.segments[-1].tail for block in run.blocks[:-1]]
    if earlier and earlier[-1] and not run.last.tail:
        complete_tail(trunk, run.last, earlier[-1])
    return run


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
class LayerSpan:
    """One layer: tokens of a row."""

    row: int
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


def find_repeats(row: Row) -> list[Repeat]:
    """The repeat that covers most, then the one that covers most of what is left, and so on."""
    repeats: list[Repeat] = []
    is_free = [True] * len(row)
    # Most tokens first, then the shortest period, then the first one.
    waiting = [_rank(period, *part) for period in _candidate_periods(row) for part in _periodic_parts(row, period)]
    heapify(waiting)
    while waiting:
        _, period, start, end = heappop(waiting)
        free = list(_free_parts(is_free, start, end))
        if free != [(start, end)]:
            for part in (part for part in free if part[1] - part[0] >= 2 * period):
                heappush(waiting, _rank(period, *part))
            continue
        count, rest = divmod(end - start, period)
        # What does not begin where the row does, but ends where it does, is complete at its end.
        repeat = Repeat(start + rest if start > 0 and end == len(row) else start, period, count)
        repeats.append(repeat)
        is_free[repeat.start : repeat.start + repeat.length] = [False] * repeat.length
    return sorted(repeats)


def _rank(period: int, start: int, end: int) -> tuple[int, int, int, int]:
    covered = (end - start) // period * period
    return -covered, period, start, end


def _candidate_periods(row: Row) -> list[int]:
    """Distances between a token and the same one further on."""
    distances: set[int] = set()
    earlier: dict[Hashable, deque[int]] = {}
    for index, token in enumerate(row):
        same = earlier.setdefault(token, deque(maxlen=_FARTHEST))
        distances.update(index - other for other in same)
        same.append(index)
    return [distance for distance in distances if distance <= _LONGEST_PERIOD]


def _periodic_parts(row: Row, period: int) -> Iterator[tuple[int, int]]:
    """Parts of a row, as long as can be, in which every token is the same as the one a period further on."""
    start = 0
    while start + period < len(row):
        end = start + period
        while end < len(row) and row[end] == row[end - period]:
            end += 1
        if end - start >= 2 * period:
            yield start, end
        start = end - period + 1


def _free_parts(is_free: Sequence[bool], start: int, end: int) -> Iterator[tuple[int, int]]:
    for free, group in groupby(range(start, end), key=is_free.__getitem__):
        if free:
            indices = list(group)
            yield indices[0], indices[-1] + 1


def group_layers(
    rows: Sequence[Row], repeats: Sequence[Iterable[Repeat]], residual: Sequence[Sequence[bool]]
) -> list[list[LayerSpan]]:
    """The layers of each kind, those that cover most first.

    A kind is a repeat, wherever it occurs in the rows, or a whole row that occurs more than once.

    residual  which tokens may be part of a layer that only resembles the others
    """
    layers: dict[tuple[Hashable, ...], list[LayerSpan]] = {}
    for number, (row, own) in enumerate(zip(rows, repeats, strict=True)):
        for repeat in own:
            unit = tuple(row[repeat.start : repeat.start + repeat.period])
            layers.setdefault(unit, []).extend(_cut(number, repeat.start, repeat.length, layer_size(unit)))
    for whole, count in Counter(map(tuple, rows)).items():
        if count > 1:
            layers.setdefault(whole, [])
    taken = [[False] * len(row) for row in rows]
    _mark_taken(taken, (span for spans in layers.values() for span in spans))
    occurrences = _find_occurrences(rows, layers.keys())
    for unit, spans in sorted(layers.items(), key=lambda item: -sum(span.size for span in item[1])):
        for number, start in occurrences.get(unit, ()):
            if not any(taken[number][start : start + len(unit)]):  # it stands there once: a stage of one layer
                spans.extend(_cut(number, start, len(unit), layer_size(unit)))
                _mark_taken(taken, [LayerSpan(number, start, len(unit))])
        similar = _find_similar(spans, rows, taken, residual)
        _mark_taken(taken, similar)
        spans.extend(similar)
        spans.sort()
    return sorted(layers.values(), key=lambda spans: -sum(span.size for span in spans))


def _find_occurrences(
    rows: Sequence[Row], units: Collection[tuple[Hashable, ...]]
) -> Mapping[tuple[Hashable, ...], Sequence[tuple[int, int]]]:
    """By unit: rows and indices where it stands. What is longer than a repeat can be is looked for as a whole row."""
    lengths = {len(unit) for unit in units if len(unit) <= _LONGEST_PERIOD}
    occurrences = (
        (tuple(row[start : start + length]), (number, start))
        for number, row in enumerate(rows)
        for length in {*lengths, len(row)}
        for start in range(len(row) - length + 1)
    )
    return group_by_key((unit, occurrence) for unit, occurrence in occurrences if unit in units)


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


def _cut(row: int, start: int, length: int, size: int) -> list[LayerSpan]:
    return [LayerSpan(row, index, size) for index in range(start, start + length, size)]


def _mark_taken(taken: Sequence[list[bool]], spans: Iterable[LayerSpan]) -> None:
    for span in spans:
        taken[span.row][span.start : span.end] = [True] * span.size


def _find_similar(
    spans: Sequence[LayerSpan], rows: Sequence[Row], taken: Sequence[Sequence[bool]], residual: Sequence[Sequence[bool]]
) -> list[LayerSpan]:
    """Groups right before and right behind the layers that resemble them: the first layer may be of another kind."""
    similar: list[LayerSpan] = []
    for row, inside in group_by_key((span.row, span) for span in spans).items():
        for outermost, step in ((min(inside), -1), (max(inside), 1)):
            similar += _walk_outwards(outermost, step, rows[row], taken[row], residual[row])
    return similar


def _walk_outwards(
    outermost: LayerSpan, step: int, row: Row, taken: Sequence[bool], residual: Sequence[bool]
) -> Iterator[LayerSpan]:
    size = outermost.size
    pattern = row[outermost.start : outermost.end]
    start = outermost.start + step * size
    # One token alone resembles nothing but itself.
    while size > 1 and start >= 0 and start + size <= len(row):
        indices = range(start, start + size)
        if any(taken[index] or not residual[index] for index in indices):
            return
        if not resemble(pattern, row[start : start + size]):
            return
        yield LayerSpan(outermost.row, start, size)
        start += step * size
