"""Who issued what in the run of the model: the witness for attributions.

Finding values by what they hold.

Where NaN and infinity come from.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from modelexport.graph.index import Graph, Node
from modelexport.graph.sample import INF, NAN, Sample, alike, distance
from modelexport.record.provenance import Provenance
from modelexport.record.results.verification import NotFinite
from modelexport.record.signals import EagerRun, IssuedOp

# Of several that are alike, those that are nearly as close as the closest are not told apart by it.
_AS_CLOSE = 4.0
_ROUNDING = 1e-6


@dataclass(frozen=True)
class _Shelf:
    """Values of one kind and size, by their length. `grain` is that of the coarsest."""

    lengths: Sequence[float]
    numbers: Sequence[int]
    grain: float


class SampleIndex:
    """The values of one run, by content."""

    def __init__(self, samples: Mapping[int, Sample]) -> None:
        self._samples = samples
        self._shelves = _shelved(samples)

    def alike(self, wanted: Sample) -> tuple[int, ...]:
        """The values that hold the same, whatever their shape: the closest, and all that are as close."""
        shelf = self._shelves.get((wanted.kind, wanted.size))
        if shelf is None:
            return ()
        near = sorted((distance(self._samples[number], wanted), number) for number in self._around(shelf, wanted))
        near = [(apart, number) for apart, number in near if apart <= _grain(self._samples[number], wanted)]
        if not near:
            return ()
        closest = near[0][0]
        return tuple(number for apart, number in near if apart <= max(_AS_CLOSE * closest, _ROUNDING))

    def nearest(self, wanted: Sample, among: Iterable[int]) -> int | None:
        """The one that is least far away; of those with the same shape, if there are any."""
        fitting = [number for number in among if distance(self._samples[number], wanted) < math.inf]
        same = [number for number in fitting if self._samples[number].shape == wanted.shape]
        return min(same or fitting, key=lambda number: distance(self._samples[number], wanted), default=None)

    def _around(self, shelf: _Shelf, wanted: Sample) -> Sequence[int]:
        # Vectors that are close have nearly the same length.
        slack = 2 * max(shelf.grain, wanted.grain) * wanted.length
        start = bisect_left(shelf.lengths, wanted.length - slack)
        return shelf.numbers[start : bisect_right(shelf.lengths, wanted.length + slack)]


def _grain(a: Sample, b: Sample) -> float:
    return max(a.grain, b.grain)


def _shelved(samples: Mapping[int, Sample]) -> dict[tuple[str, int], _Shelf]:
    found: dict[tuple[str, int], list[tuple[float, int]]] = {}
    for number, one in samples.items():
        if one.kind != "other":
            found.setdefault((one.kind, one.size), []).append((one.length, number))
    return {key: _shelf(sorted(pairs), samples) for key, pairs in found.items()}


def _shelf(pairs: Sequence[tuple[float, int]], samples: Mapping[int, Sample]) -> _Shelf:
    lengths, numbers = zip(*pairs, strict=True)
    return _Shelf(lengths, numbers, max(samples[number].grain for number in numbers))


def find_nonfinite_origins(
    graph: Graph, provenance: Provenance, seen: Mapping[str, Sample], expected: Callable[[str, str], bool]
) -> Iterator[NotFinite]:
    """Nodes that make a NaN of what has none, or an infinity of what is finite.

    expected  whether a value has such a thing in the run that it is compared with as well
    """
    troubled = {value: one.trouble for value, one in seen.items() if one.trouble}
    for node in graph.nodes:
        for kind in (NAN, INF):
            made = [value for value in node.outputs if troubled.get(value) == kind]
            # A constant that is infinite is a mask.
            if made and (kind == NAN or node.key in graph.computed) and not _has_before(node, troubled, kind):
                owners = provenance.nodes[node.key].attribution.owners
                yield NotFinite(kind, node.key, owners, all(expected(value, kind) for value in made))


def _has_before(node: Node, troubled: Mapping[str, str], kind: str) -> bool:
    """A mask is full of infinities, and what it is added to or chosen from becomes so."""
    return any(troubled.get(value) == NAN or (kind == INF and troubled.get(value)) for value in node.inputs)


@dataclass(frozen=True, slots=True)
class IssuedValue:
    """One value, the operator that made it, and whether it is new: views, copies and casts pass on what they read."""

    number: int
    op: IssuedOp
    new: bool


class OperatorSources:
    """The values of a run that operators made from the model's inputs."""

    def __init__(self, run: EagerRun, samples: Sequence[Sample]) -> None:
        self._run = run
        self._samples = samples
        self.issues = {
            number: IssuedValue(number, op, self._is_new(op, number)) for op in run.ops for number in op.makes
        }

    def of(self, seen: Sample) -> list[IssuedValue]:
        """Everything that holds the same and depends on the model's inputs."""
        return [self.issues[number] for number in self._lookup.alike(seen)]

    @property
    def hooked(self) -> frozenset[str]:
        return self._run.hooked

    def is_input(self, seen: Sample) -> bool:
        """Whether it is what the model was given, or a part of it: anybody can hand that on."""
        return any(alike(self._samples[number], seen) for number in self._run.given)

    def behind(self, issue: IssuedValue, known: Container[int]) -> list[IssuedOp]:
        """The operators between values that are known and this one."""
        return [issue.op, *(one.op for one in self._way(issue, known) if one.new)]

    def idle_behind(self, issue: IssuedValue, known: Container[int]) -> list[IssuedOp]:
        """Those on the same way that did work and changed no number by it, as a norm that is as it was made."""
        return [one.op for one in self._way(issue, known) if not one.new]

    def _way(self, issue: IssuedValue, known: Container[int]) -> Iterator[IssuedValue]:
        seen, waiting = {issue.number}, [*issue.op.reads]
        while waiting:
            number = waiting.pop()
            source = self.issues.get(number)
            if number in seen or number in known or source is None or number not in self._run.computed:
                continue
            seen.add(number)
            if not source.op.view:
                yield source
            waiting += source.op.reads

    def numbers(self, seen: Sample) -> tuple[int, ...]:
        """The values of the run that hold the same."""
        return self._lookup.alike(seen)

    def shape(self, issue: IssuedValue) -> tuple[int, ...]:
        return self._samples[issue.number].shape

    @cached_property
    def _lookup(self) -> SampleIndex:
        return SampleIndex({number: self._samples[number] for number in self.issues if number in self._run.computed})

    def _is_new(self, op: IssuedOp, number: int) -> bool:
        made = self._samples[number]
        return not any(alike(self._samples[read], made) for read in op.reads)


def find_first_difference(run: EagerRun, samples: Sequence[Sample], others: Sequence[Sample]) -> str:
    """The call that issued the first value which two runs of the same operators do not have in common."""
    for op in run.ops:
        if any(number >= len(others) or not alike(samples[number], others[number]) for number in op.makes):
            return str(op.call) or "the model itself"
    return ""
