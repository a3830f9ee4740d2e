"""The witness: which operator of an eager run issued a value, found by content alone.

`verify` holds attributions against a run of the PyTorch model that `capture/eager.py` watched. This module knows no
ONNX name and no strategy (docs/decisions/0009):

    node of the file ─► Sample ─► SampleIndex ─► values of the run that hold the same ─► the operators that issued them

Operators that only pass on what they read (views, copies, casts) issue a value as well, but no new one.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from modelexport.graph.algorithms import backward_slice, group_by_key
from modelexport.graph.sample import Sample, alike, distance, shared_share
from modelexport.graph.tensor_content import NearIndex
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.signals import CallTensors, EagerRun, IssuedOp

# Of several that are alike, those that are nearly as close as the closest are not told apart by it.
_AS_CLOSE = 4.0
_ROUNDING = 1e-6


class SampleIndex:
    """The values of one run, by content: bucketed by kind and size, sorted by the length of the sample as a vector."""

    def __init__(self, samples: Mapping[int, Sample]) -> None:
        self._samples = samples
        visible = {number: sample for number, sample in samples.items() if sample.kind != "other"}
        self._by_length = NearIndex.of((_bucket(sample), sample.length, number) for number, sample in visible.items())
        # By bucket, the grain of its coarsest value.
        self._grains: dict[tuple[str, int], float] = {}
        for sample in visible.values():
            self._grains[_bucket(sample)] = max(sample.grain, self._grains.get(_bucket(sample), 0.0))

    def alike(self, wanted: Sample) -> tuple[int, ...]:
        """The values that hold the same, whatever their shape: the closest, and all that are as close."""
        # Vectors that are close have nearly the same length.
        slack = 2 * max(self._grains.get(_bucket(wanted), 0.0), wanted.grain) * wanted.length
        candidates = self._by_length.near(_bucket(wanted), wanted.length, slack)
        near = sorted((distance(self._samples[number], wanted), number) for number in candidates)
        near = [(apart, number) for apart, number in near if apart <= max(self._samples[number].grain, wanted.grain)]
        limit = max(_AS_CLOSE * near[0][0], _ROUNDING) if near else 0.0
        return tuple(number for apart, number in near if apart <= limit)

    def nearest(self, wanted: Sample, among: Iterable[int]) -> int | None:
        """The value that is least far away; of those with the same shape, if there are any."""
        apart = {number: distance(self._samples[number], wanted) for number in among}
        comparable = [number for number in apart if apart[number] < math.inf]
        same_shape = [number for number in comparable if self._samples[number].shape == wanted.shape]
        return min(same_shape or comparable, key=apart.__getitem__, default=None)


def _bucket(sample: Sample) -> tuple[str, int]:
    return sample.kind, sample.size


@dataclass(frozen=True, slots=True)
class IssuedValue:
    """One value, the operator that made it, and whether it is new: views, copies and casts pass on what they read."""

    number: int
    op: IssuedOp
    new: bool


class OperatorSources:
    """The values of a run that operators made from the model's inputs, each with the operator that issued it."""

    def __init__(self, run: EagerRun, samples: Sequence[Sample]) -> None:
        self._run = run
        self._samples = samples
        self.issued: dict[int, IssuedValue] = {}
        for op in run.ops:
            for number in op.makes:
                passed_on = any(alike(samples[read], samples[number]) for read in op.reads)
                self.issued[number] = IssuedValue(number, op, not passed_on)

    def issued_like(self, sample: Sample) -> list[IssuedValue]:
        """Everything that holds the same and depends on the model's inputs."""
        return [self.issued[number] for number in self.numbers_like(sample)]

    def numbers_like(self, sample: Sample) -> tuple[int, ...]:
        return self._index.alike(sample)

    def find_parts(self, whole: Sample, calls: Iterable[ModuleCall]) -> tuple[frozenset[ModuleCall], bool]:
        """The calls, if a value is what each of them made, side by side in its last axis; and whether that is certain.

        q (2, 8), k (2, 4), v (2, 4)     qkv (2, 16): one product with packed weights
        """
        if not whole.shape or whole.kind != "float":
            return frozenset(), False
        rows = whole.size // max(whole.shape[-1], 1)
        parts = {call: self._made_in_rows(call, rows) for call in calls}
        is_certain = self._place_parts(whole, parts, 0)
        return (frozenset(), False) if is_certain is None else (frozenset(parts), is_certain)

    def _made_in_rows(self, call: ModuleCall, rows: int) -> list[Sample]:
        """What a call made new in so many rows, the last one first."""
        made = (self._samples[value.number] for value in reversed(self._by_call.get(call, ())))
        return [sample for sample in made if sample.kind == "float" and sample.size == rows * (0, *sample.shape)[-1]]

    def _place_parts(self, whole: Sample, parts: Mapping[ModuleCall, list[Sample]], offset: int) -> bool | None:
        """Whether it is certain that parts fill the last axis from `offset` on, in any order; None if they do not."""
        if not parts:
            return True if offset == whole.shape[-1] else None
        for call, samples in parts.items():
            rest = {other: made for other, made in parts.items() if other != call}
            for part in samples:
                end = offset + part.shape[-1]
                is_same, is_certain = shared_share(whole, part, offset) if end <= whole.shape[-1] else (False, False)
                behind = self._place_parts(whole, rest, end) if is_same else None
                if behind is not None:
                    return is_certain and behind
        return None

    @cached_property
    def _by_call(self) -> dict[ModuleCall, tuple[IssuedValue, ...]]:
        computed = (value for value in self.issued.values() if value.new and value.number in self._run.computed)
        return group_by_key((value.op.call, value) for value in computed)

    @property
    def ops(self) -> tuple[IssuedOp, ...]:
        return self._run.ops

    @property
    def calls(self) -> tuple[CallTensors, ...]:
        return self._run.calls

    @property
    def hooked(self) -> frozenset[str]:
        """Paths of modules with forward hooks."""
        return self._run.hooked

    def is_input(self, sample: Sample) -> bool:
        """Whether it is what the model was given, or a part of it: anybody can hand that on."""
        return any(alike(self._samples[number], sample) for number in self._run.given)

    def operators_behind(self, value: IssuedValue, known: Container[int]) -> list[IssuedOp]:
        """Backward slice: the operator of a value and those before it that made something new, back to known values."""

        def read_by(number: int) -> list[int]:
            """What the operator of a value read, as far as it is worked out from the model's inputs."""
            unknown = [read for read in self.issued[number].op.reads if read not in known and read != value.number]
            return [read for read in unknown if read in self.issued and read in self._run.computed]

        behind = (self.issued[number] for number in backward_slice(read_by(value.number), read_by))
        return [value.op, *(source.op for source in behind if source.new and not source.op.view)]

    def shape(self, value: IssuedValue) -> tuple[int, ...]:
        return self._samples[value.number].shape

    def reads_all(self, value: IssuedValue, wanted: Iterable[Sample]) -> bool:
        """Whether the operator of a value read all of these."""
        read = [self._samples[number] for number in value.op.reads]
        return all(any(alike(seen, sample) for sample in read) for seen in wanted)

    @cached_property
    def _index(self) -> SampleIndex:
        return SampleIndex({number: self._samples[number] for number in self.issued if number in self._run.computed})


def find_first_difference(run: EagerRun, samples: Sequence[Sample], others: Sequence[Sample]) -> str:
    """The call of the first value that differs between two runs of the same operators: not deterministic there."""
    for op in run.ops:
        if any(number >= len(others) or not alike(samples[number], others[number]) for number in op.makes):
            return str(op.call) or "the model itself"
    return ""
