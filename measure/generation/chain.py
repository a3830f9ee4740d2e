"""Chain: the files of a package run one after the other in ONNX Runtime, the cache handed on from step to step.

    chain = open_chain(folder)
    state = chain.start({"input_ids": …, "attention_mask": …})     encoders are run once
    logits = chain.step(state, tokens, mask)                       a prompt, or one token for each row

It reads `modelexport.json` and the files, and shares no code with the package: what it finds is a second opinion.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]

TOKENS, EMBEDDINGS, POSITIONS = "input_ids", "inputs_embeds", "position_ids"
MASKS = ("attention_mask", "decoder_attention_mask")
# Axes of a cache that have no element before the first token.
GROWING = ("past_sequence", "past_window")
_DECODERS = ("decoder_with_past", "decoder", "decoder_merged")
_EMBEDDERS = ("embedding", "embed_tokens")
# Inputs of a decoder that an encoder has under another name.
_FROM_ENCODER = {"encoder_hidden_states": "last_hidden_state", "encoder_attention_mask": "attention_mask"}
_BATCH = "batch"
_TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_, "tensor(int32)": np.int32}


@dataclass(frozen=True, eq=False)
class Component:
    """One file.

    pairs   `past` input to `present` output
    firsts  what states hold before the first token, by `past` input
    """

    name: str
    session: Any
    pairs: Mapping[str, str]
    firsts: Mapping[str, float]

    @cached_property
    def shapes(self) -> dict[str, list[int | str]]:
        return {item.name: item.shape for item in self.session.get_inputs()}

    @cached_property
    def types(self) -> dict[str, Any]:
        return {item.name: _TYPES[item.type] for item in self.session.get_inputs()}

    @cached_property
    def outputs(self) -> list[str]:
        return [item.name for item in self.session.get_outputs()]

    def run(self, feeds: Mapping[str, np.ndarray]) -> Arrays:
        typed = {name: array.astype(self.types[name]) for name, array in feeds.items()}
        return dict(zip(self.outputs, self.session.run(self.outputs, typed), strict=True))


@dataclass
class State:
    """What is handed on.

    given  inputs of `generate`, and what encoders made of them
    cache  by the name of the `past` input; empty before the first step
    """

    given: Arrays
    cache: Arrays = field(default_factory=dict)
    batch: int = 1


@dataclass(frozen=True, eq=False)
class _Call:
    """Inputs of one call of a decoder, besides its cache and what encoders made."""

    tokens: np.ndarray
    inputs: Mapping[str, np.ndarray]
    is_first: bool


@dataclass(frozen=True, eq=False)
class Chain:
    components: Mapping[str, Component]

    @cached_property
    def decoders(self) -> list[Component]:
        """The one for later steps first, where there are two."""
        return [self.components[name] for name in _DECODERS if name in self.components]

    @cached_property
    def later(self) -> Component:
        return self.decoders[0]

    @property
    def is_stepwise(self) -> bool:
        """Whether the decoder takes one token at a time, of a prompt as well."""
        shapes = self.later.shapes
        return (shapes.get(TOKENS) or shapes[EMBEDDINGS])[1] == 1 and len(self.decoders) == 1

    @cached_property
    def cache_names(self) -> dict[str, str]:
        """`past` input to `present` output. What only the first call makes is never returned again."""
        pasts = [name for name in self.later.shapes if name.startswith("past_")]
        return {past: self.later.pairs.get(past, past.replace("past_key_values.", "present.")) for past in pasts}

    def find_more(self, arguments: Mapping[str, np.ndarray]) -> Arrays:
        """Of the arguments that a model was called with, those that the chain cannot make by itself."""
        made = {TOKENS, EMBEDDINGS, *MASKS, *self.cache_names}
        shapes = {name: shape for name, shape in self.later.shapes.items() if name not in made and name in arguments}
        more = {name: arguments[name] for name, shape in shapes.items() if name != POSITIONS or len(shape) > 2}
        if POSITIONS in more:  # places in time, height and width, without that in the text
            more[POSITIONS] = more[POSITIONS][-int(shapes[POSITIONS][0]) :]
        return more

    def start(self, inputs: Mapping[str, np.ndarray]) -> State:
        """Run encoders of text, images and sound."""
        given = dict(inputs)
        for name, component in self.components.items():
            if name not in _DECODERS and name not in _EMBEDDERS:
                given |= component.run({key: inputs[key] for key in component.shapes})
        return State(given, batch=len(next(iter(inputs.values()))))

    def step(
        self, state: State, tokens: np.ndarray, mask: np.ndarray, more: Mapping[str, np.ndarray] | None = None
    ) -> np.ndarray:
        """Logits of all tokens; the state is changed.

        mask  1 for every token that is not padding, those of the past and the new ones
        more  inputs that the chain cannot make, such as positions in several dimensions
        """
        if not self.is_stepwise:
            return self._call(state, tokens, mask, more or {})
        past = mask.shape[1] - tokens.shape[1]
        steps = range(tokens.shape[1])
        logits = [self._call(state, tokens[:, at : at + 1], mask[:, : past + at + 1], more or {}) for at in steps]
        return np.concatenate(logits, axis=1)

    def _call(self, state: State, tokens: np.ndarray, mask: np.ndarray, more: Mapping[str, np.ndarray]) -> np.ndarray:
        decoder = self.later if state.cache else self.decoders[-1]
        if not state.cache:
            state.cache = {past: self._make_empty(past, tokens) for past in decoder.shapes if past in self.cache_names}
        shape = decoder.shapes.get(POSITIONS, ())
        positions = count_positions(mask, tokens.shape[1], shape)
        inputs = {TOKENS: tokens, POSITIONS: positions, **dict.fromkeys(MASKS, mask), **more}
        call = _Call(tokens, inputs, is_first=tokens.shape[1] == mask.shape[1])
        outputs = decoder.run({name: self._feed(name, state, call) for name in decoder.shapes})
        for past, present in self.cache_names.items():
            if present in outputs:
                state.cache[past] = outputs[present]
        return outputs["logits"]

    def _feed(self, name: str, state: State, call: _Call) -> np.ndarray:
        if name in state.cache:
            return state.cache[name]
        if name == EMBEDDINGS:
            return self._embed(state, call)
        if name in call.inputs:
            return call.inputs[name]
        return state.given[_FROM_ENCODER.get(name, name)]

    def _embed(self, state: State, call: _Call) -> np.ndarray:
        """Embeddings of tokens; in the first call with features of images in their places, where there are any."""
        whole = self.components.get("embedding")
        embedder = whole if whole and call.is_first and set(whole.shapes) <= {TOKENS, *state.given} else None
        embedder = embedder or self.components["embed_tokens"]
        feeds = {TOKENS: call.tokens} | {name: state.given[name] for name in embedder.shapes if name != TOKENS}
        return embedder.run(feeds)[EMBEDDINGS]

    def _make_empty(self, past: str, tokens: np.ndarray) -> np.ndarray:
        """Nothing along the axis of tokens; where there is none, zeros, or what the package says."""
        sizes = {**dict.fromkeys(GROWING, 0), _BATCH: len(tokens)}
        shape = [sizes[size] if isinstance(size, str) else size for size in self.later.shapes[past]]
        return np.full(shape, self.later.firsts.get(past, 0), self.later.types[past])


def open_chain(folder: Path) -> Chain:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    described = json.loads((folder / "modelexport.json").read_text(encoding="utf-8"))
    components = {}
    for item in described["components"]:
        session = onnxruntime.InferenceSession(folder / item["file"], options, providers=["CPUExecutionProvider"])
        pairs = {pair["past"]: pair["present"] for pair in item.get("cache", ())}
        firsts = {pair["past"]: pair["first"] for pair in item.get("cache", ()) if "first" in pair}
        components[item["name"]] = Component(item["name"], session, pairs, firsts)
    return Chain(components)


def count_positions(mask: np.ndarray, count: int, shape: Sequence[int | str]) -> np.ndarray:
    """Positions of the last tokens: how many before them are no padding, and 0 for padding."""
    positions = np.where(mask == 0, 0, np.cumsum(mask, axis=1) - 1)[:, -count:]
    return np.broadcast_to(positions, (int(shape[0]), *positions.shape)) if len(shape) > mask.ndim else positions
