"""Parts of weights: what was put together, cut, transposed and rounded is known by its rows."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from modelexport.graph.dequantize import dequantize_weight
from modelexport.graph.weight_parts import ParameterRows, list_matrices, read_rows
from modelexport.record.signals import WeightPart

CHANCE = np.random.default_rng(1)
Q, K, V, OUT = (CHANCE.standard_normal((rows, 32)).astype(np.float32) for rows in (32, 16, 16, 24))
BIAS, OTHER_BIAS = (CHANCE.standard_normal(size).astype(np.float32) for size in (32, 16))
ROWS = ParameterRows({"q": Q, "k": K, "v": V, "o": OUT, "b": BIAS, "c": OTHER_BIAS}.items())
PACKED = np.concatenate([Q, K, V])


def part(name: str, rows: int, first: int = 0, *, transposed: bool = False) -> WeightPart:
    return WeightPart(name, first, rows, transposed)


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        (PACKED, (part("q", 32), part("k", 16), part("v", 16))),
        (Q[8:20], (part("q", 12, 8),)),
        (np.concatenate([Q[:8], K[:4], Q[8:16]]), (part("q", 8), part("k", 4), part("q", 8, 8))),
        (OUT.T, (part("o", 32, transposed=True),)),
        (PACKED.astype(np.float16), (part("q", 32), part("k", 16), part("v", 16))),
        (np.concatenate([BIAS, OTHER_BIAS]).reshape(-1, 1), (part("b", 32), part("c", 16))),
    ],
)
def test_parts_are_found(matrix: np.ndarray, expected: tuple[WeightPart, ...]) -> None:
    assert ROWS.split(matrix) == expected


EXPERTS = CHANCE.standard_normal((3, 12, 8)).astype(np.float32)


@pytest.mark.parametrize("stored", [EXPERTS, EXPERTS.swapaxes(1, 2)], ids=["as it is", "each transposed"])
def test_stacks_of_experts_are_found(stored: np.ndarray) -> None:
    rows = ParameterRows({"experts": EXPERTS, "o": OUT}.items())
    for _, matrix in list_matrices(stored):
        (only,) = rows.split(matrix)
        assert only.parameter == "experts"
        assert np.array_equal(read_rows(EXPERTS, only), matrix)


def test_what_is_nobodys_has_no_parts() -> None:
    strange = CHANCE.standard_normal((4, 32))
    assert ROWS.split(np.concatenate([Q, strange])) == ()
    assert ROWS.split(CHANCE.standard_normal((4, 7))) == ()


def test_rounded_rows_are_known_only_if_rounding_is_expected() -> None:
    step = np.abs(PACKED).max(axis=1, keepdims=True) / 7
    rounded = np.round(PACKED / step) * step
    assert ROWS.split(rounded) == ()
    assert ROWS.split(rounded, rounded=True) == (part("q", 32), part("k", 16), part("v", 16))


def quantize_blocks(weight: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Four bits around 8, two in a byte, and a scale for each block of a row."""
    blocks = weight.reshape(len(weight), -1, block)
    scales = np.abs(blocks).max(axis=2) / 7
    numbers = (np.round(blocks / scales[..., None]) + 8).astype(np.uint8)
    return numbers[..., ::2] | (numbers[..., 1::2] << 4), scales.astype(np.float32)


def test_four_bits_are_numbers_again() -> None:
    packed, scales = quantize_blocks(Q, 16)
    node = onnx.helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], K=32, N=32, bits=4, block_size=16)
    weight = dequantize_weight(node, {1: packed, 2: scales})
    assert weight is not None
    np.testing.assert_allclose(weight, Q, atol=float(scales.max()))


def test_a_table_of_four_bits_is_read_as_a_shared_weight_lies() -> None:
    packed, scales = quantize_blocks(OUT, 16)
    node = onnx.helper.make_node("GatherBlockQuantized", ["w", "ids", "s"], ["y"], bits=4, block_size=16)
    weight = dequantize_weight(node, {0: packed, 2: scales})
    assert weight is not None
    np.testing.assert_allclose(weight, OUT, atol=float(scales.max()))


@pytest.mark.parametrize("axis", [0, 1])
def test_scales_along_an_axis(axis: int) -> None:
    scales = np.linspace(1, 2, Q.shape[axis]).astype(np.float32)
    numbers = CHANCE.integers(-8, 8, Q.shape).astype(np.int8)
    node = onnx.helper.make_node("DequantizeLinear", ["w", "s"], ["y"], axis=axis)
    wide = scales.reshape((-1, 1) if axis == 0 else (1, -1))
    weight = dequantize_weight(node, {0: numbers, 1: scales})
    assert weight is not None
    np.testing.assert_allclose(weight, (numbers * wide).astype(np.float32))


def test_a_scale_that_is_computed_is_none() -> None:
    node = onnx.helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], K=32, N=32, bits=4, block_size=16)
    assert dequantize_weight(node, {1: np.zeros((32, 2, 8), np.uint8)}) is None
