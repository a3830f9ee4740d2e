"""What `forward` accepts, by name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from modelexport.errors import InputError


@dataclass(frozen=True)
class ForwardSignature:
    """`names` in the order of `forward`; `open_ended`: it also takes names that it does not list."""

    names: tuple[str, ...]
    required: frozenset[str]
    open_ended: bool
    runs_without_inputs: bool = False

    def check(self, given: Iterable[str]) -> None:
        """Raise InputError at a name that `forward` does not take, proposing the nearest that it does."""
        for name in given:
            if name not in self.names and not self.open_ended:
                raise InputError(f"forward has no input {name!r}", self._proposal(name))

    def _proposal(self, name: str) -> str:
        near = difflib.get_close_matches(name, self.names, n=1, cutoff=0.5)
        return f"Did you mean {near[0]!r}?" if near else f"It takes: {', '.join(self.names) or 'nothing by name'}."

    def in_order(self, chosen: Iterable[str]) -> list[str]:
        wanted = list(chosen)
        listed = [name for name in self.names if name in wanted]
        return listed + [name for name in wanted if name not in self.names]


def read_signature(module: torch.nn.Module) -> ForwardSignature:
    parameters = list(inspect.signature(module.forward).parameters.values())
    by_name = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    # A Hugging Face forward ends in **kwargs for flags, not for tensors: an unlisted name is a mistake.
    flags_only = hasattr(module, "main_input_name") and bool(by_name)
    return ForwardSignature(
        names=tuple(each.name for each in by_name),
        required=frozenset(each.name for each in by_name if each.default is each.empty),
        open_ended=takes_any and not flags_only,
        runs_without_inputs=not parameters,
    )


def main_inputs(module: torch.nn.Module, signature: ForwardSignature) -> tuple[str, ...]:
    """`main_input_name` is one name, a list of them, or absent; it may also be inherited and not apply."""
    named = getattr(module, "main_input_name", ())
    names = (named,) if isinstance(named, str) else tuple(named)
    return tuple(name for name in names if name in signature.names)
