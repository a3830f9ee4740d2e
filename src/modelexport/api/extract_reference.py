"""What an extracted file is held against: one run of the model, and one of the whole file on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from modelexport.api.foreign import Source
from modelexport.api.observing import with_crossings
from modelexport.api.opening import OpenedFile
from modelexport.api.surroundings import Clock
from modelexport.api.verification import ModelRuns, Plan, watched_run
from modelexport.graph.sample import Sample
from modelexport.record.eager import CallTensors
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.verification import Tolerance

if TYPE_CHECKING:
    from modelexport.capture.eager import Watched
    from modelexport.capture.spool import Spool

See: TypeAlias = Callable[[str, np.ndarray], None]


@dataclass(frozen=True)
class Reference:
    """A run of the model, and what the whole file makes of the same inputs.

    values  of the file, by id: those at the ends of what is to be checked
    again   runs the whole file once more, and shows every value of it
    """

    name: str
    watched: Watched
    spool: Spool
    values: Mapping[str, np.ndarray]
    again: Callable[[See], None]

    def given(self, calls: Iterable[ModuleCall]) -> list[int]:
        return self._numbers(calls, inputs=True)

    def returned(self, calls: Iterable[ModuleCall]) -> list[int]:
        return self._numbers(calls, inputs=False)

    def _numbers(self, calls: Iterable[ModuleCall], *, inputs: bool) -> list[int]:
        tensors = [self._by_call[call] for call in calls if call in self._by_call]
        found = (number for one in tensors for number in (one.inputs if inputs else one.outputs))
        return [number for number in dict.fromkeys(found) if number in self.spool]

    @cached_property
    def _by_call(self) -> Mapping[ModuleCall, CallTensors]:
        return {one.call: one for one in self.watched.run.calls}

    @cached_property
    def kept(self) -> list[int]:
        """All values that can be had: what crosses the border of any module."""
        return [number for number in range(len(self.watched.samples)) if number in self.spool]

    def sample(self, number: int) -> Sample:
        return self.watched.samples[number]


def run_reference(
    opened: OpenedFile,
    source: Source,
    inputs: object,
    spool: Spool,
    clock: Clock,
    wanted: frozenset[str] | None,
) -> Reference:
    """Run the model and the whole file once; `wanted` are the values of the file to be kept, None for all."""
    from modelexport.capture.arrays import to_array
    from modelexport.capture.feeding import feed_for
    from modelexport.capture.pieces import PiecewiseRun

    plan = Plan(inputs, 1, source.seed, tuple(source.input), Tolerance(), as_deployed=False, proof=False)
    runs = ModelRuns(with_crossings(opened, opened.subject), source, plan, clock)
    with clock.step("model"):
        watched = watched_run(runs.first, spool, plan.seed)
    values: dict[str, np.ndarray] = {}

    def see(name: str, array: np.ndarray) -> None:
        if wanted is None or name in wanted:
            values[name] = np.array(array)

    arrays = {name: to_array(tensor) for name, tensor in runs.first.arguments.tensors.items()}
    feed = feed_for(opened.file.proto, arrays)

    def again(show: See) -> None:
        PiecewiseRun(opened.file, None, often=False).run(feed, show)

    for name, array in feed.items():  # a part may read what the model is given
        see(name, array)
    with clock.step("file"):
        PiecewiseRun(opened.file, wanted, often=False).run(feed, see)
    return Reference(runs.prepared.source, watched, spool, values, again)
