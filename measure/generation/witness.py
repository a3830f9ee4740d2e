"""Witness: the files of a package against the model, step by step and at sizes of a grid.

    witness_generation(chain, example)                tokens of 32 steps, the cache after each of them
    witness_grid(chain, family, example.model)        logits and cache at 12 points of (batch, past, query)

Tensors are equal where they differ by at most 1e-4 of the largest number in them. Padding is left out, since nothing
reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, cast

import numpy as np
import torch

from measure.generation.chain import GROWING, POSITIONS, Arrays, Chain, State, count_positions
from measure.generation.families import Family
from measure.generation.models import FIRST_WORD, VOCABULARY, Example
from measure.generation.reference import generate_steps, run_forward

TOLERANCE = 1e-4
BATCHES, PASTS, QUERIES = (1, 3), (0, 3, 12), (1, 4)
_SEED = 2


@dataclass(frozen=True)
class GenerationWitness:
    """
    steps   that were compared; tokens of `generate` are fed to none but the first
    equal   whether all tokens are those of `generate`
    worst   difference of a cache tensor from the model's, over all steps, in parts of its largest number
    fault   the first thing that was wrong, with its step
    """

    steps: int = 0
    equal: bool = False
    worst: float = 0.0
    fault: str = ""


@dataclass(frozen=True)
class GridPoint:
    """Sizes, and the greatest difference of logits and cache, or why there is none."""

    batch: int
    past: int
    query: int
    worst: float = 0.0
    fault: str = ""

    @property
    def holds(self) -> bool:
        return not self.fault and self.worst <= TOLERANCE


def witness_generation(chain: Chain, example: Example) -> GenerationWitness:
    """Greedy decoding with the files alone, compared after each step with what `generate` had then."""
    steps, model = generate_steps(example), cast("Any", example.model)
    state = chain.start({name: tensor.numpy() for name, tensor in example.inputs.items()})
    tokens = steps.first
    mask = np.ones_like(tokens) if model.config.is_encoder_decoder else example.inputs["attention_mask"].numpy()
    worst, fault, equal = 0.0, "", True
    start = int(steps.calls[0].arguments.get(POSITIONS, np.zeros(1)).min())
    for number, call in enumerate(steps.calls):
        # Some models count positions from 1.
        counted = {POSITIONS: count_positions(mask, tokens.shape[1], ()) + start} if start else {}
        logits = chain.step(state, tokens, mask, chain.find_more(call.arguments) | counted)
        difference, name = compare_caches(chain, state, call.cache, mask)
        if difference > TOLERANCE and not fault:
            fault = f"step {number}: {name} differs by {difference:.2g}"
        worst = max(worst, difference)
        tokens = logits[:, -1].argmax(-1)[:, None]
        if not np.array_equal(tokens[:, 0], steps.tokens[:, number]):
            equal, fault = False, fault or f"step {number}: another token"
            break  # what follows continues another text
        mask = np.concatenate([mask, np.ones_like(tokens)], axis=1)
    return GenerationWitness(number + 1, equal, worst, fault)


def witness_grid(chain: Chain, family: Family, example: Example) -> tuple[GridPoint, ...]:
    return tuple(_try_point(chain, family, example, *sizes) for sizes in list_sizes(family))


def list_sizes(family: Family) -> list[tuple[int, int, int]]:
    """Batch, past and query of each point."""
    return list(product((1,) if family.one_row else BATCHES, PASTS, QUERIES))


def _try_point(chain: Chain, family: Family, example: Example, batch: int, past: int, query: int) -> GridPoint:
    try:
        worst, name = compare_point(chain, family, example, (batch, past, query))
    except Exception as error:  # noqa: BLE001  # whatever a runtime raises is the result
        return GridPoint(batch, past, query, fault=f"{type(error).__name__}: {first_line(error)}")
    return GridPoint(batch, past, query, worst, "" if worst <= TOLERANCE else f"{name} differs by {worst:.2g}")


def compare_point(chain: Chain, family: Family, example: Example, sizes: tuple[int, int, int]) -> tuple[float, str]:
    """The model computes all tokens in one call; the chain gets the model's cache of the first ones, and the others."""
    batch, past, query = sizes
    model: Any = example.model
    tokens, mask = make_tokens(batch, past + query, pads=family.pads and family.kind != "encoder-decoder")
    inputs = repeat_rows(example.inputs, batch) if family.kind == "encoder-decoder" else {}
    marks = mark_text(chain, family, tokens)
    expected = run_forward(model, {**inputs, **marks}, tokens, mask)
    state = chain.start({name: tensor.numpy() for name, tensor in inputs.items()}) if inputs else State({})
    if past:
        earlier = {name: tensor[:, :past] for name, tensor in marks.items()}
        before = run_forward(model, {**inputs, **earlier}, tokens[:, :past], mask[:, :past])
        state.cache = {name: before.cache[_bare(name)] for name in chain.cache_names}
    logits = chain.step(state, tokens[:, past:], mask, {name: tensor.numpy() for name, tensor in marks.items()})
    shown = mask[:, past:] != 0
    worst = difference_of(expected.arguments["logits"][:, past:][shown], logits[shown])
    return max((worst, "logits"), compare_caches(chain, state, expected.cache, mask))


def mark_text(chain: Chain, family: Family, tokens: np.ndarray) -> dict[str, torch.Tensor]:
    """That these tokens are text, where the file of the first call asks for it."""
    image = family.image
    if image is None or image.marks not in chain.decoders[-1].shapes:
        return {}
    return {image.marks: torch.full(tokens.shape, image.values[2])}


def make_tokens(batch: int, length: int, *, pads: bool) -> tuple[np.ndarray, np.ndarray]:
    """Random words, the first row with a token of padding before it if there is room."""
    generator = np.random.default_rng(_SEED)
    tokens = generator.integers(FIRST_WORD, VOCABULARY, (batch, length))
    mask = np.ones_like(tokens)
    if pads and batch > 1 and length > 1:
        tokens[0, 0] = mask[0, 0] = 0
    return tokens, mask


def repeat_rows(inputs: Mapping[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    """The same inputs with another number of rows."""
    return {name: tensor[torch.arange(count) % len(tensor)] for name, tensor in inputs.items()}


def compare_caches(chain: Chain, state: State, expected: Arrays, mask: np.ndarray) -> tuple[float, str]:
    """The greatest difference of a tensor that the chain hands on, and its name."""
    return max(_compare_each(chain, state, expected, mask), default=(0.0, ""))


def _compare_each(chain: Chain, state: State, expected: Arrays, mask: np.ndarray) -> Iterator[tuple[float, str]]:
    for name, got in state.cache.items():
        want = expected.get(_bare(name))
        if want is None or want.shape != got.shape:
            yield np.inf, f"{name} is {got.shape}, {None if want is None else want.shape}"
            continue
        growing = [axis for axis, size in enumerate(chain.later.shapes[name]) if size in GROWING]
        yield difference_of(*(_without_padding(array, growing, mask) for array in (want, got))), name


def _without_padding(array: np.ndarray, growing: Sequence[int], mask: np.ndarray) -> np.ndarray:
    """
    growing  the axis of tokens, none for a state
    """
    if not growing:
        return array
    shown = mask[:, mask.shape[1] - array.shape[growing[0]] :] != 0
    without: np.ndarray = np.moveaxis(array, growing[0], 1)[shown]
    return without


def difference_of(want: np.ndarray, got: np.ndarray) -> float:
    """In parts of the largest number, which counts as 1 at least."""
    if not want.size:
        return 0.0
    difference = np.abs(want - got).max() / max(1.0, np.abs(want).max())
    return float(difference) if np.isfinite(difference) else np.inf


def _bare(name: str) -> str:
    """`0.key` of `past_key_values.0.key`."""
    return name.partition(".")[2]


def first_line(error: BaseException | str) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:300]
