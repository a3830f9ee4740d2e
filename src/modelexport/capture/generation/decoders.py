"""Entry points of a decoder: found by watching `generate`, described by what changes from step to step.

    steps of a padded batch          prefill, decode, decode, …                          steps.py
    cache arguments                  what a step changes and the next one reads          cache.py
    a step of several tokens         decode steps merged, so that the axis stays open
    axes                             the same steps at other sizes: what differs is an axis

One graph serves prefill and decode if the model computes the same in one call with an empty cache as in the first step,
and in one call of several tokens as in several calls (`_is_uniform`). Otherwise it takes one token per call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.generation.cache import TensorLayout
from modelexport.capture.generation.captures import (
    BATCH,
    PAST,
    SEQUENCE,
    TOTAL,
    WINDOW,
    Capture,
    Recorder,
    agree,
    capture_steps,
    empty_state,
    find_past_length,
    find_written,
    lay_out_arguments,
    name_axes,
    name_sizes,
    name_windows,
    query_length,
    sample_like,
    sample_tensors,
)
from modelexport.capture.generation.decoder_step import MASK, DecoderStep
from modelexport.capture.generation.steps import enlarge_inputs, record_steps
from modelexport.capture.generation.windows import exportable_windows
from modelexport.errors import ExportFailed

# So many that the positions of a batch are told apart from other small integers: `verify` proves nodes by their values.
_MERGED_STEPS = 8


def find_decoder(
    model: torch.nn.Module, inputs: Mapping[str, torch.Tensor], record: Recorder = record_steps
) -> tuple[EntryPoint, ...]:
    """The entry points of a model that generates by itself; `inputs` are those of `generate`, padded on the left."""
    small = capture_steps(model, inputs, 3, _MERGED_STEPS, record)
    large = capture_steps(model, enlarge_inputs(inputs), 4, 2, record)
    call = model.forward
    layouts = tuple(lay_out_arguments(small))
    sample, enlarged = sample_tensors(small.merged, layouts), sample_like(large, layouts)
    axes = name_axes(sample, enlarged, name_sizes(small, large))
    name_windows(axes, layouts)
    step = DecoderStep(call, small.constants, layouts, find_past_length(axes))
    pairs = tuple(pair for layout in layouts for pair in layout.pairs)
    with exportable_windows(), torch.no_grad():
        # A model may refuse what it is not made for: several tokens after the first, a prompt token by token.
        with suppress(Exception):
            uniform = replace(step, written=find_written(step, sample))
            if _is_uniform(uniform, small, sample, axes):
                others = (enlarged, _first_call(small, layouts, axes))
                return (EntryPoint("decoder", uniform, sample, axes, pairs, others),)
        single, sample, axes = _single_step(step, small, axes)
        with suppress(Exception):
            single = replace(single, written=find_written(single, sample))
            if _is_stepwise(single, small, sample, axes):
                return (EntryPoint("decoder", single, sample, axes, pairs),)
    raise ExportFailed(
        f"{type(model).__name__} computes something else for several tokens than for the same tokens one by one",
        "Export it without cache: give an .onnx file as output and no task ending in -with-past.",
    )


def _single_step(
    step: DecoderStep, capture: Capture, axes: Mapping[str, Mapping[int, str]]
) -> tuple[DecoderStep, dict[str, torch.Tensor], dict[str, dict[int, str]]]:
    """A step of one token, which leaves the state of a row alone where its token is padding."""
    call = capture.run.calls[capture.first]
    sample = sample_tensors(call.arguments, step.layouts)
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
    step: DecoderStep, capture: Capture, sample: Mapping[str, torch.Tensor], axes: Mapping[str, Mapping[int, str]]
) -> bool:
    """Whether the prompt, token by token, from an empty state, gives what the model makes of it at once."""
    prefill, calls = capture.run.calls[0], capture.run.calls
    prompt = sample_tensors(prefill.arguments, ())
    length = query_length(prefill, calls[1])
    pairs = {pair.past: pair.present for layout in step.layouts for pair in layout.pairs}
    states = {past: empty_state(sample[past], axes[past]) for past in pairs}
    for position in range(length):
        now = {
            name: take_position(prompt[name], position, length, name == MASK) for name in sample if name not in pairs
        }
        results = step(**now, **states)
        states = {past: results.get(present, states[past]) for past, present in pairs.items()}
    return agree(results, prefill, calls[1].arguments, step.layouts)


def take_position(tensor: torch.Tensor, position: int, length: int, is_mask: bool) -> torch.Tensor:
    axis = next((axis for axis in reversed(range(tensor.dim())) if tensor.shape[axis] == length), None)
    if axis is None:
        return tensor
    return tensor.narrow(axis, 0, position + 1) if is_mask else tensor.narrow(axis, position, 1)


def _is_uniform(
    step: DecoderStep, capture: Capture, sample: Mapping[str, torch.Tensor], axes: Mapping[str, Mapping[int, str]]
) -> bool:
    """Whether one function does both: several tokens at once, and a prompt with an empty cache."""
    calls = capture.run.calls
    merged = agree(step(**sample), capture.last, capture.following, step.layouts)
    prompt = _first_call(capture, step.layouts, axes)
    same_names = prompt.keys() == sample.keys()
    return merged and same_names and agree(step(**prompt), calls[0], calls[1].arguments, step.layouts)


def _first_call(
    capture: Capture, layouts: Sequence[TensorLayout], axes: Mapping[str, Mapping[int, str]]
) -> dict[str, torch.Tensor]:
    """The prompt, with a cache that was not filled yet."""
    caches = {name: tensor for layout in layouts if layout.present for name, tensor in layout.sample.items()}
    empty = {name: empty_state(tensor, axes[name]) for name, tensor in caches.items()}
    return sample_tensors(capture.run.calls[0].arguments, ()) | empty
