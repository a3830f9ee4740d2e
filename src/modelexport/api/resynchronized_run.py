"""A run of a file that computes other numbers than the model: where it goes wrong, it goes on with the model's value.

So what lies behind a wrong value is judged by itself (verify/resynchronization.py). A wrong guess of which value of the
model is missing leads to nothing: it is not made again in the next run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from modelexport.api.model_runs import watch_again
from modelexport.api.value_comparison import ValueSampler
from modelexport.errors import RuntimeFailed
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.sample import Sample
from modelexport.verify.evidence import SeenValues
from modelexport.verify.resynchronization import Exchange, ModelDataflow, Resynchronizer
from modelexport.verify.series import SeenRun
from modelexport.verify.witness import OperatorSources

if TYPE_CHECKING:
    from modelexport.capture.export import TracedRun
    from modelexport.capture.tensor_spill import TensorSpill

# Values that may be computed, in all runs together: so many times those of one run, and some for small files.
_MOST_TIMES, _LEAST = 8, 20_000
# Bytes of values of the model that are kept for it: of large models, those that are computed first.
_ROOM = 1 << 32


def run_resynchronized(file: TaggedFile, run: TracedRun, first: SeenRun, seed: int) -> SeenRun:
    """A run of the file on the same inputs in which more is right; `first`, without exchanges, if none is."""
    from modelexport.capture.tensor_spill import TensorSpill

    dataflow = ModelDataflow(first.run, first.samples, OperatorSources(first.run, first.samples))
    held = frozenset[int]().union(*map(dataflow.numbers_like, first.seen.values()))
    computed = SeenValues(file.graph, {}).computed
    best, most, rejected = first, _count_known(file, computed, dataflow, first), set[Exchange]()
    room = _MOST_TIMES * len(file.graph.nodes) + _LEAST
    with TensorSpill() as spill:
        again = watch_again(run, spill, seed, _list_missing(dataflow, held))
        if len(again.samples) != len(first.samples):
            return first
        while room > 0:
            resynchronizer = Resynchronizer(file.graph, computed, dataflow, held, spill.__contains__, rejected)
            exchanging = _ExchangingRun(file, resynchronizer, spill, room)
            with suppress(RuntimeFailed):  # values that do not fit together
                exchanging.perform(run)
                if resynchronizer.known > most and not resynchronizer.ambiguous:
                    best, most = exchanging.result(first), resynchronizer.known
            room = exchanging.room
            wrong = [*resynchronizer.unconfirmed[:1], *resynchronizer.ambiguous]
            if not wrong:
                break
            rejected.update(wrong)
    return best


def _count_known(file: TaggedFile, computed: Collection[str], dataflow: ModelDataflow, run: SeenRun) -> int:
    """How many values of a run hold what the model made, as a run counts them in which values are exchanged."""
    counting = Resynchronizer(file.graph, computed, dataflow, (), lambda _: False)
    for name, seen in run.seen.items():
        counting.see(name, seen)
    return counting.known


def _list_missing(dataflow: ModelDataflow, held: Collection[int]) -> frozenset[int]:
    missing, room = set(), _ROOM
    for number, content in dataflow.samples.items():
        if number not in held and room > 0:
            missing.add(number)
            room -= content.size * 4
    return frozenset(missing)


class _ExchangingRun:
    """room  values that it may compute"""

    def __init__(self, file: TaggedFile, resynchronizer: Resynchronizer, spill: TensorSpill, room: int) -> None:
        self._file, self._resynchronizer, self._spill = file, resynchronizer, spill
        self._sampler = ValueSampler(file)
        self._wrong: dict[str, Sample] = {}
        self.room = room

    def perform(self, run: TracedRun) -> None:
        from modelexport.capture.onnxruntime.bodies import BodyRuns
        from modelexport.capture.onnxruntime.piecewise import PiecewiseRun
        from modelexport.capture.onnxruntime.session import bind_inputs

        bodies = BodyRuns(self._file, lambda name, number, array: self._sampler.take(name, array, number))
        pieces = PiecewiseRun(self._file, often=False)
        pieces.run(bind_inputs(self._file.proto, run.arguments.arrays), self._see, bodies.visit, self._revise)

    def result(self, first: SeenRun) -> SeenRun:
        """What was seen; a guess that nothing confirmed is none, and nothing is seen behind it."""
        guessed = {name: first.seen[name] for name in self._resynchronizer.doubtful if name in first.seen}
        confirmed = {exchange.name for exchange in self._resynchronizer.confirmed}
        wrong = {name: sample for name, sample in self._wrong.items() if name not in confirmed}
        seen, rounds = {**self._sampler.seen, **guessed, **wrong}, tuple(self._sampler.rounds)
        return replace(first, seen=seen, rounds=rounds, exchanged=frozenset(confirmed))

    def _see(self, name: str, array: np.ndarray) -> None:
        self._resynchronizer.see(name, self._sampler.take(name, array))

    def _revise(self, arrays: Mapping[str, np.ndarray], is_last: bool) -> tuple[str, np.ndarray | None] | None:
        samples = {name: self._sampler.take(name, array) for name, array in arrays.items()}
        exchange = self._resynchronizer.choose(samples, is_last=is_last) if self.room > 0 else None
        self.room -= len(samples)
        if exchange is None:
            return None
        if exchange.number is None:
            return exchange.name, None
        self._resynchronizer.exchanged[exchange.name] = exchange
        self._wrong[exchange.name] = samples[exchange.name]
        return exchange.name, np.array(self._spill.get(exchange.number), arrays[exchange.name].dtype)
