"""Cross-attention in one decoder for the first call and for later ones, without `If`.

Either keys and values of the encoder's states come from the encoder's graph (`encode_keys`):

    encoder   input_features                                        last_hidden_state, present.0.encoder.key, …
    decoder   input_ids, past_key_values.0.encoder.key, …           logits, present.0.decoder.key, …

or the decoder has a cache of them that may be empty (`merge_decoders`).

A decoder computes keys and values of the encoder's states in its first call and keeps them. A graph has no first call,
so it computes those that the cache does not hold yet, and puts them behind the others:

    cache of P, states of L      rows computed: min(P, L - 1) to L     first call, P = 0: all of them; later, P = L: one

One row is always computed, because reshaping is not defined for none. The model itself is asked to do so: its cache
joins what is there with what comes (`is_updated` is false), and the modules that read the states get the rows that are
missing. Masks are made of the length of all states, further outside.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.generation.cache import TensorLayout
from modelexport.capture.generation.captures import PAST_ENCODER
from modelexport.capture.generation.decoder_step import DecoderStep

_TOKENS = 2  # keys and values are [batch, heads, tokens, size] in every cache of transformers
_FEWER = 2  # rows that the sample's cache lacks, so that an exporter sees a length of its own


@dataclass(frozen=True)
class MergedStep:
    """A call of a decoder whose cache may be empty, as a function of named tensors.

    step     the call for a full cache
    hidden   the input with the encoder's states
    kept     inputs with keys and values of these states
    readers  modules that hand the states to layers with weights
    """

    step: DecoderStep
    hidden: str
    kept: tuple[str, ...]
    readers: tuple[torch.nn.Module, ...]

    def __call__(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        states = inputs[self.hidden]
        start: int = torch.sym_min(inputs[self.kept[0]].shape[_TOKENS], states.shape[1] - 1)  # type: ignore[no-untyped-call]
        known = {name: inputs[name][:, :, :start] for name in self.kept}
        with _replace_argument(self.readers, states, states[:, start:]):
            return self.step(**{**inputs, **known})


@dataclass(frozen=True)
class KeysStep:
    """The call of an encoder that also returns what a decoder makes of its states, whatever the tokens are.

    encoder  the call of the encoder alone
    first    the first call of the decoder; all of it that is not for the keys and values is left out of a graph
    tokens   of one row, for that call
    kept     its outputs that no later call changes
    """

    encoder: Callable[..., Mapping[str, torch.Tensor]]
    first: Callable[..., Mapping[str, torch.Tensor]]
    tokens: torch.Tensor
    hidden: str
    kept: tuple[str, ...]

    def __call__(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        states = self.encoder(**inputs)["last_hidden_state"]
        made = self.first(input_ids=self.tokens.expand(states.shape[0], -1), **{self.hidden: states})
        return {"last_hidden_state": states, **{name: made[name] for name in self.kept}}


def encode_keys(
    encoder: EntryPoint, first: EntryPoint, later: EntryPoint, hidden: str
) -> tuple[EntryPoint, EntryPoint] | None:
    """Encoder and decoder, of which the encoder makes the keys and values of its states; None where tokens, states and
    cache are not all that the decoder reads.

    first, later  decoders for the first call and for later ones
    """
    pasts = {pair.past for pair in later.cache}
    if set(first.inputs) != {"input_ids", hidden} or set(later.inputs) - pasts != {"input_ids"}:
        return None
    changed = later.forward(**later.inputs).keys()
    kept = tuple(pair.present for pair in later.cache if pair.present not in changed)
    step = KeysStep(encoder.forward, first.forward, first.inputs["input_ids"][:1], hidden, kept)
    return replace(encoder, forward=step), replace(later, name="decoder")


def merge_decoders(entry: EntryPoint, hidden: str) -> EntryPoint:
    """The entry point for a full cache as one whose cache of the encoder's states may be empty.

    entry   for a full cache; it takes `hidden`, the encoder's states, although it does not read them
    """
    step = entry.forward
    assert isinstance(step, DecoderStep)
    changed = step(**entry.inputs).keys()
    kept = tuple(pair.past for pair in entry.cache if pair.present not in changed)
    layouts = tuple(_forget_updates(layout) for layout in step.layouts)
    joining = replace(step, layouts=layouts)
    empty = {name: tensor[:, :, :0] for name, tensor in entry.inputs.items() if name in kept}
    readers = _find_readers(joining, {**entry.inputs, **empty}, hidden)
    length = max(entry.inputs[hidden].shape[1] - _FEWER, 1)
    fewer = {name: entry.inputs[name][:, :, :length].clone() for name in kept}
    axes = {name: {**named, _TOKENS: PAST_ENCODER} if name in kept else named for name, named in entry.axes.items()}
    merged = MergedStep(joining, hidden, kept, readers)
    return EntryPoint("decoder_merged", merged, {**entry.inputs, **fewer}, axes, entry.cache, entry.others)


def _forget_updates(layout: TensorLayout) -> TensorLayout:
    """The cache as one that does not know that it is full, so that keys and values are computed and joined."""
    updated = getattr(layout.template, "is_updated", None)
    if not isinstance(updated, Mapping):
        return layout
    memo = {id(tensor): tensor for tensor in layout.sample.values()}
    template: Any = copy.deepcopy(layout.template, memo)
    template.is_updated = dict.fromkeys(updated, False)
    return replace(layout, template=template)


def _find_readers(step: DecoderStep, inputs: Mapping[str, torch.Tensor], hidden: str) -> tuple[torch.nn.Module, ...]:
    """Innermost modules around the layers that are called with the encoder's states themselves."""
    root: torch.nn.Module = step.call.__self__  # type: ignore[attr-defined]
    states, readers = inputs[hidden], dict[int, torch.nn.Module]()
    calling: list[torch.nn.Module] = []

    def enter(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        is_layer = next(module.children(), None) is None
        if calling and is_layer and any(value is states for value in (*args, *kwargs.values())):
            readers[id(calling[-1])] = calling[-1]
        calling.append(module)

    def leave(*_: object) -> None:
        calling.pop()

    with ExitStack() as stack:
        for module in root.modules():
            if module is not root:
                stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(leave).remove)
        step(**inputs)
    return tuple(readers.values())


@contextmanager
def _replace_argument(
    modules: tuple[torch.nn.Module, ...], before: torch.Tensor, after: torch.Tensor
) -> Iterator[None]:
    """While this is open, these modules get `after` where they are called with `before`."""

    def exchange(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        given = tuple(after if value is before else value for value in args)
        return given, {name: after if value is before else value for name, value in kwargs.items()}

    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_pre_hook(exchange, with_kwargs=True).remove)
        yield
