"""What was done to a weight: every form that a tool leaves behind is recognized, with the loss that it brought."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import numpy as np
import onnx
import onnx.helper
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from modelexport.inspect.diff.match_keys import Constant
from modelexport.inspect.diff.sides import ConstantStore
from modelexport.inspect.diff.weight_diff import WeightDiff, unpack_weight
from modelexport.record.results.diff import WeightChange, WeightForm

CHANCE = np.random.default_rng(0)
WEIGHT = CHANCE.standard_normal((6, 10)).astype(np.float32)


class Stored:
    """A file that holds these arrays."""

    def __init__(self, held: Mapping[str, np.ndarray]) -> None:
        self._held = held

    def numbers(self, name: str) -> np.ndarray | None:
        return self._held.get(name)


def constant(name: str, array: np.ndarray, digest: str | None) -> Constant:
    return Constant(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape, digest, small=False)


def compared(one: np.ndarray, other: np.ndarray) -> WeightChange | None:
    stores = [cast("ConstantStore", Stored({name: array})) for name, array in (("a", one), ("b", other))]
    return WeightDiff(*stores).compare(constant("a", one, "x"), constant("b", other, "y"), ("reader",))


def test_one_number() -> None:
    other = WEIGHT.copy()
    other[2, 3] += 0.5
    found = compared(WEIGHT, other)
    assert found is not None
    assert (found.form, found.changed, found.readers) == (WeightForm.VALUES, 1, ("reader",))
    assert found.largest == pytest.approx(0.5)
    assert found.relative == pytest.approx(0.5 / np.sqrt(np.square(WEIGHT).sum()), rel=1e-5)


FORMS: list[tuple[WeightForm, Callable[[np.ndarray], np.ndarray]]] = [
    (WeightForm.TRANSPOSED, lambda array: array.T),
    (WeightForm.RESHAPED, lambda array: array.reshape(3, 20)),
    (WeightForm.CAST, lambda array: array.astype(np.float16)),
    (WeightForm.CAST, lambda array: array.T.astype(np.float16)),
    (WeightForm.QUANTIZED, lambda array: np.rint(array / np.abs(array).max() * 127).astype(np.int8)),
    (WeightForm.QUANTIZED, lambda array: (np.rint(array / np.abs(array).max() * 127) + 128).astype(np.uint8)),
    (WeightForm.SHAPE, lambda array: array[:5]),
    (WeightForm.SHAPE, lambda array: CHANCE.standard_normal(array.T.shape).astype(np.float32)),
]


@pytest.mark.parametrize(("form", "change"), FORMS)
def test_forms(form: WeightForm, change: Callable[[np.ndarray], np.ndarray]) -> None:
    found = compared(WEIGHT, np.ascontiguousarray(change(WEIGHT)))
    assert found is not None
    assert found.form is form
    assert found.relative is None or found.relative < 0.05


def test_a_square_weight_may_be_turned() -> None:
    square = CHANCE.standard_normal((8, 8)).astype(np.float32)
    found = compared(square, np.ascontiguousarray(square.T))
    assert found is not None
    assert (found.form, found.changed) == (WeightForm.TRANSPOSED, 0)


def test_a_scale_for_each_row_is_found() -> None:
    """Rows of very different size: one scale for all would lose the small ones."""
    rows = WEIGHT * np.logspace(-3, 3, 6, dtype=np.float32)[:, None]
    scales = np.abs(rows).max(axis=1, keepdims=True) / 127
    found = compared(rows, np.rint(rows / scales).astype(np.int8))
    assert found is not None
    assert found.form is WeightForm.QUANTIZED
    assert found.relative is not None
    assert found.relative < 0.02


@pytest.mark.parametrize(
    "other", [np.array([0.0, np.nan, 1.0], np.float32), np.array([-0.0, -np.nan, 1.0], np.float32)]
)
def test_zeros_of_either_sign_and_nan_are_equal(other: np.ndarray) -> None:
    assert compared(np.array([0.0, np.nan, 1.0], np.float32), other) is None


def test_infinities_do_not_hide_a_change() -> None:
    one = np.array([np.inf, 1.0, 2.0], np.float32)
    found = compared(one, np.array([np.inf, 1.0, -np.inf], np.float32))
    assert found is not None
    assert (found.changed, found.largest) == (1, np.inf)


def test_small_constants_are_shown() -> None:
    found = compared(np.array([1, 2], np.int64), np.array([1, 3], np.int64))
    assert found is not None
    assert found.values is not None
    assert (found.values.left, found.values.right) == ("[1, 2]", "[1, 3]")


@pytest.mark.parametrize(("shape", "told"), [((6, 10), False), ((6, 11), True)])
def test_what_is_not_read_differs_only_in_type_and_shape(shape: tuple[int, ...], told: bool) -> None:
    store = cast("ConstantStore", Stored({}))
    one, other = constant("a", WEIGHT, None), constant("b", np.zeros(shape, np.float32), None)
    found = WeightDiff(store, store).compare(one, other)
    assert (found is not None and found.form is WeightForm.UNREAD) == told


@given(
    one=arrays.arrays(np.float32, (3, 4), elements=st.floats(-100, 100, width=32)),
    other=arrays.arrays(np.float32, (3, 4), elements=st.floats(-100, 100, width=32)),
)
def test_distance_is_that_of_numpy(one: np.ndarray, other: np.ndarray) -> None:
    found = compared(one, other)
    if np.array_equal(one, other):
        assert found is None
    else:
        assert found is not None
        assert found.changed == np.count_nonzero(one != other)
        assert found.largest == pytest.approx(np.abs(one.astype(np.float64) - other).max())


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("width", [32, 40])
def test_packed_weights_are_unpacked(bits: int, width: int) -> None:
    """Numbers of a few bits, the lowest bits of a byte first, blocks filled up at the end of a row."""
    rows, block = 3, 16
    blocks = -(-width // block)
    numbers = CHANCE.integers(0, 1 << bits, (rows, blocks * block))
    each = 8 // bits
    shifts = np.arange(each) * bits
    packed = (numbers.reshape(rows, blocks, -1, each) << shifts).sum(axis=-1).astype(np.uint8)
    scales = CHANCE.uniform(0.5, 2, (rows, blocks)).astype(np.float32)
    node = onnx.helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", N=rows, K=width, bits=bits, block_size=block
    )
    wanted = (numbers - (1 << (bits - 1))) * np.repeat(scales, block, axis=1)
    found = unpack_weight(node, [None, packed, scales])
    assert found is not None
    np.testing.assert_allclose(found, wanted[:, :width].T)


def test_without_its_scales_a_packed_weight_says_nothing() -> None:
    node = onnx.helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", N=1, K=16, block_size=16
    )
    assert unpack_weight(node, [None, np.zeros((1, 1, 8), np.uint8), None]) is None
