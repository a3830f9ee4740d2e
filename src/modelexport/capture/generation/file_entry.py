"""Entry point of a file: the call of a model that a file with a cache does the work of, under the file's own names.

    file     input_ids, past_key_self_0, past_value_self_0  ->  logits, present_key_self_0, …      made by anybody
    model    input_ids, attention_mask, past_key_values.0.key, …  ->  logits, present.0.key, …     of `generate`
    fitted   input_ids, past_key_self_0, …                  ->  logits, present_key_self_0, …

`input_pairing.py` says which input is which. Caches are filled by `generate`. Which inputs a file can be run on is not
written in it: one may know nothing of padding, or take one token at a time, or keep what a sliding window forgets. So
the file is run, and the sample is the first on which it gives what the model gives, or the one on which it comes
nearest (quantized weights).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import onnx
import torch

from modelexport.capture.arguments import CallArguments, to_array
from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.export import PreparedModel, Step, prepare_model
from modelexport.capture.generation.captures import BATCH, PAST, WINDOW, empty_state
from modelexport.capture.generation.entry_points import find_entry_points
from modelexport.capture.generation.file_samples import axis_sizes, cut_samples, lengthen_prompt
from modelexport.capture.generation.generate_inputs import make_generate_inputs
from modelexport.capture.generation.input_pairing import fixed_sizes, pair_inputs
from modelexport.capture.generation.steps import has_encoder
from modelexport.capture.generation.windows import exportable_windows
from modelexport.capture.isolation import isolate_model
from modelexport.capture.onnxruntime.session import bind_inputs, open_session, required_inputs, run_session
from modelexport.errors import InputError
from modelexport.graph.file.reading import ModelFile
from modelexport.record.model_source import ModelSource

Tensors = Mapping[str, torch.Tensor]
# Makes the entry points of a model from inputs of `generate`.
_Split = Callable[[Tensors], Sequence[EntryPoint]]

# A file in floats differs from the model by less than this, relative to the size of a tensor.
_SAME = 1e-3
PREFILL = "prefill"


@dataclass(frozen=True)
class FittedStep:
    """A call of the model under the names of a file.

    inputs     names of the file's inputs, mapped to those of the entry point
    outputs    names of the entry point's outputs, mapped to those of the file
    forgets    whether layers with a sliding window drop old tokens
    """

    forward: Callable[..., Tensors]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str] = field(default_factory=dict)
    forgets: bool = True

    def __call__(self, **tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        known = {self.inputs[name]: tensor for name, tensor in tensors.items() if name in self.inputs}
        with exportable_windows(forget=self.forgets):
            results = self.forward(**known)
        return {self.outputs.get(name, name): tensor for name, tensor in results.items()}


def prepare_step(file: ModelFile, source: ModelSource, prepared: PreparedModel, step: Step) -> PreparedModel:
    """The model, called as the file was exported from it, on inputs out of a run of `generate`."""
    again = prepare_model(replace(source.with_module(prepared.module), static=False), step)
    with step("steps"):
        entry = fit_entry(file, prepared.module, make_generate_inputs(prepared.module, again.inputs.tensors))
    return replace(prepared, inputs=CallArguments(dict(entry.inputs)), axes=entry.axes, entry=entry)


def fit_entry(file: ModelFile, model: torch.nn.Module, inputs: Tensors) -> EntryPoint:
    """The entry point that a file was made from, with a sample that the file can be run on.

    inputs  of `generate`: a batch of at least two, tokens padded on the left
    """
    with isolate_model(model):
        return _EntryFinder(file, model, inputs).find()


class _EntryFinder:
    def __init__(self, file: ModelFile, model: torch.nn.Module, inputs: Tensors) -> None:
        self._file, self._model, self._inputs = file, model, inputs
        self._refused: list[str] = []

    def find(self) -> EntryPoint:
        best: tuple[float, EntryPoint] | None = None
        for candidate in self._candidates():
            distance, fitted = self._compare(candidate)
            if best is None or distance < best[0]:
                best = distance, fitted
            if distance <= _SAME:
                break
        if best is None:
            raise InputError(
                f"{self._file.file_name} takes other inputs than any call of {type(self._model).__name__} while it "
                f"generates: {'; '.join(self._refused)}",
                "Give the model that the file was exported from, or a file without cache.",
            )
        return best[1]

    def _candidates(self) -> Iterator[EntryPoint]:
        proto = self._file.proto
        for entry, forgets in self._fitting_entries():
            for pairs in pair_inputs(proto, entry):
                fixed = fixed_sizes(proto, entry, pairs)
                for cut in cut_samples(entry, fixed):
                    yield _rename_inputs(proto, cut, pairs, FittedStep(entry.forward, pairs, forgets=forgets))

    def _fitting_entries(self) -> Iterator[tuple[EntryPoint, bool]]:
        """Entry points, and whether layers with a window forget in them."""
        for split in self._splits():
            with exportable_windows():
                entries = self._entries(split)
            yield from ((entry, True) for entry in entries)
            if any(WINDOW in axes.values() for entry in entries for axes in entry.axes.values()):
                # Others' files keep every token of a layer with a window, and leave the window to the mask.
                with exportable_windows(forget=False):
                    endless = self._entries(split)
                yield from ((entry, False) for entry in endless)

    def _splits(self) -> Iterator[_Split]:
        """Ways in which consumers have the work of one model divided into files."""
        yield partial(find_entry_points, self._model)
        if has_encoder(self._model):
            yield partial(find_entry_points, self._model, merged=True)
            yield partial(find_entry_points, self._model, encodes_keys=True)

    def _entries(self, split: _Split) -> list[EntryPoint]:
        """Entry points whose inputs the file takes, with a past as long as the file wants it."""
        proto = self._file.proto
        fitting: list[EntryPoint] = []
        for entry in map(_leave_out_made_states, split(self._inputs)):
            try:
                missing = _missing_past(proto, entry)
            except InputError as error:
                self._refused.append(f"{entry.name}: {error.message}")
                # A file may do the work of the first call alone, and take no past.
                first = find_first_call(entry)
                if first is not None and _can_pair(proto, first):
                    fitting.append(first)
                continue
            fitting.append(self._find_longer(entry, split, missing) if missing else entry)
        return fitting

    def _find_longer(self, entry: EntryPoint, split: _Split, count: int) -> EntryPoint:
        others = split(lengthen_prompt(self._inputs, count))
        return _leave_out_made_states(next(other for other in others if other.name == entry.name))

    def _compare(self, entry: EntryPoint) -> tuple[float, EntryPoint]:
        """How far what the file returns is from what the model returns; the entry point with the file's outputs."""
        tensors = entry.forward(**{name: tensor.clone() for name, tensor in entry.inputs.items()})
        returned = self._run(entry.inputs)
        if returned is None:
            return math.inf, entry
        expected = {name: to_array(tensor) for name, tensor in tensors.items()}
        names = _pair_outputs(expected, returned)
        pairs = tuple(replace(pair, present=names.get(pair.present, pair.present)) for pair in entry.cache)
        step = entry.forward
        assert isinstance(step, FittedStep)
        apart = [_relative_distance(returned[name], expected[own]) for own, name in names.items()]
        # An output that nothing of the model is like is as wrong as can be.
        worst = max(apart, default=math.inf) if len(names) == len(returned) else math.inf
        return worst, replace(entry, forward=replace(step, outputs=names), cache=pairs)

    def _run(self, inputs: Tensors) -> dict[str, np.ndarray] | None:
        try:
            feed = bind_inputs(self._file.proto, {name: to_array(tensor) for name, tensor in inputs.items()})
            results = run_session(self._session, feed)
        except Exception:  # noqa: BLE001 - onnxruntime has no common error class; what it cannot run is no sample
            return None
        return dict(zip((value.name for value in self._file.proto.graph.output), results, strict=True))

    @cached_property
    def _session(self) -> Any:
        assert self._file.directory is not None
        return open_session(self._file.directory / self._file.file_name)


def _leave_out_made_states(entry: EntryPoint) -> EntryPoint:
    """The entry point with those states alone that it takes. A first call makes all of them, and takes none."""
    return replace(entry, cache=tuple(pair for pair in entry.cache if pair.past in entry.inputs))


def _relative_distance(got: np.ndarray, want: np.ndarray) -> float:
    if got.shape != want.shape:
        return math.inf
    got, want = got.astype(np.float64), want.astype(np.float64)
    size = float(np.linalg.norm(want))
    distance = float(np.linalg.norm(got - want))
    return distance / size if size else distance


def find_first_call(entry: EntryPoint) -> EntryPoint | None:
    """The entry point without a past, on its sample with an empty one: others write the prefill as a file of its own.

    None for an entry point that has no such sample: states of fixed sizes are never empty.
    """
    pasts = {pair.past for pair in entry.cache}
    sample = next((other for other in entry.others if all(not other[name].numel() for name in pasts)), None)
    if sample is None or not pasts:
        return None
    return EntryPoint(
        PREFILL,
        _FirstCall(entry.forward, {name: sample[name] for name in pasts}, entry.axes),
        {name: tensor for name, tensor in sample.items() if name not in pasts},
        {name: axes for name, axes in entry.axes.items() if name not in pasts},
    )


@dataclass(frozen=True)
class _FirstCall:
    """A call with an empty past, in a batch of any size.

    pasts  an empty past of each kind
    """

    forward: Callable[..., Tensors]
    pasts: Tensors
    axes: Mapping[str, Mapping[int, str]]

    def __call__(self, **tensors: torch.Tensor) -> Tensors:
        batch = next(
            tensor.shape[axis]
            for name, tensor in tensors.items()
            for axis, what in self.axes.get(name, {}).items()
            if what == BATCH
        )
        empty = {name: empty_state(past, self.axes.get(name, {}), batch=batch) for name, past in self.pasts.items()}
        return self.forward(**tensors, **empty)


def _can_pair(proto: onnx.ModelProto, entry: EntryPoint) -> bool:
    try:
        return bool(pair_inputs(proto, entry))
    except InputError:
        return False


def _missing_past(proto: onnx.ModelProto, entry: EntryPoint) -> int:
    """How many tokens the prompt is too short for the past that the file insists on."""
    wanted = fixed_sizes(proto, entry, pair_inputs(proto, entry)[0])
    return wanted[PAST] - axis_sizes(entry)[PAST] if PAST in wanted and PAST in axis_sizes(entry) else 0


def _rename_inputs(proto: onnx.ModelProto, entry: EntryPoint, pairs: Mapping[str, str], step: FittedStep) -> EntryPoint:
    """The entry point under the names of the file's inputs; what the file does not take comes last."""
    untaken = {name: name for name in entry.inputs if name not in pairs.values()}
    known = {**pairs, **untaken}
    names = {other: name for name, other in known.items()}
    flags = {name: torch.ones(1, dtype=torch.bool) for name in required_inputs(proto) if name not in pairs}
    return EntryPoint(
        entry.name,
        replace(step, inputs=known),
        {name: entry.inputs[other] for name, other in pairs.items()}
        | flags
        | {name: entry.inputs[name] for name in untaken},
        {name: entry.axes.get(other, {}) for name, other in pairs.items()},
        tuple(replace(pair, past=names[pair.past]) for pair in entry.cache),
    )


def _pair_outputs(expected: Mapping[str, np.ndarray], returned: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Names of the model's outputs, mapped to those of the file: the same name, or else the nearest content."""
    pairs = {name: name for name in expected if name in returned}
    for name in (name for name in returned if name not in pairs):
        apart = {
            other: _relative_distance(returned[name], array) for other, array in expected.items() if other not in pairs
        }
        nearest = min(apart, key=lambda other: apart[other], default=None)
        if nearest is not None and apart[nearest] < math.inf:
            pairs[nearest] = name
    return pairs
