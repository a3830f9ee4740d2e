"""Entry points of a decoder: found by watching `generate`, described by what changes from step to step.

    steps of a padded batch          prefill, decode, decode, …                          steps.py
    cache arguments                  what a step changes and the next one reads          cache.py
    a step of several tokens         decode steps merged, so that the axis stays open
    axes                             the same steps at other sizes: what differs is an axis

One graph serves prefill and decode if the model computes the same in one call with an empty cache as in the first step,
and in one call of several tokens as in several calls (`_is_uniform`). Otherwise there are two entry points.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.generation.cache import TensorLayout, cache_tensors, lay_out_cache, lay_out_constant, read_path
from modelexport.capture.generation.decoder_step import MASK, DecoderStep, PastLength
from modelexport.capture.generation.steps import Generation, RecordedCall, enlarge_inputs, merge_calls, record_steps
from modelexport.capture.generation.windows import exportable_windows
from modelexport.errors import ExportFailed, InputError

BATCH, SEQUENCE, PAST, TOTAL, WINDOW = "batch", "sequence", "past_sequence", "total_sequence", "past_window"


@dataclass(frozen=True)
class _Capture:
    """A step of several tokens out of a run of `generate`.

    first    number of the first call that was merged
    merged   arguments of the merged call
    """

    run: Generation
    first: int
    steps: int
    caches: frozenset[str]

    @property
    def merged(self) -> dict[str, Any]:
        return merge_calls(self.run.calls[self.first : self.first + self.steps], self.caches)

    @property
    def last(self) -> RecordedCall:
        return self.run.calls[self.first + self.steps - 1]

    @property
    def past_length(self) -> int:
        """Tokens before the merged call: those of the prefill, and one for each decode step."""
        return _query_length(self.run.calls[0], self.run.calls[1]) + self.first - 1


def _query_length(prefill: RecordedCall, decode: RecordedCall) -> int:
    """The length of the prompt: the size, in the first call, of the axis that has size 1 in later ones."""
    for name, value in decode.arguments.items():
        before = prefill.arguments.get(name)
        if isinstance(value, torch.Tensor) and isinstance(before, torch.Tensor) and value.dim() == before.dim() >= 2:
            for axis, size in enumerate(value.shape):
                if axis and size == 1:
                    return int(before.shape[axis])
    raise InputError(
        "`generate` feeds no tokens one by one", "Give the inputs of generate: input_ids and what it needs."
    )


def _cache_arguments(calls: Sequence[RecordedCall]) -> frozenset[str]:
    """Arguments that hold tensors of their own and come back changed: from the outputs, or changed in place."""
    later, returned = calls[1].arguments, calls[0].outputs
    names = set()
    for name, value in later.items():
        if isinstance(value, torch.Tensor) or not cache_tensors(value):
            continue
        output = returned.get(name) if isinstance(returned, Mapping) else None
        if output is not None or type(value).__name__.endswith("Cache"):
            names.add(name)
    return frozenset(names)


def find_decoder(model: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> tuple[EntryPoint, ...]:
    """The entry points of a model that generates by itself; `inputs` are those of `generate`, padded on the left."""
    small = _capture(model, inputs, first=3, steps=3)
    large = _capture(model, enlarge_inputs(inputs), first=4, steps=2)
    call = model.forward
    layouts = tuple(_lay_out(small))
    sample = _sample(small.merged, layouts)
    axes = _name_axes(sample, _sample_of(large, layouts), small, large)
    _name_windows(axes, layouts)
    constants = {name: value for name, value in small.merged.items() if value is not None and not cache_tensors(value)}
    step = DecoderStep(call, constants, layouts, _find_past_length(axes))
    pairs = tuple(pair for layout in layouts for pair in layout.pairs)
    with exportable_windows(), torch.no_grad():
        # A model may refuse what it is not made for: several tokens after the first, a prompt token by token.
        with suppress(Exception):
            uniform = replace(step, written=_written_inputs(step, sample))
            if _is_uniform(uniform, small, sample, axes):
                others = (_sample_of(large, layouts), _first_call(small, layouts, axes))
                return (EntryPoint("decoder", uniform, sample, axes, pairs, others),)
        single, sample, axes = _single_step(step, small, axes)
        with suppress(Exception):
            single = replace(single, written=_written_inputs(single, sample))
            if _is_stepwise(single, small, sample, axes):
                return (EntryPoint("decoder", single, sample, axes, pairs),)
    raise ExportFailed(
        f"{type(model).__name__} computes something else for several tokens than for the same tokens one by one",
        "Export it without cache: give an .onnx file as output and no task ending in -with-past.",
    )


def _single_step(
    step: DecoderStep, capture: _Capture, axes: Mapping[str, Mapping[int, str]]
) -> tuple[DecoderStep, dict[str, torch.Tensor], dict[str, dict[int, str]]]:
    """A step of one token, which leaves the state of a row alone where its token is padding."""
    call = capture.run.calls[capture.first]
    sample = _sample(call.arguments, step.layouts)
    mask = capture.run.calls[0].arguments.get(MASK)
    taken = MASK in sample
    if not taken and isinstance(mask, torch.Tensor):
        sample = {MASK: mask.new_ones(len(mask), capture.past_length + 1), **sample}
    kept = {
        pair.present: pair.past
        for layout in step.layouts
        for pair in layout.pairs
        if not {PAST, WINDOW} & set(axes[pair.past].values())
    }
    single = {name: {axis: what for axis, what in axes.get(name, {}).items() if what != SEQUENCE} for name in sample}
    if not taken and MASK in sample:
        single[MASK] = {0: BATCH, 1: TOTAL}
    return replace(step, masked=kept if MASK in sample else {}, takes_mask=taken), sample, single


def _is_stepwise(
    step: DecoderStep, capture: _Capture, sample: Mapping[str, torch.Tensor], axes: Mapping[str, Mapping[int, str]]
) -> bool:
    """Whether the prompt, token by token, from an empty state, gives what the model makes of it at once."""
    prefill, calls = capture.run.calls[0], capture.run.calls
    prompt = _sample(prefill.arguments, ())
    length = _query_length(prefill, calls[1])
    pairs = {pair.past: pair.present for layout in step.layouts for pair in layout.pairs}
    states = {past: _empty(sample[past], axes[past]) for past in pairs}
    for position in range(length):
        now = {name: _at_position(prompt[name], position, length, name == MASK) for name in sample if name not in pairs}
        results = step(**now, **states)
        states = {past: results.get(present, states[past]) for past, present in pairs.items()}
    layouts = [layout for layout in step.layouts if layout.present is not None]
    return _agree(results, prefill, calls[1].arguments, layouts)


def _at_position(tensor: torch.Tensor, position: int, length: int, is_mask: bool) -> torch.Tensor:
    axis = next((axis for axis in reversed(range(tensor.dim())) if tensor.shape[axis] == length), None)
    if axis is None:
        return tensor
    return tensor.narrow(axis, 0, position + 1) if is_mask else tensor.narrow(axis, position, 1)


def _capture(model: torch.nn.Module, inputs: Mapping[str, torch.Tensor], first: int, steps: int) -> _Capture:
    run = record_steps(model, inputs, first + steps + 1)
    return _Capture(run, first, steps, _cache_arguments(run.calls))


def _lay_out(capture: _Capture) -> Iterator[TensorLayout]:
    calls, length = capture.run.calls, capture.past_length
    before, later = (calls[capture.first + step].arguments for step in (0, 1))
    for name, value in before.items():
        if name in capture.caches:
            yield lay_out_cache(name, (value, later[name]), (length, length + 1), calls[0].arguments.get(name))
        elif not isinstance(value, torch.Tensor) and cache_tensors(value):
            yield lay_out_constant(name, value)


def _sample(arguments: Mapping[str, Any], layouts: Sequence[TensorLayout]) -> dict[str, torch.Tensor]:
    plain = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    return {**plain, **{name: tensor for layout in layouts for name, tensor in layout.sample.items()}}


def _sample_of(capture: _Capture, layouts: Sequence[TensorLayout]) -> dict[str, torch.Tensor]:
    """The tensors of another capture, under the same names."""
    arguments = capture.merged
    return _sample(arguments, [replace(layout, template=arguments[layout.argument]) for layout in layouts])


def _name_axes(
    sample: Mapping[str, torch.Tensor], enlarged: Mapping[str, torch.Tensor], small: _Capture, large: _Capture
) -> dict[str, dict[int, str]]:
    """Axes whose size differs between two captures, by what else has these sizes."""
    batch = tuple(len(capture.run.tokens) for capture in (small, large))
    past, steps = (small.past_length, large.past_length), (small.steps, large.steps)
    names = {batch: BATCH, past: PAST, steps: SEQUENCE, (past[0] + steps[0], past[1] + steps[1]): TOTAL}
    axes: dict[str, dict[int, str]] = {}
    for name, tensor in sample.items():
        pairs = enumerate(zip(tensor.shape, enlarged[name].shape, strict=True))
        axes[name] = {axis: names.get(pair, f"{name}_{axis}") for axis, pair in pairs if pair[0] != pair[1]}
    return axes


def _name_windows(axes: dict[str, dict[int, str]], layouts: Sequence[TensorLayout]) -> None:
    """The axis that a layer with a window forgets along: its size is that of the past only until the window is full.

    Keys and values are [batch, heads, tokens, size] in every cache of transformers.
    """
    for layout in layouts:
        for name, path in layout.paths.items():
            if getattr(read_path(layout.template, path[:-1]), "is_sliding", False):
                axes[layout.past + name][2] = WINDOW


def _find_past_length(axes: Mapping[str, Mapping[int, str]]) -> PastLength | None:
    by_name = {axis_name: (name, axis) for name, named in axes.items() for axis, axis_name in named.items()}
    if PAST in by_name:
        return PastLength(by_name[PAST])
    return PastLength(by_name[TOTAL], by_name[SEQUENCE]) if TOTAL in by_name and SEQUENCE in by_name else None


def _written_inputs(step: DecoderStep, sample: Mapping[str, torch.Tensor]) -> frozenset[str]:
    copies = {name: tensor.clone() for name, tensor in sample.items()}
    versions = {name: tensor._version for name, tensor in copies.items()}
    step(**copies)
    return frozenset(name for name, tensor in copies.items() if tensor._version != versions[name])


def _is_uniform(
    step: DecoderStep, capture: _Capture, sample: Mapping[str, torch.Tensor], axes: Mapping[str, Mapping[int, str]]
) -> bool:
    """Whether one function does both: several tokens at once, and a prompt with an empty cache."""
    calls, states = capture.run.calls, [layout for layout in step.layouts if layout.present is not None]
    after, first = calls[capture.first + capture.steps].arguments, calls[1].arguments
    merged = _agree(step(**sample), capture.last, after, states)
    prompt = _first_call(capture, step.layouts, axes)
    return merged and prompt.keys() == sample.keys() and _agree(step(**prompt), calls[0], first, states)


def _first_call(
    capture: _Capture, layouts: Sequence[TensorLayout], axes: Mapping[str, Mapping[int, str]]
) -> dict[str, torch.Tensor]:
    """The prompt, with a cache of the step that was not filled yet."""
    caches = {name: tensor for layout in layouts if layout.present for name, tensor in layout.sample.items()}
    empty = {name: _empty(tensor, axes[name]) for name, tensor in caches.items()}
    return _sample(capture.run.calls[0].arguments, ()) | empty


def _empty(tensor: torch.Tensor, axes: Mapping[int, str]) -> torch.Tensor:
    """The state before the first token: nothing along the axis of the past, zeros where there is none."""
    shape = [0 if axes.get(axis) in (PAST, WINDOW) else size for axis, size in enumerate(tensor.shape)]
    return tensor.new_zeros(shape)


def _agree(
    results: Mapping[str, torch.Tensor],
    call: RecordedCall,
    following: Mapping[str, Any],
    layouts: Sequence[TensorLayout],
) -> bool:
    expected = {name: tensor for layout in layouts for name, tensor in layout.read(following[layout.argument]).items()}
    states = all(
        results[name].shape == want.shape and torch.allclose(results[name], want, atol=1e-4, rtol=1e-3)
        for name, want in expected.items()
        if name in results
    )
    logits, want = results["logits"][:, -1], call.outputs["logits"][:, -1]
    return states and torch.allclose(logits, want, atol=1e-4, rtol=1e-3)
