"""Abstract syntax of queries: terms joined by and, or and not, and what a field is compared with.

    module=encoder.** & !op=Cast     And((Term(MODULE, IS, Glob("encoder.**")), Not(Term(OP, IS, Glob("Cast")))))

Printing an expression and parsing it again gives the same value.

To add a field: a member of `QueryField` here; a predicate in `meaning.py` (`_BY_NAME`, or `_by_number` for numbers);
the names that it may have in `answer.py` (`_NAMES`, so that a misspelt one is an error); and a line in docs/query.md.

Patterns are matched by looking for their fixed pieces from left to right and never by a regular expression, so that
no pattern can take longer than its length times that of the name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from modelexport.record.provenance import Confidence

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
        """Whether it matches one name only."""
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
    """`Mat*Bits` is a start, an end, and no pieces between: each piece is looked for behind the one before."""
    first, *rest = _pieces(text)
    if not rest:
        return lambda name: name == first
    *middle, last = rest

    def matches(name: str) -> bool:
        start, end = len(first), len(name) - len(last)
        if start > end or not (name.startswith(first) and name.endswith(last)):
            return False
        for piece in middle:  # the leftmost match is never worse than a later one
            at = name.find(piece, start, end)
            if at < 0:
                return False
            start = at + len(piece)
        return True

    return matches


def _matches_steps(pattern: Sequence[Matcher | None], steps: Sequence[str]) -> bool:
    """None stands for any number of steps. Only the latest of these is ever tried again, with one step more.

    That is enough: what comes before it matched as early as it could. So the time is the product of both lengths, where
    trying all of them again would take a power of it.
    """
    expected, at = 0, 0
    deep, tried = -1, 0
    while at < len(steps):
        wanted = pattern[expected] if expected < len(pattern) else lambda _: False
        if wanted is None:
            deep, tried = expected, at
            expected += 1
        elif wanted(steps[at]):
            expected, at = expected + 1, at + 1
        elif deep >= 0:
            tried += 1
            expected, at = deep + 1, tried
        else:
            return False
    return all(wanted is None for wanted in pattern[expected:])


# They end a word that is not in quotes.
MEANINGFUL = frozenset("&|!()=<>\"'")


class QueryField(StrEnum):
    """What can be asked of a node. Names and paths are patterns; `NUMBERS` are ranges; confidence is a level."""

    MODULE = "module"
    TAG = "tag"
    CLASS = "class"
    WITHIN = "within"
    ROLE = "role"
    LAYER = "layer"
    OP = "op"
    CONFIDENCE = "confidence"
    EVIDENCE = "evidence"
    RELATION = "relation"
    CALL = "call"
    PARAM = "param"
    TENSOR = "tensor"


class Operator(StrEnum):
    """Comparisons. All but the first two need a field that has an order."""

    IS = "="
    IS_NOT = "!="
    LESS = "<"
    AT_MOST = "<="
    MORE = ">"
    AT_LEAST = ">="


NUMBERS = frozenset({QueryField.LAYER, QueryField.CALL})
ORDERED = NUMBERS | {QueryField.CONFIDENCE}

Value = Glob | Spans | Confidence


@dataclass(frozen=True, slots=True)
class Term:
    """`op=MatMul`: a comparison, the smallest query. Which kind of value it has depends on the field."""

    field: QueryField
    operator: Operator
    value: Value

    def __str__(self) -> str:
        value = self.value.label if isinstance(self.value, Confidence) else _word(str(self.value))
        return f"{self.field}{self.operator}{value}"


@dataclass(frozen=True, slots=True)
class Not:
    """`!op=Cast`. It binds tighter than & and |, so that parentheses are printed round both."""

    inner: Expression

    def __str__(self) -> str:
        return f"!{_enclosed(self.inner, And, Or)}"


@dataclass(frozen=True, slots=True)
class And:
    """Two parts or more. An And inside of an And keeps its parentheses, to be read as what it was."""

    parts: tuple[Expression, ...]

    def __str__(self) -> str:
        return " & ".join(_enclosed(part, And, Or) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Or:
    """Two parts or more. It binds weakest, so that an And among its parts needs no parentheses."""

    parts: tuple[Expression, ...]

    def __str__(self) -> str:
        return " | ".join(_enclosed(part, Or) for part in self.parts)


Expression = Term | Not | And | Or


def terms_of(expression: Expression) -> Iterator[Term]:
    """All terms from left to right, negated ones too."""
    match expression:
        case Term():
            yield expression
        case Not(inner):
            yield from terms_of(inner)
        case And(parts) | Or(parts):
            for part in parts:
                yield from terms_of(part)


def asserted_terms(expression: Expression) -> Iterator[Term]:
    """The terms that a node may have to satisfy: those that are not negated."""
    match expression:
        case Term(operator=operator):
            if operator is not Operator.IS_NOT:
                yield expression
        case And(parts) | Or(parts):
            for part in parts:
                yield from asserted_terms(part)


def include_submodules(expression: Expression) -> Expression:
    """The same, where a module is meant with everything inside of it."""
    match expression:
        case Term(QueryField.CLASS, operator, value):
            return Term(QueryField.WITHIN, operator, value)
        case Term(QueryField.MODULE, operator, Glob(text)) if text and not text.endswith("**") and "#" not in text:
            inside = Term(QueryField.MODULE, Operator.IS, Glob(f"{text}.**"))  # also the module itself
            return Not(inside) if operator is Operator.IS_NOT else inside
        case Not(inner):
            return Not(include_submodules(inner))
        case And(parts) | Or(parts):
            return type(expression)(tuple(map(include_submodules, parts)))
        case _:
            return expression


def _enclosed(part: Expression, *looser: type) -> str:
    return f"({part})" if isinstance(part, looser) else str(part)


def _word(text: str) -> str:
    """In quotes if it would end too early without them, or be nothing at all."""
    if text and not any(character in MEANINGFUL or character.isspace() for character in text):
        return text
    return '"' + text.replace('"', '\\"') + '"'
