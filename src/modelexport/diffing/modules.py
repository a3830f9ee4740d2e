"""Which module of the one file is which of the other, and where every node belongs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from modelexport.diffing.flow import Flow
from modelexport.diffing.pairs import Pairs
from modelexport.diffing.sides import Compared
from modelexport.graph.index import Node
from modelexport.record.changes import Source
from modelexport.record.hierarchy import ROOT
from modelexport.record.lineage import Link

# What the same name, and the same class, add to the share of nodes that two modules have in common.
_SAME_NAME, _SAME_CLASS = 0.1, 0.05


@dataclass(frozen=True)
class Modules:
    """
    left, right  by the key of a node: the call that it belongs to
    aligned      calls of the first file, mapped to calls of the second
    """

    sides: tuple[Compared, Compared]
    left: Mapping[str, str]
    right: Mapping[str, str]
    aligned: Mapping[str, str]

    @cached_property
    def backwards(self) -> Mapping[str, str]:
        return {other: call for call, other in self.aligned.items()}

    @cached_property
    def homes(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """By key: a word for where a node belongs, the same in both files for the same module."""
        right = {key: self.word(None, call) for key, call in self.right.items()}
        return {key: self.word(call, None) for key, call in self.left.items()}, right

    def word(self, call: str | None, other: str | None) -> str:
        """The call in the first file, if there is one."""
        call = self.backwards.get(other or "") if call is None else call
        return f"right {other}" if call is None else call

    def stack(self, side: int, call: str) -> tuple[str, ...]:
        return self._speaker(side).stack(call)

    def class_of(self, side: int, call: str) -> str:
        return self._speaker(side).class_of(call)

    def _speaker(self, side: int) -> Compared:
        """Who knows the modules of a file: the other one, if that has lent them."""
        one = self.sides[side]
        return self.sides[1 - side] if one.source is Source.OTHER else one

    def common(self, side: int, keys: Iterable[str]) -> str:
        """The innermost call around all of some nodes."""
        calls = self.left if side == 0 else self.right
        return _innermost([self.stack(side, call) for call in dict.fromkeys(calls.get(key, ROOT) for key in keys)])


def find_modules(left: Compared, right: Compared, pairs: Pairs, links: Mapping[str, Link]) -> Modules:
    mine, theirs = dict(left.told), dict(right.told)
    if left.source is Source.OTHER:
        mine.update((node.key, theirs[other.key]) for other, node in _joined(pairs) if other.key in theirs)
    if right.source is Source.OTHER:
        theirs.update((other.key, mine[node.key]) for other, node in _joined(pairs) if node.key in mine)
        theirs.update(_inherited(links, mine, theirs, left, pairs))
    _spread(left.flow, mine)
    _spread(right.flow, theirs)
    lent = Source.OTHER in (left.source, right.source)
    found = Modules((left, right), mine, theirs, {})
    calls = dict.fromkeys((*mine.values(), *theirs.values()))
    same = {call: call for one in calls for call in found.stack(0, one)} if lent else {}
    aligned = same or _aligned(left, right, pairs, mine, theirs)
    return Modules((left, right), mine, theirs, aligned)


def _joined(pairs: Pairs) -> list[tuple[Node, Node]]:
    """Nodes of the second file, each with its partner."""
    return [(other, pairs.left[other.key]) for other in pairs.right.values()]


def _inherited(
    links: Mapping[str, Link], mine: Mapping[str, str], theirs: Mapping[str, str], left: Compared, pairs: Pairs
) -> dict[str, str]:
    """Of nodes without a partner: the call around all that is gone and that they come from."""
    found: dict[str, str] = {}
    for key, link in links.items():
        calls = [mine[source] for source in link.sources if source in mine and source not in pairs.right]
        if key not in theirs and calls:
            found[key] = _innermost([left.stack(call) for call in dict.fromkeys(calls)])
    return found


def _innermost(stacks: Iterable[tuple[str, ...]]) -> str:
    """The last call that all of some stacks begin with."""
    shared = ROOT
    for level in zip(*stacks, strict=False):
        if len(set(level)) > 1:
            break
        shared = level[0]
    return shared


def _spread(flow: Flow, calls: dict[str, str]) -> None:
    """What nobody knows belongs to what it works on; else to what reads it; else to the model."""
    for node in flow.order:
        if node.key not in calls:
            makers = (flow.producers.get(value) for value in node.inputs)
            known = [calls[maker[0].key] for maker in makers if maker is not None and maker[0].key in calls]
            if known:
                calls[node.key] = known[0]
    for node in reversed(flow.order):
        if node.key not in calls:
            readers = (use.reader.key for value in node.outputs for use in flow.uses.get(value, ()))
            calls[node.key] = next((calls[key] for key in readers if key in calls), ROOT)


def _aligned(
    left: Compared, right: Compared, pairs: Pairs, mine: Mapping[str, str], theirs: Mapping[str, str]
) -> dict[str, str]:
    """By the nodes that they have in common, names and classes where that does not decide."""
    leaves = Counter((mine[node.key], theirs[other.key]) for other, node in _joined(pairs))
    sizes = (_sizes(left, mine), _sizes(right, theirs))
    shared: Counter[tuple[str, str]] = Counter()
    for (call, other), count in leaves.items():
        for above in left.inner_stack(call):
            for upper in right.inner_stack(other):
                shared[above, upper] += count
    rated = sorted(
        ((_rate(left, right, pair, count / (sizes[0][pair[0]] + sizes[1][pair[1]] - count)), pair))
        for pair, count in shared.items()
    )
    found: dict[str, str] = {}
    taken: set[str] = set()
    for _, (call, other) in reversed(rated):
        if call not in found and other not in taken:
            found[call] = other
            taken.add(other)
    return found | _by_name(left, right, found, taken, sizes)


def _rate(left: Compared, right: Compared, pair: tuple[str, str], share: float) -> float:
    same_name = left.relative(pair[0]) == right.relative(pair[1])
    return share + _SAME_NAME * same_name + _SAME_CLASS * (left.class_of(pair[0]) == right.class_of(pair[1]))


def _sizes(side: Compared, calls: Mapping[str, str]) -> Counter[str]:
    """How many nodes there are in a call and everything inside of it."""
    found: Counter[str] = Counter()
    for call, count in Counter(calls[node.key] for node in side.flow.order).items():
        for above in side.stack(call):
            found[above] += count
    return found


def _by_name(
    left: Compared, right: Compared, found: Mapping[str, str], taken: set[str], sizes: tuple[Counter[str], Counter[str]]
) -> dict[str, str]:
    """Modules that have no nodes in common, under the same name in what is aligned."""
    more: dict[str, str] = {}
    theirs = {right.relative(call): call for call in sizes[1] if call not in taken}
    for call in sizes[0]:
        other = theirs.get(left.relative(call))
        if call not in found and other is not None:
            more[call] = other
    return more
