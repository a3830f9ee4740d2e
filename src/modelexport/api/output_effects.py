"""Effect at the outputs: how much of the noise in a file's outputs comes from each module, measured by runs.

Decibels that a module loses say nothing of what its noise does to the outputs: a later norm may remove it, a softmax
may amplify it, and where the input is noisy already, no more is lost. So the noise of one module at a time is put into
the file that is believed, which is run to its end. Noise is the difference of the two files' values:

    fed       layer.3.fc is given what the noisy file gives to it, and computes in float     ──► outputs a
    returned  what layer.3.fc returns is what the noisy file's returns                       ──► outputs b

The difference of a and b is what the module adds by itself; everything behind it runs in float in both. Nothing is
assumed of gradients, and the model is not needed.

One graph serves all modules: every value that goes in or comes out is read through an Add of a tensor that is fed, and
is zero but for the module that is measured.

    h ──► MatMul          h ──► Add (h, noise) ──► MatMul
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx

from modelexport.errors import RuntimeFailed
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.index import MAIN, Node
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.verify.divergence import ComparedCall, is_rounding
from modelexport.verify.numbers import Pairing

if TYPE_CHECKING:
    from modelexport.capture.onnxruntime.piecewise import PiecewiseRun
    from modelexport.capture.tensor_spill import TensorSpill

# Two runs of the file for each module: so many are measured, and no longer than this. The noisiest come first.
_MOST_CALLS, _MOST_SECONDS = 64, 60.0
_NOISE, _SHIFTED = "modelexport.noise", "modelexport.shifted"

_Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Effects:
    """Decibels of the outputs over the noise of one call alone.

    by_call  for those that were measured
    total    how many could be
    """

    by_call: Mapping[ModuleCall, float]
    total: int
    failure: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        if self.failure:
            return (f"the effect of modules at the outputs was not measured: {self.failure}",)
        if len(self.by_call) == self.total:
            return ()
        return (
            f"the effect at the outputs was measured of {len(self.by_call)} of {self.total} modules, noisiest first",
        )


@dataclass(frozen=True)
class NoisyRun:
    """Two files that were run on the same inputs.

    feeds     inputs of the believed file, and of the judged one
    compared  what was found of each call
    names     of the values of the believed file, by number
    values    of the believed file, by number
    """

    believed: TaggedFile
    judged: TaggedFile
    feeds: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]
    compared: Mapping[ModuleCall, ComparedCall]
    names: Mapping[int, str]
    values: TensorSpill


def measure_effects(run: NoisyRun) -> Effects:
    """Run the believed file with the noise of one module call after the other; nothing if there is no noise."""
    from modelexport.capture.onnxruntime.piecewise import PiecewiseRun
    from modelexport.capture.tensor_spill import TensorSpill

    candidates = find_candidates(run.compared, run.believed.provenance.hierarchy)
    if not candidates:
        return Effects({}, 0)
    chosen = candidates[:_MOST_CALLS]
    wanted = frozenset(pairing.value for call in chosen for pairing in (*call.inputs, *call.outputs))
    try:
        with TensorSpill() as spill:
            values = ComparedValues(run.names, run.values, spill)
            # Once more: what crosses all modules would not be in memory, and which of it counts is known only now.
            PiecewiseRun(run.judged, wanted, often=False).run(run.feeds[1], values.see)
            return Effects(_measure_calls(run, chosen, values), len(candidates))
    except RuntimeFailed as error:
        return Effects({}, len(candidates), error.message)


def _measure_calls(run: NoisyRun, calls: Sequence[ComparedCall], values: ComparedValues) -> dict[ModuleCall, float]:
    from modelexport.capture.onnxruntime.piecewise import PiecewiseRun

    shifts = {call.item.call: [*_shifts_of(call, values)] for call in calls}
    every = [shift for several in shifts.values() for shift in several]
    graph = _shift_values(run.believed, every)
    pieces = PiecewiseRun(replace(run.believed, proto=graph.proto), [*graph.outputs.values()])
    outputs = _OutputRun(pieces, run.feeds[0], graph)
    silence = {shift.noise_name: np.zeros((), values.believed(shift.number).dtype) for shift in every}
    clean = outputs.run(silence)
    started, effects = time.monotonic(), dict[ModuleCall, float]()
    for call, own in shifts.items():
        if time.monotonic() - started > _MOST_SECONDS:
            break
        fed = {shift.noise_name: values.noise(shift) for shift in own if shift.is_input}
        returned = {shift.noise_name: values.noise(shift) for shift in own if not shift.is_input}
        if returned:
            effects[call] = _decibels(clean, outputs.run(silence | fed), outputs.run(silence | returned))
    return effects


def find_candidates(compared: Mapping[ModuleCall, ComparedCall], hierarchy: Hierarchy) -> list[ComparedCall]:
    """Innermost calls whose outputs are noisy and known on both sides, the noisiest first."""
    noisy = [
        call
        for call in compared.values()
        if call.outputs and len(call.outputs) == len(call.item.outputs) and not is_rounding(call.numbers_out)
    ]
    around = {above for call in noisy for above in hierarchy.stack(call.item.call)[:-1]}
    innermost = [call for call in noisy if call.item.call not in around]
    return sorted(innermost, key=lambda call: -_lost(call))


def _lost(call: ComparedCall) -> float:
    given, made = call.numbers_in, call.numbers_out
    return (math.inf if given is None else given.sqnr) - (math.inf if made is None else made.sqnr)


@dataclass(frozen=True)
class _Shift:
    """A value of the believed file that readers read with noise: those inside of the call, or those outside of it."""

    call: ModuleCall
    value: str
    pairing: Pairing
    is_input: bool
    position: int

    @property
    def number(self) -> int:
        return self.pairing.number

    @property
    def noise_name(self) -> str:
        return f"{_NOISE}.{self.call}.{'in' if self.is_input else 'out'}.{self.position}"


def _shifts_of(call: ComparedCall, values: ComparedValues) -> Iterator[_Shift]:
    for pairings, is_input in ((call.inputs, True), (call.outputs, False)):
        for position, pairing in enumerate(pairings):
            if values.has_noise(pairing):
                yield _Shift(call.item.call, values.names[pairing.number], pairing, is_input, position)


class ComparedValues:
    """Values of both files on the same inputs: by number in the believed one, by name in the other.

    names  of the values of the believed file, by number
    """

    def __init__(self, names: Mapping[int, str], believed: TensorSpill, judged: TensorSpill) -> None:
        self.names = names
        self._believed, self._judged = believed, judged
        self._positions: dict[str, int] = {}

    def see(self, name: str, array: np.ndarray) -> None:
        """A value of the judged file."""
        self._positions[name] = len(self._positions)
        self._judged.put(self._positions[name], array)

    def believed(self, number: int) -> np.ndarray:
        return self._believed.get(number)

    def has_noise(self, pairing: Pairing) -> bool:
        """Whether both sides are there as floats of one shape."""
        if pairing.number not in self._believed or pairing.value not in self._positions:
            return False
        left, right = self._believed.get(pairing.number), self._judged.get(self._positions[pairing.value])
        return left.shape == right.shape and left.dtype.kind == right.dtype.kind == "f"

    def noise(self, shift: _Shift) -> np.ndarray:
        clean = self._believed.get(shift.number)
        noisy = self._judged.get(self._positions[shift.pairing.value])
        difference = noisy.astype(np.float64) - clean.astype(np.float64)
        # Masks hold infinities on both sides, which differ by nothing.
        return np.nan_to_num(difference, nan=0.0, posinf=0.0, neginf=0.0).astype(clean.dtype)


@dataclass(frozen=True)
class _ShiftedGraph:
    """`outputs`: by name of an output, that of the value with noise."""

    proto: onnx.ModelProto
    outputs: Mapping[str, str]


def _shift_values(believed: TaggedFile, shifts: Sequence[_Shift]) -> _ShiftedGraph:
    """The graph in which values are read through Adds. Nodes inside of bodies read what they read before."""
    inside = _ReaderCalls(believed)
    by_value: dict[str, list[_Shift]] = {}
    for shift in shifts:
        by_value.setdefault(shift.value, []).append(shift)
    made: dict[tuple[str, ...], str] = {}
    adding: list[onnx.NodeProto] = []

    def shifted(value: str, calls: frozenset[ModuleCall]) -> str:
        applied = [shift for shift in by_value.get(value, ()) if (shift.call in calls) is shift.is_input]
        name = value
        names: tuple[str, ...] = (value,)
        for shift in applied:
            names = (*names, shift.noise_name)
            if names not in made:
                made[names] = f"{_SHIFTED}.{len(made)}"
                adding.append(onnx.helper.make_node("Add", [name, shift.noise_name], [made[names]]))
            name = made[names]
        return name

    proto = onnx.ModelProto()
    proto.CopyFrom(believed.proto)
    for node, original in zip(proto.graph.node, believed.proto.graph.node, strict=True):
        calls = inside.calls_of(original)
        for position, value in enumerate(original.input):
            if value in by_value:
                node.input[position] = shifted(value, calls)
    outputs = {name: shifted(name, frozenset()) for name in believed.graph.outputs if name not in believed.graph.inputs}
    proto.graph.node.extend(adding)
    return _ShiftedGraph(proto, outputs)


class _ReaderCalls:
    """The module calls that a node of the main graph does the work of, and those around them."""

    def __init__(self, file: TaggedFile) -> None:
        self._nodes: dict[str, Node] = {node.outputs[0]: node for node in file.graph.nodes if node.graph == MAIN}
        self._record = file.provenance

    def calls_of(self, node: onnx.NodeProto) -> frozenset[ModuleCall]:
        indexed = next((self._nodes[name] for name in node.output if name in self._nodes), None)
        if indexed is None:
            return frozenset()
        owners = self._record.nodes[indexed.key].attribution.owners
        return frozenset(call for owner in owners for call in self._record.hierarchy.stack(owner))


class _OutputRun:
    def __init__(self, pieces: PiecewiseRun, feed: Mapping[str, np.ndarray], graph: _ShiftedGraph) -> None:
        self._pieces, self._feed, self._graph = pieces, feed, graph

    def run(self, noise: Mapping[str, np.ndarray]) -> _Arrays:
        """Floats among the outputs, by name."""
        seen: _Arrays = {}
        wanted = {value: name for name, value in self._graph.outputs.items()}

        def see(value: str, array: np.ndarray) -> None:
            if value in wanted and array.dtype.kind == "f":
                seen[wanted[value]] = array.astype(np.float64)

        self._pieces.run({**self._feed, **noise}, see)
        return seen


def _decibels(clean: _Arrays, fed: _Arrays, returned: _Arrays) -> float:
    """Of the mean over the outputs, each in parts of its own size: a cache may be much larger than what counts."""
    shares = [share for name in clean if (share := _noise_share(clean[name], fed[name], returned[name])) is not None]
    noise = sum(shares) / len(shares) if shares else 0.0
    return -10 * math.log10(noise) if noise else math.inf


def _noise_share(clean: np.ndarray, fed: np.ndarray, returned: np.ndarray) -> float | None:
    finite = np.isfinite(clean) & np.isfinite(fed) & np.isfinite(returned)
    signal = float(np.square(clean[finite]).sum())
    return float(np.square(fed[finite] - returned[finite]).sum()) / signal if signal else None
