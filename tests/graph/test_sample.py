"""Samples: the same for the same numbers in any shape, apart for others, and honest about what says nothing."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from tests.support import building  # noqa: F401 - loads the profile

from modelexport.graph.sample import INF, LOOSEST, NAN, alike, distance, sample, shared_share, unseen

SEEDS = st.integers(0, 10_000)
# Sides whose products lie on both sides of the number of places that are looked at.
SIDES = st.tuples(st.integers(1, 24), st.integers(1, 24), st.integers(1, 4))
FINITE = st.floats(-(2.0**100), 2.0**100, width=32)


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# the same


@given(SEEDS, SIDES, st.permutations([0, 1, 2]))
def test_the_shape_makes_no_difference(seed: int, sides: tuple[int, int, int], order: list[int]) -> None:
    array = numbers(seed, *sides)
    other = array.reshape([sides[place] for place in order])
    assert np.array_equal(sample(array).values, sample(other).values)
    assert distance(sample(array), sample(other)) == 0
    assert sample(other).shape == other.shape
    assert sample(other).size == array.size


@given(SEEDS, SIDES)
def test_the_place_in_memory_makes_no_difference(seed: int, sides: tuple[int, int, int]) -> None:
    array = numbers(seed, *sides)
    scattered = np.repeat(array, 2, axis=0)[::2]
    for other in (np.asfortranarray(array), np.ascontiguousarray(array.T).T, scattered):
        assert distance(sample(array), sample(other)) == 0


@given(SEEDS, SIDES, st.sampled_from([1e-12, 1e-3, 1.0, 1e6]))
def test_noise_of_another_kernel_is_alike(seed: int, sides: tuple[int, int, int], scale: float) -> None:
    array = numbers(seed, *sides) * np.float32(scale)
    noisy = array * (1 + 1e-6 * numbers(seed + 1, *sides))
    assert alike(sample(array), sample(noisy))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_what_a_type_rounds_away_is_alike(dtype: type) -> None:
    array = numbers(0, 40)
    assert alike(sample(array), sample(array.astype(dtype)))


def test_a_coarser_type_allows_more_and_never_too_much() -> None:
    kinds = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2)
    grains = [sample(np.ones(8, kind)).grain for kind in kinds]
    assert grains == sorted(grains)
    assert grains[0] < grains[2] < grains[3]
    assert max(grains) == LOOSEST
    assert sample(np.ones(8, np.int64)).grain == 0


def test_what_is_made_from_few_bits_is_as_coarse() -> None:
    half, fine, ids = sample(numbers(0, 9).astype(np.float16)), sample(numbers(1, 9)), sample(np.arange(9))
    assert (half.is_coarse, fine.is_coarse, ids.is_coarse) == (True, False, False)
    assert fine.made_from([ids, half, fine]).grain == half.grain
    assert fine.made_from([ids, half]).is_coarse
    assert half.made_from([fine]).grain == half.grain
    assert fine.made_from([]).grain == fine.grain
    assert ids.made_from([half]).grain == 0
    assert distance(fine, fine.made_from([half])) == 0


@given(st.lists(FINITE, min_size=1, max_size=12), st.data())
def test_nothing_lies_between_equal_arrays_only(values: list[float], data: st.DataObject) -> None:
    others = data.draw(st.lists(FINITE | st.sampled_from(values), min_size=len(values), max_size=len(values)))
    one, other = np.array(values, np.float32), np.array(others, np.float32)
    assert (distance(sample(one), sample(other)) == 0) == np.array_equal(one, other)


@given(SEEDS, st.floats(0, 2))
def test_both_directions_are_as_long(seed: int, share: float) -> None:
    one = numbers(seed, 30)
    other = (one + np.float32(share) * numbers(seed + 1, 30)).astype(np.float16)
    assert distance(sample(one), sample(other)) == distance(sample(other), sample(one))
    assert alike(sample(one), sample(other)) == alike(sample(other), sample(one))


def test_a_sample_does_not_change_with_its_array() -> None:
    for array in (numbers(0, 40), np.arange(40), numbers(0, 4000), np.linspace(0, 1, 20)):
        before = sample(array)
        held = before.values.copy()
        array[...] = 3
        assert np.array_equal(before.values, held)


# not the same


@given(SEEDS, st.integers(3, 40), st.integers(3, 40))
def test_other_content_is_not_alike(seed: int, rows: int, columns: int) -> None:
    array = numbers(seed, rows, columns)
    moved = np.ascontiguousarray(array.T).reshape(rows, columns)
    for other in (moved, -array, array * np.float32(1.01), numbers(seed + 1, rows, columns), np.roll(array, 1)):
        assert not alike(sample(array), sample(other))


@given(SEEDS, st.integers(0, 63))
def test_every_place_of_a_small_array_is_looked_at(seed: int, place: int) -> None:
    array = numbers(seed, 8, 8)
    other = array.copy()
    other[np.unravel_index(place, (8, 8))] += 0.5
    assert not alike(sample(array), sample(other))


@pytest.mark.parametrize("rows", [64, 100, 512])
def test_every_column_of_a_large_array_is_looked_at(rows: int) -> None:
    for column in range(16):
        array = numbers(column, rows, 16)
        other = array.copy()
        other[:, column] = 0
        assert not alike(sample(array), sample(other))


def test_one_large_number_does_not_drown_the_others() -> None:
    one, other = numbers(0, 32), numbers(1, 32)
    one[0] = other[0] = np.finfo(np.float32).min
    assert not alike(sample(one), sample(other))


def test_integers_are_alike_only_if_they_are_equal() -> None:
    ids = np.arange(100_000, 100_040)
    off = ids.copy()
    off[20] += 1
    assert alike(sample(ids), sample(ids.astype(np.int32).reshape(8, 5)))
    assert not alike(sample(ids), sample(off))


def test_sizes_and_kinds_are_never_mixed_up() -> None:
    ones = np.ones(16, np.float32)
    for other in (np.ones(17, np.float32), np.ones(16, np.int64), np.ones(16, bool)):
        assert distance(sample(ones), sample(other)) == math.inf
    assert distance(sample(np.ones(16, bool)), sample(np.ones(16, np.uint8))) == math.inf


# what is not finite


def test_infinity_is_the_largest_float() -> None:
    infinite, largest = numbers(0, 16), numbers(0, 16)
    infinite[3], largest[3] = -np.inf, np.finfo(np.float32).min
    assert alike(sample(infinite), sample(largest))
    beyond = largest.astype(np.float64)
    beyond[3] *= 1e200
    assert alike(sample(infinite), sample(beyond))
    assert not alike(sample(infinite), sample(np.abs(largest)))


def test_nan_is_like_nan_alone() -> None:
    array = numbers(0, 16)
    array[3] = np.nan
    assert alike(sample(array), sample(array.copy()))
    for instead in (0, np.inf, -np.inf):
        other = array.copy()
        other[3] = instead
        assert not alike(sample(array), sample(other))


@given(npst.arrays(st.sampled_from([np.float16, np.float32, np.float64]), npst.array_shapes(min_side=0)))
def test_nan_is_said_before_infinity_before_nothing(array: np.ndarray) -> None:
    values = [float(value) for value in array.reshape(-1)]
    wanted = NAN if any(map(math.isnan, values)) else INF if any(map(math.isinf, values)) else ""
    assert sample(array).trouble == wanted


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_large_numbers_are_finite_though_their_sum_is_not(dtype: type) -> None:
    assert sample(np.full(100, np.finfo(dtype).max, dtype)).trouble == ""


def test_infinities_are_found_wherever_they_are_and_though_they_cancel_out() -> None:
    assert sample(np.array([np.inf, 1, -np.inf], np.float32)).trouble == INF
    for place in range(0, 3000, 7):
        array = numbers(0, 3000)
        array[place] = np.nan
        assert sample(array).trouble == NAN


def test_what_cannot_be_infinite_is_not() -> None:
    assert [sample(array).trouble for array in (np.arange(3), np.array([True]), np.zeros(3, np.complex64))] == [""] * 3


# what says nothing


def test_few_different_numbers_are_not_telling() -> None:
    assert sample(np.arange(8, dtype=np.float32)).distinctive
    assert not sample(np.arange(7, dtype=np.float32)).distinctive
    assert not sample(np.tile(np.arange(7, dtype=np.float32), 300)).distinctive
    assert not sample(np.full(2000, 0.1, np.float32)).distinctive
    assert not sample(np.array(3.5, np.float32)).distinctive
    assert not sample(np.arange(64) > 5).distinctive
    assert sample(np.arange(64)).distinctive


@pytest.mark.parametrize(
    "array",
    [np.zeros(9, np.complex64), np.array(["a", "b"]), np.array([None, 3], object), np.zeros(9, [("a", "f4")])],
    ids=["complex", "text", "objects", "records"],
)
def test_what_cannot_be_compared_is_like_nothing(array: np.ndarray) -> None:
    found = sample(array)
    assert (found.kind, found.distinctive, found.shape) == ("other", False, array.shape)
    assert distance(found, found) == math.inf
    assert not alike(found, unseen(array.shape))


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (bool, "bool"),
        (np.uint8, "int"),
        (np.int64, "int"),
        (np.float16, "float"),
        (np.float64, "float"),
        (ml_dtypes.bfloat16, "float"),
        (ml_dtypes.float8_e4m3fn, "float"),
    ],
)
def test_kinds(dtype: type, kind: str) -> None:
    assert sample(np.ones((2, 3), dtype)).kind == kind


def test_nothing_is_like_nothing() -> None:
    empty = sample(np.empty((0, 4), np.float32))
    assert alike(empty, sample(np.empty((3, 0), np.float32)))
    assert not empty.distinctive
    zeros = sample(np.zeros(4, np.float32))
    assert distance(zeros, zeros) == 0
    assert not alike(zeros, sample(np.full(4, 1e-30, np.float32)))


def test_rounding_errors_of_large_numbers_are_none_of_small_ones() -> None:
    """Sums of large numbers that cancel out differ by the last bits of the large ones, whatever is left of them."""
    generator = np.random.default_rng(0)
    values = (generator.standard_normal(400) * 10.0 ** generator.uniform(-1, 7, 400)).astype(np.float32)
    noise = generator.standard_normal(400) * np.abs(values).max() * np.finfo(np.float32).eps
    rounded = (values + noise).astype(np.float32)
    assert alike(sample(values), sample(rounded))
    assert not alike(sample(values), sample(values * np.float32(1.01)))
    assert not alike(sample(values), sample(np.roll(values, 1)))


def test_a_mask_says_nothing_of_what_it_does_not_hide() -> None:
    scores, others = np.random.default_rng(0).standard_normal((2, 400)).astype(np.float32)
    for hidden in (-1e9, float(np.finfo(np.float32).min)):
        mask = np.where(np.arange(400) % 2, 0, hidden).astype(np.float32)
        assert not alike(sample(scores + mask), sample(others + mask))


@pytest.mark.parametrize("rows", [2, 200])
def test_columns_are_known_in_what_they_are_packed_into(rows: int) -> None:
    random = np.random.default_rng(0)
    parts = [random.standard_normal((rows, width)).astype(np.float32) for width in (16, 8)]
    whole = sample(np.concatenate(parts, axis=-1))
    assert shared_share(whole, sample(parts[0]), 0) == (True, True)
    assert shared_share(whole, sample(parts[1]), 16) == (True, True)
    assert shared_share(whole, sample(parts[1]), 0) == (False, False)


def test_few_common_elements_prove_nothing() -> None:
    whole = np.random.default_rng(0).standard_normal((4000, 24)).astype(np.float32)
    assert shared_share(sample(whole), sample(whole[:, :16].copy()), 0) == (True, False)
