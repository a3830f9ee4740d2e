from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.queried import EXPRESSIONS

from modelexport.errors import QueryInvalid
from modelexport.inspect.query.expression import (
    And,
    Expression,
    Glob,
    Not,
    Operator,
    Or,
    QueryField,
    Spans,
    Term,
    asserted_terms,
    terms_of,
)
from modelexport.inspect.query.parsing import DEEPEST, parse_query
from modelexport.record.provenance import Confidence


def op(name: str) -> Term:
    return Term(QueryField.OP, Operator.IS, Glob(name))


A, B, C = op("A"), op("B"), op("C")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("op=A", A),
        (" op = A ", A),
        ("op=A&op=B", And((A, B))),
        ("op=A & op=B & op=C", And((A, B, C))),
        ("op=A | op=B & op=C", Or((A, And((B, C))))),
        ("op=A & op=B | op=C", Or((And((A, B)), C))),
        ("(op=A | op=B) & op=C", And((Or((A, B)), C))),
        ("!op=A & op=B", And((Not(A), B))),
        ("!(op=A & op=B)", Not(And((A, B)))),
        ("!!op=A", Not(Not(A))),
        ("op!=A", Term(QueryField.OP, Operator.IS_NOT, Glob("A"))),
        ("((op=A))", A),
        ('op="a b"', op("a b")),
        ("op='a\"b'", op('a"b')),
        (r'op="a\"b"', op('a"b')),
        (r"op=a\ b\&\*", op(r"a b&\*")),
        ('module=""', Term(QueryField.MODULE, Operator.IS, Glob(""))),
        ("layer=3", Term(QueryField.LAYER, Operator.IS, Spans(((3, 3),)))),
        ("layer=0..3,7", Term(QueryField.LAYER, Operator.IS, Spans(((0, 3), (7, 7))))),
        ("call>=1", Term(QueryField.CALL, Operator.AT_LEAST, Spans(((1, 1),)))),
        ("confidence<strong", Term(QueryField.CONFIDENCE, Operator.LESS, Confidence.STRONG)),
    ],
)
def test_queries(query: str, expected: Expression) -> None:
    assert parse_query(query) == expected


# A query, the character that the error points at, and a part of what it says.
WRONG = [
    ("", 0, "empty"),
    ("   ", 3, "empty"),
    ("op", 2, "after 'op'"),
    ("op=", 3, "expected a value"),
    ("op==A", 3, "expected a value"),
    ("op=A &", 6, "expected a field"),
    ("& op=A", 0, "expected a field"),
    ("op=A op=B", 5, "expected & or |"),
    ("op=A && op=B", 6, "expected a field"),
    ("(op=A", 0, "never closed"),
    ("op=B & (op=A | (op=C)", 7, "never closed"),
    ("(op=A op=B)", 6, "expected &, | or )"),
    ("op=A)", 4, "never opened"),
    ("()", 1, "expected a field"),
    ("!", 1, "expected a field"),
    ("modul=a", 0, "Did you mean 'module'?"),
    ("op=A & relation:fused", 7, "Write relation=fused"),
    ("relatio:fused", 0, "Did you mean 'relation'?"),
    ("op=A & zzz=a", 7, "Known: module"),
    ("'unknown'=a", 0, "unknown field"),
    ("op>=A", 2, "no order"),
    ('op="A', 3, "quotation mark"),
    ('op="A\\"', 3, "quotation mark"),
    ("op=A\\", 4, "backslash"),
    ("layer=one", 6, "'one' is none"),
    ("layer=", 6, "expected a value"),
    ("layer=1,", 6, "'' is none"),
    ("layer=-1", 6, "'-1' is none"),
    ("layer=1...3", 6, "is none"),
    ("layer=٣", 6, "is none"),
    ("layer=" + "9" * 5000, 6, "is none"),
    ("layer=3..1", 6, "backwards"),
    ("layer<1..3", 6, "one number"),
    ("confidence=string", 11, "Did you mean 'strong'?"),
    ("confidence=7", 11, "exact, strong"),
]


@pytest.mark.parametrize(("query", "position", "said"), WRONG)
def test_an_error_points_at_the_character(query: str, position: int, said: str) -> None:
    with pytest.raises(QueryInvalid) as caught:
        parse_query(query)
    assert caught.value.exit_code == 2
    assert caught.value.position == position
    assert said in str(caught.value)


def test_the_caret_is_under_the_character() -> None:
    with pytest.raises(QueryInvalid) as caught:
        parse_query("module=encoder.** & opp=MatMul")
    _, query, caret = caught.value.message.splitlines()
    assert query == "  module=encoder.** & opp=MatMul"
    assert query[caret.index("^") :] == "opp=MatMul"


def test_the_caret_knows_how_wide_characters_are() -> None:
    with pytest.raises(QueryInvalid) as caught:
        parse_query("op=\n\x1b層 )")
    _, query, caret = caught.value.message.splitlines()
    assert query == r"  op=\n\x1b層 )"
    assert len(caret) - 1 == len(query)  # the character before takes two columns


def test_a_long_query_is_shown_around_the_character() -> None:
    with pytest.raises(QueryInvalid) as caught:
        parse_query(" & ".join(["op=A"] * 100) + " & x=1 & " + " & ".join(["op=A"] * 100))
    _, query, caret = caught.value.message.splitlines()
    assert query[caret.index("^") :].startswith("x=1")
    assert len(query) < 150
    assert query.strip().startswith("…")
    assert query.endswith("…")


@pytest.mark.parametrize("opening", ["!", "("])
def test_depth_is_bounded(opening: str) -> None:
    closing = ")" if opening == "(" else ""
    parse_query(opening * DEEPEST + "op=A" + closing * DEEPEST)
    with pytest.raises(QueryInvalid, match="more than 50 levels") as caught:
        parse_query(opening * 100_000 + "op=A")
    assert caught.value.position == DEEPEST


def test_depth_is_not_length() -> None:
    parse_query(" & ".join(["!(op=A)"] * DEEPEST))


def test_length_is_not_bounded() -> None:
    parsed = parse_query(" & ".join(["op=A"] * 20_000))
    assert isinstance(parsed, And)
    assert len(parsed.parts) == 20_000


def test_terms() -> None:
    parsed = parse_query("op=A & !op=B | op!=C")
    assert list(terms_of(parsed)) == [A, B, Term(QueryField.OP, Operator.IS_NOT, Glob("C"))]
    assert list(asserted_terms(parsed)) == [A]


@given(EXPRESSIONS)
def test_what_is_printed_reads_back(expression: Expression) -> None:
    assert parse_query(str(expression)) == expression


@given(st.text(st.sampled_from("opmdule=!<>&|() \"'\\*.x0,"), max_size=30))
def test_any_text_is_a_query_or_an_error_with_a_place(text: str) -> None:
    place = 0
    try:
        parse_query(text)
    except QueryInvalid as error:
        place = error.position
    assert 0 <= place <= len(text)
