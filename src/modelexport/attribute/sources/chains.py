"""Chains: segments in the order in which they follow each other, with what lies between them put where it belongs.

join ─► LayerNorm ─► fork       no product between: the tail of the segment before (post-norm, Relu of a ResNet)
x ─► a a T ─► x ─► a a T ─► …   stretches that hold a repeated group are split: a a, T, a a, T
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from modelexport.attribute.sources.segments import Segment, Token, Trunk, describe_products
from modelexport.attribute.sources.trunk import is_weighted, reads_of
from modelexport.graph.algorithms import group_by_key
from modelexport.graph.index import Node
from modelexport.graph.operators import POOLS, TRAITS, Trait

_FEWEST_PRODUCTS = 2


def link_chains(trunk: Trunk) -> list[list[Segment]]:
    numbers = iter(range(trunk.behind + 1, 2 * len(trunk.order) + trunk.behind + 2))
    head = [node for node in trunk.order if trunk.number_of.get(node.key) == trunk.behind]
    read_by_head = {value for node in head for value in reads_of(trunk.flow.graph, node)}
    chains = []
    for chain in (_attach_tails(trunk, chain) for chain in _follow(trunk)):
        if any(is_stretch(segment) for segment in chain[1:]):
            if chain[-1].end in read_by_head:
                chain.append(Segment(trunk.behind, "", chain[-1].end, None, head))
                describe_products(trunk.flow, chain[-1])
            chains.append(list(_split_stretches(trunk, chain, numbers)))
        else:
            # Where all layers have shortcuts, the stem is none of them, even if it multiplies as often.
            chains.append(chain[1:] if is_stretch(chain[0]) else chain)
    return chains


def is_stretch(segment: Segment) -> bool:
    """Whether it could be a layer without a shortcut."""
    return not segment.is_residual and len(segment.products) >= _FEWEST_PRODUCTS


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
    missing, values, tail = Counter(operators), {segment.end}, list[Node]()
    waiting = [
        (position[reader.key], reader) for reader in graph.consumers.get(segment.end, ()) if reader.key in position
    ]
    while waiting and missing.total():
        waiting.sort(key=lambda item: -item[0])
        _, node = waiting.pop()
        computed = {value for value in reads_of(graph, node) if value in graph.computed}
        if node in tail or not missing[node.operator] or not computed <= values:
            continue
        missing[node.operator] -= 1
        tail.append(node)
        values.update(node.outputs)
        readers = (reader for output in node.outputs for reader in graph.consumers.get(output, ()))
        waiting += [(position[reader.key], reader) for reader in readers if reader.key in position]
    if not missing.total():
        segment.members += tail


def _resizes(node: Node) -> bool:
    traits = TRAITS.get(node.operator, Trait(0))
    return node.operator in POOLS or node.operator in ("Resize", "Upsample") or Trait.GLOBAL_POOL in traits


def _split_stretches(trunk: Trunk, chain: Sequence[Segment], numbers: Iterator[int]) -> Iterator[Segment]:
    counts = Counter(segment.token for segment in chain)
    groups = [token for token, count in counts.items() if count > 1 and len(token) > _FEWEST_PRODUCTS]
    groups.sort(key=len)
    for segment in chain:
        if segment.is_residual or not segment.products:
            yield segment
        else:
            yield from _split(trunk, segment, groups, numbers)


def _split(trunk: Trunk, segment: Segment, groups: Sequence[Token], numbers: Iterator[int]) -> Iterator[Segment]:
    """A group at the beginning or at the end of a stretch becomes a segment; so does the rest."""
    token = segment.token
    for group in groups:
        size = len(group) - 1
        if len(token) <= len(group) or token[0] or group[0]:
            continue
        at = size if token[1 : size + 1] == group[1:] else len(token) - 1 - size if token[-size:] == group[1:] else 0
        parts = _cut_behind(trunk, segment, at, numbers) if at else None
        if parts is not None:
            yield from _split(trunk, parts[0], groups, numbers)
            yield from _split(trunk, parts[1], groups, numbers)
            return
    yield segment


def _cut_behind(trunk: Trunk, segment: Segment, count: int, numbers: Iterator[int]) -> tuple[Segment, Segment] | None:
    """The part with the first products of a stretch, and the rest; None if the products are not in a row."""
    producers = trunk.flow.graph.producers
    level: dict[str, int] = {}
    left: set[str] = set()
    reached: list[int] = []
    for node in segment.members:
        makers = [producers[value].key for value in reads_of(trunk.flow.graph, node) if value in producers]
        below = max((level.get(key, 0) for key in makers), default=0)
        level[node.key] = below + is_weighted(trunk.flow, node)
        if level[node.key] > below:
            reached.append(level[node.key])
        if level[node.key] == count and (any(key in left for key in makers) or _resizes(node)):
            left.add(node.key)
    if reached != list(range(1, len(segment.products) + 1)):
        return None
    first = [node for node in segment.members if level[node.key] <= count and node.key not in left]
    inside = {node.key for node in first}
    rest = [node for node in segment.members if node.key not in inside]
    parts = (
        Segment(next(numbers), first[-1].outputs[0], segment.start, None, first),
        Segment(next(numbers), segment.end, first[-1].outputs[0], segment.join, rest),
    )
    for part in parts:
        describe_products(trunk.flow, part)
    return parts
