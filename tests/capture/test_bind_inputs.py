"""Which of a model's inputs goes where in a graph that somebody else may have made."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.support.building import model, node, weight

from modelexport.capture.onnxruntime.session import bind_inputs
from modelexport.errors import InputError

IDS = np.array([[1, 2, 3]])
MASK = np.array([[1, 1, 0]])
PIXELS = np.zeros((1, 3, 4, 4), np.float32)

Input = tuple[str, int, list[int | str] | None]


def taking(*inputs: Input) -> onnx.ModelProto:
    proto = model(node("Identity", "x", "y"))
    del proto.graph.input[:]
    proto.graph.input.extend(helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs)
    return proto


def test_inputs_go_by_name_whatever_their_order() -> None:
    proto = taking(("mask", TensorProto.INT64, ["b", "s"]), ("ids", TensorProto.INT64, ["b", "s"]))
    fed = bind_inputs(proto, {"ids": IDS, "mask": MASK, "pixels": PIXELS})
    assert list(fed) == ["mask", "ids"]
    assert fed["ids"] is IDS
    assert fed["mask"] is MASK


def test_what_has_another_name_goes_by_order_where_it_fits() -> None:
    proto = taking(
        ("picture", TensorProto.FLOAT, [1, 3, "h", "w"]),
        ("first", TensorProto.INT64, None),
        ("second", TensorProto.INT64, ["b", 3]),
    )
    fed = bind_inputs(proto, {"ids": IDS, "pixels": PIXELS, "mask": MASK})
    assert fed["picture"] is PIXELS
    assert fed["first"] is IDS
    assert fed["second"] is MASK


def test_a_name_goes_before_the_order() -> None:
    proto = taking(("other", TensorProto.INT64, None), ("ids", TensorProto.INT64, None))
    fed = bind_inputs(proto, {"ids": IDS, "mask": MASK})
    assert fed["ids"] is IDS
    assert fed["other"] is MASK


def test_a_weight_among_the_inputs_is_not_asked_for() -> None:
    proto = taking(("ids", TensorProto.INT64, None), ("w", TensorProto.FLOAT, None))
    proto.graph.initializer.append(weight("w", 1.0))
    assert list(bind_inputs(proto, {"ids": IDS})) == ["ids"]


@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        (TensorProto.INT32, IDS),
        (TensorProto.FLOAT16, PIXELS),
        (TensorProto.DOUBLE, PIXELS),
    ],
)
def test_the_graph_decides_about_the_width(wanted: int, given: np.ndarray) -> None:
    fed = bind_inputs(taking(("x", wanted, None)), {"x": given})
    assert fed["x"].dtype == helper.tensor_dtype_to_np_dtype(wanted)
    assert np.array_equal(fed["x"], given)


def test_a_missing_input_is_named_with_what_there_was() -> None:
    proto = taking(("ids", TensorProto.INT64, None), ("pixels", TensorProto.FLOAT, ["b", 3, 8]))
    with pytest.raises(InputError) as caught:
        bind_inputs(proto, {"ids": IDS})
    assert "'pixels' (bx3x8 float)" in caught.value.message
    assert "ids (1x3 int64)" in caught.value.message
    assert "--input pixels=" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "shape", "said"),
    [
        (TensorProto.INT64, [1, 4], "1x4 int64"),
        (TensorProto.INT64, ["b", "s", "d"], "bxsxd int64"),
        (TensorProto.FLOAT, ["b", None], "bx? float"),
    ],
)
def test_an_input_that_does_not_fit_is_told_with_both_sides(kind: int, shape: list[int | str], said: str) -> None:
    with pytest.raises(InputError) as caught:
        bind_inputs(taking(("ids", kind, shape)), {"ids": IDS})
    assert f"'ids' as {said}" in caught.value.message
    assert "1x3 int64" in caught.value.message


def test_an_input_is_given_once() -> None:
    proto = taking(("a", TensorProto.INT64, None), ("b", TensorProto.INT64, None))
    with pytest.raises(InputError, match="'b'"):
        bind_inputs(proto, {"ids": IDS})
