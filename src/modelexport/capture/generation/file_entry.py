"""Entry point of a file: the call of a model that a file with a cache does the work of, under the file's own names.

    file     input_ids, past_key_self_0, past_value_self_0  ->  logits, present_key_self_0, …      made by anybody
    model    input_ids, attention_mask, past_key_values.0.key, …  ->  logits, present.0.key, …     of `generate`
    fitted   input_ids, past_key_self_0, …                  ->  logits, present_key_self_0, …

Names that are equal are the same tensor. The others go by layer (the numbers in a name), then by order, where kind and
rank fit. Caches are filled by `generate`. Which inputs a file can be run on is not written in it: one may know nothing
of padding, or take one token at a time, or keep what a sliding window forgets. So the file is run, and the sample is
the first on which it gives what the model gives, or the one on which it comes nearest (quantized weights).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import onnx
import torch

from modelexport.capture.arguments import CallArguments, to_array
from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.export import PreparedModel, Step, prepare_model
from modelexport.capture.generation.captures import BATCH, PAST, SEQUENCE, TOTAL, WINDOW, empty_state
from modelexport.capture.generation.decoder_step import MASK
from modelexport.capture.generation.entry_points import find_entry_points
from modelexport.capture.generation.generate_inputs import make_generate_inputs
from modelexport.capture.generation.steps import has_encoder
from modelexport.capture.generation.windows import exportable_windows
from modelexport.capture.isolation import isolate_model
from modelexport.capture.onnxruntime.session import bind_inputs, open_session, required_inputs, run_session
from modelexport.errors import InputError
from modelexport.graph.file.reading import ModelFile
from modelexport.graph.types import input_dims
from modelexport.record.model_source import ModelSource

Tensors = Mapping[str, torch.Tensor]
# Makes the entry points of a model from inputs of `generate`.
_Split = Callable[[Tensors], Sequence[EntryPoint]]

# A file in floats differs from the model by less than this, relative to the size of a tensor.
_SAME = 1e-3
_NUMBERS = re.compile(r"\d+")
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
                fixed = _fixed_sizes(proto, entry, pairs)
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
        others = split(_lengthen_prompt(self._inputs, count))
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


def takes_more(proto: onnx.ModelProto, tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether a file takes tensors that a plain call of the model was not given: a cache, say, or positions.

    An input of another name is one of the call's tensors of its kind and rank, each of them once.
    """
    wanted = required_inputs(proto)
    spare = [(not tensor.is_floating_point(), tensor.dim()) for name, tensor in tensors.items() if name not in wanted]
    for name, value in wanted.items():
        kind = not _is_float(value), len(input_dims(value) or ())
        if name in tensors:
            continue
        if kind not in spare:
            return True
        spare.remove(kind)
    return False


def _is_float(value: onnx.ValueInfoProto) -> bool:
    kind = value.type.tensor_type.elem_type
    return not kind or onnx.helper.tensor_dtype_to_np_dtype(kind).kind not in "iub"


def pair_inputs(proto: onnx.ModelProto, entry: EntryPoint) -> list[dict[str, str]]:
    """Names of the file's inputs, mapped to those of an entry point, the likeliest first; InputError if there are none.

    Equal names are certain. For others there are several orders, and a run will tell.
    """
    wanted = required_inputs(proto)
    unnamed = [name for name in wanted if name not in entry.inputs]
    pairings = [_pair_in_order(wanted, entry, order) for order in _orders(unnamed, wanted)]
    return [pairing for number, pairing in enumerate(pairings) if pairing not in pairings[:number]]


def _orders(names: list[str], wanted: Mapping[str, onnx.ValueInfoProto]) -> Iterator[list[str]]:
    """By the numbers in a name; as they are listed; and the second half of what floats between the first.

    key_0 key_1 value_0 value_1  ->  key_0 value_0 key_1 value_1
    """
    yield sorted(names, key=lambda name: [int(number) for number in _NUMBERS.findall(name)])
    yield names
    floats = [name for name in names if _is_float(wanted[name])]
    keys, values = floats[: len(floats) // 2], floats[len(floats) // 2 :]
    if len(keys) == len(values):
        rest = [name for name in names if name not in floats]
        yield [*rest, *(name for pair in zip(keys, values, strict=True) for name in pair)]


def _pair_in_order(
    wanted: Mapping[str, onnx.ValueInfoProto], entry: EntryPoint, unnamed: Iterable[str]
) -> dict[str, str]:
    pairs = {name: name for name in wanted if name in entry.inputs}
    spare = [name for name in entry.inputs if name not in pairs]
    for name in unnamed:
        match = next((other for other in spare if _may_be(wanted[name], entry, other)), None)
        if match is not None:
            spare.remove(match)
            pairs[name] = match
        elif not _is_flag(wanted[name]):
            raise InputError(f"it has no input like {name}")
    pasts = {pair.past for pair in entry.cache}
    unread = [name for name in spare if name in pasts]
    if unread:
        raise InputError(f"the file has no input for {unread[0]}")
    wrong = [name for name, other in pairs.items() if not _may_be(wanted[name], entry, other)]
    if wrong:
        raise InputError(f"{wrong[0]} has another shape in the file")
    return {name: pairs[name] for name in wanted if name in pairs}


def _may_be(value: onnx.ValueInfoProto, entry: EntryPoint, name: str) -> bool:
    """Whether kind, rank, and sizes of axes that are always the same, are those of a tensor of the entry point."""
    tensor, dims = entry.inputs[name], input_dims(value)
    if _is_float(value) != tensor.is_floating_point():
        return False
    open_axes = entry.axes.get(name, {})
    return dims is None or (
        len(dims) == tensor.dim()
        and all(axis in open_axes or dim == size for axis, (dim, size) in _fixed(dims, tensor.shape))
    )


def _fixed(dims: Sequence[int | str], shape: Sequence[int]) -> Iterator[tuple[int, tuple[int, int]]]:
    for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
        if isinstance(dim, int):
            yield axis, (dim, size)


def _is_flag(value: onnx.ValueInfoProto) -> bool:
    """A merged decoder asks whether there is a past."""
    return value.type.tensor_type.elem_type == onnx.TensorProto.BOOL and (input_dims(value) or (1,)) == (1,)


def _fixed_sizes(proto: onnx.ModelProto, entry: EntryPoint, pairs: Mapping[str, str]) -> dict[str, int]:
    """Sizes that the file insists on, by the name of the axis."""
    wanted = required_inputs(proto)
    sizes: dict[str, int] = {}
    for name, other in pairs.items():
        axes = entry.axes.get(other, {})
        for axis, (dim, _) in _fixed(input_dims(wanted[name]) or (), entry.inputs[other].shape):
            if axis in axes:
                sizes[axes[axis]] = dim
    return sizes


def _missing_past(proto: onnx.ModelProto, entry: EntryPoint) -> int:
    """How many tokens the prompt is too short for the past that the file insists on."""
    wanted = _fixed_sizes(proto, entry, pair_inputs(proto, entry)[0])
    return wanted[PAST] - _sizes(entry)[PAST] if PAST in wanted and PAST in _sizes(entry) else 0


def _sizes(entry: EntryPoint) -> dict[str, int]:
    return {what: entry.inputs[name].shape[axis] for name, axes in entry.axes.items() for axis, what in axes.items()}


def _lengthen_prompt(inputs: Tensors, count: int) -> dict[str, torch.Tensor]:
    """Tokens and their masks with so many more columns, or fewer."""
    tokens = next(tensor for name, tensor in inputs.items() if name == "input_ids")
    length = tokens.shape[1] + count
    if length < 1:
        raise InputError(
            f"the file takes a past of {length} tokens before the first one", "Give all inputs: --inputs FILE.npz."
        )
    # Fewer columns are the last ones: padding is on the left.
    order = torch.arange(length) % tokens.shape[1] + max(-count, 0)
    return {
        name: tensor[:, order] if tensor.shape == tokens.shape and not tensor.is_floating_point() else tensor
        for name, tensor in inputs.items()
    }


def cut_samples(entry: EntryPoint, fixed: Mapping[str, int]) -> Iterator[EntryPoint]:
    """The entry point on its sample, on a row of it without padding, and on one token, in the sizes of the file."""
    row, rows = find_unpadded_row(entry), range(_sizes(entry).get(BATCH, 1))
    for repeated, tokens in (([*rows], None), ([row], None), ([row], 1)):
        batch = [repeated[index % len(repeated)] for index in range(fixed.get(BATCH, len(repeated)))]
        yield _cut(entry, batch, fixed.get(SEQUENCE, tokens))


def find_unpadded_row(entry: EntryPoint) -> int:
    mask = entry.inputs.get(MASK)
    return 0 if mask is None else int(mask.reshape(len(mask), -1).sum(dim=1).argmax())


def _cut(entry: EntryPoint, rows: Sequence[int], tokens: int | None) -> EntryPoint:
    """Of a sample, some rows and the first tokens."""
    dropped = 0 if tokens is None else _sizes(entry).get(SEQUENCE, tokens) - tokens
    inputs = {
        name: _cut_tensor(tensor, entry.axes.get(name, {}), rows, dropped) for name, tensor in entry.inputs.items()
    }
    return replace(entry, inputs=inputs)


def _cut_tensor(tensor: torch.Tensor, axes: Mapping[int, str], rows: Sequence[int], dropped: int) -> torch.Tensor:
    for axis, what in axes.items():
        if what == BATCH:
            tensor = tensor.index_select(axis, torch.tensor(rows))
        elif what in (SEQUENCE, TOTAL):
            tensor = tensor.narrow(axis, 0, tensor.shape[axis] - dropped)
    return tensor.contiguous()


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
