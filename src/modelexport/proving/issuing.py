"""Who issued what in the run of the model: the witness for attributions."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from modelexport.graph.sample import Sample, alike
from modelexport.proving.lookup import Lookup
from modelexport.record.eager import EagerRun, IssuedOp


@dataclass(frozen=True, slots=True)
class Issue:
    """One value, the operator that made it, and whether it is new: views, copies and casts pass on what they read."""

    number: int
    op: IssuedOp
    new: bool


class Issuing:
    """The values of a run that operators made from the model's inputs."""

    def __init__(self, run: EagerRun, samples: Sequence[Sample]) -> None:
        self._run = run
        self._samples = samples
        self.issues = {number: Issue(number, op, self._is_new(op, number)) for op in run.ops for number in op.makes}

    def of(self, seen: Sample) -> list[Issue]:
        """Everything that holds the same and depends on the model's inputs."""
        return [self.issues[number] for number in self._lookup.alike(seen)]

    @property
    def hooked(self) -> frozenset[str]:
        return self._run.hooked

    def is_input(self, seen: Sample) -> bool:
        """Whether it is what the model was given, or a part of it: anybody can hand that on."""
        return any(alike(self._samples[number], seen) for number in self._run.given)

    def behind(self, issue: Issue, known: Container[int]) -> list[IssuedOp]:
        """The operators between values that are known and this one."""
        return [issue.op, *(one.op for one in self._way(issue, known) if one.new)]

    def idle_behind(self, issue: Issue, known: Container[int]) -> list[IssuedOp]:
        """Those on the same way that did work and changed no number by it, as a norm that is as it was made."""
        return [one.op for one in self._way(issue, known) if not one.new]

    def _way(self, issue: Issue, known: Container[int]) -> Iterator[Issue]:
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

    def shape(self, issue: Issue) -> tuple[int, ...]:
        return self._samples[issue.number].shape

    @cached_property
    def _lookup(self) -> Lookup:
        return Lookup({number: self._samples[number] for number in self.issues if number in self._run.computed})

    def _is_new(self, op: IssuedOp, number: int) -> bool:
        made = self._samples[number]
        return not any(alike(self._samples[read], made) for read in op.reads)


def first_unlike(run: EagerRun, samples: Sequence[Sample], others: Sequence[Sample]) -> str:
    """The call that issued the first value which two runs of the same operators do not have in common."""
    for op in run.ops:
        if any(number >= len(others) or not alike(samples[number], others[number]) for number in op.makes):
            return str(op.call) or "the model itself"
    return ""
