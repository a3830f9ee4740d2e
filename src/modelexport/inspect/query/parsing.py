"""Parser of queries: from text to an expression, by recursive descent. Errors point at the character in the way.

    query  := all ("|" all)*
    all    := factor ("&" factor)*
    factor := "!" factor | "(" query ")" | field operator value

Words and signs are found first (`scan`), each with where it starts. A word in quotes may hold signs; a backslash takes
the meaning from the character after it.

    op=MatMul & !layer<3       And((Term(OP, IS, Glob("MatMul")), Not(Term(LAYER, LESS, Spans(((3, 3),))))))
    op=MatMul layer=3          expected & or | here: at the l of layer
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from modelexport.errors import QueryInvalid, propose_name
from modelexport.inspect.query.expression import (
    MEANINGFUL,
    NUMBERS,
    ORDERED,
    And,
    Expression,
    Glob,
    Not,
    Operator,
    Or,
    QueryField,
    Spans,
    Term,
    Value,
)
from modelexport.record.provenance import Confidence

_OPERATORS = sorted(Operator, key=len, reverse=True)  # `<=` is not `<` and `=`
# A word keeps the escape of these: to a pattern they mean something else without it.
_KEPT_ESCAPES = "*\\"


class TokenKind(Enum):
    """A WORD is a field or a value, an OPERATOR a comparison, a SIGN one of `&|!()`."""

    WORD = auto()
    OPERATOR = auto()
    SIGN = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a query. `text` is without quotes and escapes, `start` is where it begins in the query."""

    kind: TokenKind
    text: str
    start: int


def scan(query: str) -> list[Token]:
    """Words, operators and signs; spaces only part them."""
    tokens: list[Token] = []
    position = 0
    while position < len(query):
        if query[position].isspace():
            position += 1
            continue
        token, position = _next(query, position)
        tokens.append(token)
    return [*tokens, Token(TokenKind.END, "", len(query))]


def _next(query: str, start: int) -> tuple[Token, int]:
    """The token that begins at `start`, and the position after it."""
    # Before signs: `!=` begins with one.
    for operator in _OPERATORS:
        if query.startswith(operator, start):
            return Token(TokenKind.OPERATOR, operator, start), start + len(operator)
    character = query[start]
    if character in "\"'":
        text, end = _word(query, start + 1, character)
        if end == len(query):
            raise QueryInvalid("this quotation mark is never closed", query, start)
        return Token(TokenKind.WORD, text, start), end + 1
    if character in MEANINGFUL:
        return Token(TokenKind.SIGN, character, start), start + 1
    text, end = _word(query, start)
    return Token(TokenKind.WORD, text, start), end


def _word(query: str, start: int, quote: str = "") -> tuple[str, int]:
    """The text up to the closing quote, or to what ends a bare word; and the position of that."""
    text, position = "", start
    ends = quote or MEANINGFUL
    while position < len(query) and query[position] not in ends and (quote or not query[position].isspace()):
        escaped = query[position] == "\\"
        position += escaped
        if position == len(query):
            hint = "Write \\\\ for a backslash."
            raise QueryInvalid("there is nothing after this backslash", query, position - 1, hint)
        kept = escaped and query[position] in _KEPT_ESCAPES
        text += f"\\{query[position]}" if kept else query[position]
        position += 1
    return text, position


# Deeper nesting would exhaust Python's stack long before it meant anything to anybody.
DEEPEST = 50
# Longer numbers are no layers and no calls; `int` would take its time for a megabyte of digits.
_LONGEST_NUMBER = 9
_RANGE = ".."
_EXAMPLE = "Such as: module=encoder.** & op=MatMul"
_NUMBERS_HINT = "Such as: 3, 0..3 or 0,2,5..7."


def parse_query(text: str) -> Expression:
    """Raises QueryInvalid, which shows the query with a mark under the character in the way."""
    parser = _Parser(text)
    if parser.ahead().kind is TokenKind.END:
        raise parser.wrong("the query is empty", parser.ahead(), _EXAMPLE)
    expression = parser.any_of()
    if parser.ahead().kind is not TokenKind.END:
        closing = parser.ahead().text == ")"
        raise parser.wrong("this parenthesis was never opened" if closing else "expected & or | here", parser.ahead())
    return expression


class _Parser:
    """One method for each rule of the grammar. Each begins at the token ahead and leaves the first one behind it ahead.

    A list of tokens ends with END, which no rule goes past: whatever is missing, there is a token to point at.
    """

    def __init__(self, query: str) -> None:
        self.query = query
        self.tokens = scan(query)
        self.position = 0
        self.depth = 0

    def ahead(self) -> Token:
        return self.tokens[self.position]

    def take(self) -> Token:
        token = self.ahead()
        self.position += 1
        return token

    def wrong(self, problem: str, token: Token, hint: str = "") -> QueryInvalid:
        return QueryInvalid(problem, self.query, token.start, hint)

    def at_sign(self, sign: str) -> bool:
        return self.ahead().kind is TokenKind.SIGN and self.ahead().text == sign

    def any_of(self) -> Expression:
        """The weakest binding: `a & b | c` is `(a & b) | c`."""
        return self.parse_joined("|", self.all_of, Or)

    def all_of(self) -> Expression:
        return self.parse_joined("&", self.factor, And)

    def parse_joined(self, sign: str, part: Callable[[], Expression], joined: type[And | Or]) -> Expression:
        """`a & b & c` is one And of three parts, and `a` alone is no And: as it prints, so it is read again."""
        parts = [part()]
        while self.at_sign(sign):
            self.take()
            parts.append(part())
        return parts[0] if len(parts) == 1 else joined(tuple(parts))

    def factor(self) -> Expression:
        if self.at_sign("!"):
            return Not(self.deeper(self.factor))
        if self.at_sign("("):
            return self.enclosed()
        return self.term()

    def enclosed(self) -> Expression:
        """A query in parentheses. If they are not closed, the opening one is shown: the end is where nothing is."""
        opening = self.ahead()
        inner = self.deeper(self.any_of)
        if self.at_sign(")"):
            self.take()
            return inner
        if self.ahead().kind is TokenKind.END:
            raise self.wrong("this parenthesis is never closed", opening)
        raise self.wrong("expected &, | or ) here", self.ahead())

    def deeper(self, part: Callable[[], Expression]) -> Expression:
        """One level in, behind the sign that is ahead."""
        sign = self.take()
        if self.depth == DEEPEST:
            raise self.wrong(f"more than {DEEPEST} levels of ! and parentheses", sign)
        self.depth += 1
        inner = part()
        self.depth -= 1
        return inner

    def term(self) -> Term:
        """field operator value. An order is asked of numbers and confidences only."""
        field = self.field()
        operator_token = self.take()
        if operator_token.kind is not TokenKind.OPERATOR:
            raise self.wrong(f"expected = or another comparison after {field.value!r}", operator_token)
        operator = Operator(operator_token.text)
        if field not in ORDERED and operator not in (Operator.IS, Operator.IS_NOT):
            raise self.wrong(f"{field.value!r} has no order: only = and != can be asked of it", operator_token)
        token = self.take()
        if token.kind is not TokenKind.WORD:
            raise self.wrong("expected a value here", token, "Put a value with special characters in quotes.")
        return Term(field, operator, self.value(field, operator, token))

    def field(self) -> QueryField:
        """Names of fields are whole words: `mod=` is unknown, and `module=` suggested."""
        token = self.take()
        if token.kind is not TokenKind.WORD:
            raise self.wrong("expected a field here", token, _EXAMPLE)
        try:
            return QueryField(token.text)
        except ValueError:
            raise self.wrong(f"unknown field {token.text!r}", token, _meant(token.text)) from None

    def value(self, field: QueryField, operator: Operator, token: Token) -> Value:
        """A level, ranges of numbers, or a pattern: the field decides, not how the value is written."""
        if field is QueryField.CONFIDENCE:
            return self.confidence(token)
        if field not in NUMBERS:
            return Glob(token.text)
        spans = Spans(tuple(self.span(part, field, token) for part in token.text.split(",")))
        if operator not in (Operator.IS, Operator.IS_NOT) and spans.single is None:
            raise self.wrong(f"{operator.value} takes one number", token)
        return spans

    def confidence(self, token: Token) -> Confidence:
        """A level by its label; with `>=` those that are surer too."""
        labels = [level.label for level in sorted(Confidence, reverse=True)]
        if token.text not in labels:
            raise self.wrong(f"unknown confidence {token.text!r}", token, propose_name(token.text, labels))
        return Confidence.parse(token.text)

    def span(self, text: str, field: QueryField, token: Token) -> tuple[int, int]:
        """`3` is from 3 to 3, `0..3` includes both ends. A backward range would be empty, and surely a mistake."""
        low, mark, high = text.partition(_RANGE)
        ends = (low, high if mark else low)
        if not all(end.isascii() and end.isdigit() and len(end) <= _LONGEST_NUMBER for end in ends):
            raise self.wrong(f"{field.value!r} is a number, and {text!r} is none", token, _NUMBERS_HINT)
        first, last = map(int, ends)
        if first > last:
            raise self.wrong(f"the range {text} goes backwards", token)
        return first, last


def _meant(text: str) -> str:
    """A hint on an unknown field. Elsewhere a colon stands between a field and its value."""
    field, colon, value = text.partition(":")
    return f"Write {field}={value}" if colon and field in tuple(QueryField) else propose_name(text, QueryField)
