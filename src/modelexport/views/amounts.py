"""Numbers and lists as people read them."""

from __future__ import annotations

from collections.abc import Mapping

_SHOWN_OPERATORS = 5
_BYTES = ("B", "KB", "MB", "GB", "TB")
_COUNTS = ("", "K", "M", "B", "T")


def count_text(number: int) -> str:
    return _scaled(number, _COUNTS, "")


def bytes_text(number: int) -> str:
    return _scaled(number, _BYTES, " ")


def share_text(share: float) -> str:
    """A percentage that says 100 % only of everything and 0 % only of nothing."""
    percent = 100 * share
    if 99.95 <= percent < 100:
        return ">99.9 %"
    if 0 < percent < 0.05:
        return "<0.1 %"
    return f"{percent:.1f} %"


def operators_text(op_types: Mapping[str, int], limit: int = _SHOWN_OPERATORS) -> str:
    ordered = sorted(op_types.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{name} {count}" if count > 1 else name for name, count in ordered[:limit]]
    rest = len(ordered) - limit
    return ", ".join([*shown, f"+{rest} more"] if rest > 0 else shown)


def _scaled(number: int, units: tuple[str, ...], gap: str) -> str:
    value, place = float(number), 0
    while abs(value) >= 999.5 and place < len(units) - 1:
        value, place = value / 1000, place + 1
    digits = f"{value:.0f}" if place == 0 or abs(value) >= 99.95 else f"{value:.1f}"
    return f"{digits}{gap}{units[place]}".rstrip()


def counted(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
