"""How far two tensors are apart."""

from __future__ import annotations

import math
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import building  # noqa: F401 - loads the profile

from modelexport.graph import difference as stage
from modelexport.graph.difference import adapt_tolerance, describe_tolerance, measure, settle_by_noise
from modelexport.graph.sample import sample
from modelexport.record.results.verification import Difference, Tolerance

EXACT = Tolerance(atol=0, rtol=0)
SEEDS = st.integers(0, 10_000)
TYPES = st.sampled_from([np.float16, np.float32, np.float64, np.int32, np.uint8])
LARGEST = float(np.finfo(np.float32).max)


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def compared(a: list[float], b: list[float], tolerance: Tolerance = EXACT) -> Difference:
    return measure(np.array(a, np.float32), np.array(b, np.float32), tolerance)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of one size with numbers that every format holds as they are; some places are not finite."""
    size = draw(st.integers(1, 40))
    places = st.integers(-200, 200).map(lambda number: number / 8)
    odd = st.sampled_from([math.nan, math.inf, -math.inf])
    both = st.tuples(places, places) | places.map(lambda number: (number, number)) | st.tuples(odd, odd)
    found = np.array([(1.0, 1.0), *draw(st.lists(both, min_size=size, max_size=size))])
    return found[:, 0].astype(np.float32), found[:, 1].astype(draw(st.sampled_from([np.float32, np.float64])))


# figures


def test_figures_by_hand() -> None:
    found = compared([3, 4], [3, 4.5])
    assert found.max_abs == 0.5
    assert found.max_rel == pytest.approx(0.5 / (4 + math.sqrt(12.5)))
    assert found.sqnr == pytest.approx(10 * math.log10((25 + 29.25) / 2 / 0.25))
    assert found.cosine == pytest.approx(27 / 5 / math.sqrt(29.25))
    assert (found.unlike, found.agrees, found.equal) == (0, False, False)


@pytest.mark.parametrize("decibels", [20, 40, 80, 120])
def test_decibels_are_those_of_the_noise(decibels: int) -> None:
    signal, noise = numbers(0, 4000).astype(np.float64), numbers(1, 4000)
    found = measure(signal, signal + noise * 10 ** (-decibels / 20), EXACT)
    assert found.sqnr == pytest.approx(decibels, abs=0.5)


def test_the_angle_does_not_see_the_size() -> None:
    array = numbers(0, 50)
    assert measure(array, 3 * array, EXACT).cosine == pytest.approx(1)
    assert measure(array, -array, EXACT).cosine == pytest.approx(-1)
    assert measure(array, np.zeros_like(array), EXACT).cosine == 0


def test_zero_against_something_is_all_noise() -> None:
    found = compared([0, 0], [1, 2])
    assert found.sqnr == pytest.approx(10 * math.log10(0.5))
    assert found.max_abs == 2


@pytest.mark.parametrize("wrong", [[1, 2], [0, 2], [0, 1e6]])
def test_something_in_the_place_of_zeros_is_wrong_beyond_measure(wrong: list[float]) -> None:
    assert compared([0, 0], wrong).max_rel > 1e30


# laws


@given(pairs())
def test_both_directions_give_the_same_figures(pair: tuple[np.ndarray, np.ndarray]) -> None:
    one, other = measure(*pair, EXACT), measure(pair[1], pair[0], EXACT)
    assert one.sqnr == other.sqnr
    assert one.cosine == pytest.approx(other.cosine)
    assert (one.max_abs, one.unlike, one.agrees) == (other.max_abs, other.unlike, other.agrees)


@given(st.integers(1, 20), st.data(), TYPES, TYPES)
def test_equal_numbers_and_no_others_are_equal(size: int, data: st.DataObject, first: type, second: type) -> None:
    number = st.integers(1, 255)
    one = data.draw(st.lists(number, min_size=size, max_size=size))
    other = data.draw(st.just(one) | st.lists(number, min_size=size, max_size=size))
    found = measure(np.array(one, first), np.array(other, second), EXACT)
    assert found.equal == found.agrees == (one == other)
    assert (found.max_abs == 0) == (found.max_rel == 0) == (one == other)


@given(pairs(), st.integers(1, 50))
def test_slices_make_no_difference(pair: tuple[np.ndarray, np.ndarray], length: int) -> None:
    whole = measure(*pair, Tolerance())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stage, "_SLICE", length)
        sliced = measure(*pair, Tolerance())
    assert (sliced.max_abs, sliced.unlike, sliced.agrees) == (whole.max_abs, whole.unlike, whole.agrees)
    assert sliced.max_rel == pytest.approx(whole.max_rel, rel=1e-5)
    assert sliced.sqnr == pytest.approx(whole.sqnr, rel=1e-5, abs=1e-5)
    assert sliced.cosine == pytest.approx(whole.cosine, abs=1e-5)


@given(SEEDS, st.integers(-20, 20))
def test_decibels_and_angle_do_not_depend_on_the_scale(seed: int, power: int) -> None:
    one, other, scale = numbers(seed, 20), numbers(seed + 1, 20), np.float32(2.0**power)
    plain, scaled = measure(one, other, EXACT), measure(one * scale, other * scale, EXACT)
    assert scaled.sqnr == pytest.approx(plain.sqnr, rel=1e-4, abs=1e-4)
    assert scaled.cosine == pytest.approx(plain.cosine, abs=1e-5)
    assert scaled.max_rel == pytest.approx(plain.max_rel, rel=1e-5)


@given(pairs())
def test_the_arrays_stay_as_they_are(pair: tuple[np.ndarray, np.ndarray]) -> None:
    copies = [array.copy() for array in pair]
    for array in pair:
        array.flags.writeable = False
    measure(*pair, Tolerance())
    assert all(np.array_equal(array, copy, equal_nan=True) for array, copy in zip(pair, copies, strict=True))


@given(SEEDS)
def test_shapes_are_not_looked_at(seed: int) -> None:
    one, other = numbers(seed, 4, 6), numbers(seed + 1, 4, 6)
    assert measure(one, other.reshape(2, 3, 4), EXACT) == measure(one.reshape(-1), other, EXACT)
    assert measure(np.asfortranarray(one), other, EXACT) == measure(one, other, EXACT)


def test_slices_are_all_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "_SLICE", 7)
    for place in range(20):
        other = np.ones(20, np.float32)
        other[place] = 2
        assert measure(np.ones(20, np.float32), other, EXACT).max_abs == 1


def test_neither_tensor_is_copied() -> None:
    one = np.ones(1 << 20, np.float32)
    other = one.copy()
    tracemalloc.start()
    try:
        measure(one, other, Tolerance())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < one.nbytes


# tolerance


def test_an_absolute_tolerance() -> None:
    assert compared([100, 1], [100.5, 1], Tolerance(atol=0.5, rtol=0)).agrees
    assert not compared([100, 1], [100.5, 1], Tolerance(atol=0.49, rtol=0)).agrees


def test_a_relative_tolerance_is_of_the_element_and_of_its_tensor() -> None:
    tolerance = Tolerance(atol=0, rtol=0.1)
    assert compared([10, 10], [10, 12], tolerance).agrees  # 0.1 × (10 + 10)
    assert not compared([10, 10], [10, 12.1], tolerance).agrees
    assert compared([0, 10, 10, 10], [0.8, 10, 10, 10], tolerance).agrees  # 0.1 × (0 + 8.66)
    assert not compared([0, 10, 10, 10], [0.9, 10, 10, 10], tolerance).agrees


def test_decibels_decide_if_they_are_asked_for() -> None:
    signal = numbers(0, 1000)
    noisy = signal + numbers(1, 1000) * np.float32(0.01)
    assert measure(signal, noisy, Tolerance(atol=0, rtol=0, min_sqnr=30)).agrees
    assert not measure(signal, noisy, Tolerance(atol=100, rtol=100, min_sqnr=50)).agrees


def test_where_nothing_is_asked_for_the_last_bits_may_differ() -> None:
    array = numbers(0, 1000)
    assert measure(array, array * np.float32(1 + 5e-5), Tolerance()).agrees
    assert not measure(array, array * np.float32(1 + 1e-3), Tolerance()).agrees
    nothing = np.zeros(1000, np.float32)
    assert measure(nothing, nothing + np.float32(5e-6), Tolerance()).too_small
    assert not measure(nothing, nothing + np.float32(5e-5), Tolerance()).agrees


# small numbers


@given(SEEDS, st.integers(-30, 10))
def test_what_is_equal_but_for_its_last_bits_is_so_at_every_scale(seed: int, power: int) -> None:
    array = numbers(seed, 200) * np.float32(2.0**power)
    rounded = array * np.float32(1 + 1e-6)
    assert measure(array, rounded, Tolerance()).agrees
    assert not measure(array, rounded, Tolerance()).too_small


@pytest.mark.parametrize("scale", [1e-5, 1e-7, 1e-12])
def test_small_numbers_that_differ_are_too_small_to_tell_until_their_rounding_is_known(scale: float) -> None:
    array = numbers(0, 200) * np.float32(scale)
    difference = measure(array, array * np.float32(1.5), Tolerance())
    assert difference.too_small == difference.agrees == (scale < 1e-6)
    assert not settle_by_noise(difference, noise=1e-7 * scale).agrees
    assert settle_by_noise(difference, noise=scale).too_small == (scale < 1e-6)  # never more than 1e-5
    assert settle_by_noise(difference, noise=scale, limit=math.inf).too_small


def test_noise_does_not_excuse_what_is_not_finite_or_was_chosen() -> None:
    lost = compared([1e-9, 2e-9], [1e-9, math.nan], Tolerance())
    assert not settle_by_noise(lost, math.inf, limit=math.inf).agrees
    chosen = compared([1e-9, 2e-9], [1e-9, 3e-9], Tolerance(atol=1e-10))
    assert (chosen.agrees, chosen.too_small) == (False, False)
    assert not settle_by_noise(chosen, math.inf, limit=math.inf).agrees
    allowed = compared([1e-9, 2e-9], [1e-9, 3e-9], Tolerance(atol=1e-5))
    assert (allowed.agrees, allowed.too_small) == (True, False)


def test_integers_are_never_too_small() -> None:
    assert not measure(np.array([1, 2]), np.array([1, 3]), Tolerance()).too_small


def test_one_that_is_too_small_makes_the_worst_of_several_so() -> None:
    small, equal = compared([0, 0], [0, 1e-7], Tolerance()), compared([1, 2], [1, 2], Tolerance())
    worst = Difference.worst([small, equal])
    assert worst is not None
    assert worst.too_small


def test_integers_may_not_differ_unless_it_is_asked_for() -> None:
    ids = np.arange(100_000, 100_100)
    for kind in (np.int64, np.uint32):
        assert not measure(ids, (ids + 1).astype(kind), Tolerance()).agrees
        assert not measure(ids, (ids + 1).astype(kind), Tolerance(rtol=1)).agrees
        assert measure(ids, (ids + 1).astype(kind), Tolerance(atol=1)).agrees
        assert measure(ids, ids.astype(kind), Tolerance()).agrees
    assert measure(ids, ids + 1.0, Tolerance()).agrees
    assert measure(ids + 1.0, ids, Tolerance()).agrees


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_few_bits_allow_more_where_nothing_is_asked_for(dtype: type) -> None:
    array = numbers(0, 1000) * 5
    rounded = array.astype(dtype).astype(np.float32)
    fits = adapt_tolerance(Tolerance(), sample(array.astype(dtype)))
    assert measure(array, rounded, fits).agrees
    assert not measure(array, numbers(0, 1000) * 6, fits).agrees
    coarse = dtype in (np.float16, ml_dtypes.bfloat16)
    assert (fits != Tolerance()) == coarse
    assert measure(array, rounded, Tolerance()).agrees != coarse


@pytest.mark.parametrize("tolerance", [EXACT, Tolerance(rtol=1e-3), Tolerance(atol=1, rtol=0.5)])
def test_what_was_asked_for_does_not_depend_on_bits(tolerance: Tolerance) -> None:
    assert adapt_tolerance(tolerance, sample(numbers(0).astype(np.float16))) == tolerance


def test_errors_of_few_bits_may_be_large_in_single_elements_alone() -> None:
    reference = np.random.default_rng(0).normal(size=4096).astype(np.float16)
    tolerance = adapt_tolerance(Tolerance(), sample(reference))
    assert tolerance.rtol is not None
    off = 2 * tolerance.rtol * (np.abs(reference) + 1)
    single = np.where(np.arange(4096) % 64 == 0, reference + off, reference)
    assert measure(reference, single, tolerance).agrees
    assert not measure(reference, single, Tolerance(rtol=tolerance.rtol)).agrees
    assert not measure(reference, reference + off, tolerance).agrees  # all of them
    assert not measure(reference, np.where(np.arange(4096) == 7, reference + 3 * off, reference), tolerance).agrees


def test_what_was_made_from_few_bits_has_no_more() -> None:
    coarse, fine = sample(numbers(0).astype(np.float16)), sample(numbers(1))
    assert adapt_tolerance(Tolerance(), fine.made_from([coarse])) == adapt_tolerance(Tolerance(), coarse)


def test_integers_and_truth_values() -> None:
    ids, off = np.array([5, 2**40]), np.array([5, 2**40 + 1])
    assert measure(ids, off, EXACT).max_abs == 1
    assert measure(ids, ids.astype(np.uint64), EXACT).equal
    truth = np.array([True, False, True])
    assert measure(truth, truth, EXACT).equal
    assert measure(truth, ~truth, EXACT).max_abs == 1
    assert measure(truth, np.array([1.0, 0.0, 1.0], np.float32), EXACT).equal


def test_nothing_equals_nothing() -> None:
    empty = np.empty((0, 3), np.float32)
    assert measure(empty, empty, EXACT) == Difference(0, 0, math.inf, 1, 0, agrees=True)
    assert measure(np.array(2, np.float32), np.array([2], np.float32), EXACT).equal


# what is not finite


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_where_nothing_is_finite_nothing_was_compared(odd: float) -> None:
    found = compared([odd, odd], [odd, odd])
    assert found.agrees
    assert found.nothing_finite
    assert not found.equal
    assert math.isnan(found.cosine)
    assert not compared([odd, 1], [odd, 1]).nothing_finite
    assert not compared([odd, odd], [odd, 1]).nothing_finite
    both = Difference.worst([found, compared([1, 2], [1, 2])])
    assert both is not None
    assert not both.nothing_finite


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_the_same_in_both_agrees(odd: float) -> None:
    found = compared([1, odd, 3], [1, odd, 3])
    assert (found.agrees, found.unlike, found.equal) == (True, 0, True)
    assert compared([odd, odd], [odd, odd]).agrees


@pytest.mark.parametrize(
    ("one", "other"),
    [(math.nan, 1.0), (math.inf, 1.0), (math.inf, -math.inf), (math.nan, math.inf), (-LARGEST, math.inf)],
)
def test_unlike_in_not_being_finite_never_agrees(one: float, other: float) -> None:
    loose = Tolerance(atol=1e9, rtol=1e9)
    for first, second in ((one, other), (other, one)):
        found = compared([1, first, first, 2], [1, second, second, 2], loose)
        assert (found.agrees, found.unlike) == (False, 2)
        assert not compared([1, first], [1, second], Tolerance(min_sqnr=-100)).agrees


def test_the_largest_float_stands_for_infinity() -> None:
    assert compared([1, -math.inf], [1, -LARGEST]).agrees
    assert compared([1, LARGEST], [1, math.inf]).agrees
    assert compared([1, -65504], [1, -math.inf]).agrees
    assert compared([1, -math.inf], [1, -10_000]).agrees
    assert not compared([1, 10_000], [1, -math.inf]).agrees
    assert not compared([1, -20_000], [1, -math.inf]).agrees
    assert not compared([1, -65504], [1, -65000]).agrees


def test_what_is_finite_is_still_measured() -> None:
    found = compared([math.nan, -math.inf, 3, 4], [math.nan, -math.inf, 3, 4.5])
    assert (found.max_abs, found.agrees, found.unlike) == (0.5, False, 0)
    assert found.sqnr == pytest.approx(compared([3, 4], [3, 4.5]).sqnr)
    assert found.max_rel == pytest.approx(compared([3, 4], [3, 4.5]).max_rel)


@pytest.mark.parametrize("wrong", [[1, math.nan], [math.nan, math.nan], [1, math.inf]])
def test_what_is_not_finite_in_one_of_them_alone_is_as_bad_as_can_be(wrong: list[float]) -> None:
    found = compared([1, 2], wrong)
    assert (found.equal, found.sqnr, found.cosine) == (False, -math.inf, 0)


def test_small_numbers_that_differ_are_not_equal() -> None:
    assert not compared([1e-23, 2e-23], [0, 0]).equal


def test_numbers_whose_squares_overflow_are_compared() -> None:
    big = np.full(8, 1e20, np.float32)
    assert not measure(big, 2 * big, Tolerance()).agrees
    assert measure(big, big, Tolerance()).equal
    endless = np.array([1e15] * 8 + [np.inf], np.float32)
    assert not measure(endless, np.where(np.isinf(endless), endless, 9e30).astype(np.float32), Tolerance()).agrees


def test_decibels_do_not_decide_on_indices() -> None:
    assert not measure(np.array([1000, 7]), np.array([1001, 7]), Tolerance(min_sqnr=30)).agrees
    assert measure(np.array([1000, 7]), np.array([1001, 7]), Tolerance(atol=1)).agrees


def test_the_coarsest_of_several_types_decides() -> None:
    fine, half, brain = (sample(np.empty(0, kind)) for kind in (np.float32, np.float16, ml_dtypes.bfloat16))
    assert adapt_tolerance(Tolerance(), fine, half, fine) == adapt_tolerance(Tolerance(), half)
    assert adapt_tolerance(Tolerance(), brain, half) == adapt_tolerance(Tolerance(), brain) != Tolerance()
    assert adapt_tolerance(Tolerance()) == Tolerance()


def test_tolerances_are_said_with_what_is_decided_for_them() -> None:
    assert describe_tolerance(Tolerance(0, 0.5)) == "0 + 0.5 × (element + root mean square)"
    assert describe_tolerance(Tolerance(rtol=0.5)) == "0.5 × (element + root mean square)"
    half = sample(np.empty(0, np.float16))
    assert "0.0195" in describe_tolerance(adapt_tolerance(Tolerance(), half))
