"""Text from files, made safe to show.

Names in a model come from whoever made it. A terminal obeys control characters and a spreadsheet formulas;
neither may be reached by a node name.
"""

from __future__ import annotations

_FORMULA_STARTS = ("=", "+", "-", "@")


def printable(text: str) -> str:
    """The text with everything that is not a visible character written as an escape."""
    return text if text.isprintable() else "".join(map(_visible, text))


def printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.splitlines()))


def cell(text: str) -> str:
    """Text for a table file: printable, and never a formula."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(_FORMULA_STARTS) else shown


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
