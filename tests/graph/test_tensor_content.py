"""The arithmetic that fingerprints and samples share, and the index of values by one number."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from modelexport.graph.tensor_content import NearIndex, has_distinct, squash

_KEYS = st.floats(-10, 10, allow_nan=False)
_ENTRIES = st.lists(st.tuples(st.sampled_from("ab"), _KEYS))


@given(st.lists(st.floats(width=32)))
def test_squashed_numbers_are_finite_and_keep_their_order(numbers: list[float]) -> None:
    array = np.array(numbers, np.float32)
    squashed = squash(array)
    assert np.isfinite(squashed).all()
    real = ~np.isnan(array)
    order = np.argsort(array[real], kind="stable")
    assert (np.diff(squashed[real][order]) >= 0).all()


def test_an_infinity_is_the_largest_float_and_nan_is_neither() -> None:
    largest = np.finfo(np.float32).max
    infinite, huge, nan = squash(np.array([np.inf, largest, np.nan], np.float32))
    assert infinite == huge
    assert nan > infinite
    assert squash(np.array([-np.inf]))[0] == -infinite


def test_squashing_leaves_the_array_as_it_was() -> None:
    array = np.array([np.nan, np.inf, 3.0])
    squash(array)
    assert np.isnan(array[0])
    assert np.isinf(array[1])


@given(st.lists(st.integers(0, 20), max_size=400), st.integers(1, 12))
def test_as_many_different_numbers_are_counted_wherever_they_are(numbers: list[int], count: int) -> None:
    assert has_distinct(np.array(numbers, np.float64), count) == (len(set(numbers)) >= count)


def test_different_numbers_at_the_end_of_a_long_tensor_count() -> None:
    assert has_distinct(np.concatenate([np.zeros(100_000), np.arange(8.0)]), 8)
    assert not has_distinct(np.zeros(100_000), 2)


@given(_ENTRIES, st.sampled_from("abc"), _KEYS, st.floats(0, 5))
def test_what_is_near_is_found_in_its_bucket_alone(
    entries: list[tuple[str, float]], bucket: str, key: float, reach: float
) -> None:
    index = NearIndex.of((name, at, number) for number, (name, at) in enumerate(entries))
    near = {n for n, (name, at) in enumerate(entries) if name == bucket and key - reach <= at <= key + reach}
    assert set(index.near(bucket, key, reach)) == near


def test_values_of_one_key_come_in_the_order_of_their_numbers() -> None:
    index = NearIndex.of([("a", 1.0, 3), ("a", 0.5, 2), ("a", 1.0, 1)])
    assert index.near("a", 1.0, 1.0) == [2, 1, 3]
    assert index.near("b", 1.0, 1.0) == []
