"""Numbers and lists as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from modelexport.record.hierarchy import ModuleCall

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


def reasons_text(reasons: Mapping[str, int]) -> str:
    """A single reason needs no number."""
    if len(reasons) == 1:
        return next(iter(reasons))
    ordered = sorted(reasons.items(), key=lambda item: -item[1])
    return ", ".join(f"{reason}: {count}" for reason, count in ordered)


def calls_text(calls: Iterable[ModuleCall]) -> str:
    return " + ".join(str(call) or "(model)" for call in calls)


def decibels_text(number: float, digits: int = 0) -> str:
    """Never `-0`: less than half of the last digit is nothing."""
    return _not_finite(number) or f"{round(number, digits) + 0.0:.{digits}f}"


def difference_text(number: float) -> str:
    return _not_finite(number) or (f"{number:.1e}" if number else "0")


def cosine_text(number: float) -> str:
    return _not_finite(number) or f"{number:.6f}"


def _not_finite(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return "" if math.isfinite(number) else "∞" if number > 0 else "-∞"
