"""NCHWc: weights and activations in ONNX Runtime's blocked order."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from modelexport.graph.file.reading import ModelFile
from modelexport.graph.nchwc import blocked_values, in_usual_order, unblocked
from modelexport.graph.outline import sketch, sketches_like
from modelexport.graph.protos import NCHWC


def blocked(array: np.ndarray, block: int) -> np.ndarray:
    """Element by element: output channels, and input channels where there are enough of them, fill whole blocks."""
    outputs, inputs, *window = array.shape
    deep = inputs >= block
    shape = (-(-outputs // block) * block, -(-inputs // block) * block if deep else inputs, *window)
    numbers: dict[tuple[int, ...], float] = {}
    for (o, i, h, w), number in np.ndenumerate(array):
        deeply, flatly = (o // block, i // block, h, w, i % block, o % block), (o // block, i, h, w, o % block)
        numbers[deeply if deep else flatly] = number
    blocks = (shape[0] // block, shape[1] // block, *window, block, block)
    found = np.zeros(blocks if deep else (shape[0] // block, inputs, *window, block), array.dtype)
    for place, number in numbers.items():
        found[place] = number
    return found.reshape(shape)


@pytest.mark.parametrize("block", [8, 16])
@pytest.mark.parametrize("shape", [(16, 16, 3, 3), (32, 3, 2, 2), (32, 1, 3, 3), (24, 24, 1, 1), (20, 16, 1, 2)])
def test_channels_are_in_their_places_again(shape: tuple[int, ...], block: int) -> None:
    array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    assert np.array_equal(unblocked(blocked(array, block), block), array)


def test_what_fills_up_a_bias_is_gone() -> None:
    bias = np.arange(1, 33, dtype=np.float32)
    bias[20:] = 0
    assert np.array_equal(unblocked(bias, 16), bias[:20])
    assert np.array_equal(unblocked(np.zeros(16, np.float32), 16), np.zeros(1, np.float32))


@pytest.mark.parametrize("block", [8, 16])
def test_the_block_is_the_one_in_which_weights_are_known(block: int) -> None:
    weight = np.random.default_rng(1).normal(size=(32, 32, 3, 3)).astype(np.float32)
    stored = onnx.numpy_helper.from_array(blocked(weight, block), "w")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    conv = helper.make_node("Conv", ["x", "w"], ["y"], domain=NCHWC)
    model = helper.make_model(helper.make_graph([conv], "g", values[:1], values[1:], [stored]))
    known = sketch(weight)
    assert sketches_like(ModelFile(model, {}), [None, known])("w") == known


@pytest.mark.parametrize("block", [8, 16])
def test_channels_of_an_activation_are_in_front_of_its_pixels_again(block: int) -> None:
    array = np.arange(2 * 32 * 3 * 2, dtype=np.float32).reshape(2, 32, 3, 2)
    stored = array.reshape(2, 32 // block, block, 3, 2).transpose(0, 1, 3, 4, 2).reshape(array.shape)
    assert np.array_equal(in_usual_order(stored, block), array)


@pytest.mark.parametrize("block", [8, 16])
def test_an_order_that_is_not_blocked_is_left_alone(block: int) -> None:
    flat = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert in_usual_order(flat, block) is flat
    few = np.arange(24, dtype=np.float32).reshape(1, 3, 4, 2)
    assert in_usual_order(few, block) is few  # no block has three channels


def test_what_works_element_by_element_leaves_the_order_as_it_is() -> None:
    nodes = [
        helper.make_node("ReorderInput", ["x"], ["a"], domain=NCHWC),
        helper.make_node("Conv", ["a", "w"], ["b"], domain=NCHWC),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("ReorderOutput", ["c"], ["d"], domain=NCHWC),
        helper.make_node("Relu", ["d"], ["e"]),
    ]
    assert blocked_values(nodes) == {"a", "b", "c"}
