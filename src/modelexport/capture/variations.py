"""Variations: other inputs that a model takes as well, made from those of a sample.

    numbers  negated, scaled, sparse, constant, shuffled, …            [0.3, -1.2]  ->  [-0.3, 1.2], [0, -1.2], …
    tokens   others of the vocabulary, sorted, repeated, padded        [5, 9, 2]    ->  [2, 5, 9], [9, 9, 9], …
    masks    padding on the right, on the left, in between             [1, 1, 1]    ->  [1, 1, 0], [0, 1, 1], …
    sizes    axes that are open, shorter and longer                    2x8          ->  2x1, 2x17, …

Masks stay masks (0 and 1, and no row is hidden altogether); what stands for infinity stays where it is. Whether other
tokens are valid is for the model to say: it refuses those that its tables do not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

Tensors = Mapping[str, torch.Tensor]
_Vary = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
_LARGE = 1e4  # in masks that are added it stands for infinity


def vary_values(tensors: Tensors, vocabularies: Mapping[str, int], seed: int = 0) -> Iterator[dict[str, torch.Tensor]]:
    """Other values in the same shapes, the most different ones first.

    vocabularies  by input: how many different tokens a table has for it, where that is known
    """
    generator = torch.Generator().manual_seed(seed)
    kinds = {name: kind_of(name, tensor) for name, tensor in tensors.items()}
    together = [_vary_together(tensors, kinds, kind, generator, vocabularies) for kind in _BY_KIND]
    yield from _interleave(together)
    for kind, variations in _BY_KIND.items():
        names = [name for name in tensors if kinds[name] == kind]
        for name in names if len(names) > 1 else ():  # each alone: what decides may be how two of them differ
            for vary in variations[:_ALONE]:
                yield {**tensors, name: vary(tensors[name], generator)}


def vary_sample(tensors: Tensors, number: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """One variation of each input, by number: sign, scale, sparsity, padding, in turn. Tokens stay as they are."""
    generator = torch.Generator().manual_seed(seed)
    varied = dict(tensors)
    for name, tensor in tensors.items():
        kind = kind_of(name, tensor)
        if kind in (NUMBERS, MASK):
            variations = _BY_KIND[kind]
            varied[name] = variations[(number - 1) % len(variations)](tensor, generator)
    return varied


def _vary_together(
    tensors: Tensors,
    kinds: Mapping[str, str],
    kind: str,
    generator: torch.Generator,
    vocabularies: Mapping[str, int],
) -> Iterator[dict[str, torch.Tensor]]:
    names = [name for name in tensors if kinds[name] == kind]
    if not names:
        return
    if kind == TOKENS:
        yield from _other_tokens(tensors, names, vocabularies, generator)
    for vary in _BY_KIND[kind]:
        yield {**tensors, **{name: vary(tensors[name], generator) for name in names}}


def _interleave(sources: list[Iterator[dict[str, torch.Tensor]]]) -> Iterator[dict[str, torch.Tensor]]:
    """One of each in turn: the budget of a search may end before all of them were tried."""
    while sources:
        for source in list(sources):
            item = next(source, None)
            if item is None:
                sources.remove(source)
            else:
                yield item


NUMBERS, MASK, TOKENS, COUNT, FIXED = "numbers", "mask", "tokens", "count", "fixed"


def kind_of(name: str, tensor: torch.Tensor) -> str:
    """What an input is, by its type and content; of floats that are all 0 or 1 the name decides."""
    if not tensor.numel() or tensor.is_complex():
        return FIXED
    if tensor.is_floating_point():
        if bool((~tensor.isfinite() | (tensor <= -_LARGE)).any()):
            return FIXED
        return MASK if "mask" in name and _is_binary(tensor) else NUMBERS
    if tensor.dtype is torch.bool or (tensor.dim() > 0 and _is_binary(tensor)):
        return MASK
    return COUNT if tensor.numel() == 1 else TOKENS


def _is_binary(tensor: torch.Tensor) -> bool:
    return bool(((tensor == 0) | (tensor == 1)).all())


def change_some(
    tensors: Tensors, vocabularies: Mapping[str, int], generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Some elements of each input exchanged for others of its kind, drawn at random."""
    changed = dict(tensors)
    for name, tensor in tensors.items():
        kind = kind_of(name, tensor)
        if kind == FIXED:
            continue
        other = _draw(tensor, generator) if kind == NUMBERS else _shuffle(tensor, generator)
        if kind == MASK:
            other = _mask_some(tensor, generator)
        elif kind == TOKENS and vocabularies.get(name):
            other = (_random(tensor, generator) * vocabularies[name]).to(tensor.dtype)
        changed[name] = torch.where(_random(tensor, generator) < _CHANGED, other, tensor)
    return changed


def label_sizes(tensors: Tensors, axes: Mapping[str, Mapping[int, str]]) -> dict[str, int]:
    """By name of an open axis, its size."""
    return {
        label: tensors[name].shape[axis]
        for name, labels in axes.items()
        for axis, label in labels.items()
        if name in tensors
    }


def resize(tensors: Tensors, axes: Mapping[str, Mapping[int, str]], label: str, size: int) -> dict[str, torch.Tensor]:
    """Every axis of that name with another size; what is longer repeats what was there."""
    return {name: _resize_axes(tensor, axes.get(name, {}), label, size) for name, tensor in tensors.items()}


def _resize_axes(tensor: torch.Tensor, axes: Mapping[int, str], label: str, size: int) -> torch.Tensor:
    for axis in (axis for axis, name in axes.items() if name == label):
        order = torch.arange(size, device=tensor.device) % tensor.shape[axis]
        tensor = tensor.index_select(axis, order)
    return tensor


def _usual(tensor: torch.Tensor) -> torch.Tensor:
    """The root mean square, or 1 of zeros: what is added has a size."""
    size = tensor.double().pow(2).mean().sqrt().to(tensor.dtype)
    return size if bool(size > 0) else torch.ones_like(size)


def _random(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(tensor.shape, generator=generator).to(tensor.device)


def _draw(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return (torch.randn(tensor.shape, generator=generator).to(tensor) * _usual(tensor)).to(tensor.dtype)


def _thin(share: float) -> _Vary:
    return lambda tensor, generator: torch.where(_random(tensor, generator) < share, tensor, torch.zeros_like(tensor))


def _one_hot(tensor: torch.Tensor, _generator: torch.Generator) -> torch.Tensor:
    """In each row one large number and zeros."""
    if not tensor.dim():
        return 10 * tensor
    largest = tensor.abs().argmax(-1, keepdim=True)
    return torch.zeros_like(tensor).scatter(-1, largest, 10 * tensor.gather(-1, largest))


def _hide_part(tensor: torch.Tensor, _generator: torch.Generator) -> torch.Tensor:
    """The second half of the second axis is zero, as padding is."""
    axis = min(1, tensor.dim() - 1)
    if axis < 0:
        return torch.zeros_like(tensor)
    hidden = torch.arange(tensor.shape[axis], device=tensor.device) >= tensor.shape[axis] / 2
    shape = [-1 if index == axis else 1 for index in range(tensor.dim())]
    return tensor.masked_fill(hidden.reshape(shape), 0)


def _shuffle(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
    return tensor.reshape(-1)[order].reshape(tensor.shape)


_NUMBERS: tuple[_Vary, ...] = (
    lambda tensor, _: -tensor,
    lambda tensor, _: tensor * 100,
    lambda tensor, _: tensor * 0.01,
    lambda tensor, _: torch.zeros_like(tensor),
    lambda tensor, _: tensor + 3 * _usual(tensor),
    lambda tensor, _: tensor - 3 * _usual(tensor),
    _thin(0.1),
    _one_hot,
    lambda tensor, _: tensor.abs(),
    lambda tensor, _: torch.zeros_like(tensor) + _usual(tensor),
    _hide_part,
    _draw,
    _thin(0.5),
    lambda tensor, _: tensor * 1e-4,
    lambda tensor, _: -tensor.abs(),
    _shuffle,
    lambda tensor, _: tensor.flip(-1) if tensor.dim() else -tensor,
    lambda tensor, _: tensor * 5,
    lambda tensor, _: torch.zeros_like(tensor) - _usual(tensor),
    lambda tensor, _: tensor * 0.2,
    # As bytes of pictures and counts are, which some models scale.
    lambda tensor, _: (10 * tensor / _usual(tensor)).round(),
)


def _pad(share: float, left: bool = False) -> _Vary:
    """The last, or first, part of the last axis hidden; one position stays in each row."""

    def vary(tensor: torch.Tensor, _generator: torch.Generator) -> torch.Tensor:
        if not tensor.dim():
            return torch.zeros_like(tensor) if bool(tensor) else torch.ones_like(tensor)
        length = tensor.shape[-1]
        position = torch.arange(length, device=tensor.device)
        kept = max(1, round(length * (1 - share)))
        shown = position >= length - kept if left else position < kept
        return torch.where(shown.expand(tensor.shape), torch.ones_like(tensor), torch.zeros_like(tensor))

    return vary


def _pad_rows(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The first row whole, others half hidden."""
    if tensor.dim() < 2 or len(tensor) < 2:
        return _pad(0.25)(tensor, generator)
    return torch.cat([torch.ones_like(tensor[:1]), _pad(0.5)(tensor[1:], generator)])


def _mask_some(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if not tensor.dim():
        return tensor
    masked = (_random(tensor, generator) < 0.5).to(tensor.dtype)
    masked[..., 0] = 1
    return masked


_MASKS: tuple[_Vary, ...] = (
    _pad(0.5),
    _pad_rows,
    _pad(0.1),
    _pad(0.5, left=True),
    _pad(0.99),
    _mask_some,
    lambda tensor, _: torch.ones_like(tensor),
    lambda tensor, _: torch.zeros_like(tensor) if tensor.dtype is torch.bool else tensor,
)


def _other_tokens(
    tensors: Tensors, names: list[str], vocabularies: Mapping[str, int], generator: torch.Generator
) -> Iterator[dict[str, torch.Tensor]]:
    """Tokens that the sample does not have: drawn from the whole vocabulary, then all of them one after the other."""
    most = max((vocabularies.get(name, 0) for name in names), default=0)
    if not most:
        return

    def limit(name: str) -> int:
        return vocabularies.get(name) or int(tensors[name].max()) + 1

    for name in names:
        drawn = (_random(tensors[name], generator) * limit(name)).to(tensors[name].dtype)
        yield {**tensors, name: drawn}
        yield {**tensors, name: torch.full_like(tensors[name], limit(name) - 1)}
        count = tensors[name].numel()
        for start in range(0, min(limit(name), count * _PAGES), count):
            page = (torch.arange(count) + start) % limit(name)
            yield {**tensors, name: page.to(tensors[name]).reshape(tensors[name].shape)}


_TOKENS: tuple[_Vary, ...] = (
    _shuffle,
    lambda tensor, _: torch.zeros_like(tensor),
    _hide_part,
    lambda tensor, _: torch.full_like(tensor, int(tensor.max())),
    lambda tensor, _: tensor + 1,
    lambda tensor, _: tensor.flip(-1),
    lambda tensor, _: torch.sort(tensor, -1).values if tensor.dim() else tensor,
    lambda tensor, _: torch.full_like(tensor, int(tensor.min())),
    lambda tensor, _: tensor + 2,
    lambda tensor, _: tensor * 2,
    lambda tensor, _: torch.where(torch.arange(tensor.shape[-1], device=tensor.device) == 0, 1, tensor),
    lambda tensor, _: tensor * 10,
    lambda tensor, _: -tensor,
)
_COUNTS: tuple[_Vary, ...] = (
    lambda tensor, _: tensor + 1,
    lambda tensor, _: tensor - 1,
    lambda tensor, _: torch.zeros_like(tensor),
    lambda tensor, _: torch.ones_like(tensor),
    lambda tensor, _: tensor * 2 + 3,
    lambda tensor, _: tensor + 10,
    lambda tensor, _: tensor // 2,
    lambda tensor, _: tensor * 50,
    lambda tensor, _: -tensor,
)
_BY_KIND: dict[str, tuple[_Vary, ...]] = {NUMBERS: _NUMBERS, MASK: _MASKS, TOKENS: _TOKENS, COUNT: _COUNTS}
_ALONE = 5
_PAGES = 12
_CHANGED = 0.2
