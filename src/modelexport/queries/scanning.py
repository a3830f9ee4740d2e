"""The words and signs of a query, each with its place, so that an error can point at it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from modelexport.errors import QueryInvalid
from modelexport.queries.expression import MEANINGFUL, Operator

_OPERATORS = sorted(Operator, key=len, reverse=True)  # `<=` is not `<` and `=`
# A word keeps the escape of these: to a pattern they mean something else without it.
_KEPT_ESCAPES = "*\\"


class Kind(Enum):
    WORD = auto()
    OPERATOR = auto()
    SIGN = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Token:
    kind: Kind
    text: str
    start: int


def scan(query: str) -> list[Token]:
    tokens: list[Token] = []
    place = 0
    while place < len(query):
        if query[place].isspace():
            place += 1
            continue
        token, place = _next(query, place)
        tokens.append(token)
    return [*tokens, Token(Kind.END, "", len(query))]


def _next(query: str, start: int) -> tuple[Token, int]:
    """The token that begins at `start`, and the place after it."""
    for operator in _OPERATORS:
        if query.startswith(operator, start):
            return Token(Kind.OPERATOR, operator, start), start + len(operator)
    character = query[start]
    if character in "\"'":
        text, end = _word(query, start + 1, character)
        if end == len(query):
            raise QueryInvalid("this quotation mark is never closed", query, start)
        return Token(Kind.WORD, text, start), end + 1
    if character in MEANINGFUL:
        return Token(Kind.SIGN, character, start), start + 1
    text, end = _word(query, start)
    return Token(Kind.WORD, text, start), end


def _word(query: str, start: int, quote: str = "") -> tuple[str, int]:
    """The text up to the closing quote, or to what ends a bare word; and the place of that."""
    text, place = "", start
    while place < len(query) and not _ends(query[place], quote):
        if query[place] == "\\":
            if place + 1 == len(query):
                raise QueryInvalid("there is nothing after this backslash", query, place, "Write \\\\ for a backslash.")
            kept = "\\" if query[place + 1] in _KEPT_ESCAPES else ""
            text += kept + query[place + 1]
            place += 2
        else:
            text += query[place]
            place += 1
    return text, place


def _ends(character: str, quote: str) -> bool:
    return character == quote if quote else character in MEANINGFUL or character.isspace()
