"""Entry points of a decoder: found by watching `generate`, described by what changes from step to step.

    steps of a padded batch          prefill, decode, decode, …                          steps.py
    cache arguments                  what a step changes and the next one reads          cache.py
    a step of several tokens         decode steps merged, so that the axis stays open
    axes                             the same steps at other sizes: what differs is an axis

One graph serves prefill and decode if the model computes the same in one call with an empty cache as in the first step,
and in one call of several tokens as in several calls (`_refuse_several`), by operators whose number does not depend on
the number of tokens. Otherwise it takes one token per call, and users are told why.

Some models let the tokens of an image, or of a whole prompt, look at each other in both directions. They do so in the
first call alone, and are told by an input of it where these tokens are. No graph for later calls can do the same: their
mask is causal, whatever the cache holds. Then the first call is a graph of its own (`find_two_decoders`):

    decoder              inputs_embeds, attention_mask, token_type_ids      logits, present.*
    decoder_with_past    inputs_embeds, attention_mask, past …              logits, present.*
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.generation.candidates import DECODER, WITH_PAST, Candidate, describe_step, refuse_model
from modelexport.capture.generation.captures import (
    BATCH,
    PAST,
    SEQUENCE,
    TOTAL,
    WINDOW,
    Capture,
    Recorder,
    capture_steps,
    explain_refusal,
    find_disagreement,
    find_first_states,
    find_past_length,
    lay_out_arguments,
    query_length,
    sample_like,
    sample_tensors,
)
from modelexport.capture.generation.decoder_step import MASK, DecoderStep
from modelexport.capture.generation.steps import WITHOUT_CACHE, enlarge_inputs, record_steps
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


def find_decoder(
    model: torch.nn.Module, inputs: Mapping[str, torch.Tensor], record: Recorder = record_steps
) -> tuple[EntryPoint, ...]:
    """The entry points of a model that generates by itself; `inputs` are those of `generate`, padded on the left."""
    small = capture_steps(model, inputs, 3, _MERGED_STEPS, record)
    large = capture_steps(model, enlarge_inputs(inputs), 4, 2, record)
    several = describe_step(model, (small, large), tuple(lay_out_arguments(small)))
    several = several.with_layouts(
        [find_first_states(model, small, layout, several.axes) for layout in several.step.layouts]
    )
    with exportable_windows(), torch.no_grad():
        refusal = explain_refusal(partial(_refuse_several, several, small))
        if not refusal:
            return (several.make_entry(DECODER, several.enlarged, several.first_call(small)),)
        note = f"the decoder takes one token per call, of a prompt as well: {refusal}"
        reasons, larger = {}, dict(_single_steps(several, large))
        for manner, single in _single_steps(several, small):
            reasons[manner] = explain_refusal(partial(_refuse_steps, single, (small, large)))
            if not reasons[manner]:
                return (single.make_entry(DECODER, larger[manner].sample, notes=(note,)),)
        for limit, prompt in _simpler_prompts(inputs):
            capture = capture_steps(model, prompt, 3, 2, record)
            first, *rest = (single for _, single in _single_steps(several, capture))
            for single in (*rest, first):  # without padding, a file that knows nothing of it is the best one
                if not explain_refusal(partial(_refuse_steps, single, (capture,))):
                    limits = f"{limit}: {next(iter(reasons.values()))}"
                    return (replace(single.make_entry(DECODER, notes=(note, limits)), prompt=prompt),)
    apart = "; ".join(f"{manner}: {reason}" for manner, reason in reasons.items())
    raise ExportFailed(
        f"{type(model).__name__} computes something else for several tokens than for the same tokens one by one. "
        f"Several tokens in one call: {refusal}. One token per call, {apart}",
        WITHOUT_CACHE,
    )


def find_two_decoders(
    model: torch.nn.Module, inputs: Mapping[str, torch.Tensor], first: Recorder, later: Recorder
) -> tuple[EntryPoint, EntryPoint]:
    """Entry points of the first call and of later ones, which each compute what the model does in `generate`.

    first, later  how the calls are recorded whose arguments the entry points take
    """
    larger = enlarge_inputs(inputs)
    with exportable_windows(), torch.no_grad():
        prompts = capture_steps(model, inputs, 0, 1, first), capture_steps(model, larger, 0, 1, first)
        following = capture_steps(model, inputs, 3, 3, later), capture_steps(model, larger, 4, 2, later)
        layouts, made = tuple(lay_out_arguments(following[0])), prompts[0].merged
        decoder = describe_step(model, prompts, [replace(each, fresh=made[each.argument]) for each in layouts])
        with_past = describe_step(model, following, layouts)
        refusals = {
            "in its first call": explain_refusal(
                lambda: decoder.refuse(prompts[0]) or decoder.refuse(prompts[1], decoder.enlarged)
            ),
            "in later calls": explain_refusal(lambda: with_past.refuse(following[0])),
        }
        if not any(refusals.values()):
            return decoder.make_entry(DECODER, decoder.enlarged), with_past.make_entry(WITH_PAST, with_past.enlarged)
    raise refuse_model(model, refusals)


def _refuse_several(candidate: Candidate, capture: Capture) -> str:
    """Why one function cannot do both, several tokens at once and a prompt with an empty cache; empty if it can."""
    merged = candidate.refuse(capture)
    if merged:
        return f"for {capture.steps} tokens at once {merged}"
    prompt, step, calls = candidate.first_call(capture), candidate.with_written().step, capture.run.calls
    if prompt.keys() != candidate.sample.keys():
        return f"the first call takes other inputs ({', '.join(sorted(prompt.keys() ^ candidate.sample.keys()))})"
    empty = find_disagreement(step(**prompt), calls[0], calls[1].arguments, step.layouts)
    if empty:
        return f"for a prompt with an empty cache {empty}"
    if _count_operators(step, candidate.sample) > _count_operators(step, candidate.enlarged):
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


def _single_steps(candidate: Candidate, capture: Capture) -> Iterator[tuple[str, Candidate]]:
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
            pair.present: pair.past for pair in candidate.pairs if not {PAST, WINDOW} & set(axes[pair.past].values())
        }
        yield "padding leaves states alone", Candidate(replace(step, masked=kept, takes_mask=taken), hidden, axes)
    unmasked = {name: tensor for name, tensor in plain.items() if name != MASK}
    open_axes = {name: axes[name] for name in unmasked}
    blind = replace(step, past_length=find_past_length(open_axes))
    yield "padding is like any token", Candidate(blind, unmasked, open_axes)
    if taken:
        yield "padding is what the model makes of it", Candidate(step, plain, axes)


def _refuse_steps(candidate: Candidate, captures: Sequence[Capture]) -> str:
    """Why the prompt, token by token from an empty state, is not what the model makes of it at once; empty if it is."""
    step = candidate.with_written().step
    pairs = {pair.past: pair.present for pair in candidate.pairs}
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
