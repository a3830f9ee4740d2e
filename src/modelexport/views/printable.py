"""Text from files, made safe to show; see `record/wording.py`."""

from __future__ import annotations

from modelexport.record.wording import cell, printable

__all__ = ["cell", "printable", "printable_lines"]


def printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.splitlines()))
