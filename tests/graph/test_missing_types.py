from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from modelexport.graph.missing_types import explain_missing_type


def file_of(kind: int, *, stated: bool = True) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, kind, [2]) for name in "xy"] if stated else []
    node = helper.make_node("Mul", ["x", "x"], ["y"], name="product")
    return helper.make_model(helper.make_graph([node], "g", values[:1], values[1:]))


NO_KERNEL = (
    "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Mul(14) node with name '{}'"
)
NO_SCHEMA = "Type Error: Type 'tensor({})' of input parameter (x) of operator (Conv) in node (n) is invalid."


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        (NO_KERNEL.format("product"), TensorProto.BFLOAT16, "no Mul for bfloat16"),
        (NO_KERNEL.format("product"), TensorProto.DOUBLE, "no Mul for double"),
        (NO_KERNEL.format(""), TensorProto.FLOAT16, "no Mul for float16"),
        (NO_SCHEMA.format("bfloat16"), TensorProto.BFLOAT16, "no Conv for bfloat16"),
        ("No corresponding Numpy type for Tensor Type. bfloat16", TensorProto.FLOAT, "cannot hand bfloat16 to Python"),
    ],
)
def test_a_type_that_is_missing_is_named(text: str, kind: int, sentence: str) -> None:
    assert sentence in explain_missing_type(RuntimeError(text), file_of(kind))


@pytest.mark.parametrize("text", [NO_KERNEL.format("product"), NO_SCHEMA.format("int64"), "Input rank must be >= 2."])
def test_other_reasons_are_no_missing_types(text: str) -> None:
    """An operator that is missing for float32 as well is not helped by another type."""
    assert explain_missing_type(RuntimeError(text), file_of(TensorProto.FLOAT)) == ""


def test_what_a_node_reads_counts_more_than_what_else_is_in_the_file() -> None:
    proto = file_of(TensorProto.FLOAT)
    proto.graph.value_info.append(helper.make_tensor_value_info("z", TensorProto.FLOAT16, [2]))
    assert explain_missing_type(RuntimeError(NO_KERNEL.format("product")), proto) == ""
    assert "float16" in explain_missing_type(RuntimeError(NO_KERNEL.format("unknown")), proto)
