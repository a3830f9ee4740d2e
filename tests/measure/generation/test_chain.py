"""The runner of packages: caches are handed on, prompts go in token by token where a file takes one, padding counts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from measure.generation.chain import Chain, State, count_positions, open_chain
from measure.generation.witness import TOLERANCE, compare_caches, difference_of
from onnx import TensorProto, helper

_PAST, _PRESENT = "past_key_values.0.key", "present.0.key"


def _save_package(folder: Path, tokens_axis: str | int = "sequence") -> None:
    """A decoder whose cache is its tokens so far, and whose logits are its tokens and positions."""
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", tokens_axis]),
        helper.make_tensor_value_info("position_ids", TensorProto.INT64, ["batch", tokens_axis]),
        helper.make_tensor_value_info(_PAST, TensorProto.FLOAT, ["batch", 1, "past_sequence", 1]),
    ]
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", tokens_axis, 2]),
        helper.make_tensor_value_info(_PRESENT, TensorProto.FLOAT, ["batch", 1, "total_sequence", 1]),
    ]
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["tokens"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["position_ids"], ["positions"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["tokens", "last"], ["tokens_column"]),
        helper.make_node("Unsqueeze", ["positions", "last"], ["positions_column"]),
        helper.make_node("Concat", ["tokens_column", "positions_column"], ["logits"], axis=-1),
        helper.make_node("Unsqueeze", ["tokens_column", "heads"], ["keys"]),
        helper.make_node("Concat", [_PAST, "keys"], [_PRESENT], axis=2),
    ]
    axes = [onnx.numpy_helper.from_array(np.array([axis]), name) for name, axis in (("last", -1), ("heads", 1))]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, axes)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), folder / "m.onnx")
    component = {"name": "decoder", "file": "m.onnx", "cache": [{"past": _PAST, "present": _PRESENT}]}
    (folder / "modelexport.json").write_text(json.dumps({"components": [component]}))


@pytest.fixture(params=["sequence", 1], ids=["whole prompt", "token by token"])
def chain(request: pytest.FixtureRequest, tmp_path: Path) -> Chain:
    _save_package(tmp_path, request.param)
    return open_chain(tmp_path)


def test_the_cache_is_handed_on(chain: Chain) -> None:
    state = chain.start({"input_ids": np.array([[5, 6]])})
    chain.step(state, np.array([[5, 6]]), np.array([[1, 1]]))
    logits = chain.step(state, np.array([[7]]), np.array([[1, 1, 1]]))
    assert logits.tolist() == [[[7, 2]]]
    assert state.cache[_PAST].flatten().tolist() == [5, 6, 7]


def test_positions_do_not_count_padding(chain: Chain) -> None:
    logits = chain.step(State({}), np.array([[0, 5, 6]]), np.array([[0, 1, 1]]))
    assert logits[0, :, 1].tolist() == [0, 0, 1]
    assert count_positions(np.array([[0, 1, 1]]), 2, (3, "batch", "sequence")).tolist() == [[[0, 1]]] * 3


def test_a_cache_that_is_not_the_models_is_named(chain: Chain) -> None:
    mask = np.array([[0, 1, 1]])
    state = State({})
    chain.step(state, np.array([[9, 5, 6]]), mask)
    right = np.array([[[[0.0], [5.0], [6.0]]]])  # of padding anything is right
    assert compare_caches(chain, state, {"0.key": right}, mask) == (0.0, _PAST)
    assert compare_caches(chain, state, {"0.key": right + 1}, mask)[0] > TOLERANCE
    assert compare_caches(chain, state, {"0.key": right[:, :, 1:]}, mask)[0] == np.inf
    assert compare_caches(chain, state, {}, mask)[0] == np.inf


def test_differences_are_parts_of_the_largest_number() -> None:
    assert difference_of(np.array([100.0, 1.0]), np.array([100.0, 2.0])) == 0.01
    assert difference_of(np.array([0.0]), np.array([np.nan])) == np.inf
    assert difference_of(np.zeros(0), np.zeros(0)) == 0
