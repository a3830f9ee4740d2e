from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelexport.record.outline import PLACES, STEPS, Sketch, lengthened, shortened

STEPPED = st.lists(st.integers(-STEPS, STEPS), min_size=PLACES, max_size=PLACES).map(tuple)
SIZES = st.floats(-1e4, 1e4).map(lambda number: lengthened(shortened(number)))
SKETCHES = st.builds(Sketch, st.sampled_from([(), (4,), (64,), (8, 64)]), SIZES, SIZES.map(abs), STEPPED, st.booleans())
RISING = tuple(range(-4, 4))


@given(st.floats(width=32, allow_nan=False))
def test_a_shortened_number_is_nearly_the_same_and_fits_two_bytes(number: float) -> None:
    short = shortened(number)
    assert 0 <= short < 1 << 16
    again = lengthened(short)
    assert shortened(again) == short
    if abs(number) > 1e-30 and math.isfinite(number) and abs(number) < 3e38:
        assert again == pytest.approx(number, rel=2**-8)
    assert math.isfinite(again)


@given(SKETCHES)
def test_a_sketch_is_like_itself(sketch: Sketch) -> None:
    assert sketch.distance(sketch) == (math.inf if sketch.quantized else 0)
    if len(set(sketch.steps)) > 1:
        assert sketch.likeness(sketch) == pytest.approx(1)


@given(SKETCHES, SKETCHES)
def test_likeness_goes_both_ways(one: Sketch, other: Sketch) -> None:
    assert one.likeness(other) == pytest.approx(other.likeness(one))
    assert 0 <= one.likeness(other) <= 1 + 1e-9


@given(SKETCHES, SKETCHES)
def test_other_sides_are_never_alike(one: Sketch, other: Sketch) -> None:
    if one.sides != other.sides:
        assert one.distance(other) == math.inf
        assert one.likeness(other) == 0


def test_numbers_without_a_scale_say_nothing_of_their_size() -> None:
    floats = Sketch((8, 64), 0.0, 1.0, RISING)
    integers = Sketch((8, 64), 0.0, 100.0, RISING, quantized=True)
    assert floats.distance(integers) == math.inf
    assert floats.likeness(integers) == pytest.approx(1)


def test_what_is_whole_and_what_is_distinctive() -> None:
    assert Sketch((), 1.0, 0.0, (0,) * PLACES).is_whole
    assert Sketch((8,), 0.0, 1.0, RISING).is_whole
    assert not Sketch((9,), 0.0, 1.0, RISING).is_whole
    assert not Sketch((8, 8), 0.0, 1.0, RISING).is_whole
    assert Sketch((64,), 0.0, 1.0, RISING).is_distinctive
    assert not Sketch((64,), 1.0, 0.0, (0,) * PLACES).is_distinctive


def test_flat_numbers_of_another_size_differ() -> None:
    ones, twos = (Sketch((64,), size, 0.0, (0,) * PLACES) for size in (1.0, 2.0))
    assert ones.distance(twos) == math.inf
    assert ones.likeness(twos) == 0
