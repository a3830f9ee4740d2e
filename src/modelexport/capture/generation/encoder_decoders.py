"""Entry points of an encoder-decoder: the encoder, the decoder's first call, and its later ones.

    encoder             input_ids or input_features              last_hidden_state
    decoder             input_ids, encoder_hidden_states         logits, present.N.decoder.*, present.N.encoder.*
    decoder_with_past   input_ids, past_key_values.*             logits, present.N.decoder.*
    decoder_merged      all of them, the past may be empty       logits, present.*                  cross_attention.py

`input_ids` of a decoder are the decoder's tokens; `encoder_attention_mask` is the mask of the encoder's input.
transformers calls every encoder-decoder in the same way (`encoder_outputs`, `decoder_input_ids`); the inputs of files
have the names that optimum gives them.
https://huggingface.co/docs/transformers/main/en/main_classes/output
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.generation.cache import TensorLayout
from modelexport.capture.generation.candidates import (
    DECODER,
    WITH_PAST,
    Candidate,
    describe_step,
    refuse_model,
    rename_inputs,
)
from modelexport.capture.generation.captures import (
    AxisNames,
    Capture,
    are_close,
    cache_arguments,
    explain_refusal,
    find_disagreement,
    lay_out_arguments,
    name_axes,
    name_sizes,
    sample_tensors,
)
from modelexport.capture.generation.cross_attention import MergedStep, encode_keys, merge_decoders
from modelexport.capture.generation.decoder_step import MASK, DecoderStep, ImpliedTensor
from modelexport.capture.generation.steps import RecordedCall, enlarge_inputs, record_calls, record_steps
from modelexport.capture.generation.windows import exportable_windows
from modelexport.errors import ExportFailed

ENCODER_OUTPUTS, HIDDEN_STATES, ENCODER_SEQUENCE = "encoder_outputs", "encoder_hidden_states", "encoder_sequence"
_STATES = "last_hidden_state"  # what an encoder calls them
# What the arguments of `forward` are called as inputs of a decoder.
_RENAMED = {"input_ids": "decoder_input_ids", "encoder_attention_mask": "attention_mask"}
# First call and number of calls that are merged, in the small and in the large run: other sizes of everything.
_SMALL_STEPS, _LARGE_STEPS = (4, 3), (6, 2)


@dataclass(frozen=True)
class EncoderStep:
    """The call of an encoder as a function of named tensors."""

    call: Callable[..., Any]
    constants: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = self.call(**self.constants, **inputs)
        tensors = {name: value for name, value in outputs.items() if isinstance(value, torch.Tensor)}
        # What else there is has the name that decoders take it under.
        return {name if name == _STATES else f"{ENCODER_OUTPUTS}.{name}": value for name, value in tensors.items()}


@dataclass(frozen=True)
class _GenerateRun:
    """One run of `generate`: the call of the encoder, the first calls of the decoder merged, later ones merged."""

    encoder: RecordedCall
    prefill: Capture
    decode: Capture


def find_encoder_decoder(
    model: torch.nn.Module, inputs: Mapping[str, torch.Tensor], merged: bool = False, encodes_keys: bool = False
) -> tuple[EntryPoint, ...]:
    """The entry points of an encoder-decoder; `inputs` are those of `generate`.

    merged        one decoder for all calls, which makes keys and values of the encoder's states in the first one
    encodes_keys  one decoder for all calls, which gets them from the encoder
    """
    small = _run(model, inputs, *_SMALL_STEPS)
    large = _run(model, enlarge_inputs(inputs, lambda larger: _try_generate(model, larger)), *_LARGE_STEPS)
    names = name_sizes(small.decode, large.decode)
    lengths = tuple(run.encoder.outputs[_STATES].shape[1] for run in (small, large))
    names.setdefault(lengths, ENCODER_SEQUENCE)
    with exportable_windows(), torch.no_grad():
        encoder = _describe_encoder(model, small, large, names)
        layouts = tuple(_name_encoder_outputs(lay_out_arguments(small.decode)))
        later = _describe_calls(model, WITH_PAST, (small.decode, large.decode), layouts, names)
        if merged:
            return encoder, _merge(model, later, small)
        fresh = tuple(_make_fresh(layouts, small.prefill.merged))
        first = _leave_out_masks(_describe_calls(model, DECODER, (small.prefill, large.prefill), fresh, names))
        later = _leave_out_masks(_leave_out_unread(later))
        return _encode_keys(model, (encoder, first, later), small) if encodes_keys else (encoder, first, later)


def _run(model: torch.nn.Module, inputs: Mapping[str, torch.Tensor], first: int, steps: int) -> _GenerateRun:
    encoder: torch.nn.Module = model.get_encoder()  # type: ignore[operator]
    with record_calls(encoder) as encoded:
        run = record_steps(model, inputs, first + steps + 1)
    caches = cache_arguments(run.calls)
    return _GenerateRun(encoded[0], Capture(run, 0, steps, caches), Capture(run, first, steps, caches))


def _try_generate(model: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> None:
    record_steps(model, inputs, 1)


def _describe_encoder(model: torch.nn.Module, small: _GenerateRun, large: _GenerateRun, names: AxisNames) -> EntryPoint:
    sample, enlarged = (sample_tensors(run.encoder.arguments, ()) for run in (small, large))
    constants = {
        name: value
        for name, value in small.encoder.arguments.items()
        if value is not None and not isinstance(value, torch.Tensor)
    }
    axes = name_axes(sample, enlarged, names)
    step = EncoderStep(model.get_encoder(), constants)  # type: ignore[operator]
    return EntryPoint("encoder", step, sample, axes, others=(enlarged,))


def _describe_calls(
    model: torch.nn.Module,
    name: str,
    captures: tuple[Capture, Capture],
    layouts: tuple[TensorLayout, ...],
    names: AxisNames,
) -> EntryPoint:
    """Several tokens at once where the model allows it, else as many as `generate` gives it."""
    small, large = captures
    reasons: dict[int, str] = {}
    for steps in (small.steps, 1):
        # A decoder of one token is checked with one token in the other sizes, too.
        capture, larger = replace(small, steps=steps), replace(large, steps=min(steps, large.steps))
        candidate = _open_axes(describe_step(model, (capture, larger), layouts, names, _RENAMED))
        reasons[steps] = explain_refusal(partial(candidate.refuse, capture))
        if not reasons[steps]:
            # The first of the merged calls alone, as `generate` makes it: mostly of one token.
            first = rename_inputs(sample_tensors(replace(capture, steps=1).merged, layouts), _RENAMED)
            others = _fit_samples(candidate, candidate.enlarged, first)
            return candidate.make_entry(name, *others, notes=_tell_refused(name, reasons))
    raise refuse_model(model, {f"for {steps} tokens at once": reason for steps, reason in reasons.items()})


def _tell_refused(name: str, reasons: Mapping[int, str]) -> tuple[str, ...]:
    """What was tried before the number of tokens that is left."""
    return tuple(
        f"{name} takes one token per call: for {steps} tokens at once {reason}"
        for steps, reason in reasons.items()
        if reason
    )


def _merge(model: torch.nn.Module, later: EntryPoint, run: _GenerateRun) -> EntryPoint:
    """One decoder for all calls, if it computes what the model does in the first call and in later ones."""
    entry = merge_decoders(later, HIDDEN_STATES)
    assert isinstance(entry.forward, MergedStep)
    layouts = entry.forward.step.layouts
    first = replace(run.prefill, steps=1)
    empty = {name: tensor for name, tensor in entry.inputs.items() if name in {pair.past for pair in entry.cache}}
    empty = {name: tensor[:, :, :0] for name, tensor in empty.items()}
    prompt = {
        **rename_inputs(sample_tensors(first.merged, [each for each in layouts if each.present is None]), _RENAMED),
        **empty,
    }
    refusal = explain_refusal(
        lambda: (
            find_disagreement(entry.forward(**prompt), first.last, first.following, layouts)
            or find_disagreement(entry.forward(**entry.inputs), run.decode.last, run.decode.following, layouts)
        )
    )
    if not refusal:
        return replace(entry, others=(*entry.others, prompt))
    raise ExportFailed(
        f"one decoder for all calls of {type(model).__name__} does not compute what the model does: {refusal}",
        "Export decoder and decoder_with_past as two files.",
    )


def _encode_keys(
    model: torch.nn.Module, entries: tuple[EntryPoint, EntryPoint, EntryPoint], run: _GenerateRun
) -> tuple[EntryPoint, ...]:
    """Encoder and decoder, if these compute what the model does in the first call."""
    pair = encode_keys(*entries, HIDDEN_STATES)
    refusal = "the decoder reads more than tokens, states and cache"
    if pair is not None:
        encoder, decoder = pair
        assert isinstance(decoder.forward, DecoderStep)
        first = replace(run.prefill, steps=1)
        made = encoder.forward(**encoder.inputs)
        states = {each.past: made.get(each.present, decoder.inputs[each.past][:, :, :0]) for each in decoder.cache}
        prompt = {"input_ids": rename_inputs(sample_tensors(first.merged, ()), _RENAMED)["input_ids"], **states}
        step = partial(decoder.forward, **prompt)
        layouts = decoder.forward.layouts
        refusal = explain_refusal(lambda: find_disagreement(step(), first.last, first.following, layouts))
        if not refusal:
            return pair
    raise ExportFailed(
        f"the encoder of {type(model).__name__} cannot make the keys and values that its decoder reads: {refusal}",
        "Export without --target for files of the first call and of later ones.",
    )


def _make_fresh(layouts: Iterable[TensorLayout], arguments: Mapping[str, Any]) -> Iterator[TensorLayout]:
    """Layouts of the first call: it takes what the encoder gave, and makes the cache."""
    for layout in layouts:
        yield layout if layout.present is None else replace(layout, fresh=arguments[layout.argument])


def _name_encoder_outputs(layouts: Iterator[TensorLayout]) -> Iterator[TensorLayout]:
    for layout in layouts:
        if layout.argument != ENCODER_OUTPUTS:
            yield layout
            continue
        names = {name: f"{layout.past}{name}" for name in layout.paths} | {_STATES: HIDDEN_STATES}
        yield replace(layout, past="", paths={names[name]: path for name, path in layout.paths.items()})


def _open_axes(candidate: Candidate) -> Candidate:
    """Without the axes of size 1: an exporter takes them for constants."""
    sizes = {name: tensor.shape for name, tensor in candidate.sample.items()}
    axes = {
        name: {axis: label for axis, label in named.items() if sizes[name][axis] > 1}
        for name, named in candidate.axes.items()
    }
    return replace(candidate, axes=axes)


def _fit_samples(candidate: Candidate, *others: Mapping[str, torch.Tensor]) -> tuple[Mapping[str, torch.Tensor], ...]:
    """Samples of other sizes that differ along open axes alone."""

    def fits(other: Mapping[str, torch.Tensor]) -> bool:
        sizes = ((name, axis, size) for name, tensor in other.items() for axis, size in enumerate(tensor.shape))
        shapes = {name: tensor.shape for name, tensor in candidate.sample.items()}
        return all(axis in candidate.axes[name] or size == shapes[name][axis] for name, axis, size in sizes)

    return tuple(other for other in others if fits(other))


def _leave_out_unread(entry: EntryPoint) -> EntryPoint:
    """The entry point without inputs of which it reads nothing but the size: that is implied by the others."""
    step = entry.forward
    assert isinstance(step, DecoderStep)
    caches = {pair.past for pair in entry.cache}
    floats = [name for name, tensor in entry.inputs.items() if tensor.is_floating_point() and name not in caches]
    expected = step(**entry.inputs)
    for name in floats:
        others = {other: tensor for other, tensor in entry.inputs.items() if other != name}
        implied = _imply(entry.inputs[name], entry.axes[name], {other: entry.axes[other] for other in others})
        if implied is None:
            continue
        without = replace(step, implied={**step.implied, name: implied})
        results = without(**others)
        if all(are_close(results[output], tensor) for output, tensor in expected.items()):
            step = without
            entry = replace(_leave_out(entry, name), forward=step)
    return entry


def _leave_out_masks(entry: EntryPoint) -> EntryPoint:
    """The entry point without masks that it does not read: others in their place, or none, change nothing."""
    masks = [name for name in entry.inputs if name.endswith(MASK)]
    expected = entry.forward(**entry.inputs)

    def refuse(tensors: Mapping[str, torch.Tensor]) -> str:
        results = entry.forward(**tensors)
        return next((name for name in expected if not are_close(results[name], expected[name])), "")

    for name in masks:
        others = {other: tensor for other, tensor in entry.inputs.items() if other != name}
        inverted = {**entry.inputs, name: (entry.inputs[name] == 0).to(entry.inputs[name].dtype)}
        if not explain_refusal(partial(refuse, inverted)) and not explain_refusal(partial(refuse, others)):
            entry = _leave_out(entry, name)
    return entry


def _leave_out(entry: EntryPoint, name: str) -> EntryPoint:
    def keep(items: Mapping[str, Any]) -> dict[str, Any]:
        return {other: item for other, item in items.items() if other != name}

    return replace(entry, inputs=keep(entry.inputs), axes=keep(entry.axes), others=tuple(map(keep, entry.others)))


def _imply(
    tensor: torch.Tensor, axes: Mapping[int, str], others: Mapping[str, Mapping[int, str]]
) -> ImpliedTensor | None:
    """How large `tensor` is by the axes of other inputs; None if they do not say."""
    by_label = {label: (name, axis) for name, named in others.items() for axis, label in named.items()}
    if any(label not in by_label for label in axes.values()):
        return None
    sizes = tuple(by_label[axes[axis]] if axis in axes else size for axis, size in enumerate(tensor.shape))
    return ImpliedTensor(sizes, tensor.dtype)
