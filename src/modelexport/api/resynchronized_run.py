"""A run of a file that computes other numbers than the model: where it goes wrong, it goes on with the model's value.

So what lies behind a wrong value is judged by itself (verify/resynchronization.py). A wrong guess of which value of the
model is missing leads to nothing: it is not made again in the next run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from modelexport.api.model_runs import watch_again
from modelexport.api.value_comparison import ValueSampler
from modelexport.errors import RuntimeFailed
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.sample import sample
from modelexport.verify.evidence import SeenValues
from modelexport.verify.resynchronization import Exchange, ModelDataflow, Resynchronizer
from modelexport.verify.series import SeenRun
from modelexport.verify.witness import OperatorSources

if TYPE_CHECKING:
    from modelexport.capture.export import TracedRun
    from modelexport.capture.tensor_spill import TensorSpill

_MOST_RUNS = 4
# Bytes of values of the model that are kept for it: of large models, those that are computed first.
_ROOM = 1 << 32


def run_resynchronized(file: TaggedFile, run: TracedRun, first: SeenRun, seed: int) -> SeenRun:
    """A run of the file on the same inputs in which more is right, if there is one.

    first  the run in which nothing was exchanged
    """
    from modelexport.capture.tensor_spill import TensorSpill

    dataflow = ModelDataflow(first.run, first.samples, OperatorSources(first.run, first.samples))
    held = frozenset[int]().union(*map(dataflow.ids_like, first.seen.values()))
    with TensorSpill() as spill:
        again = watch_again(run, spill, seed, _list_missing(dataflow, held))
        if len(again.samples) != len(first.samples):
            return first
        best, most = first, 0
        rejected: set[Exchange] = set()
        for _ in range(_MOST_RUNS):
            exchanging = _ExchangingRun(file, run, spill, dataflow, held, rejected)
            try:
                seen = exchanging.perform(first)
            except RuntimeFailed:
                return best
            resynchronizer = exchanging.resynchronizer
            if resynchronizer.known > most:
                best, most = seen, resynchronizer.known
            if not resynchronizer.guessed_wrong:
                break
            rejected.add(resynchronizer.guessed_wrong[0])
    return best


def _list_missing(dataflow: ModelDataflow, held: Collection[int]) -> frozenset[int]:
    missing, room = set(), _ROOM
    for number, content in dataflow.samples.items():
        if dataflow.id_of(number) not in held and room > 0:
            missing.add(number)
            room -= content.size * 4
    return frozenset(missing)


class _ExchangingRun:
    def __init__(
        self,
        file: TaggedFile,
        run: TracedRun,
        spill: TensorSpill,
        dataflow: ModelDataflow,
        held: Collection[int],
        rejected: Collection[Exchange],
    ) -> None:
        self._file, self._run, self._spill = file, run, spill
        computed = SeenValues(file.graph, {}).computed
        self.resynchronizer = Resynchronizer(file.graph, computed, dataflow, held, spill.__contains__, rejected)
        self._sampler = ValueSampler(file)
        self._wrong: dict[str, object] = {}

    def perform(self, first: SeenRun) -> SeenRun:
        from modelexport.capture.onnxruntime.bodies import BodyRuns
        from modelexport.capture.onnxruntime.piecewise import PiecewiseRun
        from modelexport.capture.onnxruntime.session import bind_inputs

        bodies = BodyRuns(self._file, lambda name, number, array: self._sampler.take(name, array, number))
        pieces = PiecewiseRun(self._file, often=False)
        pieces.run(bind_inputs(self._file.proto, self._run.arguments.arrays), self._see, bodies.visit, self._revise)
        seen = dict(self._sampler.seen)
        return replace(first, seen=seen, rounds=tuple(self._sampler.rounds), exchanged=frozenset(self.resynchronizer.exchanged))

    def _see(self, name: str, array: np.ndarray) -> None:
        self.resynchronizer.see(name, self._sampler.take(name, array))

    def _revise(self, arrays: Mapping[str, np.ndarray], is_last: bool) -> tuple[str, np.ndarray | None] | None:
        samples = {name: self._sampler.take(name, array) for name, array in arrays.items()}
        exchange = self.resynchronizer.choose(samples, is_last=is_last)
        if exchange is None:
            return None
        if exchange.number is None:
            return exchange.name, None
        self.resynchronizer.exchanged[exchange.name] = exchange
        return exchange.name, np.array(self._spill.get(exchange.number), arrays[exchange.name].dtype)
