"""Fingerprints: near for the same numbers, far for others, whatever else the tensor holds."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.support import building  # noqa: F401 - loads the profile
from tests.support.fingerprints import same_content

from modelexport.attribute.matched_values import _FAR, _NOISE, _TOLERANCE
from modelexport.graph.fingerprint import distance, fingerprint

SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)
SEEDS = st.integers(0, 10_000)


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@given(SEEDS, SHAPES)
def test_equal_arrays_are_not_apart(seed: int, shape: tuple[int, ...]) -> None:
    array = numbers(seed, *shape)
    first, again = fingerprint(array), fingerprint(np.asfortranarray(array.copy()))
    assert first == again
    assert distance(first, again) == 0
    assert same_content(first, again, 0)


@given(SEEDS, SHAPES, st.sampled_from([1e-12, 1e-3, 1.0, 1e6]))
def test_noise_of_another_kernel_is_near(seed: int, shape: tuple[int, ...], scale: float) -> None:
    array = numbers(seed, *shape).astype(np.float64) * scale
    noisy = array * (1 + 1e-6 * numbers(seed + 1, *shape))
    assume(not np.array_equal(array, noisy))
    apart = distance(fingerprint(array), fingerprint(noisy))
    assert 0 < apart < _FAR * _NOISE


@given(SEEDS, st.integers(3, 8), st.integers(3, 8))
def test_other_content_is_far(seed: int, rows: int, columns: int) -> None:
    array = numbers(seed, rows, columns)
    moved = np.ascontiguousarray(array.T).reshape(rows, columns)
    for other in (moved, -array, array * 1.1, numbers(seed + 1, rows, columns)):
        assert distance(fingerprint(array), fingerprint(other)) > 10 * _TOLERANCE


@given(SEEDS)
def test_one_element_that_differs_is_seen(seed: int) -> None:
    array = numbers(seed, 8, 8)
    other = array.copy()
    other[seed % 8, seed % 7] += 1
    assert distance(fingerprint(array), fingerprint(other)) > _TOLERANCE


@given(SEEDS)
def test_the_arrangement_in_a_shape_does_not_change_the_sketch(seed: int) -> None:
    flat = fingerprint(numbers(seed, 24))
    cube = fingerprint(numbers(seed, 24).reshape(2, 3, 4))
    assert (flat.sketch, flat.spread) == (cube.sketch, cube.spread)
    assert not same_content(flat, cube, 1)


@given(SEEDS)
def test_masked_places_do_not_hide_the_others(seed: int) -> None:
    masked, other = numbers(seed, 8, 8), numbers(seed + 1, 8, 8)
    above = np.triu_indices(8, 1)
    masked[above] = other[above] = np.finfo(np.float32).min
    assert distance(fingerprint(masked), fingerprint(masked)) == 0
    # Farther than the one that is meant would be, so that the one that is meant is taken.
    assert distance(fingerprint(masked), fingerprint(other)) > 10 * _FAR * _NOISE


@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan, 3e38])
def test_what_is_no_number_is_told_from_numbers(odd: float) -> None:
    array = numbers(0, 16)
    other = array.copy()
    other[3] = odd
    assert all(map(math.isfinite, fingerprint(other).sketch))
    assert same_content(fingerprint(other), fingerprint(other.copy()), 0)
    assert not same_content(fingerprint(array), fingerprint(other), 0.1)


def test_infinities_and_nan_are_told_apart() -> None:
    found = [fingerprint(np.array([odd, 1.0, 2.0], np.float32)) for odd in (math.inf, -math.inf, math.nan)]
    assert all(distance(a, b) > 0.1 for a in found for b in found if a is not b)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=20), st.integers(0, 19))
def test_integers_are_exact(values: list[int], place: int) -> None:
    array = np.array(values)
    other = array.copy()
    other[place % len(values)] += 1
    assert distance(fingerprint(array), fingerprint(array.astype(np.int32))) == 0
    assert distance(fingerprint(array), fingerprint(other)) == math.inf


@given(st.lists(st.booleans(), min_size=1, max_size=20), st.integers(0, 19))
def test_bools_are_exact(values: list[bool], place: int) -> None:
    array = np.array(values)
    other = array.copy()
    other[place % len(values)] ^= True
    assert same_content(fingerprint(array), fingerprint(array.copy()), 0)
    assert not same_content(fingerprint(array), fingerprint(other), 1)


def test_kinds_are_never_the_same() -> None:
    ones = np.ones(4)
    prints = [fingerprint(ones.astype(kind)) for kind in (np.float32, np.int64, np.bool_)]
    assert [found.kind for found in prints] == ["float", "int", "bool"]
    assert not any(same_content(a, b, math.inf) for a in prints for b in prints if a is not b)
    assert fingerprint(np.array(["a"])).kind == "other"


@pytest.mark.parametrize(
    ("dtype", "reach"), [(np.float64, 1e-6), (np.float16, 1e-3), (ml_dtypes.bfloat16, 5e-3), (np.complex64, 1.0)]
)
def test_the_width_of_a_float_does_not_matter(dtype: type, reach: float) -> None:
    array = numbers(3, 40)
    found = fingerprint(array.astype(dtype))
    assert found.kind == "float"
    assert distance(fingerprint(array), found) < reach or dtype is np.complex64


def test_complex_numbers_count_with_both_parts() -> None:
    array = numbers(0, 8) + 1j * numbers(1, 8)
    assert distance(fingerprint(array), fingerprint(array.conj())) > 0.1


@pytest.mark.parametrize(
    ("array", "distinctive"),
    [
        (numbers(0, 2, 2), True),
        (numbers(0, 3), False),
        (np.zeros((8, 8), np.float32), False),
        (np.eye(8, dtype=np.float32), False),
        (np.repeat(np.array([0, 1, 2, 3], np.float32), 100), True),
        (np.arange(64), False),
        (np.ones(9, np.bool_), False),
        (np.float32(7), False),
        (np.zeros((0, 3), np.float32), False),
    ],
)
def test_only_varied_floats_tell(array: np.ndarray, distinctive: bool) -> None:
    assert fingerprint(np.asarray(array)).distinctive is distinctive


def test_nothing_but_zeros_is_the_same_as_itself() -> None:
    zeros, ones = fingerprint(np.zeros(4)), fingerprint(np.ones(4))
    assert distance(zeros, fingerprint(np.zeros(4))) == 0
    assert distance(zeros, ones) > 0.1


def test_a_long_tensor_is_sampled() -> None:
    array = numbers(0, 1 << 19)
    other = array.copy()
    other[::2] = numbers(1, 1 << 18)
    assert distance(fingerprint(array), fingerprint(array * (1 + 1e-6))) < 1e-5
    assert distance(fingerprint(array), fingerprint(other)) > 0.1
