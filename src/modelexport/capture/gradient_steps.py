"""Gradient steps: other inputs for a model, along the gradient of a margin (`margins.py`).

    floats    x + 1.02 × missing × g / |g|², then further: the margin need not be linear
    integers  the same, rounded, and kept inside of the vocabulary
    masks     the elements that can move in the direction of g are flipped, the strongest first
    tokens    the token of the table that adds most to the margin, at each position or at one

They only propose inputs; a plain run shows which path a model takes on them (`branch_search.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from modelexport.capture.margins import Margins
from modelexport.capture.variations import COUNT, FIXED, MASK, NUMBERS, kind_of

# In parts of the step that would be enough if the margin were linear: over the border, well over it, far over it.
_STEPS = (1.02, 1.5, 5.0, 30.0)


class GradientSteps:
    """Steps by the gradients of one run.

    vocabularies  by input: how many tokens there are; it grows while runs show it
    """

    def __init__(self, margins: Margins, vocabularies: Mapping[str, int]) -> None:
        self._margins, self._vocabularies = margins, vocabularies

    def find_inputs(self, target: torch.Tensor) -> set[str]:
        """The inputs that a margin depends on."""
        if not target.requires_grad:
            return set()
        return {*self._of_inputs(target), *(name for name, _ in self._of_tokens(target))}

    def propose(
        self, tensors: Mapping[str, torch.Tensor], target: torch.Tensor, missing: float | None = None
    ) -> Iterator[dict[str, torch.Tensor]]:
        """Other inputs, in the direction in which a margin grows by what is missing."""
        if not target.requires_grad:
            return
        by_name = self._of_inputs(target)
        if missing is None:
            missing = max(float(-target.detach()), 1e-6)
        yield from _step_numbers(tensors, by_name, missing)
        yield from _step_integers(tensors, by_name, missing, self._vocabularies)
        for name, gain in self._of_tokens(target):
            yield from ({**tensors, name: tokens} for tokens in _step_tokens(tensors[name], gain))

    def _of_inputs(self, target: torch.Tensor) -> dict[str, torch.Tensor]:
        """By input: the gradient of a margin; only those that it depends on."""
        leaves = self._margins.leaves
        gradients = _differentiate(target, list(leaves.values()))
        return {
            name: gradient
            for name, gradient in zip(leaves, gradients, strict=True)
            if gradient is not None and bool(gradient.isfinite().all()) and bool(gradient.any())
        }

    def _of_tokens(self, target: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """By input that is looked up in a table: how much each token at each position would add to a margin."""
        looked_up = [item for item in self._margins.embedded if item[2].requires_grad]
        gradients = _differentiate(target, [result for _, _, result in looked_up])
        for (indices, table, result), gradient in zip(looked_up, gradients, strict=True):
            names = [name for name, tensor in self._margins.given.items() if is_same(tensor, indices)]
            if gradient is not None and names and gradient.shape == result.shape and bool(gradient.any()):
                yield names[0], gradient.detach() @ table.detach().t()


def _differentiate(target: torch.Tensor, sources: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
    """Gradients, None for what has none; a model that writes into what it computed with has no gradients at all."""
    if not sources:
        return ()
    try:
        return torch.autograd.grad(target, sources, allow_unused=True, retain_graph=True)
    except RuntimeError:
        return [None for _ in sources]


def is_same(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return tensor.shape == other.shape and tensor.dtype == other.dtype and torch.equal(tensor, other)


def _step_tokens(tokens: torch.Tensor, gain: torch.Tensor) -> Iterator[torch.Tensor]:
    """The best token at each position, the best ones everywhere, and the best one at a single position."""
    best = gain.argmax(-1).to(tokens.dtype)
    yield best
    for token in gain.reshape(-1, gain.shape[-1]).sum(0).topk(min(3, gain.shape[-1])).indices:
        yield torch.full_like(tokens, int(token))
    strength = gain.amax(-1).reshape(-1)
    position = torch.arange(strength.numel()).reshape(best.shape)
    yield torch.where(position == int(strength.argmax()), best, tokens)


def _step_numbers(
    tensors: Mapping[str, torch.Tensor], gradients: Mapping[str, torch.Tensor], missing: float
) -> Iterator[dict[str, torch.Tensor]]:
    floats = {name: item for name, item in gradients.items() if kind_of(name, tensors[name]) == NUMBERS}
    power = sum(float(gradient.double().pow(2).sum()) for gradient in floats.values())
    if power == 0:
        return
    for step in _STEPS:
        moved = {name: tensors[name] + (step * missing / power) * item for name, item in floats.items()}
        yield {**tensors, **{name: tensor.to(tensors[name].dtype) for name, tensor in moved.items()}}


def _step_integers(
    tensors: Mapping[str, torch.Tensor],
    gradients: Mapping[str, torch.Tensor],
    missing: float,
    vocabularies: Mapping[str, int],
) -> Iterator[dict[str, torch.Tensor]]:
    for name, gradient in gradients.items():
        tensor, kind = tensors[name], kind_of(name, tensors[name])
        if kind in (NUMBERS, FIXED):
            continue
        if kind == MASK:
            yield from ({**tensors, name: mask} for mask in _flip_mask(tensor, gradient))
            continue
        power = float(gradient.double().pow(2).sum())
        for step in (1.0, *_STEPS):
            moved = (tensor + (step * missing / power) * gradient).round()
            lowest = None if kind == COUNT or bool((tensor < 0).any()) else 0
            limit = vocabularies.get(name)
            moved = moved.clamp(lowest, None if limit is None else limit - 1) if lowest is not None or limit else moved
            yield {**tensors, name: moved.to(tensor.dtype)}


def _flip_mask(mask: torch.Tensor, gradient: torch.Tensor) -> Iterator[torch.Tensor]:
    """Elements that can move in the direction of the gradient: the strongest of them, then more, then all."""
    strength = torch.where(mask.bool(), -gradient, gradient).reshape(-1)
    order = strength.argsort(descending=True)
    usable = int((strength > 0).sum())
    for count in sorted({1, usable // 4, usable // 2, usable} - {0}):
        flipped = mask.clone().reshape(-1)
        flipped[order[:count]] = (~mask.bool()).to(mask.dtype).reshape(-1)[order[:count]]
        if usable:
            yield flipped.reshape(mask.shape)
