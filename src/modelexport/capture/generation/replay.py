"""Replay: the calls of a run of `generate` as calls of entry points, and `generate` once more on other logits.

    run = record_steps(model, inputs, 16)
    read_step(run, 0, entry)       (input_ids 2x6, attention_mask 2x6, past_key_values.0.key 2x2x0x8, …)
    read_step(run, 1, entry)       (input_ids 2x1, attention_mask 2x7, past_key_values.0.key 2x2x6x8, …)
    choose_tokens(model, inputs, run, logits)      the tokens that `generate` makes of these logits

An entry point that takes one token per call gets a prompt as several calls.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from modelexport.capture.entry_point import EntryPoint, replace_forward
from modelexport.capture.generation.cache import Path, TensorLayout, read_path
from modelexport.capture.generation.captures import BATCH, SEQUENCE, capture_steps, empty_state, query_length
from modelexport.capture.generation.decoder_step import MASK, DecoderStep
from modelexport.capture.generation.decoders import take_position
from modelexport.capture.generation.multimodal import EMBEDDINGS, TOKENS, find_media_places, record_as_taken
from modelexport.capture.generation.steps import Generation, has_encoder, record_steps
from modelexport.capture.generation.windows import exportable_windows

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class EntryCall:
    """One call of an entry point, out of a run of `generate`.

    past, query  tokens before the call, and tokens that it is given
    mask         which of all tokens are no padding; None where the model takes no mask
    """

    inputs: Mapping[str, torch.Tensor]
    past: int
    query: int
    mask: torch.Tensor | None = None


def read_step(run: Generation, number: int, entry: EntryPoint) -> list[EntryCall]:
    """A call of `generate` as calls of an entry point: one, or one for each token."""
    length = query_length(run.calls[0], run.calls[1])
    past, query = (length + number - 1, 1) if number else (0, length)
    return _as_calls(entry, run.calls[number].arguments, past, query)


@dataclass(frozen=True)
class StepSize:
    """
    padding  which end of the prompt's first row is padding: `left`, `right` or none
    """

    batch: int
    past: int
    query: int
    padding: str = ""


def limit_size(entry: EntryPoint, size: StepSize) -> StepSize:
    """The nearest size that an entry point is made for: some take no padding, and some of these one row."""
    if not entry.prompt:
        return size
    return StepSize(size.batch if BATCH in _axis_names(entry) else 1, size.past, size.query)


def read_sized_step(
    model: torch.nn.Module, inputs: Mapping[str, torch.Tensor], entries: tuple[EntryPoint, EntryPoint], size: StepSize
) -> tuple[EntryPoint, list[EntryCall]]:
    """A step of this size out of a run of `generate` of its own, so that whatever goes with the tokens is right.

    entries  of the first call and of later ones
    """
    makes_own_tokens = has_encoder(model)
    length = size.past or size.query
    prompt = resize_inputs(inputs, size, None if makes_own_tokens else length)
    first = size.past if makes_own_tokens else min(size.past, 1)
    entry = entries[1 if first else 0]
    takes_several = SEQUENCE in _axis_names(entry)
    steps = size.query if first and takes_several else 1
    capture = capture_steps(model, prompt, first, steps, record_as_taken(entry))
    past = capture.past_length
    query = steps if first else query_length(capture.run.calls[0], capture.run.calls[1])
    return entry, _as_calls(entry, capture.merged, past, query)


def take_last_row(entry: EntryPoint, call: EntryCall) -> EntryCall:
    """The call with one row of its batch: the last, which has no padding."""
    inputs = dict(call.inputs)
    for name, axes in entry.axes.items():
        batch = next((axis for axis, label in axes.items() if label == BATCH), None)
        if name in inputs and batch is not None:
            inputs[name] = inputs[name].narrow(batch, inputs[name].shape[batch] - 1, 1)
    return EntryCall(inputs, call.past, call.query, None if call.mask is None else call.mask[-1:])


def resize_inputs(inputs: Mapping[str, torch.Tensor], size: StepSize, length: int | None) -> Tensors:
    """Inputs of `generate` for another batch; with so many tokens, where the prompt is tokens alone."""
    tokens = inputs.get("input_ids")
    rows = {name: tensor[torch.arange(size.batch) % len(tensor)] for name, tensor in inputs.items()}
    if tokens is None or any(tensor.shape != tokens.shape for tensor in inputs.values()) or length is None:
        return rows
    # Drawn from the tokens of the prompt: which others mean nothing special to the model is not known.
    draw = torch.Generator().manual_seed(length)
    known = tokens[inputs[MASK] != 0] if MASK in inputs else tokens.flatten()
    rows["input_ids"] = known[torch.randint(len(known), (size.batch, length), generator=draw)]
    for name in rows.keys() - {"input_ids"}:
        value = 1 if name == MASK else 0
        rows[name] = torch.full((size.batch, length), value, dtype=inputs[name].dtype)
    hidden = length // 3
    if MASK in rows and hidden and size.padding:
        rows[MASK][0, slice(hidden) if size.padding == "left" else slice(-hidden, None)] = 0
    return rows


def keep_text(model: torch.nn.Module, inputs: Mapping[str, torch.Tensor], run: Generation) -> Tensors:
    """The prompt of a run without media: what goes with its tokens, and tokens that hold the place of none."""
    arguments = run.calls[0].arguments
    if EMBEDDINGS not in arguments or TOKENS not in inputs:
        return dict(inputs)
    shape = inputs[TOKENS].shape
    text = {name: tensor for name, tensor in inputs.items() if tensor.shape == shape}
    places = find_media_places(model, arguments)
    if MASK in text and bool(places.any()):
        text[MASK] = text[MASK] * ~places
    return text


def find_window(entry: EntryPoint) -> int:
    """Tokens that the longest sliding window of a cache holds; 0 without one."""
    return max((layout.window(name) for layout in layouts_of(entry) for name in layout.paths), default=0)


def layouts_of(entry: EntryPoint) -> tuple[TensorLayout, ...]:
    step = _decoder_step(entry)
    return () if step is None else step.layouts


def _decoder_step(entry: EntryPoint) -> DecoderStep | None:
    """The step itself, or the one that a decoder for all calls is made of."""
    step = getattr(entry.forward, "step", entry.forward)
    return step if isinstance(step, DecoderStep) else None


def _axis_names(entry: EntryPoint) -> set[str]:
    return {label for named in entry.axes.values() for label in named.values()}


def _as_calls(entry: EntryPoint, arguments: Mapping[str, Any], past: int, query: int) -> list[EntryCall]:
    inputs = _name_tensors(entry, arguments, past + query)
    mask = inputs.get(MASK)
    if query == 1 or SEQUENCE in _axis_names(entry):
        return [EntryCall(inputs, past, query, mask)]
    return list(_token_by_token(entry, inputs, past, query))


def _token_by_token(entry: EntryPoint, inputs: Tensors, past: int, query: int) -> Iterator[EntryCall]:
    pairs = {pair.past: pair.present for pair in entry.cache}
    states = {name: tensor for name, tensor in inputs.items() if name in pairs}
    for position in range(query):
        now = {
            name: take_position(tensor, position, query, name == MASK)
            for name, tensor in inputs.items()
            if name not in pairs
        }
        call = EntryCall({name: (now | states)[name] for name in inputs}, past + position, 1, now.get(MASK))
        yield call
        outputs = call_entry(entry, call.inputs)
        states = {name: outputs.get(present, states[name]) for name, present in pairs.items()}


def call_entry(entry: EntryPoint, inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    with exportable_windows(), torch.no_grad():
        return entry.forward(**{name: tensor.clone() for name, tensor in inputs.items()})


def _name_tensors(entry: EntryPoint, arguments: Mapping[str, Any], total: int) -> Tensors:
    """What an entry point takes, out of the arguments of a call of the model."""
    step = _decoder_step(entry)
    names = {} if step is None else {argument: name for name, argument in step.renamed.items()}
    tensors = {names.get(name, name): value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    batch = next((len(tensor) for tensor in tensors.values() if tensor.dim()), 1)
    for layout in layouts_of(entry):
        for name, path in layout.paths.items():
            state = _read_state(arguments.get(layout.argument), path)
            label = layout.past + name
            if label in entry.inputs:
                tensors[label] = _empty_state(entry, label, batch) if state is None else state
    if MASK in entry.inputs and MASK not in tensors:
        # It was not handed on because nothing before matters any more: only the new tokens are looked at.
        tensors[MASK] = entry.inputs[MASK].new_ones(batch, total)
    return {name: tensors[name] for name in entry.inputs if name in tensors}


def _read_state(cache: object, path: Path) -> torch.Tensor | None:
    """None for a state that was not made yet."""
    with suppress(AttributeError, IndexError, KeyError, TypeError):
        state = read_path(cache, path)
        if isinstance(state, torch.Tensor) and state.numel():
            return state
    return None


def _empty_state(entry: EntryPoint, name: str, batch: int) -> torch.Tensor:
    first = next((pair.first for pair in entry.cache if pair.past == name), 0.0)
    return empty_state(entry.inputs[name], entry.axes.get(name, {}), first, batch)


def choose_tokens(
    model: torch.nn.Module, inputs: Mapping[str, Any], run: Generation, logits: Sequence[torch.Tensor]
) -> torch.Tensor:
    """The new tokens that `generate` makes of these logits, one tensor for each of its calls.

    Its own rules apply: tokens that it suppresses or forces are suppressed or forced here as well.
    """
    remaining = iter(zip(run.calls, logits, strict=False))

    def forward(*_: Any, **__: Any) -> Any:
        call, others = next(remaining)
        outputs = copy.deepcopy(call.outputs)
        count = outputs["logits"].shape[1]
        outputs["logits"] = others[:, -count:].to(outputs["logits"])
        return outputs

    forward.__signature__ = inspect.signature(model.forward)  # type: ignore[attr-defined]
    with replace_forward(model, forward):
        tokens = record_steps(model, inputs, len(logits)).tokens
    return tokens[:, -len(logits) :]
