"""A query as a value: terms joined by and, or and not. Printing one and parsing it again gives the same value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from modelexport.queries.values import Glob, Spans
from modelexport.record.evidence import Confidence

# They end a word that is not in quotes.
MEANINGFUL = frozenset("&|!()=<>\"'")


class Field(StrEnum):
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
    IS = "="
    IS_NOT = "!="
    LESS = "<"
    AT_MOST = "<="
    MORE = ">"
    AT_LEAST = ">="


NUMBERS = frozenset({Field.LAYER, Field.CALL})
ORDERED = NUMBERS | {Field.CONFIDENCE}

Value = Glob | Spans | Confidence


@dataclass(frozen=True, slots=True)
class Term:
    field: Field
    operator: Operator
    value: Value

    def __str__(self) -> str:
        value = self.value.label if isinstance(self.value, Confidence) else _word(str(self.value))
        return f"{self.field}{self.operator}{value}"


@dataclass(frozen=True, slots=True)
class Not:
    inner: Expression

    def __str__(self) -> str:
        return f"!{_enclosed(self.inner, And, Or)}"


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Expression, ...]

    def __str__(self) -> str:
        return " & ".join(_enclosed(part, And, Or) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Expression, ...]

    def __str__(self) -> str:
        return " | ".join(_enclosed(part, Or) for part in self.parts)


Expression = Term | Not | And | Or


def terms_of(expression: Expression) -> Iterator[Term]:
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


def deepened(expression: Expression) -> Expression:
    """The same, where a module is meant with everything inside of it."""
    match expression:
        case Term(Field.CLASS, operator, value):
            return Term(Field.WITHIN, operator, value)
        case Term(Field.MODULE, operator, Glob(text)) if text and not text.endswith("**") and "#" not in text:
            inside = Term(Field.MODULE, Operator.IS, Glob(f"{text}.**"))  # also the module itself
            return Not(inside) if operator is Operator.IS_NOT else inside
        case Not(inner):
            return Not(deepened(inner))
        case And(parts):
            return And(tuple(map(deepened, parts)))
        case Or(parts):
            return Or(tuple(map(deepened, parts)))
        case _:
            return expression


def _enclosed(part: Expression, *looser: type) -> str:
    return f"({part})" if isinstance(part, looser) else str(part)


def _word(text: str) -> str:
    bare = text and not any(character in MEANINGFUL or character.isspace() for character in text)
    if bare:
        return text
    quoted = text.replace('"', '\\"')
    return f'"{quoted}"'
