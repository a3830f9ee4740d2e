"""Decoder step: one call of a model that generates, as a function of named tensors.

    DecoderStep(model.forward, …)(input_ids=…, attention_mask=…, **{"past_key_values.0.key": …})
        {"logits": …, "present.0.key": …}

The cache is built from tensors before the call and read into tensors after it, so that an exporter sees tensors alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from modelexport.capture.generation.cache import TensorLayout
from modelexport.capture.generation.module_states import MODULE_STATES, hold_module_states

MASK, LOGITS = "attention_mask", "logits"


@dataclass(frozen=True)
class PastLength:
    """Where a graph reads how many tokens the cache has seen: an axis of an input, less another one."""

    longer: tuple[str, int]
    shorter: tuple[str, int] | None = None

    def measure(self, tensors: Mapping[str, torch.Tensor]) -> int:
        (name, axis), rest = self.longer, self.shorter
        length = tensors[name].shape[axis]
        return length if rest is None else length - tensors[rest[0]].shape[rest[1]]


@dataclass(frozen=True)
class ImpliedTensor:
    """An argument whose size a model reads and whose values it does not: zeros, as large as inputs say.

    sizes  of its axes, each a number, or an axis of an input
    """

    sizes: tuple[int | tuple[str, int], ...]
    dtype: torch.dtype

    def make(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        shape = [size if isinstance(size, int) else tensors[size[0]].shape[size[1]] for size in self.sizes]
        return torch.zeros(shape, dtype=self.dtype, device=next(iter(tensors.values())).device)


@dataclass(frozen=True)
class DecoderStep:
    """One call of a decoder as a function of named tensors.

    call       the model's own `forward`
    constants  arguments that are no tensors: use_cache, return_dict
    layouts    of arguments that hold several tensors, the cache among them
    renamed    input names of arguments that go by another one
    written    inputs that the model writes into; it gets copies of them
    masked     outputs that are the input of theirs where the mask says that the token is padding
    takes_mask whether the model itself takes the mask
    implied    tensors that are no inputs, by the name that the input would have
    model      whose modules keep states in attributes, where a layout is that of module states
    """

    call: Callable[..., Any]
    constants: Mapping[str, Any]
    layouts: tuple[TensorLayout, ...]
    past_length: PastLength | None = None
    written: frozenset[str] = frozenset()
    masked: Mapping[str, str] = field(default_factory=dict)
    takes_mask: bool = True
    renamed: Mapping[str, str] = field(default_factory=dict)
    implied: Mapping[str, ImpliedTensor] = field(default_factory=dict)
    model: torch.nn.Module | None = None

    def __call__(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        tensors = {name: tensor.clone() if name in self.written else tensor for name, tensor in inputs.items()}
        tensors |= {name: implied.make(tensors) for name, implied in self.implied.items()}
        length = None if self.past_length is None else self.past_length.measure(tensors)
        inside = {name for layout in self.layouts for name in layout.sample}
        arguments = {self.renamed.get(name, name): tensor for name, tensor in tensors.items() if name not in inside}
        filled = {layout.argument: layout.fill(tensors, length) for layout in self.layouts}
        mask = None if self.takes_mask else arguments.pop(MASK, None)
        states = filled.pop(MODULE_STATES, None)
        with self._hold(states) as read_states:
            outputs = self.call(**self.constants, **arguments, **filled)
            filled |= {} if read_states is None else {MODULE_STATES: read_states()}
        # What comes back as it was given is no output; a copy that was written into is.
        given = {id(tensor) for name, tensor in (*inputs.items(), *tensors.items()) if name not in self.written}
        # Other tensors that a model returns are by-products: hidden states of its encoder, state of its own.
        named = {LOGITS: outputs[LOGITS]}
        for layout in self.layouts:
            if layout.present is not None:
                returned = outputs.get(layout.argument)
                named |= layout.read(filled[layout.argument] if returned is None else returned)
        if self.masked:
            mask = arguments[MASK] if mask is None else mask
            named |= {name: _keep_masked(mask, named[name], inputs[past]) for name, past in self.masked.items()}
        return {name: tensor for name, tensor in named.items() if id(tensor) not in given}

    def _hold(
        self, states: Mapping[str, torch.Tensor] | None
    ) -> AbstractContextManager[Callable[[], dict[str, torch.Tensor]] | None]:
        """The attributes of modules that a step reads and writes, while the model is called."""
        return nullcontext() if states is None or self.model is None else hold_module_states(self.model, states)


def _keep_masked(mask: torch.Tensor, state: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """`before` in rows whose last token is padding."""
    row = mask[:, -1].reshape(-1, *[1] * (state.dim() - 1))
    return torch.where(row != 0, state, before)
