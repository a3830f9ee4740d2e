"""Runs of a model and graphs, told by hand or at random."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from hypothesis import strategies as st
from tests.building import model, node

from modelexport.graph.sample import Sample, sample
from modelexport.proving.issuing import Issuing
from modelexport.record.eager import EagerRun, IssuedOp
from modelexport.record.hierarchy import ModuleCall

WIDTH = 12


def numbers(seed: int, *shape: int) -> np.ndarray:
    """Numbers that nobody else has."""
    return np.random.default_rng(seed).standard_normal(shape or (2, WIDTH)).astype(np.float32)


class Story:
    """A run of a model, operator by operator. Values have names; numbers are counted up."""

    def __init__(self, **inputs: np.ndarray) -> None:
        self.arrays = dict(inputs)
        self._inputs = tuple(inputs)
        self._computed = set(inputs)
        self._ops: list[tuple[str, str, list[str], list[str]]] = []

    def holds(self, **tensors: np.ndarray) -> Story:
        """Parameters, and whatever else does not depend on the inputs."""
        self.arrays |= tensors
        return self

    def op(self, call: str, reads: str, **made: np.ndarray) -> Story:
        """`call` issued an operator that read values (blanks between names) and made others."""
        given = reads.split()
        self.arrays |= made
        if not self._computed.isdisjoint(given):
            self._computed |= made.keys()
        self._ops.append((f"op{len(self._ops)}", call, given, list(made)))
        return self

    def number(self, name: str) -> int:
        return list(self.arrays).index(name)

    def _numbers(self, names: Sequence[str]) -> tuple[int, ...]:
        return tuple(map(self.number, names))

    @property
    def samples(self) -> tuple[Sample, ...]:
        return tuple(map(sample, self.arrays.values()))

    @property
    def run(self) -> EagerRun:
        ops = [
            IssuedOp(name, ModuleCall.parse(call), self._numbers(reads), self._numbers(makes))
            for name, call, reads, makes in self._ops
        ]
        inputs = {name: self.number(name) for name in self._inputs}
        return EagerRun(tuple(ops), (), inputs, {}, frozenset(map(self.number, self._computed)))

    @property
    def issuing(self) -> Issuing:
        return Issuing(self.run, self.samples)


@st.composite
def dags(draw: st.DrawFn, most: int = 8) -> onnx.ModelProto:
    """A graph whose nodes v0, v1, … read the input x and one another in any way that has no circle."""
    count = draw(st.integers(1, most))
    nodes = []
    for place in range(count):
        before = ["x", *(f"v{other}" for other in range(place))]
        read = draw(st.lists(st.sampled_from(before), min_size=1, max_size=3, unique=True))
        nodes.append(node("Sum", " ".join(read), f"v{place}"))
    outputs = draw(st.sets(st.integers(0, count - 1), min_size=1))
    return model(*nodes, outputs=" ".join(f"v{place}" for place in sorted(outputs)))
