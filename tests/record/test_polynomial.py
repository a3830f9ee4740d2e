"""Polynomials compute as numbers do."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelexport.inspect.cost.values import NotSizes, parse_size
from modelexport.record.polynomial import Polynomial, largest, sizes_sum, smallest

NAMES = ("batch", "sequence", "past key")
SIZES = st.fixed_dictionaries({name: st.integers(1, 9) for name in NAMES})
LEAVES = st.integers(-20, 20).map(Polynomial.of) | st.sampled_from(NAMES).map(Polynomial.axis)


def _grown(inner: st.SearchStrategy[Polynomial]) -> st.SearchStrategy[Polynomial]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        pairs.map(lambda pair: pair[0] + pair[1]),
        pairs.map(lambda pair: pair[0] - pair[1]),
        pairs.map(lambda pair: pair[0] * pair[1]),
        pairs.map(lambda pair: smallest(*pair)),
        pairs.map(lambda pair: largest(*pair)),
        st.tuples(inner, st.integers(1, 12)).map(lambda pair: pair[0] // pair[1]),
    )


POLYNOMIALS = st.recursive(LEAVES, _grown, max_leaves=6)


def number(size: Polynomial, sizes: dict[str, int]) -> int:
    found = size.at(sizes).value
    assert found is not None
    return found


@given(POLYNOMIALS, POLYNOMIALS, SIZES)
def test_sums_products_and_extremes(one: Polynomial, other: Polynomial, sizes: dict[str, int]) -> None:
    a, b = number(one, sizes), number(other, sizes)
    assert number(one + other, sizes) == a + b
    assert number(one - other, sizes) == a - b
    assert number(one * other, sizes) == a * b
    assert number(smallest(one, other), sizes) == min(a, b)
    assert number(largest(one, other), sizes) == max(a, b)
    assert number(sizes_sum([one, other, 3]), sizes) == a + b + 3


@given(POLYNOMIALS, st.integers(1, 30), SIZES)
def test_quotients_are_rounded_down(one: Polynomial, divisor: int, sizes: dict[str, int]) -> None:
    assert number(one // divisor, sizes) == number(one, sizes) // divisor
    assert number(one % divisor, sizes) == number(one, sizes) % divisor


@given(POLYNOMIALS, POLYNOMIALS.filter(bool))
def test_what_was_multiplied_divides_without_remainder(one: Polynomial, other: Polynomial) -> None:
    assert one * other // other == one


@given(POLYNOMIALS, SIZES)
def test_axes_can_be_given_one_after_the_other(one: Polynomial, sizes: dict[str, int]) -> None:
    first, *rest = sizes
    assert one.at({first: sizes[first]}).at({name: sizes[name] for name in rest}) == one.at(sizes)


@given(POLYNOMIALS, POLYNOMIALS)
def test_equal_ones_are_equal_however_they_came_about(one: Polynomial, other: Polynomial) -> None:
    assert one + other == other + one
    assert one * other == other * one
    assert hash(one * other) == hash(other * one)
    assert one - one == 0


@given(POLYNOMIALS)
def test_expressions_are_read_back(one: Polynomial) -> None:
    assert parse_size(one.expression) == one


@given(st.integers())
def test_a_polynomial_without_axes_is_its_number(one: int) -> None:
    assert Polynomial.of(one) == one
    assert hash(Polynomial.of(one)) == hash(one)
    assert str(Polynomial.of(one)) == str(one)


def test_they_read_well() -> None:
    batch, sequence = Polynomial.axis("batch"), Polynomial.axis("sequence")
    assert str(2048 * batch * sequence**2 - 3 * batch + 1) == "2048·batch·sequence² - 3·batch + 1"
    assert str((sequence + 1) // 2) == "⌊(sequence + 1)/2⌋"
    assert (2 * batch * sequence).expression == "2*batch*sequence"
    assert (batch * sequence).axes == ("batch", "sequence")


def test_quotients_of_quotients_are_quotients() -> None:
    height = Polynomial.axis("height")
    assert ((height + 1) // 2 + 1) // 2 == (height + 3) // 4
    assert largest(height, smallest(height, 64)) == height
    assert smallest(height + 1, height) == height


@pytest.mark.parametrize(
    ("text", "sizes", "value"),
    [
        ("s0 + 1", {"s0": 4}, 5),
        ("Min(64, sequence)", {"sequence": 100}, 64),
        ("((batch*sequence)//batch)", {"sequence": 7}, 7),
        ("FloorDiv(s0 - 1, 2) + 1", {"s0": 8}, 4),
        ("2*s0**2", {"s0": 3}, 18),
        ("CeilToInt(s0/3)", {"s0": 7}, 3),
        ("s0 % 4", {"s0": 7}, 3),
    ],
)
def test_what_exporters_write_is_read(text: str, sizes: dict[str, int], value: int) -> None:
    assert parse_size(text).at(sizes) == value


@pytest.mark.parametrize(
    "text",
    ["batch size", "", "a.b", "f(x)", "__import__('os')", "a if b else c", "(" * 500, "9**9", "1//0", "a" * 5000],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(NotSizes):
        parse_size(text)


def test_many_are_added_in_little_time() -> None:
    batch = Polynomial.axis("batch")
    count = 20_000
    assert sizes_sum(batch * place for place in range(count)) == batch * math.comb(count, 2)
