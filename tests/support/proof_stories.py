"""Runs of a model and graphs, told by hand or at random."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
from hypothesis import strategies as st
from tests.support.building import model, node, provenance, tree

from modelexport.graph.crossings import find_crossings
from modelexport.graph.index import index_model
from modelexport.graph.sample import Sample, sample
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.results.verification import Difference, Tolerance
from modelexport.record.signals import CallTensors, EagerRun, IssuedOp
from modelexport.verify.numbers import ReferenceRun, ValueComparison
from modelexport.verify.witness import OperatorSources

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
        self._given = set(inputs)
        self._hooked: set[str] = set()
        self._ops: list[tuple[str, str, list[str], list[str], bool]] = []

    def holds(self, **tensors: np.ndarray) -> Story:
        """Parameters, and whatever else does not depend on the inputs."""
        self.arrays |= tensors
        return self

    def op(self, call: str, reads: str, **made: np.ndarray) -> Story:
        """`call` issued an operator that read values (blanks between names) and made others."""
        return self._issued(call, reads, made, view=False)

    def view(self, call: str, reads: str, **made: np.ndarray) -> Story:
        """`call` looked at a value in another way."""
        if not self._given.isdisjoint(reads.split()):
            self._given |= made.keys()
        return self._issued(call, reads, made, view=True)

    def hooks(self, path: str) -> Story:
        """Somebody attached a hook to a module."""
        self._hooked.add(path)
        return self

    def _issued(self, call: str, reads: str, made: Mapping[str, np.ndarray], *, view: bool) -> Story:
        given = reads.split()
        self.arrays |= made
        if not self._computed.isdisjoint(given):
            self._computed |= made.keys()
        self._ops.append((f"op{len(self._ops)}", call, given, list(made), view))
        return self

    def number(self, name: str) -> int:
        return list(self.arrays).index(name)

    def _numbers(self, names: Iterable[str]) -> tuple[int, ...]:
        return tuple(map(self.number, names))

    @property
    def samples(self) -> tuple[Sample, ...]:
        return tuple(map(sample, self.arrays.values()))

    @property
    def run(self) -> EagerRun:
        ops = [
            IssuedOp(name, ModuleCall.parse(call), self._numbers(reads), self._numbers(makes), view)
            for name, call, reads, makes, view in self._ops
        ]
        return EagerRun(
            ops=tuple(ops),
            calls=(),
            inputs={name: self.number(name) for name in self._inputs},
            outputs={},
            computed=frozenset(map(self.number, self._computed)),
            given=frozenset(map(self.number, self._given)),
            hooked=frozenset(self._hooked),
        )

    @property
    def sources(self) -> OperatorSources:
        return OperatorSources(self.run, self.samples)


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


class Comparison:
    """A run that is believed, and a graph whose values are held against it.

    tags      the owners of each node, blanks between several; nobody where there is no entry
    calls     in the order in which they end: names of what each was given and returned, as in `x > h`
    believed  the values of the run that is believed, by name
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        tags: Mapping[str, str],
        calls: Mapping[str, str],
        believed: Mapping[str, np.ndarray],
        tolerance: Tolerance = Tolerance(),  # noqa: B008 - frozen
    ) -> None:
        names = list(believed)
        self.graph = index_model(proto)
        paths = sorted({"", *(call.partition("#")[0] for call in calls)})
        hierarchy = tree(dict.fromkeys(paths, "Block"))
        self.record = provenance(proto, hierarchy, {key: owners.split(" ") for key, owners in tags.items()})
        self.crossings = find_crossings(self.graph, self.record)
        self.calls = tuple(_call(call, text, names) for call, text in calls.items())
        samples = {number: sample(array) for number, array in enumerate(believed.values())}
        crossing = {number for item in self.calls for number in (*item.inputs, *item.outputs)}
        reference = ReferenceRun(self.calls, samples, crossing.__contains__, lambda number: believed[names[number]])
        self.numbers = ValueComparison(reference, self.graph, self.crossings, tolerance)
        self.numbers.finish(outputs_differ=True)  # these stories are about wrong results

    def see(self, **values: np.ndarray) -> Comparison:
        """Values of the graph, in the order in which they are made."""
        for name, array in values.items():
            self.numbers.compare_value(name, array, sample(array))
        return self

    def given(self, call: str) -> dict[str, Difference]:
        return {pairing.value: pairing.difference for pairing in self.numbers.inputs_of(self._item(call))}

    def returned(self, call: str) -> dict[str, Difference]:
        return {pairing.value: pairing.difference for pairing in self.numbers.outputs_of(self._item(call))}

    def _item(self, call: str) -> CallTensors:
        (found,) = [item for item in self.calls if item.call == ModuleCall.parse(call)]
        return found


def _call(call: str, text: str, names: Sequence[str]) -> CallTensors:
    given, _, returned = text.partition(">")
    numbers = [tuple(names.index(name) for name in side.split()) for side in (given, returned)]
    return CallTensors(ModuleCall.parse(call), *numbers)
