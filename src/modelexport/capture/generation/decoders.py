"""Entry points of a decoder: found by watching `generate`, described by what changes from step to step.

    steps of a padded batch          prefill, decode, decode, …                          steps.py
    cache arguments                  what a step changes and the next one reads          cache.py
    a step of several tokens         decode steps merged, so that the axis stays open
    axes                             the same steps at other sizes: what differs is an axis

One graph serves prefill and decode if the model computes the same in one call with an empty cache as in the first step,
and in one call of several tokens as in several calls (`_refuse_several`), by operators whose number does not depend on
the number of tokens. Otherwise it takes one token per call, and users are told why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.generation.captures import (
    BATCH,
    PAST,
    SEQUENCE,
    TOTAL,
    WINDOW,
    Capture,
    Recorder,
    capture_steps,
    empty_state,
    explain_refusal,
    find_disagreement,
    find_first_states,
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


class _OperatorCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators that torch runs while this is open."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class _Candidate:
    """An entry point that may be one, and a sample of its inputs."""

    step: DecoderStep
    sample: Mapping[str, torch.Tensor]
    axes: Mapping[str, Mapping[int, str]]

    @property
    def firsts(self) -> dict[str, float]:
        return {pair.past: pair.first for layout in self.step.layouts for pair in layout.pairs}

    def empty_states(self, capture: Capture) -> dict[str, torch.Tensor]:
        """The cache before the first token, for the batch of a capture."""
        filled = sample_like(capture, self.step.layouts)
        return {past: empty_state(filled[past], self.axes[past], first) for past, first in self.firsts.items()}

    def make_entry(self, *others: Mapping[str, torch.Tensor], notes: tuple[str, ...] = ()) -> EntryPoint:
        pairs = tuple(pair for layout in self.step.layouts for pair in layout.pairs)
        begun = [
            f"{name} is filled with {first:g} before the first token" for name, first in self.firsts.items() if first
        ]
        return EntryPoint("decoder", self.step, self.sample, self.axes, pairs, others, (*notes, *begun))


def find_decoder(
    model: torch.nn.Module, inputs: Mapping[str, torch.Tensor], record: Recorder = record_steps
) -> tuple[EntryPoint, ...]:
    """The entry points of a model that generates by itself; `inputs` are those of `generate`, padded on the left."""
    small = capture_steps(model, inputs, 3, _MERGED_STEPS, record)
    large = capture_steps(model, enlarge_inputs(inputs), 4, 2, record)
    layouts = tuple(lay_out_arguments(small))
    sample, enlarged = sample_tensors(small.merged, layouts), sample_like(large, layouts)
    axes = name_axes(sample, enlarged, name_sizes(small, large))
    name_windows(axes, layouts)
    layouts = tuple(find_first_states(model, small, layout, axes) for layout in layouts)
    step = DecoderStep(model.forward, small.constants, layouts, find_past_length(axes), model=model)
    with exportable_windows(), torch.no_grad():
        several = _Candidate(step, sample, axes)
        refusal = explain_refusal(lambda: _refuse_several(several, small, enlarged))
        if not refusal:
            several = _with_written(several)
            return (several.make_entry(enlarged, _first_call(several, small)),)
        note = f"the decoder takes one token per call, of a prompt as well: {refusal}"
        reasons, larger = {}, dict(_single_steps(several, large))
        for manner, single in _single_steps(several, small):
            reasons[manner] = explain_refusal(partial(_refuse_steps, single, (small, large)))
            if not reasons[manner]:
                return (_with_written(single).make_entry(larger[manner].sample, notes=(note,)),)
        for limit, prompt in _simpler_prompts(inputs):
            capture = capture_steps(model, prompt, 3, 2, record)
            first, *rest = (single for _, single in _single_steps(several, capture))
            for single in (*rest, first):  # without padding, a file that knows nothing of it is the best one
                if not explain_refusal(partial(_refuse_steps, single, (capture,))):
                    limits = f"{limit}: {next(iter(reasons.values()))}"
                    return (replace(_with_written(single).make_entry(notes=(note, limits)), prompt=prompt),)
    apart = "; ".join(f"{manner}: {reason}" for manner, reason in reasons.items())
    raise ExportFailed(
        f"{type(model).__name__} computes something else for several tokens than for the same tokens one by one. "
        f"Several tokens in one call: {refusal}. One token per call, {apart}",
        "Export it without cache: give an .onnx file as output and no task ending in -with-past.",
    )


def _with_written(candidate: _Candidate) -> _Candidate:
    return replace(candidate, step=replace(candidate.step, written=find_written(candidate.step, candidate.sample)))


def _refuse_several(candidate: _Candidate, capture: Capture, enlarged: Mapping[str, torch.Tensor]) -> str:
    """Why one function cannot do both, several tokens at once and a prompt with an empty cache; empty if it can."""
    step, calls = _with_written(candidate).step, capture.run.calls
    merged = find_disagreement(step(**candidate.sample), capture.last, capture.following, step.layouts)
    if merged:
        return f"for {capture.steps} tokens at once {merged}"
    prompt = _first_call(candidate, capture)
    if prompt.keys() != candidate.sample.keys():
        return f"the first call takes other inputs ({', '.join(sorted(prompt.keys() ^ candidate.sample.keys()))})"
    empty = find_disagreement(step(**prompt), calls[0], calls[1].arguments, step.layouts)
    if empty:
        return f"for a prompt with an empty cache {empty}"
    if _count_operators(step, candidate.sample) > _count_operators(step, enlarged):
        return "its code runs more operators for more tokens (a loop in Python)"
    return ""


def _count_operators(step: DecoderStep, tensors: Mapping[str, torch.Tensor]) -> int:
    """Of torch, in one call. A graph has as many for every number of tokens."""
    with _OperatorCounter() as counter:
        step(**tensors)
    return int(counter.count)


def _simpler_prompts(inputs: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, Mapping[str, torch.Tensor]]]:
    """Prompts that a model may be consistent for which is not for a padded batch, and what a user should know then."""
    if MASK not in inputs:
        return
    plain = {**inputs, MASK: torch.ones_like(inputs[MASK])}
    yield "the model is not consistent about padding, so the decoder takes none", plain
    row = {name: tensor[-1:] for name, tensor in plain.items()}
    yield "the model is not consistent about batches, so the decoder takes one row", row


def _single_steps(candidate: _Candidate, capture: Capture) -> Iterator[tuple[str, _Candidate]]:
    """Steps of one token, which differ in what becomes of padding."""
    step, layouts = candidate.step, candidate.step.layouts
    plain = sample_like(replace(capture, steps=1), layouts)
    # One row is all that there is if the model was run on one.
    fixed = {SEQUENCE} if len(capture.run.tokens) > 1 else {SEQUENCE, BATCH}
    axes = {
        name: {axis: what for axis, what in candidate.axes.get(name, {}).items() if what not in fixed} for name in plain
    }
    taken, mask = MASK in plain, capture.run.calls[0].arguments.get(MASK)
    hidden = plain
    if not taken and isinstance(mask, torch.Tensor):
        hidden = {MASK: mask.new_ones(len(mask), capture.past_length + 1), **plain}
        axes[MASK] = {0: BATCH, 1: TOTAL}
    if MASK in hidden:
        kept = {
            pair.present: pair.past
            for layout in layouts
            for pair in layout.pairs
            if not {PAST, WINDOW} & set(axes[pair.past].values())
        }
        yield "padding leaves states alone", _Candidate(replace(step, masked=kept, takes_mask=taken), hidden, axes)
    unmasked = {name: tensor for name, tensor in plain.items() if name != MASK}
    open_axes = {name: axes[name] for name in unmasked}
    blind = replace(step, past_length=find_past_length(open_axes))
    yield "padding is like any token", _Candidate(blind, unmasked, open_axes)
    if taken:
        yield "padding is what the model makes of it", _Candidate(step, plain, axes)


def _refuse_steps(candidate: _Candidate, captures: Sequence[Capture]) -> str:
    """Why the prompt, token by token from an empty state, is not what the model makes of it at once; empty if it is."""
    step = _with_written(candidate).step
    pairs = {pair.past: pair.present for layout in step.layouts for pair in layout.pairs}
    for capture in captures:
        prefill, calls = capture.run.calls[0], capture.run.calls
        prompt, length = sample_tensors(prefill.arguments, ()), query_length(prefill, calls[1])
        states, results = candidate.empty_states(capture), {}
        for position in range(length):
            now = {
                name: take_position(prompt[name], position, length, name == MASK)
                for name in candidate.sample
                if name not in pairs
            }
            results = step(**now, **states)
            states = {past: results.get(present, states[past]) for past, present in pairs.items()}
        apart = find_disagreement(results, prefill, calls[1].arguments, step.layouts)
        if apart:
            return f"after {length} tokens {apart}"
    return ""


def take_position(tensor: torch.Tensor, position: int, length: int, is_mask: bool) -> torch.Tensor:
    axis = next((axis for axis in reversed(range(tensor.dim())) if tensor.shape[axis] == length), None)
    if axis is None:
        return tensor
    return tensor.narrow(axis, 0, position + 1) if is_mask else tensor.narrow(axis, position, 1)


def _first_call(candidate: _Candidate, capture: Capture) -> dict[str, torch.Tensor]:
    """The prompt, with a cache that was not filled yet."""
    return sample_tensors(capture.run.calls[0].arguments, ()) | candidate.empty_states(capture)
