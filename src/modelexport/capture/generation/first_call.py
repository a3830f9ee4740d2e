"""First call of a decoder as a graph of its own, for models that compute something else in it than in later ones.

    decoder              inputs_embeds, attention_mask, token_type_ids      logits, present.*
    decoder_with_past    inputs_embeds, attention_mask, past …              logits, present.*

Some models let the tokens of an image, or of a whole prompt, look at each other in both directions. They do so in the
first call alone, and are told by an input of it where these tokens are. No graph for later calls can do the same: their
mask is causal, whatever the cache holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import torch

from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.generation.cache import TensorLayout
from modelexport.capture.generation.captures import (
    BATCH,
    SEQUENCE,
    Capture,
    Recorder,
    agree,
    capture_steps,
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
from modelexport.capture.generation.decoder_step import DecoderStep
from modelexport.capture.generation.steps import enlarge_inputs
from modelexport.capture.generation.windows import exportable_windows
from modelexport.errors import ExportFailed


def find_two_decoders(
    model: torch.nn.Module, inputs: Mapping[str, torch.Tensor], first: Recorder, later: Recorder
) -> tuple[EntryPoint, EntryPoint]:
    """Entry points of the first call and of later ones, which each compute what the model does in `generate`.

    first, later  how the calls are recorded whose arguments the entry points take
    """
    larger = enlarge_inputs(inputs)
    with exportable_windows(), torch.no_grad():
        prompts = [capture_steps(model, each, 0, 1, first) for each in (inputs, larger)]
        following = capture_steps(model, inputs, 3, 3, later), capture_steps(model, larger, 4, 2, later)
        layouts = tuple(lay_out_arguments(following[0]))
        with suppress(Exception):  # a model may refuse several tokens after the first call
            entries = _describe_prompt(model, prompts, layouts), _describe_later(model, following, layouts)
            if all(entries):
                return entries  # type: ignore[return-value]  # none of them is None
    raise ExportFailed(
        f"{type(model).__name__} computes something else from recorded arguments than it did in `generate`",
        "Export it without cache: give an .onnx file as output and no task ending in -with-past.",
    )


def _describe_prompt(
    model: torch.nn.Module, prompts: list[Capture], layouts: tuple[TensorLayout, ...]
) -> EntryPoint | None:
    """The first call, which makes the cache; None if the prompt alone does not say what it computes."""
    small, large = prompts
    fresh = tuple(replace(layout, fresh=small.merged[layout.argument]) for layout in layouts)
    sample, enlarged = (sample_tensors(capture.merged, ()) for capture in prompts)
    lengths = tuple(query_length(*capture.run.calls[:2]) for capture in prompts)
    batches = tuple(len(capture.run.tokens) for capture in prompts)
    axes = name_axes(sample, enlarged, {batches: BATCH, lengths: SEQUENCE})
    step = DecoderStep(model.forward, small.constants, fresh)
    pairs = tuple(pair for layout in fresh for pair in layout.pairs)
    entry = EntryPoint("decoder", step, sample, axes, pairs, (enlarged,))
    return entry if all(_computes(step, capture) for capture in (small, large)) else None


def _describe_later(
    model: torch.nn.Module, captures: tuple[Capture, Capture], layouts: tuple[TensorLayout, ...]
) -> EntryPoint | None:
    small, large = captures
    sample, enlarged = sample_tensors(small.merged, layouts), sample_like(large, layouts)
    axes = name_axes(sample, enlarged, name_sizes(small, large))
    name_windows(axes, layouts)
    step = DecoderStep(model.forward, small.constants, layouts, find_past_length(axes))
    step = replace(step, written=find_written(step, sample))
    pairs = tuple(pair for layout in layouts for pair in layout.pairs)
    if not agree(step(**sample), small.last, small.following, layouts):
        return None
    return EntryPoint("decoder_with_past", step, sample, axes, pairs, (enlarged,))


def _computes(step: DecoderStep, capture: Capture) -> bool:
    results = step(**sample_tensors(capture.merged, ()))
    return agree(results, capture.last, capture.following, step.layouts)
