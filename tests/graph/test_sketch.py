"""The same weight after what tools do to weights, and other weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tests.support.building import model, node

from modelexport.errors import FileUnreadable
from modelexport.graph.file.reading import initializer_array, initializer_arrays, open_model
from modelexport.graph.outline import sketch, sketches_of
from modelexport.record.outline import PLACES, Sketch

SHAPES = st.sampled_from([(64,), (16, 32), (32, 32), (12, 5, 3, 3)])
SEEDS = st.integers(0, 10_000)


def drawn(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.05, shape).astype(np.float32)


def of(array: np.ndarray) -> Sketch:
    found = sketch(array)
    assert found is not None
    return found


def quantized(array: np.ndarray, bits: int = 8) -> np.ndarray:
    """By one scale for all, to signed integers."""
    scale = np.abs(array).max() / (2 ** (bits - 1) - 1)
    return np.rint(array / scale).astype(np.int8)


SAME: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as it was": lambda array: array,
    "turned": np.transpose,
    "with an axis of one": lambda array: array[None],
    "in half precision": lambda array: array.astype(np.float16),
    "in half precision and back": lambda array: array.astype(np.float16).astype(np.float32),
    "in double precision": lambda array: array.astype(np.float64),
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
@given(SHAPES, SEEDS)
def test_the_same_numbers_are_the_same(
    change: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...], seed: int
) -> None:
    array = drawn(shape, seed)
    assert of(array).distance(of(change(array))) < math.inf
    assert of(array).likeness(of(change(array))) > 0.99


@given(SHAPES, SEEDS)
def test_turning_changes_nothing_at_all(shape: tuple[int, ...], seed: int) -> None:
    array = drawn(shape, seed)
    assert of(np.transpose(array)) == of(array)


@given(SHAPES, SEEDS)
def test_eight_bits_are_enough_to_be_known_again(shape: tuple[int, ...], seed: int) -> None:
    array = drawn(shape, seed)
    integers = quantized(array)
    assert of(integers).quantized
    assert of(integers).likeness(of(array)) > 0.97
    assert of(integers.T).likeness(of(array)) > 0.97
    unsigned = (integers.astype(np.int16) + 128).astype(np.uint8)
    assert of(unsigned).likeness(of(array)) > 0.97
    floats = integers.astype(np.float32) * (np.abs(array).max() / 127)
    assert of(floats).likeness(of(array)) > 0.97


@given(SHAPES, SEEDS, SEEDS)
def test_other_numbers_are_others(shape: tuple[int, ...], seed: int, other: int) -> None:
    if seed == other:
        return
    one, two = of(drawn(shape, seed)), of(drawn(shape, other))
    assert one.distance(two) == math.inf
    assert one.likeness(two) == 0 or one.likeness(two) < 0.995


def test_other_numbers_hardly_ever_go_up_and_down_together() -> None:
    known = [of(drawn((16, 32), seed)) for seed in range(60)]
    pairs = [(one, other) for one in known for other in known if one is not other]
    assert sum(bool(one.likeness(other)) for one, other in pairs) <= 2


@given(SHAPES, SEEDS, st.floats(1.05, 8))
def test_scaled_numbers_are_others_but_look_alike(shape: tuple[int, ...], seed: int, factor: float) -> None:
    array = drawn(shape, seed)
    scaled = of((array * factor).astype(np.float32))
    assert of(array).distance(scaled) == math.inf
    assert of(array).likeness(scaled) > 0.99


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 4), np.float32),
        np.arange(8),
        np.ones((4, 4), bool),
        np.array(["a", "b"]),
        np.zeros(3, np.complex64),
    ],
    ids=["empty", "short integers", "bools", "text", "complex"],
)
def test_what_has_no_sketch(array: np.ndarray) -> None:
    assert sketch(array) is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_do_no_harm(bad: float) -> None:
    array = np.full((8, 8), bad, np.float32)
    found = of(array)
    assert math.isfinite(found.middle)
    assert math.isfinite(found.spread)
    assert of(array) == found
    assert found.distance(of(drawn((8, 8), 0))) == math.inf


def test_one_number_is_told_whole() -> None:
    assert of(np.array(3.0)).is_whole
    assert of(np.array(3.0)) == of(np.array([3.0])) == of(np.full((1, 1), 3.0))
    assert of(np.array(3.0)).distance(of(np.array(4.0))) == math.inf


@given(st.floats(-3e4, 3e4, width=32))
def test_one_number_is_known_in_half_precision(number: float) -> None:
    """Of numbers that half precision has: below its least normal one, digits are lost until nothing is left."""
    assume(number == 0 or abs(number) >= np.finfo(np.float16).tiny)
    assert of(np.array(number, np.float32)).distance(of(np.array(number, np.float16))) < math.inf


def saved(path: Path, **options: object) -> Path:
    held = node("Constant", "", "held", value=numpy_helper.from_array(drawn((16, 16), 1)))
    texts = TensorProto(name="texts", data_type=TensorProto.STRING, dims=[1], string_data=[b"a"])
    weights = [
        numpy_helper.from_array(drawn((64, 64), 0), "large"),
        numpy_helper.from_array(drawn((4,), 2), "small"),
        helper.make_tensor("half", TensorProto.BFLOAT16, [4, 4], drawn((4, 4), 3).ravel().tolist()),
        helper.make_tensor("eighth", TensorProto.FLOAT8E4M3FN, [4, 4], drawn((4, 4), 3).ravel().tolist()),
        helper.make_tensor("bits", TensorProto.INT4, [8, 8], [place % 7 for place in range(64)]),
        TensorProto(name="nothing", data_type=TensorProto.FLOAT, dims=[0]),
        texts,
    ]
    onnx.save(model(held, node("Add", "x held", "y"), weights=weights), path, **options)  # type: ignore[arg-type]
    return path


def test_constants_of_a_file_by_name(tmp_path: Path) -> None:
    find = sketches_of(open_model(saved(tmp_path / "a.onnx")))
    assert find("large") == of(drawn((64, 64), 0))
    assert find("held") == of(drawn((16, 16), 1))
    assert find("small") == of(drawn((4,), 2))
    half, eighth, bits = find("half"), find("eighth"), find("bits")
    assert half is not None
    assert eighth is not None
    assert bits is not None
    assert not half.quantized
    assert half.likeness(of(drawn((4, 4), 3))) > 0.97
    assert bits.quantized
    assert len(bits.steps) == PLACES
    assert find("nothing") is None
    assert find("texts") is None
    assert find("no such") is None


def test_headers_without_numbers_have_no_sketch(tmp_path: Path) -> None:
    """Files may leave out their weights. A constant never has those of an initializer that is called like it."""
    large = numpy_helper.from_array(drawn((64, 64), 0), "large")
    header = TensorProto(name="header", data_type=TensorProto.FLOAT, dims=[64, 64])
    outside = TensorProto(name="large", data_type=TensorProto.FLOAT, dims=[64], data_location=TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="a.data")
    (tmp_path / "a.data").write_bytes(bytes(256))
    same_name = TensorProto(name="large", data_type=TensorProto.FLOAT, dims=[8])
    scalar = TensorProto(name="scalar", data_type=TensorProto.INT64)
    constants = [node("Constant", "", "far", value=outside), node("Constant", "", "none", value=same_name)]
    onnx.save(model(*constants, node("Add", "x far", "y"), weights=[large, header, scalar]), tmp_path / "a.onnx")
    file = open_model(tmp_path / "a.onnx")
    assert [sketches_of(file)(name) for name in ("header", "scalar", "far", "none")] == [None] * 4
    assert sketches_of(file)("large") == of(drawn((64, 64), 0))
    assert [name for name, _ in initializer_arrays(file)] == ["large"]
    with pytest.raises(FileUnreadable, match="'header' is a header without numbers"):
        initializer_array(file, file.proto.graph.initializer[1])


def test_weights_in_another_file_are_found_there_or_missed(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.onnx", save_as_external_data=True, location="a.data", size_threshold=1024)
    assert sketches_of(open_model(path))("large") == of(drawn((64, 64), 0))
    (tmp_path / "a.data").unlink()
    find = sketches_of(open_model(path))
    assert find("small") is not None
    with pytest.raises(FileUnreadable, match=r"a\.data"):
        find("large")
