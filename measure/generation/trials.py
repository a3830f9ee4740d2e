"""Trials: what `generate` does with each family, held against what families.toml states.

python -W ignore -m measure.generation.trials llama gemma2
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from measure.generation.families import Family, find_family, read_families
from measure.generation.models import EOS, NEW_TOKENS, PROMPTS, Example, make_example

# Kinds of CACHE_KINDS by the class of transformers that holds a layer; states are told apart by what they hold.
_LAYER_KINDS = {
    "DynamicLayer": "full",
    "DynamicSlidingWindowLayer": "sliding",
    "LinearAttentionAndFullAttentionLayer": "state and full",
}
# Fewer different tokens than this among 32 hide errors: a wrong cache gives the same ones.
LEAST_VARIETY = 4


@dataclass(frozen=True)
class Trial:
    """What happened.

    tokens        of all prompts, those that were generated
    cache         kinds of layers that were seen
    is_repeatable whether a second run gave the same
    pads          whether the padded prompt alone, without padding, gave the same; None where there is no such prompt
    failure       why `generate` did not work
    """

    family: Family
    tokens: tuple[tuple[int, ...], ...] = ()
    cache: tuple[str, ...] = ()
    is_repeatable: bool = False
    pads: bool | None = None
    seconds: float = 0.0
    failure: str = ""

    @property
    def variety(self) -> int:
        """How many different tokens the prompt has that has fewest."""
        return min((len(set(row)) for row in self.tokens), default=0)

    def list_faults(self) -> list[str]:
        """What is not as it should be; empty where all is."""
        if self.failure:
            return [self.failure]
        checks = {
            f"{NEW_TOKENS} tokens were not generated": all(len(row) == NEW_TOKENS for row in self.tokens),
            "the end of text was generated": all(EOS not in row for row in self.tokens),
            "another run gives other tokens": self.is_repeatable,
            f"{self.variety} different tokens": self.variety >= LEAST_VARIETY,
            f"the cache holds {', '.join(self.cache)}": set(self.cache) == set(self.family.cache),
            f"padding {'does not matter' if self.pads else 'matters'}": self.pads in {None, self.family.pads},
        }
        return [fault for fault, holds in checks.items() if not holds]


def try_generation(family: Family) -> Trial:
    """Generate twice from the batch, and once from the padded prompt alone."""
    start = time.perf_counter()
    try:
        example = make_example(family)
        generated = example.generate(return_dict_in_generate=True)
        again = example.generate(return_dict_in_generate=True)
        pads = compare_unpadded(family, example, generated.sequences)
    except Exception as error:  # noqa: BLE001  # whatever a model raises is the result
        return Trial(family, seconds=time.perf_counter() - start, failure=f"{type(error).__name__}: {error}")
    return Trial(
        family=family,
        tokens=tuple(tuple(row) for row in generated.sequences[:, -NEW_TOKENS:].tolist()),
        cache=name_cache_kinds(generated.get("past_key_values"), example.model),
        is_repeatable=torch.equal(generated.sequences, again.sequences),
        pads=pads,
        seconds=time.perf_counter() - start,
    )


def compare_unpadded(family: Family, example: Example, sequences: torch.Tensor) -> bool | None:
    """Whether the shorter prompt gives the same tokens alone as padded. None for models that take more than text."""
    if family.kind != "decoder" or family.one_row:
        return None
    padding = PROMPTS[0] - PROMPTS[1]
    alone = {name: tensor[1:, padding:] for name, tensor in example.inputs.items()}
    tokens = Example(example.model, alone).generate()
    return torch.equal(tokens[0, -NEW_TOKENS:], sequences[1, -NEW_TOKENS:])


def name_cache_kinds(cache: Any, model: Any) -> tuple[str, ...]:
    """Kinds of layers of a cache that was filled, each once, in the order of the layers."""
    if hasattr(cache, "cross_attention_cache"):
        return (*name_cache_kinds(cache.self_attention_cache, model), "cross")
    if not hasattr(cache, "layers"):  # a list of tensors
        return ("state",)
    used = [layer for layer in cache.layers if getattr(layer, "is_initialized", True)]
    kinds = [_name_layer_kind(layer) for layer in used]
    if len(used) < len(cache.layers):
        kinds.append("attributes")
    elif len(used) < model.config.get_text_config(decoder=True).num_hidden_layers:
        kinds.append("shared")
    return tuple(dict.fromkeys(kinds))


def _name_layer_kind(layer: Any) -> str:
    name = type(layer).__name__
    if name == "LinearAttentionLayer":
        return "convolution" if not _holds_state(layer) else "state"
    return _LAYER_KINDS.get(name, name)


def _holds_state(layer: Any) -> bool:
    states = getattr(layer, "recurrent_states", None)
    return any(state is not None for state in states.values()) if isinstance(states, dict) else states is not None


def main(names: Iterable[str]) -> int:
    """Print a line for each family. Returns 1 if one is not as stated."""
    families = [find_family(name) for name in names] or list(read_families())
    has_faults = False
    for family in families:
        trial = try_generation(family)
        faults = trial.list_faults()
        has_faults = has_faults or bool(faults)
        kinds = ", ".join(trial.cache)
        sys.stdout.write(f"{family.name:17}{kinds:24}{trial.variety:3}  {'; '.join(faults) or 'ok'}\n")
        sys.stdout.flush()
    return int(has_faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
