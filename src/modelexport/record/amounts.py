"""Amounts: numbers with a unit, as people write them in options and in files of models.

parse_amount("1.5h", SECONDS)       5400.0
parse_amount("16GiB", BYTES)        17179869184.0
read_size("2GB", "--shard-size")    2000000000
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from modelexport.errors import UserError

SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
BYTES = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30,
    "tib": 1 << 40,
}  # fmt: skip
_UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB", "EB")
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-zµ]*)\s*")


def parse_amount(text: str, units: Mapping[str, float]) -> float | None:
    """None for what is no number above 0 in one of these units, whose names are in lower case."""
    match = _AMOUNT.fullmatch(text)
    factor = None if match is None else units.get(match[2].lower())
    if match is None or factor is None or not 0 < float(match[1]) * factor < math.inf:
        return None
    return float(match[1]) * factor


def read_size(given: int | str | None, option: str, least: int = 1) -> int | None:
    """Bytes that an option names; None if it was not given."""
    if given is None:
        return None
    size = parse_amount(str(given), BYTES)
    if size is None or size < least:
        smallest = f" of at least {least / 1e6:.3g} MB" if least > 1 else ""
        raise UserError(f"{option} is {given!r}, which is no size{smallest}", "Write it as 800MB, 2GB or 16GiB.")
    return math.ceil(size)


def format_bytes(size: int) -> str:
    """In units of 1000, with three digits: `4 bytes`, `12.4 GB`."""
    power = min((len(str(abs(size))) - 1) // 3, len(_UNITS) - 1)
    return f"{size / 1000**power:.3g} {_UNITS[power]}"
