"""Einsum: what it makes, and what its products take when operands are multiplied one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from modelexport.costing.axes import Shape, product
from modelexport.costing.products import broadcast
from modelexport.costing.values import Operator, Unknown
from modelexport.record.polynomial import Polynomial, Size

# What `...` stands for has a name for each axis, which no letter is.
_DOTS = "..."


def einsum_made(op: Operator) -> Sequence[Shape]:
    terms, result, sizes = _read(op)
    del terms
    return [tuple(sizes[label] for label in result)]


def einsum(op: Operator) -> Polynomial:
    """Products that sum over something; what is multiplied number by number is none.

    What one operand alone has and nobody needs is summed up before it is multiplied.
    """
    terms, result, sizes = _read(op)
    left, total = terms[0], Polynomial()
    for place, right in enumerate(terms[1:], start=1):
        needed = {*result, *(label for term in terms[place + 1 :] for label in term)}
        shared = {*left} & {*right}
        labels = [label for label in dict.fromkeys([*left, *right]) if label in needed or label in shared]
        if shared - needed:
            total += Polynomial.of(2) * product(sizes[label] for label in labels)
        left = [label for label in labels if label in needed]
    return total


def _read(op: Operator) -> tuple[list[list[str]], list[str], dict[str, Size]]:
    """The labels of each operand, those of the result, and their sizes."""
    text = op.attribute("equation", "").replace(" ", "")
    before, arrow, after = text.partition("->")
    parts = before.split(",")
    if len(parts) != len(op.inputs):
        raise Unknown(f"the equation {text!r} is not about {len(op.inputs)} inputs")
    shapes = [op.shape(place) for place in range(len(parts))]
    wide = max((len(shape) - len(_letters(part)) for part, shape in zip(parts, shapes, strict=True)), default=0)
    dots = [f"{_DOTS}{place}" for place in range(wide)]
    terms = [
        _labels(part, dots[wide - (len(shape) - len(_letters(part))) :])
        for part, shape in zip(parts, shapes, strict=True)
    ]
    sizes: dict[str, Size] = {}
    for term, shape in zip(terms, shapes, strict=True):
        if len(term) != len(shape):
            raise Unknown(f"the equation {text!r} does not fit the shapes")
        for label, size in zip(term, shape, strict=True):
            sizes[label] = broadcast((sizes.get(label, 1),), (size,))[0]
    return terms, _labels(after, dots) if arrow else _implied(terms, dots), sizes


def _letters(part: str) -> str:
    return part.replace(_DOTS, "")


def _labels(part: str, dots: Sequence[str]) -> list[str]:
    before, found, after = part.partition(_DOTS)
    return [*before, *(dots if found else ()), *after]


def _implied(terms: Sequence[Sequence[str]], dots: Sequence[str]) -> list[str]:
    """Without an arrow: what occurs once, in alphabetical order."""
    flat = [label for term in terms for label in term if not label.startswith(_DOTS)]
    return [*dots, *sorted(label for label in set(flat) if flat.count(label) == 1)]
