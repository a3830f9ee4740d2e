"""Candidate: a call of a decoder that may become an entry point, with the samples that tell whether it does.

    candidate = describe_step(model, (small, large), layouts)      a step, a sample, the same at other sizes, axes
    candidate.refuse(small)                                        "logits differs by 0.31"; empty: as in `generate`
    candidate.make_entry("decoder", candidate.enlarged)            the entry point

All decoders are found in this way: alone, behind an encoder, for the first call and for later ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch

from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.generation.cache import TensorLayout
from modelexport.capture.generation.captures import (
    Capture,
    empty_state,
    find_disagreement,
    find_past_length,
    find_written,
    name_axes,
    name_sizes,
    name_windows,
    sample_like,
    sample_tensors,
)
from modelexport.capture.generation.decoder_step import DecoderStep
from modelexport.capture.generation.steps import WITHOUT_CACHE
from modelexport.errors import ExportFailed
from modelexport.record.package import CachePair

DECODER, WITH_PAST = "decoder", "decoder_with_past"
_TOKENS = "input_ids"


@dataclass(frozen=True)
class Candidate:
    """
    sample    of the inputs
    axes      of the inputs, by name
    enlarged  the inputs at other sizes; empty where the step was not captured twice
    """

    step: DecoderStep
    sample: Mapping[str, torch.Tensor]
    axes: Mapping[str, Mapping[int, str]]
    enlarged: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def pairs(self) -> tuple[CachePair, ...]:
        return tuple(pair for layout in self.step.layouts for pair in layout.pairs)

    def with_layouts(self, layouts: Sequence[TensorLayout]) -> Candidate:
        return replace(self, step=replace(self.step, layouts=tuple(layouts)))

    def with_written(self) -> Candidate:
        """The candidate that copies what the model writes into; runs the model, which may refuse."""
        return replace(self, step=replace(self.step, written=find_written(self.step, self.sample)))

    def refuse(self, capture: Capture, tensors: Mapping[str, torch.Tensor] | None = None) -> str:
        """What differs from what the model gave in the calls of a capture; empty if nothing does.

        tensors  inputs of these calls, where they are not the sample
        """
        results = self.with_written().step(**(self.sample if tensors is None else tensors))
        return find_disagreement(results, capture.last, capture.following, self.step.layouts)

    def empty_states(self, capture: Capture) -> dict[str, torch.Tensor]:
        """The cache before the first token, for the batch of a capture."""
        filled = sample_like(capture, self.step.layouts)
        return {pair.past: empty_state(filled[pair.past], self.axes[pair.past], pair.first) for pair in self.pairs}

    def first_call(self, capture: Capture) -> dict[str, torch.Tensor]:
        """The prompt of a capture, with a cache that was not filled yet."""
        return sample_tensors(capture.run.calls[0].arguments, ()) | self.empty_states(capture)

    def make_entry(self, name: str, *others: Mapping[str, torch.Tensor], notes: tuple[str, ...] = ()) -> EntryPoint:
        begun = [
            f"{each.past} is filled with {each.first:g} before the first token" for each in self.pairs if each.first
        ]
        step = self.with_written().step
        return EntryPoint(name, step, self.sample, self.axes, self.pairs, others, (*notes, *begun))


def describe_step(
    model: torch.nn.Module,
    captures: tuple[Capture, Capture],
    layouts: Sequence[TensorLayout],
    names: Mapping[tuple[int, ...], str] = MappingProxyType({}),
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> Candidate:
    """The call that two captures are of, one of them larger.

    names    further names of axes
    renamed  input names of arguments that go by another one
    """
    small, large = captures
    sample = rename_inputs(sample_tensors(small.merged, layouts), renamed)
    enlarged = rename_inputs(sample_like(large, layouts), renamed)
    axes = name_axes(sample, enlarged, {**name_sizes(small, large), **names})
    name_windows(axes, layouts)
    step = DecoderStep(
        model.forward, small.constants, tuple(layouts), find_past_length(axes), renamed=renamed, model=model
    )
    return Candidate(step, sample, axes, enlarged)


def rename_inputs(tensors: Mapping[str, torch.Tensor], renamed: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """Arguments under the names of inputs, tokens first, as consumers list them."""
    inputs = {argument: name for name, argument in renamed.items()}
    named = {inputs.get(argument, argument): tensor for argument, tensor in tensors.items()}
    return {name: named[name] for name in sorted(named, key=lambda name: name != _TOKENS)}


def refuse_model(model: torch.nn.Module, reasons: Mapping[str, str]) -> ExportFailed:
    """The error for a model whose recorded calls cannot be made again.

    reasons  by the way in which it was tried; empty where it worked
    """
    apart = "; ".join(f"{manner} {reason}" for manner, reason in reasons.items() if reason)
    return ExportFailed(
        f"{type(model).__name__} computes something else from recorded arguments than it did in `generate`: {apart}",
        WITHOUT_CACHE,
    )
