"""What an operator of torch can become in ONNX is asked of the exporters themselves."""

from __future__ import annotations

import pytest

from modelexport.capture.op_trace import onnx_operators

CAN_BECOME = {
    "aten::addmm": {"Gemm", "MatMul"},
    "aten::mm": {"MatMul"},
    "aten::linear": {"MatMul", "Gemm"},
    "aten::native_layer_norm": {"LayerNormalization"},
    "aten::embedding": {"Gather"},
    "aten::gelu": {"Gelu"},
    "aten::relu": {"Relu"},
    "aten::_softmax": {"Softmax"},
    "aten::t": {"Transpose"},
    "aten::view": {"Reshape"},
    "aten::convolution": {"Conv"},
    "aten::add": {"Add"},
    "aten::where": {"Where"},
}


@pytest.mark.parametrize("name", CAN_BECOME)
def test_an_operator_becomes_what_exporters_make_of_it(name: str) -> None:
    assert onnx_operators([name])[name] >= CAN_BECOME[name]


@pytest.mark.parametrize(
    ("name", "never"), [("aten::relu", "Softmax"), ("aten::t", "Gemm"), ("aten::embedding", "MatMul")]
)
def test_an_operator_does_not_become_everything(name: str, never: str) -> None:
    assert never not in onnx_operators([name])[name]


@pytest.mark.parametrize(("writing", "plain"), [("aten::add_", "aten::add"), ("aten::relu_", "aten::relu")])
def test_an_operator_that_writes_becomes_what_the_other_does(writing: str, plain: str) -> None:
    found = onnx_operators([writing, plain])
    assert found[writing] == found[plain]


def test_underscores_that_are_part_of_a_name_stay() -> None:
    assert "And" in onnx_operators(["aten::__and__"])["aten::__and__"]
    shifts = onnx_operators(["aten::__lshift__"])["aten::__lshift__"]
    assert shifts >= {"BitShift", "Mul"}  # of one exporter, of the other


@pytest.mark.parametrize(
    "name", ["", "module", "torch::relu", "higher_order::cond", "nobody::knows", "aten::no_such_operator"]
)
def test_what_no_exporter_knows_has_no_entry(name: str) -> None:
    assert onnx_operators([name]) == {}
