"""Sizes of values before anything is run."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.building import model, node
from tests.support.exports import Exports

from modelexport.capture.onnxruntime.piecewise import PiecewiseRun
from modelexport.graph.file.reading import open_model
from modelexport.graph.types import value_sizes

X = np.ones((2, 6), np.float32)


def taking(proto: onnx.ModelProto, *sizes: int | str) -> onnx.ModelProto:
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, list(sizes)))
    return proto


@pytest.mark.parametrize("sizes", [(2, 6), ("rows", "columns"), (7, 7)])
def test_sizes_are_those_of_what_is_fed(sizes: tuple[int | str, ...]) -> None:
    shape = numpy_helper.from_array(np.array([3, 4]), "shape")
    nodes = [
        node("Reshape", "x shape", "r"),
        node("Cast", "r", "h", to=TensorProto.FLOAT16),
        node("Greater", "x x", "g"),
        node("ReduceSum", "x", "y", keepdims=0),
    ]
    found = value_sizes(taking(model(*nodes, weights=[shape]), *sizes), {"x": X})
    assert found == {"r": 48, "h": 24, "g": 12, "y": 4}


def test_names_of_axes_that_the_file_states_do_not_get_in_the_way() -> None:
    proto = taking(model(node("Sin", "x", "h"), node("Sin", "h", "y")), "rows", "columns")
    proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, ["rows", "columns"]))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", "columns"]))
    assert value_sizes(proto, {"x": X}) == {"h": 48, "y": 48}
    assert proto.graph.value_info[0].type.tensor_type.shape.dim[0].dim_param == "rows"


def test_what_cannot_be_inferred_may_be_stated_in_terms_of_the_inputs() -> None:
    strange = helper.make_node("Strange", ["x"], ["h", "i", "j"], domain="elsewhere")
    proto = taking(model(strange, node("Sin", "h", "y")), "rows", "columns")
    stated: dict[str, list[int | str | None]] = {
        "h": ["rows", "columns + 1"],
        "i": ["rows", 3],
        "j": ["elements"],
        "w": [1000],
    }
    proto.graph.value_info.extend(helper.make_tensor_value_info(name, 1, dims) for name, dims in stated.items())
    assert value_sizes(proto, {"x": X}) == {"h": 2 * 7 * 4, "i": 2 * 3 * 4}


def test_what_is_known_only_when_it_runs_is_left_out() -> None:
    found = value_sizes(taking(model(node("Sin", "x", "h"), node("NonZero", "h", "y")), 2, 6), {"x": X})
    assert found == {"h": 48}


def test_a_graph_that_cannot_be_inferred_has_no_sizes() -> None:
    strange = model(helper.make_node("Strange", ["x"], ["y"], domain="elsewhere"))
    assert value_sizes(strange, {"x": X}) == {}


@pytest.mark.parametrize(("exporter", "share"), [("dynamo", 0.7), ("torchscript", 0.5)])
def test_much_of_a_real_graph_is_known_and_right(exports: Exports, exporter: str, share: float) -> None:
    file = open_model(exports("bert", exporter).path)
    ids = np.array([[1, 5, 7, 2, 9, 4, 3]])
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    made: dict[str, int] = {}
    PiecewiseRun(file).run(feed, lambda name, array: made.update({name: array.nbytes}))
    sizes = value_sizes(file.proto, feed)
    assert len(sizes) > share * len(made)
    assert {name: made[name] for name in sizes} == sizes
