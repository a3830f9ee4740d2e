"""Value comparison: the values of a file while it runs, beside a run that is believed.

Every value is sampled as it is made, and compared where it crosses a module; so the first module whose numbers diverge
is known, and a file larger than memory can be verified. The believed run is that of the model or of another file.

    believed   layer.0 returns t3, layer.1 returns t5       kept on disk (`TensorSpill`)
    file       … v12 (leaves layer.0) … v20 (leaves layer.1)
    compared   v12 with t3: agrees; v20 with t5: differs, so layer.1 is the first that diverges
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np

from modelexport.api.relink import relink_graph
from modelexport.graph.file.metadata import ensure_flat
from modelexport.graph.file.reading import initializer_arrays
from modelexport.graph.file.tagged_file import TaggedFile, find_ancestor, open_tagged
from modelexport.graph.sample import Sample, sample
from modelexport.record.hierarchy import ROOT, ModuleCall
from modelexport.record.results.verification import (
    CallNumbers,
    Difference,
    Divergence,
    NotFinite,
    SuddenLoss,
    Tolerance,
)
from modelexport.record.signals import CallTensors
from modelexport.verify.divergence import (
    ComparedCall,
    class_name,
    compare_calls,
    find_first_divergence,
    find_nonfinite_origins,
    find_sudden_losses,
    summarize_calls,
)
from modelexport.verify.numbers import ReferenceRun, ValueComparison
from modelexport.verify.parameter_check import find_coarse_weights


class RunComparison:
    def __init__(
        self, file: TaggedFile, reference: ReferenceRun, outputs: Mapping[str, int], tolerance: Tolerance
    ) -> None:
        """outputs  of the reference, by name"""
        self._numbers = ValueComparison(reference, file.graph, file.crossings, tolerance)
        self._sampler = ValueSampler(file)
        self._file, self._reference, self._outputs = file, reference, outputs
        # A graph may return one value under several names of the model.
        self._labels: dict[str, list[str]] = {}
        for name, label in pair_outputs(file.graph.outputs, outputs):
            self._labels.setdefault(name, []).append(label)
        self._returned: dict[str, Difference] = {}

    def see(self, name: str, array: np.ndarray) -> None:
        """Called by the run for each value, in the order of execution; the array is not valid afterwards."""
        self._numbers.compare_value(name, array, self._sampler.take(name, array))
        self.see_output(name, array)

    def see_inside(self, name: str, number: int, array: np.ndarray) -> None:
        """Called for each value of a body with the number of its round; not compared, as it may be one of many."""
        self._sampler.take(name, array, number)

    def see_output(self, name: str, array: np.ndarray) -> None:
        """Compare a value with what the model returned, if it is returned."""
        for label in self._labels.get(name, ()):
            if self._reference.kept(self._outputs[label]):
                # What went through a coarse type is as coarse as that, whatever type it is returned in.
                seen = self._sampler.seen.get(name) or sample(array)
                self._returned[label] = self._compared(self._outputs[label], array, seen)

    def finding(self, calls: Sequence[CallTensors]) -> SampleComparison:
        """What the run showed, once it is over; `calls` are those of the reference."""
        graph, provenance, numbers = self._file.graph, self._file.provenance, self._numbers
        for label, difference in self._returned.items():
            self._returned[label] = self._reference.settle(self._outputs[label], difference)
        numbers.finish(outputs_differ=not all(difference.agrees for difference in self._returned.values()))
        compared = compare_calls(calls, numbers)
        paired = {label for labels in self._labels.values() for label in labels}
        summarized = summarize_calls(compared.values(), provenance)
        # The first in the order of execution: all that come behind it may only repeat its error.
        divergence = find_first_divergence(compared, numbers, graph, self._file.crossings, provenance)
        divergence = divergence or self._wrong_output()
        losses: tuple[SuddenLoss, ...] = ()
        if divergence is None and not numbers.is_coarse and not numbers.tolerance.is_chosen:
            losses = find_sudden_losses(compared, summarized, provenance.hierarchy, self._reference.noise)
        return SampleComparison(
            calls=summarized,
            outputs={name: self._returned[name] for name in self._outputs if name in self._returned},
            missing=tuple(name for name in self._outputs if name not in paired),
            skipped=tuple(name for name in self._outputs if name in paired and name not in self._returned),
            divergence=divergence,
            not_finite=tuple(find_nonfinite_origins(graph, provenance, self._sampler.seen, numbers.has_trouble)),
            seen=self._sampler.seen,
            compared=compared,
            rounds=tuple(self._sampler.rounds),
            sudden_losses=losses,
        )

    def _wrong_output(self) -> Divergence | None:
        """An output that differs where no module can be named: somewhere in the model it goes wrong."""
        root = ModuleCall(ROOT)
        for name, labels in self._labels.items():
            compared = [self._returned[label] for label in labels if label in self._returned]
            maker = self._file.graph.producers.get(name)
            if maker is not None and not all(difference.agrees for difference in compared):
                class_of_root = class_name(self._file.provenance.hierarchy, root)
                return Divergence((root,), (class_of_root,), maker.key, None, compared[0], maker.name)
        return None

    def _compared(self, number: int, array: np.ndarray, seen: Sample) -> Difference:
        wanted = self._reference.get(number)
        if wanted.shape == array.shape:
            return self._numbers.measure_against(number, array, seen)
        nan = float("nan")
        return Difference(nan, nan, float("-inf"), nan, wanted.size, agrees=False)


@dataclass(frozen=True)
class SampleComparison:
    """
    seen     samples of the file's values; of what is inside of bodies, in the first round
    rounds   of the values inside of bodies, in each round after the first
    missing  outputs of the reference that the file does not have
    skipped  outputs that it has and that were not compared
    compared which values of each call were held against which
    """

    calls: tuple[CallNumbers, ...]
    outputs: Mapping[str, Difference]
    missing: tuple[str, ...]
    skipped: tuple[str, ...]
    divergence: Divergence | None
    not_finite: tuple[NotFinite, ...]
    seen: Mapping[str, Sample]
    compared: Mapping[ModuleCall, ComparedCall] = field(default_factory=dict)
    rounds: Sequence[Mapping[str, Sample]] = ()
    sudden_losses: tuple[SuddenLoss, ...] = ()


class ValueSampler:
    """Samples of a run's values, each no finer than what it was made from.

    A float32 that was computed from int8 weights is as coarse as these, and is judged by their grain.
    """

    def __init__(self, file: TaggedFile) -> None:
        self.seen: dict[str, Sample] = {}
        self.rounds: list[dict[str, Sample]] = []
        self._graph = file.graph
        self._weights = find_coarse_weights(file, file.provenance)

    def take(self, name: str, array: np.ndarray, number: int = 0) -> Sample:
        """number  of the round, for a value of a body"""
        maker = self._graph.producers.get(name)
        read = () if maker is None else maker.inputs
        while len(self.rounds) < number:
            self.rounds.append({})
        seen = self.rounds[number - 1] if number else self.seen
        sources = (seen.get(value) or self.seen.get(value) or self._weights.get(value) for value in read)
        seen[name] = sample(array).made_from(filter(None, sources))
        return seen[name]


def crossing_values(file: TaggedFile) -> frozenset[str]:
    """The values that cross a module, and what the model returns."""
    crossing = chain(file.crossings.leaves.items(), file.crossings.enters.items())
    return frozenset(value for value, calls in crossing if calls).union(file.graph.outputs)


def pair_outputs(outputs: Sequence[str], others: Iterable[str]) -> list[tuple[str, str]]:
    """Outputs of a graph with those of the reference: by name, and what remains by place.

    If some names differ of as many outputs, somebody has renamed them, and names may be those of others: then by place.

        outputs x, a   others a, y, z   ─►   (x, y), (a, a)
        outputs b, b_2 others a, b      ─►   (b, a), (b_2, b)      as many, so by place
    """
    left = list(others)
    if len(outputs) == len(left) and set(outputs) != set(left):
        return list(zip(outputs, left, strict=True))
    pairs = [(name, name if name in left else None) for name in outputs]
    left = [name for name in left if name not in outputs]
    return [(name, same or left.pop(0)) for name, same in pairs if same or left]


def compare_stored_outputs(file: TaggedFile, observer: RunComparison) -> None:
    """What a model returns may be a weight: no node makes it."""
    stored = set(file.graph.outputs) & set(file.graph.initializers)
    # Asked first: reading the weights of a large file takes its time, and hardly any model returns one.
    for name, array in initializer_arrays(file) if stored else ():
        if name in stored:
            observer.see_output(name, array)


@contextmanager
def optimize_for_run(file: TaggedFile) -> Iterator[TaggedFile]:
    """The graph that ONNX Runtime makes of a file, optimized, with the inherited record; valid in the block."""
    from modelexport.transform.tools.optimizers import save_optimized

    # ONNX Runtime puts functions in the places of their calls, and the modules inside are lost.
    ensure_flat(file.proto, str(file.path))
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "optimized.onnx"
        save_optimized(file.path, target)
        optimized = open_tagged(target)
        yield replace(optimized, believed=relink_graph(find_ancestor(file), optimized, "ort:all").provenance)
