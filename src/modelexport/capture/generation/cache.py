"""Cache of generation: its tensors under names, and the cache again from tensors.

A cache is an object of nested lists, dictionaries and attributes with tensors at the leaves; which classes there are
differs from model to model (growing, sliding window, convolution and state-space states, encoder-decoder):

    DynamicCache.layers[0].keys                        past_key_values.0.key             present.0.key
    EncoderDecoderCache.self_attention_cache…          past_key_values.0.decoder.key     present.0.decoder.key
    DynamicCache.layers[1].conv_states[0]              past_key_values.1.conv_states     present.1.conv_states
    state[2]   (a plain list)                          past_state.2                      present_state.2

State: a tensor that a step reads and the next step reads changed. Counter: a number that says how many tokens were
seen; in a graph it is not a constant but the length of the past.
https://huggingface.co/docs/transformers/main/en/cache_explanation
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from modelexport.record.package import CachePair

# A place in nested lists, dictionaries and attributes: ("layers", 0, "keys").
Path = tuple[str | int, ...]

# What transformers calls the parts of a cache, and what ONNX Runtime's generators and optimum call them.
_PARTS = {"keys": "key", "values": "value", "self_attention_cache": "decoder", "cross_attention_cache": "encoder"}
_CONTAINER = "layers"
_OPAQUE = (type, torch.dtype, torch.device, torch.nn.Module, str, bytes)


def walk_leaves(value: object) -> Iterator[tuple[Path, object]]:
    """Tensors and numbers in a cache with their paths, each object once, in the order of its attributes."""
    seen: set[int] = set()

    def walk(path: Path, item: object) -> Iterator[tuple[Path, object]]:
        if isinstance(item, torch.Tensor | bool | int | float | torch.SymInt):
            yield path, item
            return
        if id(item) in seen or isinstance(item, _OPAQUE):
            return
        seen.add(id(item))
        for key, part in _children(item):
            yield from walk((*path, key), part)

    yield from walk((), value)


def _children(item: object) -> Iterator[tuple[str | int, object]]:
    if isinstance(item, Mapping):
        yield from item.items()
    elif isinstance(item, list | tuple):
        yield from enumerate(item)
    elif hasattr(item, "__dict__"):
        yield from vars(item).items()


def cache_tensors(cache: object) -> dict[Path, torch.Tensor]:
    return {path: leaf for path, leaf in walk_leaves(cache) if isinstance(leaf, torch.Tensor)}


def cache_numbers(cache: object) -> dict[Path, int]:
    return {path: leaf for path, leaf in walk_leaves(cache) if type(leaf) is int}


def read_path(cache: object, path: Path) -> Any:
    for key in path:
        cache = getattr(cache, key) if isinstance(key, str) and hasattr(cache, key) else cache[key]  # type: ignore[index]
    return cache


def _write_path(cache: object, path: Path, value: object) -> None:
    *outer, last = path
    holder = read_path(cache, tuple(outer))
    if isinstance(last, str) and hasattr(holder, last):
        setattr(holder, last, value)
    else:
        holder[last] = value


@dataclass(frozen=True)
class TensorLayout:
    """How the tensors inside of one argument are named.

    argument  of `forward`
    template  the argument before a step, with sample tensors
    paths     of the tensors that are inputs of the graph, by their name without prefix: `0.key`
    counters  paths of numbers that are the length of the past
    past      prefix of the graph's inputs
    present   prefix of the graph's outputs; None for an argument that no step changes
    fresh     the argument before the first step, for a graph that makes a cache and takes none
    firsts    by name, what a state is filled with before the first step, where it is not zeros
    """

    argument: str
    template: object
    paths: Mapping[str, Path]
    counters: tuple[Path, ...] = ()
    past: str = ""
    present: str | None = None
    fresh: object | None = None
    firsts: Mapping[str, float] = field(default_factory=dict)

    @property
    def sample(self) -> dict[str, torch.Tensor]:
        """The tensors of the template, by the names of the graph's inputs."""
        if self.fresh is not None:
            return {}
        return {self.past + name: read_path(self.template, path) for name, path in self.paths.items()}

    @property
    def pairs(self) -> tuple[CachePair, ...]:
        if self.present is None:
            return ()
        return tuple(
            CachePair(self.past + name, self.present + name, self.firsts.get(name, 0.0), max(self.window(name) - 1, 0))
            for name in self.paths
        )

    def window(self, name: str) -> int:
        """Tokens that the layer of a state sees, the new one among them; 0 without a sliding window."""
        layer = read_path(self.template, self.paths[name][:-1])
        return int(getattr(layer, "sliding_window", 0) or 0) if getattr(layer, "is_sliding", False) else 0

    def fill(self, tensors: Mapping[str, torch.Tensor], past_length: int | torch.SymInt | None = None) -> Any:
        """The argument with these tensors in the place of the template's; `tensors` are by input name."""
        if self.fresh is not None:
            # Its tensors are constants of the cache, and an exporter cannot copy them.
            return copy.deepcopy(self.fresh, {id(leaf): leaf for leaf in cache_tensors(self.fresh).values()})
        memo: dict[int, object] = {id(leaf): leaf for leaf in cache_tensors(self.template).values()}
        memo |= {id(read_path(self.template, path)): tensors[self.past + name] for name, path in self.paths.items()}
        filled = copy.deepcopy(self.template, memo)
        for path in self.counters if past_length is not None else ():
            _write_path(filled, path, past_length)
        return filled

    def read(self, value: object) -> dict[str, torch.Tensor]:
        """The tensors of the argument after a step, by the names of the graph's outputs."""
        return {f"{self.present}{name}": read_path(value, path) for name, path in self.paths.items()}


def lay_out_constant(argument: str, value: object) -> TensorLayout:
    """The layout of an argument that holds tensors and is the same in every step, such as the encoder's outputs."""
    return TensorLayout(argument, value, _name_paths(cache_tensors(value)), past=f"{argument}.")


def lay_out_cache(
    argument: str, caches: tuple[object, object], lengths: tuple[int, int], fresh: object
) -> TensorLayout:
    """The layout of a cache by what changes in it.

    caches   before two steps, with `lengths` tokens in the past
    fresh    the cache before the first step, where the caller gave one: tensors that it has already, with the same
             content, are constants of the cache
    """
    before, later = caches
    tensors, constants = cache_tensors(before), {} if fresh is None else cache_tensors(fresh)
    states = {path: leaf for path, leaf in tensors.items() if not _is_same(leaf, constants.get(path))}
    numbers, numbers_later = cache_numbers(before), cache_numbers(later)
    counters = tuple(
        path for path, number in numbers.items() if (number, numbers_later.get(path)) == lengths != (number, number)
    )
    plain = isinstance(before, list | tuple | Mapping)
    past, present = (f"past_{argument}.", f"present_{argument}.") if plain else ("past_key_values.", "present.")
    return TensorLayout(argument, before, _name_paths(states), counters, past, present)


def _is_same(tensor: torch.Tensor, constant: torch.Tensor | None) -> bool:
    return (
        constant is not None and tensor.shape == constant.shape and tensor.numel() > 0 and torch.equal(tensor, constant)
    )


def _name_paths(paths: Mapping[Path, torch.Tensor]) -> dict[str, Path]:
    """Short names: the list of layers is understood, and a number where there is only one of a kind is left out.

    Layer by layer, the decoder's before the encoder's: some consumers go by the order of inputs and outputs.
    """
    names: dict[str, Path] = {}
    layers: dict[str, int] = {}
    for path in paths:
        only_index = [
            position
            for position, key in enumerate(path)
            if isinstance(key, int)
            and position
            and path[position - 1] != _CONTAINER
            and not _has_siblings(paths, path, position)
        ]
        keys = [key for position, key in enumerate(path) if key != _CONTAINER and position not in only_index]
        # The layer comes first, whichever of an encoder-decoder's caches it is in.
        layer = next((key for key in keys if isinstance(key, int)), None)
        rest = [str(_PARTS.get(str(key), key)) for key in keys if key is not layer]
        name = ".".join(([] if layer is None else [str(layer)]) + rest)
        names[name], layers[name] = path, -1 if layer is None else layer
    return {name: names[name] for name in sorted(names, key=layers.__getitem__)}


def _has_siblings(paths: Mapping[Path, object], path: Path, position: int) -> bool:
    head = path[:position]
    return any(
        other[:position] == head and other[position] != path[position] for other in paths if len(other) > position
    )
