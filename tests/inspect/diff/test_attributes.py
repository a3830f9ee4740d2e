"""What two nodes of one operator say about how they work."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from modelexport.inspect.diff.io_matching import compare_attributes


def changes(one: onnx.NodeProto, other: onnx.NodeProto, opset: int = 20) -> list[tuple[str, str, str]]:
    return [
        (change.what, change.left, change.right)
        for change in compare_attributes(one, other, ({"": opset}, {"": opset}))
    ]


def test_the_last_digit_counts() -> None:
    more = float(np.nextafter(np.float32(1), np.float32(2)))
    one, other = [helper.make_node("Gemm", ["a", "b"], ["c"], alpha=alpha) for alpha in (1.0, more)]
    assert changes(one, other) == [("attribute alpha", "1", "1.0000001")]


def test_numbers_are_as_short_as_they_can_be() -> None:
    one, other = [helper.make_node("LayerNormalization", ["a", "b"], ["c"], epsilon=value) for value in (1e-5, 1e-12)]
    assert changes(one, other) == [("attribute epsilon", "1e-05", "1e-12")]


@pytest.mark.parametrize(("opset", "usual"), [(11, 1), (13, -1)])
def test_what_an_operator_does_by_itself_depends_on_the_opset(opset: int, usual: int) -> None:
    silent = helper.make_node("Softmax", ["a"], ["b"])
    assert not changes(silent, helper.make_node("Softmax", ["a"], ["b"], axis=usual), opset)
    assert changes(silent, helper.make_node("Softmax", ["a"], ["b"], axis=0), opset) == [
        ("attribute axis", str(usual), "0")
    ]


def test_strings_in_tensors_are_compared() -> None:
    one, other = [
        helper.make_node(
            "Mystery",
            ["a"],
            ["b"],
            words=onnx.TensorProto(data_type=onnx.TensorProto.STRING, dims=[1], string_data=[word]),
        )
        for word in (b"one", b"two")
    ]
    assert changes(one, other) == [("attribute words", "string[1] one", "string[1] two")]
