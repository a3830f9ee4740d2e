"""What a field is compared with: a pattern for names, or numbers.

Patterns are matched by looking for their fixed pieces from left to right and never by a regular expression, so that
no pattern can take longer than its length times that of the name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Matcher = Callable[[str], bool]

_DEEP = "**"


@dataclass(frozen=True, slots=True)
class Glob:
    r"""A pattern. `*` stands for any characters, `\*` for a star and `\\` for a backslash."""

    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def is_literal(self) -> bool:
        return len(_pieces(self.text)) == 1

    def matcher(self, separator: str = "") -> Matcher:
        """Whether a whole name matches. With a separator, `*` stays inside one step and `**` is any number of steps."""
        if not separator:
            return _step_matcher(self.text)
        steps = [None if step == _DEEP else _step_matcher(step) for step in _steps(self.text, separator)]
        return lambda name: _matches_steps(steps, _steps(name, separator))


@dataclass(frozen=True, slots=True)
class Spans:
    """Whole numbers, as ranges that include both ends."""

    parts: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return ",".join(str(low) if low == high else f"{low}..{high}" for low, high in self.parts)

    def __contains__(self, number: int) -> bool:
        return any(low <= number <= high for low, high in self.parts)

    @property
    def single(self) -> int | None:
        """The number, if it is only one."""
        low, high = self.parts[0]
        return low if len(self.parts) == 1 and low == high else None


def _steps(text: str, separator: str) -> list[str]:
    return text.split(separator) if text else []


def _pieces(text: str) -> list[str]:
    """The fixed text between the stars."""
    pieces, escaped = [""], False
    for character in text:
        if escaped or character not in "\\*":
            pieces[-1] += character
            escaped = False
        elif character == "*":
            pieces.append("")
        else:
            escaped = True
    return pieces


def _step_matcher(text: str) -> Matcher:
    first, *rest = _pieces(text)
    if not rest:
        return lambda name: name == first
    *middle, last = rest

    def matches(name: str) -> bool:
        place, end = len(first), len(name) - len(last)
        if place > end or not (name.startswith(first) and name.endswith(last)):
            return False
        for piece in middle:  # the leftmost place is never worse than a later one
            found = name.find(piece, place, end)
            if found < 0:
                return False
            place = found + len(piece)
        return True

    return matches


def _matches_steps(pattern: Sequence[Matcher | None], steps: Sequence[str]) -> bool:
    """None stands for any number of steps. Only the latest of these is ever tried again, with one step more."""
    place, at = 0, 0
    deep, tried = -1, 0
    while at < len(steps):
        wanted = pattern[place] if place < len(pattern) else _nothing
        if wanted is None:
            deep, tried = place, at
            place += 1
        elif wanted(steps[at]):
            place, at = place + 1, at + 1
        elif deep >= 0:
            tried += 1
            place, at = deep + 1, tried
        else:
            return False
    return all(wanted is None for wanted in pattern[place:])


def _nothing(_: str) -> bool:
    return False
