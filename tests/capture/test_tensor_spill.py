"""Arrays on disk come back as they were."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from tests.support import building  # noqa: F401 - loads the profile

from modelexport.capture.tensor_spill import TensorSpill

DTYPES = st.sampled_from([np.bool_, np.uint8, np.int64, np.float16, np.float32, np.float64])
SHAPES = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)


either = pytest.mark.parametrize("room", [0, 1 << 20], ids=["on disk", "in memory"])


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    shape = draw(SHAPES)
    return np.random.default_rng(math.prod(shape)).integers(0, 200, shape).astype(draw(DTYPES))


def assert_same(found: np.ndarray, wanted: np.ndarray) -> None:
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert np.array_equal(found, wanted)


ROOMS = st.sampled_from([0, 64, 1 << 20])


@given(st.dictionaries(st.integers(0, 99), arrays(), max_size=6), ROOMS)
def test_every_array_comes_back(held: dict[int, np.ndarray], room: int) -> None:
    with TensorSpill(room) as spool:
        for number, array in held.items():
            spool.put(number, array)
        for number in sorted(held):
            assert_same(spool.get(number), held[number])


@given(st.lists(arrays(), max_size=6), ROOMS)
def test_reading_in_between_does_no_harm(held: list[np.ndarray], room: int) -> None:
    with TensorSpill(room) as spool:
        for number, array in enumerate(held):
            spool.put(number, array)
            assert_same(spool.get(0), held[0])
            assert_same(spool.get(number), array)


@either
def test_memory_that_is_not_in_order(room: int) -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    with TensorSpill(room) as spool:
        for number, view in enumerate((array.T, array[::2, ::3], np.asfortranarray(array), array[:, ::-1])):
            spool.put(number, view)
            assert_same(spool.get(number), view)


@either
def test_an_array_is_kept_as_it_was_when_it_was_put(room: int) -> None:
    array = np.zeros(3)
    with TensorSpill(room) as spool:
        spool.put(0, array)
        array += 1
        spool.put(0, array)
        assert_same(spool.get(0), np.zeros(3))


@either
def test_what_is_in_it(room: int) -> None:
    with TensorSpill(room) as spool:
        spool.put(3, np.zeros(2))
        assert 3 in spool
        assert 0 not in spool
        with pytest.raises(KeyError):
            spool.get(0)


@either
def test_what_was_read_cannot_be_written_and_outlives_the_spool(room: int) -> None:
    with TensorSpill(room) as spool:
        spool.put(0, np.arange(5))
        found = spool.get(0)
        with pytest.raises(ValueError, match="read-only"):
            found[0] = 7
    assert_same(found, np.arange(5))


def test_no_more_is_held_in_memory_than_there_is_room_for() -> None:
    with TensorSpill(room=8000) as spool:
        for number in range(3):
            spool.put(number, np.ones(600))
        found = [spool.get(number) for number in range(3)]
        assert [_is_on_disk(array) for array in found] == [False, True, True]


def _is_on_disk(array: np.ndarray) -> bool:
    return isinstance(array if isinstance(array, np.memmap) else array.base, np.memmap)


def test_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(RuntimeError), TensorSpill() as spool:
        spool.put(0, np.ones(1000))
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
