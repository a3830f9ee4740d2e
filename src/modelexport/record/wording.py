"""Words that messages of several stages have in common, and text from files made safe to show.

Names in a model come from whoever made it. A terminal obeys control characters and a spreadsheet formulas;
neither may be reached by a node name.
"""

from __future__ import annotations

from collections.abc import Sequence

_FORMULA_STARTS = ("=", "+", "-", "@")


def some_of(names: Sequence[str], shown: int = 3) -> str:
    """The first of some names, and how many more there are."""
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")


def printable(text: str) -> str:
    """The text with everything that is not a visible character written as an escape."""
    return text if text.isprintable() else "".join(map(_visible, text))


def cell(text: str) -> str:
    """Text for a table file: printable, and never a formula."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(_FORMULA_STARTS) else shown


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
