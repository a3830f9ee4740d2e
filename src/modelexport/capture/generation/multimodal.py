"""Entry points of a language model that reads images or sounds: encoders of media, embedding of tokens, decoder.

    vision_encoder   pixel_values, image_grid_thw, …                image_features
    embed_tokens     input_ids                                      inputs_embeds
    embedding        input_ids, image_features                      inputs_embeds, features in the place of tokens
    decoder          inputs_embeds, attention_mask, past …          logits, present.*

A consumer puts features in the place of tokens by itself (`embed_tokens`) or lets a graph do it (`embedding`). The
decoder is the whole model called with embeddings, as `generate` would call it: one graph if it computes in the first
call what the model computes of a prompt with an image.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.generation.captures import BATCH, SEQUENCE, Recorder, are_close, name_axes, name_first_axis
from modelexport.capture.generation.decoders import find_decoder, find_two_decoders
from modelexport.capture.generation.media import EmbeddingStep, MediaInput, describe_features, encode_media, find_media
from modelexport.capture.generation.packed_images import make_uneven
from modelexport.capture.generation.steps import (
    WITHOUT_CACHE,
    Generation,
    RecordedCall,
    enlarge_inputs,
    record_calls,
    record_steps,
)
from modelexport.errors import ExportFailed

TOKENS, EMBEDDINGS, MEDIA_OUTPUTS = "input_ids", "inputs_embeds", "mm_encoder_outputs"
POSITIONS, _PLACES = "position_ids", 3  # time, height, width
_PER_TOKEN = (EMBEDDINGS, "attention_mask", POSITIONS)


@dataclass(frozen=True)
class _Prompt:
    """The first call of a run: what `forward` got, and what the language model got in it."""

    call: RecordedCall
    decoder: RecordedCall


def find_multimodal(model: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> tuple[EntryPoint, ...]:
    """The entry points of a model with a decoder for text and encoders for what else is in `inputs`."""
    larger = enlarge_inputs(inputs)
    media, larger_media = find_media(model, inputs), find_media(model, larger)
    with torch.no_grad():
        encoders = [_describe_encoder(model, *pair) for pair in zip(media, larger_media, strict=True)]
        embedded = _describe_embedding(model, (inputs, larger), encoders, media)
    return (*encoders, _describe_tokens(model, inputs), embedded, *_find_decoders(model, inputs, media))


def _describe_encoder(model: torch.nn.Module, media: MediaInput, larger: MediaInput) -> EntryPoint:
    step = describe_features(model, media)
    # In one list of patches the first axis is that list, and not the images.
    known = name_first_axis(media.arguments, larger.arguments) if step.packed is None else {}
    axes = name_axes(media.arguments, larger.arguments, known)
    uneven = () if step.packed is None else (make_uneven(media.arguments, step.packed.patches),)
    return EntryPoint(media.encoder, step, media.arguments, axes, others=(larger.arguments, *uneven))


def _describe_tokens(model: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> EntryPoint:
    embed: torch.nn.Module = model.get_input_embeddings()  # type: ignore[operator]

    def forward(input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {EMBEDDINGS: embed(input_ids)}

    return EntryPoint("embed_tokens", forward, {TOKENS: inputs[TOKENS]}, {TOKENS: {0: BATCH, 1: SEQUENCE}})


def _describe_embedding(
    model: torch.nn.Module,
    inputs: tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]],
    encoders: list[EntryPoint],
    media: tuple[MediaInput, ...],
) -> EntryPoint:
    prompts = [_record_prompt(model, each) for each in inputs]
    samples = [
        {TOKENS: prompt.call.arguments[TOKENS], **_features(encoders, sample)}
        for prompt, sample in zip(prompts, inputs, strict=True)
    ]
    small = prompts[0]
    constants = {
        name: value
        for name, value in small.call.arguments.items()
        if value is not None and not isinstance(value, torch.Tensor) and name not in ("past_key_values", MEDIA_OUTPUTS)
    }
    decoder: torch.nn.Module = model.get_decoder()  # type: ignore[operator]
    outputs, given = small.call.arguments.get(MEDIA_OUTPUTS), {}
    if outputs is None:  # `forward` itself asks for the features, of what it is given
        outputs = {each.modality: encode_media(model, each) for each in media}
        given = {name: tensor for each in media for name, tensor in each.arguments.items()}
    step = EmbeddingStep(
        model.forward, {**constants, "use_cache": False}, decoder, type(small.decoder.outputs), outputs, given
    )
    if not are_close(step(**samples[0])[EMBEDDINGS], small.decoder.arguments[EMBEDDINGS]):
        raise ExportFailed(
            f"{type(model).__name__} puts features in the place of tokens in a way that cannot be seen from outside",
            WITHOUT_CACHE,
        )
    small_media, larger_media = (
        {name: tensor for name, tensor in sample.items() if name != TOKENS} for sample in samples
    )
    axes = {**name_axes(small_media, larger_media, {}), TOKENS: {0: BATCH, 1: SEQUENCE}}
    return EntryPoint("embedding", step, samples[0], axes, others=(samples[1],))


def _features(encoders: list[EntryPoint], inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        name: tensor
        for encoder in encoders
        for name, tensor in encoder.forward(**{name: inputs[name] for name in encoder.inputs}).items()
    }


def _record_prompt(model: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> _Prompt:
    with record_calls(model.get_decoder()) as decoded:  # type: ignore[operator]
        run = record_steps(model, inputs, 1)
    return _Prompt(run.calls[0], decoded[0])


def _find_decoders(
    model: torch.nn.Module, inputs: Mapping[str, torch.Tensor], media: tuple[MediaInput, ...]
) -> tuple[EntryPoint, ...]:
    """The decoder of embeddings; what else `forward` takes for each token is an input only if it matters.

    Two of them where the model computes something else in the first call than in later ones.
    """
    consumed = {TOKENS, MEDIA_OUTPUTS, *(name for each in media for name in each.arguments)}

    def record(model: torch.nn.Module, inputs: Mapping[str, Any], new_tokens: int, least: bool = True) -> Generation:
        run = record_embedded(model, inputs, new_tokens)
        calls = [
            replace(call, arguments=_embed(call.arguments, call.arguments[EMBEDDINGS], consumed, least))
            for call in run.calls
        ]
        return Generation(run.tokens, calls)

    record_all = partial(record, least=False)
    for recorder in (record, record_all):
        with suppress(ExportFailed):
            return find_decoder(model, inputs, recorder)
    return find_two_decoders(model, inputs, record_all, record)


def record_embedded(model: torch.nn.Module, inputs: Mapping[str, Any], new_tokens: int) -> Generation:
    """Calls of `generate`, each with the embeddings that the language model got in it: `inputs_embeds`."""
    with record_calls(model.get_decoder()) as decoded:  # type: ignore[operator]
        run = record_steps(model, inputs, new_tokens)
    calls = [
        replace(call, arguments={**call.arguments, EMBEDDINGS: inner.arguments[EMBEDDINGS]})
        for call, inner in zip(run.calls, decoded, strict=True)
    ]
    return Generation(run.tokens, calls)


def record_as_taken(entry: EntryPoint) -> Recorder:
    """How runs are recorded whose calls are those of this decoder, whatever else their arguments hold.

    takes input_ids        the arguments as they are
    takes inputs_embeds    these among them, and places in time, height and width without that in the text, if it does
    """
    if EMBEDDINGS not in entry.inputs:
        return record_steps
    places = entry.inputs.get(POSITIONS)

    def record(model: torch.nn.Module, inputs: Mapping[str, Any], new_tokens: int) -> Generation:
        run = record_embedded(model, inputs, new_tokens)
        least = places is not None and len(places) == _PLACES
        calls = [
            replace(call, arguments=_trim_places(call.arguments) if least else call.arguments) for call in run.calls
        ]
        return Generation(run.tokens, calls)

    return record


def find_media_places(model: torch.nn.Module, arguments: Mapping[str, Any]) -> torch.Tensor:
    """Which tokens of a recorded call have something else in their place: those whose embedding is not their own."""
    embed: torch.nn.Module = model.get_input_embeddings()  # type: ignore[operator]
    tokens, embeddings = arguments[TOKENS], arguments[EMBEDDINGS]
    with torch.no_grad():
        # A token that only marks a place may be none of the table's.
        own: torch.Tensor = embed(tokens.clamp(max=len(embed.weight) - 1))  # type: ignore[arg-type]
    places: torch.Tensor = (own != embeddings).any(-1)
    return places


def _embed(arguments: Mapping[str, Any], embeddings: torch.Tensor, consumed: set[str], least: bool) -> dict[str, Any]:
    """Arguments of a call with embeddings in the place of tokens and media.

    least  without tensors that have a value for each token and are neither mask nor positions; places in time, height
           and width without that in the text
    """
    kept = {
        name: value
        for name, value in arguments.items()
        if name not in consumed and not (least and isinstance(value, torch.Tensor) and name not in _PER_TOKEN)
    }
    return {EMBEDDINGS: embeddings, **(_trim_places(kept) if least else kept)}


def _trim_places(arguments: Mapping[str, Any]) -> dict[str, Any]:
    places = arguments.get(POSITIONS)
    if isinstance(places, torch.Tensor) and places.dim() > 2 and len(places) == _PLACES + 1:
        return {**arguments, POSITIONS: places[1:]}
    return dict(arguments)
