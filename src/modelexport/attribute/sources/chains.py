"""Chains: segments in the order in which they follow each other, with what lies between them put where it belongs.

join ─► LayerNorm ─► fork       no product between: the tail of the segment before (post-norm, Relu of a ResNet)
x ─► a a T ─► x ─► a a T ─► …   stretches that hold a repeated group are split: a a, T, a a, T
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heappush
from itertools import count, pairwise

from modelexport.attribute.sources.segments import FEWEST_PRODUCTS, Segment, Token, Trunk, describe_products
from modelexport.attribute.sources.shortcuts import is_weighted, reads_of
from modelexport.graph.algorithms import group_by_key
from modelexport.graph.index import Node
from modelexport.graph.operators import POOLS, TRAITS, Trait

# A repeated group of more products than these is not looked for in stretches.
_LONGEST_GROUP = 64


def link_chains(trunk: Trunk) -> list[list[Segment]]:
    """Every chain of a network; numbers of segments that are split go on behind those of the trunk."""
    numbers = count(trunk.head_number + 1)
    head = [node for node in trunk.order if trunk.number_of.get(node.key) == trunk.head_number]
    read_by_head = {value for node in head for value in reads_of(trunk.flow.graph, node)}
    chains = []
    for chain in (_attach_tails(trunk, chain) for chain in _follow(trunk)):
        if any(is_stretch(segment) for segment in chain[1:]):
            if chain[-1].end in read_by_head:
                chain.append(Segment(trunk.head_number, "", chain[-1].end, None, head))
                describe_products(trunk.flow, chain[-1])
            chains.append(list(_split_stretches(trunk, chain, numbers)))
        else:
            # Where all layers have shortcuts, the stem is none of them, even if it multiplies as often.
            chains.append(chain[1:] if is_stretch(chain[0]) else chain)
    return chains


def is_stretch(segment: Segment) -> bool:
    """Whether it could be a layer without a shortcut."""
    return not segment.is_residual and len(segment.products) >= FEWEST_PRODUCTS


def _follow(trunk: Trunk) -> list[list[Segment]]:
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


def _attach_tails(trunk: Trunk, chain: Sequence[Segment]) -> list[Segment]:
    """A stretch without products behind a residual segment becomes part of that."""
    attached: list[Segment] = []
    for segment in chain:
        before = attached[-1] if attached else None
        arithmetic = not any(_resizes(node) for node in segment.members)
        if before is not None and before.is_residual and segment.join is None and not segment.products and arithmetic:
            before.members += segment.members
            before.tail = tuple(node.operator for node in segment.members if node.key in trunk.flow.graph.computed)
        else:
            attached.append(segment)
    return attached


def complete_tail(trunk: Trunk, segment: Segment, operators: Sequence[str]) -> None:
    """Give the last segment of a run the tail that those before have: nothing forks behind it that would say so."""
    graph, position = trunk.flow.graph, trunk.position
    missing, values, tail = Counter(operators), {segment.end}, dict[str, Node]()
    # Positions in canonical order, the first one on top.
    waiting = [position[reader.key] for reader in graph.consumers.get(segment.end, ()) if reader.key in position]
    heapify(waiting)
    while waiting and missing.total():
        node = trunk.order[heappop(waiting)]
        computed = {value for value in reads_of(graph, node) if value in graph.computed}
        if node.key in tail or not missing[node.operator] or not computed <= values:
            continue
        missing[node.operator] -= 1
        tail[node.key] = node
        values.update(node.outputs)
        for reader in (reader for output in node.outputs for reader in graph.consumers.get(output, ())):
            if reader.key in position:
                heappush(waiting, position[reader.key])
    if not missing.total():
        segment.members += tail.values()


def _resizes(node: Node) -> bool:
    traits = TRAITS.get(node.operator, Trait(0))
    return node.operator in POOLS or node.operator in ("Resize", "Upsample") or Trait.GLOBAL_POOL in traits


def _split_stretches(trunk: Trunk, chain: Sequence[Segment], numbers: Iterator[int]) -> Iterator[Segment]:
    counts = Counter(segment.token for segment in chain)
    # Without attention: what multiplies two computed values is not taken apart.
    groups = {token[1:] for token, times in counts.items() if times > 1 and not token[0]}
    for segment in chain:
        if segment.is_residual or not segment.products or segment.token[0]:
            yield segment
        else:
            yield from _split(trunk, segment, find_cuts(segment.token[1:], groups), numbers)


def find_cuts(products: Token, groups: AbstractSet[Token]) -> list[int]:
    """How many products are before each cut: groups are cut off at the beginning, then at the end.

        a a T b a a     with the group `a a`: cuts behind 2 and behind 4

    Of several groups the shortest counts; what is left in the middle stays whole.
    """
    sizes = sorted({len(group) for group in groups if FEWEST_PRODUCTS <= len(group) <= _LONGEST_GROUP})
    first, last = 0, len(products)
    cuts: set[int] = set()
    while size := next((n for n in sizes if n < last - first and products[first : first + n] in groups), 0):
        first += size
        cuts.add(first)
    while size := next((n for n in sizes if n < last - first and products[last - n : last] in groups), 0):
        last -= size
        cuts.add(last)
    return sorted(cuts)


def _split(trunk: Trunk, segment: Segment, cuts: Sequence[int], numbers: Iterator[int]) -> Iterator[Segment]:
    """A segment for every part of a stretch; the stretch itself if its products are not in a row."""
    part_of = _assign_parts(trunk, segment, cuts) if cuts else None
    if part_of is None:
        yield segment
        return
    parts: list[list[Node]] = [[] for _ in range(len(cuts) + 1)]
    for node in segment.members:
        parts[part_of[node.key]].append(node)
    ends = [segment.start, *(part[-1].key for part in parts[:-1]), segment.end]
    for part, (start, end) in zip(parts, pairwise(ends), strict=True):
        join = segment.join if part is parts[-1] else None
        piece = Segment(next(numbers), end, start, join, part)
        describe_products(trunk.flow, piece)
        yield piece


def _assign_parts(trunk: Trunk, segment: Segment, cuts: Sequence[int]) -> Mapping[str, int] | None:
    """By node key: how many cuts are before it; None if the products are not in a row.

    A pool behind the last product of a part, and what is made of it, is of the next part.
    """
    graph = trunk.flow.graph
    level: dict[str, int] = {}  # how many products in a row lead to a node
    behind: set[str] = set()  # nodes on the level of a cut that are behind it
    products = 0
    for node in segment.members:
        makers = [graph.producers[value].key for value in reads_of(graph, node) if value in graph.producers]
        own = max((level.get(key, 0) for key in makers), default=0)
        if is_weighted(trunk.flow, node):
            own, products = own + 1, products + 1
            if own != products:
                return None
        level[node.key] = own
        if _resizes(node) or any(key in behind and level[key] == own for key in makers):
            behind.add(node.key)
    part_of = {key: (bisect_right if key in behind else bisect_left)(cuts, number) for key, number in level.items()}
    for node in reversed(segment.members):
        if node.key not in graph.computed:  # a constant is where it is read
            readers = (reader.key for output in node.outputs for reader in graph.consumers.get(output, ()))
            part_of[node.key] = min((part_of[key] for key in readers if key in part_of), default=part_of[node.key])
    return part_of
