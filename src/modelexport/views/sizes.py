"""Numbers that may depend on axes, as people read them: `25.9 K·batch·sequence`."""

from __future__ import annotations

from modelexport.record.polynomial import Polynomial

_FLOPS = ("", "K", "M", "G", "T", "P", "E")
_BYTES = ("B", "KB", "MB", "GB", "TB", "PB")


def flops_text(size: Polynomial | None, most: int = 0) -> str:
    return _text(size, _FLOPS, most)


def size_text(size: Polynomial | None, most: int = 0) -> str:
    """Bytes."""
    return _text(size, _BYTES, most)


def _text(size: Polynomial | None, units: tuple[str, ...], most: int) -> str:
    """`most`: so many terms, the first ones; 0 for all."""
    if size is None:
        return "?"
    if not size:
        return "0"
    shown = size.terms[:most] if most else size.terms
    texts = [_term(str(Polynomial(((monomial, 1),))), factor, units) for monomial, factor in shown]
    more = " + …" if len(shown) < len(size.terms) else ""
    return " + ".join(texts).replace("+ -", "- ") + more


def _term(product: str, factor: int, units: tuple[str, ...]) -> str:
    scaled = _scaled(factor, units)
    if product == "1":
        return scaled
    return product if factor == 1 and not units[0] else f"{scaled}·{product}"


def _scaled(number: int, units: tuple[str, ...]) -> str:
    value, place = float(number), 0
    while abs(value) >= 999.5 and place < len(units) - 1:
        value, place = value / 1000, place + 1
    digits = f"{value:.0f}" if place == 0 or abs(value) >= 99.95 else f"{value:.1f}"
    return f"{digits} {units[place]}".rstrip()
