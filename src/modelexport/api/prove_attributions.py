"""Proof of attributions: by the run that was compared, then by further ones as long as these can show more nodes.

    first run     input_ids 2x8     sizes 2, 8, 16, …      and masks of 2x8
    further run   input_ids 1x5     sizes 1, 5, 10, …      what agrees in both is no chance

A further run costs less than the first: axes are shorter where they can be, and values are sampled, not compared. torch
traces the model meanwhile: what models leave out in a plain run (a mask that hides nothing) is in the file, as it was
traced, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from modelexport.api.value_comparison import ValueSampler
from modelexport.errors import InputError, RuntimeFailed
from modelexport.graph.file.reading import initializer_arrays
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.operators import random_nodes
from modelexport.graph.sample import sample
from modelexport.graph.types import computed_size, input_dims
from modelexport.record.provenance import Provenance
from modelexport.record.results.verification import AttributionProof, NodeProof
from modelexport.verify.attribution import AttributionProver
from modelexport.verify.enclosure import ProofCompletion
from modelexport.verify.evidence import SeenValues
from modelexport.verify.series import RunSeries, SeenRun
from modelexport.verify.witness import OperatorSources

if TYPE_CHECKING:
    from modelexport.capture.arguments import CallArguments
    from modelexport.capture.export import TracedRun

_MOST_FURTHER = 2
# Axes that are longer than this are cut to these parts of them, the first that model and file take.
_LONG = 64
_PARTS = (8, 2)


class AttributionWitness:
    """A file and its model, run on the same inputs, to hold attributions against.

    first    the run that was compared
    run      the model, and what it was given
    trouble  why numbers of the first run cannot be relied on everywhere, if they cannot
    """

    def __init__(self, file: TaggedFile, first: SeenRun, run: TracedRun, *, trouble: str, seed: int) -> None:
        drawing = {node.key for node in random_nodes(file.proto)}
        self._values = SeenValues(file.graph, first.seen, first.rounds, drawing, first.exchanged)
        sources = OperatorSources(first.run, first.samples)
        self._weights = {name: sample(array, is_sound=True) for name, array in initializer_arrays(file)}
        self._prover = AttributionProver(self._values, file.provenance, sources, trouble, self._weights)
        self._exact = not trouble
        self._runs: list[SeenRun] = [first]
        self._others: Iterator[SeenRun] | None = None
        self._run_again = partial(_run_again, file, run, seed)

    def judge_nodes(self, provenance: Provenance, keys: Iterable[str]) -> list[NodeProof]:
        """The verdict of the first run alone on some nodes: what it contradicts, further ones do not change."""
        prover = self._prover.judging(provenance)
        return [prover.prove_node(self._values.graph.by_key[key]) for key in keys]

    def prove(self, provenance: Provenance) -> AttributionProof:
        """The verdict on every node; further runs are made if they are needed, and kept."""
        proof = self._prover.judging(provenance).prove()
        graph, stack = self._values.graph, provenance.hierarchy.stack
        completion = ProofCompletion(graph, stack, proof, self._values.drawing, exact=self._exact)
        # What is undecided in the first record that is judged is seen in further runs.
        self._others = self._others or self._run_again(completion.wanted)
        while True:
            series = RunSeries(self._runs, self._weights)
            proof = completion.complete(series)
            further = next(self._others, None) if completion.wants_more(proof, series) else None
            if further is None:
                return proof
            self._runs.append(further)


def _run_again(file: TaggedFile, run: TracedRun, seed: int, wanted: Collection[str]) -> Iterator[SeenRun]:
    """Further runs on inputs that both take. wanted: names of the file's values to be seen."""
    made, is_traced = 0, True
    for arguments in _other_arguments(file, run, seed):
        for traced in (True, False) if is_traced else (False,):
            # A model has every right to refuse sizes, and a file may be right for one size only.
            with suppress(InputError, RuntimeFailed):
                further = _run_both(file, run, arguments, wanted, seed=seed, traced=traced)
                is_traced, made = traced, made + 1
                yield further
                break
        if made == _MOST_FURTHER:
            return


def _other_arguments(file: TaggedFile, run: TracedRun, seed: int) -> Iterator[CallArguments]:
    from modelexport.capture.arguments import reorder_inputs, resample_inputs
    from modelexport.capture.onnxruntime.session import assign_inputs

    assigned = assign_inputs(file.proto, run.arguments.arrays)
    numbers = range(1, _MOST_FURTHER + 1)
    choices = [_other_sizes(file, assigned, run.arguments, part, number) for part in _PARTS for number in numbers]
    distinct = [choice for index, choice in enumerate(choices) if choice not in choices[:index]]
    resized = [run.arguments.with_sizes(choice) for choice in distinct]
    sizes = ([sized for sized in resized if sized is not None], [run.arguments] * _MOST_FURTHER)
    for change, sized in itertools.product((resample_inputs, reorder_inputs), sizes):
        for number, arguments in enumerate(sized, start=1):
            other = change(arguments, seed + number)
            yield other.with_mask(set(assigned.values())) or other


def _other_sizes(
    file: TaggedFile, assigned: Mapping[str, str], arguments: CallArguments, part: int, number: int
) -> Mapping[str, Mapping[int, int]]:
    """By argument and axis: another size for each axis that the file leaves open. Axes of one size get one size.

    An axis may be named by what it is computed from: `past + sequence`.
    """
    shapes = {name: tuple(arguments.tensors[source].shape) for name, source in assigned.items()}
    dims = {value.name: input_dims(value) or () for value in file.proto.graph.input if value.name in assigned}
    axes = [(name, axis, dim) for name in shapes for axis, dim in enumerate(dims[name]) if isinstance(dim, str)]
    known = {dim: _other_size(shapes[name][axis], part, number) for name, axis, dim in axes}
    sizes: dict[str, dict[int, int]] = {}
    for name, axis, dim in axes:
        others = {other: size for other, size in known.items() if other != dim}
        sizes.setdefault(assigned[name], {})[axis] = computed_size(dim, others) or known[dim]
    return sizes


def _other_size(size: int, part: int, number: int) -> int:
    """Shorter, so that it costs less, and another one in each run. Of a long axis an eighth will do, as a rule.

    128 ─► 17, 18      8 ─► 5, 6      2 ─► 1, 2      1 ─► 2, 3
    """
    if size == 1:
        return size + number
    if size > _LONG:
        return size // part + number
    return min(size // 2 + number, size - 1) if size > 3 else max(size - 2 + number, 1)


def _run_both(
    file: TaggedFile, run: TracedRun, arguments: CallArguments, wanted: Collection[str], *, seed: int, traced: bool
) -> SeenRun:
    from modelexport.capture.eager import watch_run
    from modelexport.capture.isolation import EXPORT_LOCK, exportable_moe
    from modelexport.capture.onnxruntime.bodies import BodyRuns
    from modelexport.capture.onnxruntime.piecewise import PiecewiseRun
    from modelexport.capture.onnxruntime.session import bind_inputs
    from modelexport.capture.silence import quiet

    with EXPORT_LOCK, quiet(), exportable_moe(run.model), run.entered():
        watched = watch_run(run.model, arguments, None, seed + 1, traced=traced)
    sampler = ValueSampler(file)
    bodies = BodyRuns(file, lambda name, number, array: sampler.take(name, array, number))
    pieces = PiecewiseRun(file, wanted, often=False)
    pieces.run(bind_inputs(file.proto, arguments.arrays), sampler.take, bodies.visit)
    return SeenRun(watched.run, watched.samples, sampler.seen, sampler.rounds)
