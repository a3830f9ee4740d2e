"""Repeats: equal groups of segments in a row are the layers of a network.

    segments   A M A M A M            attention, feed-forward, …: period 2, three layers
               S C M S C M            self-attention, cross attention, feed-forward: period 3
               A M A M │ A M A M A M  cut by a downsampling: one run in two stages
               B B B B B              blocks of convolutions; the number of channels says where a stage begins

A layer holds two products at least: a row of single convolutions or linear layers is a network without layers. The
search in rows of kinds is in `tandem.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from modelexport.attribute.sources.chains import complete_tail, link_chains
from modelexport.attribute.sources.segments import Segment, Token, Trunk, width_of
from modelexport.attribute.sources.tandem import Repeat, find_repeats, group_layers
from modelexport.attribute.sources.trunk import Join
from modelexport.graph.index import Node

_FEWEST_PRODUCTS = 2
_LEAST_SHARE = 0.75


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
    firm = [[segment.is_residual for segment in piece] for piece in pieces]
    for spans in group_layers(tokens, repeats, firm):
        layers = [(span.row, pieces[span.row][span.start : span.end]) for span in spans]
        fewest = min((sum(len(segment.products) for segment in layer) for _, layer in layers), default=0)
        if len(layers) > 1 and fewest >= _FEWEST_PRODUCTS:
            yield _complete(trunk, Run(tuple(_number_stages(trunk, layers, openings))))


def _kinds_of_segments(chain: Sequence[Segment], openings: Mapping[int, Join]) -> dict[int, int]:
    """By number of a segment: its kind. Both or neither start where a skip ends, and their products are alike."""
    kinds: dict[int, int] = {}
    examples: list[tuple[bool, Token]] = []
    for segment in chain:
        skipped = segment.number in openings
        alike = (
            kind for kind, (flag, token) in enumerate(examples) if flag == skipped and are_alike(token, segment.token)
        )
        kind = next(alike, None)
        if kind is None:
            kind = len(examples)
            examples.append((skipped, segment.token))
        kinds[segment.number] = kind
    return kinds


def are_alike(first: Token, second: Token) -> bool:
    """Whether tokens are equal, or one lacks little of the other: the first block of a network may have one more."""
    if first == second:
        return True
    (count, *short), (other_count, *long) = sorted((first, second), key=len)
    if count != other_count or len(short) < _FEWEST_PRODUCTS or len(short) < _LEAST_SHARE * len(long):
        return False
    rest = iter(long)
    return all(product in rest for product in short)


def _repeats_of_piece(piece: Sequence[Segment], row: Sequence[int]) -> list[Repeat]:
    """Repeats of equal kinds; of equal sizes too where these cover as much: two kinds of mixing may look alike."""
    loose = find_repeats(row)
    exact = find_repeats([(token, segment.sizes) for token, segment in zip(row, piece, strict=True)])
    return exact if len(loose) == len(exact) == 1 and exact[0].length >= loose[0].length else loose


def _split_into_pieces(chain: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Segments that nothing but a norm lies between; a single product, such as a downsampling, cuts."""
    piece: list[Segment] = []
    for segment in chain:
        if segment.is_residual or len(segment.products) >= _FEWEST_PRODUCTS:
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
