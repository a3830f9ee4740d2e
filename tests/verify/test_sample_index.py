"""Values are found by what they hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.support.proof_stories import numbers

from modelexport.graph.sample import LOOSEST, Sample, alike, sample, unseen
from modelexport.verify.witness import SampleIndex

SHAPES = ((2, 12), (12, 2), (4, 6), (24,), (1, 24, 1))
# Nothing, the last bits, more than two kernels differ by, and something else altogether.
NOISES = (0.0, 1e-7, 1e-5, 1e-3, 0.3)


@st.composite
def values(draw: st.DrawFn) -> np.ndarray:
    """One of three contents with some noise, in some shape; or something of another kind or size."""
    content = numbers(draw(st.integers(0, 2)), 24)
    noise = numbers(draw(st.integers(10, 12)), 24) * np.float32(draw(st.sampled_from(NOISES)))
    array = (content * (1 + noise)).astype(draw(st.sampled_from([np.float32, np.float64])))
    if draw(st.integers(0, 5)) == 0:
        return draw(st.sampled_from([array[:20], np.zeros_like(array), array.astype(np.int64), array > 0]))
    return array.reshape(draw(st.sampled_from(SHAPES)))


def kept(arrays: list[np.ndarray]) -> dict[int, Sample]:
    return {7 * place: sample(array) for place, array in enumerate(arrays)}


@given(st.lists(values(), max_size=12), values())
def test_every_equal_value_is_found_whatever_its_shape(arrays: list[np.ndarray], wanted: np.ndarray) -> None:
    held = [*arrays, wanted.reshape(-1), wanted[None]]
    found = SampleIndex(kept(held)).alike(sample(wanted))
    equal = {
        7 * place
        for place, array in enumerate(held)
        if sample(array).kind == sample(wanted).kind and np.array_equal(array.reshape(-1), wanted.reshape(-1))
    }
    assert len(equal) >= 2
    assert equal <= set(found)


@given(st.lists(values(), max_size=12), values())
def test_something_is_found_if_anything_is_alike_and_nothing_else_is(
    arrays: list[np.ndarray], wanted: np.ndarray
) -> None:
    samples = kept(arrays)
    near = {number for number, one in samples.items() if alike(one, sample(wanted))}
    found = SampleIndex(samples).alike(sample(wanted))
    assert set(found) <= near
    assert bool(found) == bool(near)
    assert len(found) == len(set(found))


def test_the_closest_comes_first_and_what_is_much_farther_does_not_come() -> None:
    array = numbers(0)
    off = {3: 0.0, 1: 1e-7, 2: 1e-5, 0: 1e-4}
    samples = {number: sample(array * np.float32(1 + noise)) for number, noise in off.items()}
    assert SampleIndex(samples).alike(sample(array)) == (3, 1)
    del samples[3], samples[1]
    assert SampleIndex(samples).alike(sample(array)) == (2,)
    del samples[2]
    assert SampleIndex(samples).alike(sample(array)) == (0,)


def test_those_that_are_about_as_close_come_together() -> None:
    array = numbers(0)
    samples = {number: sample(array * np.float32(1 + number * 2e-5)) for number in (1, 2, 3)}
    assert SampleIndex(samples).alike(sample(array)) == (1, 2, 3)


def test_kinds_and_sizes_are_kept_apart() -> None:
    ones = np.ones(24)
    lookup = SampleIndex(kept([ones, ones.astype(np.int64), ones > 0, np.ones(25)]))
    assert lookup.alike(sample(ones)) == (0,)
    assert lookup.alike(sample(ones > 0)) == (14,)
    assert lookup.alike(sample(np.ones(26))) == ()


def test_what_cannot_be_seen_is_not_found() -> None:
    lookup = SampleIndex({0: unseen((2, 12)), 1: sample(numbers(0))})
    assert lookup.alike(unseen((2, 12))) == ()
    assert SampleIndex({}).alike(sample(numbers(0))) == ()


def _rounded(array: np.ndarray) -> Sample:
    """As a tensor is seen that had a coarse type."""
    return replace(sample(array), grain=LOOSEST)


def test_a_coarse_value_is_found_from_farther_away() -> None:
    array = numbers(0)
    far = sample(array * np.float32(1.02))
    assert SampleIndex({0: _rounded(array)}).alike(far) == (0,)
    assert SampleIndex({0: sample(array)}).alike(far) == ()
    assert SampleIndex({0: sample(array)}).alike(_rounded(array * np.float32(1.02))) == (0,)


def test_a_coarse_value_is_found_beside_fine_ones() -> None:
    array = numbers(0)
    samples = {0: sample(array / 2), 1: _rounded(array)}
    assert SampleIndex(samples).alike(sample(array * np.float32(1.02))) == (1,)


# the nearest of some


def test_the_nearest_is_the_least_far_away() -> None:
    array = numbers(0)
    samples = {number: sample(array * np.float32(1 + number)) for number in range(4)}
    lookup = SampleIndex(samples)
    assert lookup.nearest(sample(array * np.float32(3.2)), [0, 1, 2, 3]) == 2
    assert lookup.nearest(sample(array * np.float32(3.2)), [0, 1]) == 1
    assert lookup.nearest(sample(array * np.float32(3.2)), []) is None


def test_one_of_the_same_shape_is_preferred() -> None:
    array = numbers(0)
    lookup = SampleIndex({0: sample(array.reshape(-1)), 1: sample(numbers(1))})
    assert lookup.nearest(sample(array), [0]) == 0
    assert lookup.nearest(sample(array), [0, 1]) == 1


def test_what_cannot_hold_the_same_is_not_near() -> None:
    array = numbers(0)
    lookup = SampleIndex({0: sample(array[:1]), 1: sample(array.astype(np.int64)), 2: unseen((2, 12))})
    assert lookup.nearest(sample(array), [0, 1, 2]) is None
    assert lookup.nearest(unseen((2, 12)), [0, 1, 2]) is None
