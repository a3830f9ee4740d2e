"""A node that is excluded from quantization is run in float, also where all around it is quantized."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelexport.transform.tools.quantizers import FORMS, Quantization, make_quantizer
from modelexport.transform.tools.tool import Job

ort = pytest.importorskip("onnxruntime")
quantization = pytest.importorskip("onnxruntime.quantization")

SHAPE = (4, 8)


def weight(name: str, *shape: int) -> onnx.TensorProto:
    random = np.random.default_rng(len(name) + shape[0])
    return numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)


def network(
    *nodes: tuple[str, str, str],
    weights: tuple[onnx.TensorProto, ...],
    outputs: str = "y",
    shape: tuple[int, ...] = SHAPE,
) -> onnx.ModelProto:
    """Nodes are called as what they make."""
    protos = [helper.make_node(op, reads.split(), [makes], name=f"node_{makes}") for op, reads, makes in nodes]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    returned = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs.split()]
    graph = helper.make_graph(protos, "g", given, returned, weights)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


SUM_OF_PRODUCTS = network(
    ("MatMul", "x w1", "a"),
    ("MatMul", "x w2", "b"),
    ("Add", "a b", "s"),
    ("MatMul", "s w3", "y"),
    weights=(weight("w1", 8, 8), weight("w2", 8, 8), weight("w3", 8, 8)),
)


def quantized(
    model: onnx.ModelProto, folder: Path, *excluded: str, free: bool = True, form: str = "qdq"
) -> onnx.ModelProto:
    """`free` is False for what ONNX Runtime does by itself."""
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    feeds = tuple({"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)} for seed in range(3))
    source, target = folder / "float.onnx", folder / "quantized.onnx"
    onnx.save(model, source)
    logging.disable()
    try:
        if free:
            make_quantizer(Quantization(form, exclude=excluded)).run(Job(source, target, "", feeds))
        else:
            left = iter(feeds)
            reader = type("Reader", (), {"get_next": lambda _: next(left, None)})()
            kind = quantization.QuantFormat[FORMS[form]]
            quantization.quantize_static(source, target, reader, quant_format=kind, nodes_to_exclude=list(excluded))
    finally:
        logging.disable(logging.NOTSET)
    return onnx.load(target)


def run_operators(folder: Path) -> Counter[str]:
    """What ONNX Runtime runs in the place of the quantized file."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "run.onnx")
    options.log_severity_level = 4
    ort.InferenceSession(str(folder / "quantized.onnx"), options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(folder / "run.onnx").graph.node)


def reads(model: onnx.ModelProto, name: str) -> list[str]:
    """The operators that make what a node reads; `given` for a weight or an input."""
    makers = {output: node.op_type for node in model.graph.node for output in node.output}
    node = next(node for node in model.graph.node if node.name == name)
    return [makers.get(value, "given") for value in node.input]


def test_it_is_run_in_float(tmp_path: Path) -> None:
    quantized(SUM_OF_PRODUCTS, tmp_path, "node_s", free=False)
    by_itself = run_operators(tmp_path)
    assert by_itself["QLinearAdd"] == 1, "ONNX Runtime leaves it in float by itself: none of this is needed"
    quantized(SUM_OF_PRODUCTS, tmp_path, "node_s")
    operators = run_operators(tmp_path)
    assert operators["QLinearAdd"] == 0
    assert operators["QLinearMatMul"] == by_itself["QLinearMatMul"] == 1, "the product after it is quantized as before"


def test_it_reads_what_was_never_rounded(tmp_path: Path) -> None:
    made = quantized(SUM_OF_PRODUCTS, tmp_path, "node_s")
    assert reads(made, "node_s") == ["MatMul", "MatMul"]
    assert reads(made, "node_a") == reads(made, "node_y") == ["DequantizeLinear"] * 2
    onnx.checker.check_model(made, full_check=True)


def test_pairs_and_scales_that_nobody_reads_are_gone(tmp_path: Path) -> None:
    made = quantized(SUM_OF_PRODUCTS, tmp_path, "node_s")
    read = {name for node in made.graph.node for name in node.input} | {value.name for value in made.graph.output}
    assert {tensor.name for tensor in made.graph.initializer} <= read
    assert all(read & set(node.output) for node in made.graph.node)


def test_what_quantized_nodes_read_too_keeps_its_pair(tmp_path: Path) -> None:
    model = network(
        ("MatMul", "x w1", "a"),
        ("MatMul", "x w2", "b"),
        ("Add", "a b", "s"),
        ("MatMul", "b w3", "y"),
        weights=(weight("w1", 8, 8), weight("w2", 8, 8), weight("w3", 8, 8)),
        outputs="y s",
    )
    made = quantized(model, tmp_path, "node_s")
    assert reads(made, "node_s") == ["MatMul", "DequantizeLinear"]
    assert reads(made, "node_y") == ["DequantizeLinear"] * 2


def test_where_neighbours_need_all_pairs_it_reads_through_a_screen(tmp_path: Path) -> None:
    model = network(
        ("MatMul", "x w1", "a"),
        ("Mul", "a a", "s"),
        ("MatMul", "a w2", "b"),
        ("Add", "s b", "y"),
        weights=(weight("w1", 8, 8), weight("w2", 8, 8)),
    )
    quantized(model, tmp_path)
    whole = run_operators(tmp_path)
    made = quantized(model, tmp_path, "node_s")
    assert reads(made, "node_s") == ["Max", "DequantizeLinear"]
    assert reads(made, "node_b") == ["DequantizeLinear"] * 2
    onnx.checker.check_model(made, full_check=True)
    run = run_operators(tmp_path)
    assert run["QLinearMul"] == 0
    assert run - Counter(Max=1) <= whole, "the others are run as they are without an exclusion"


SOFT_CONVOLUTION = network(
    ("Conv", "x w1", "a"),
    ("Softmax", "a", "s"),
    ("Conv", "s w2", "y"),
    weights=(weight("w1", 8, 8, 1), weight("w2", 8, 8, 1)),
    shape=(1, 8, 6),
)


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_its_neighbours_are_run_in_integers_as_before(tmp_path: Path, form: str) -> None:
    quantized(SOFT_CONVOLUTION, tmp_path, "node_s", free=False, form=form)
    by_itself = run_operators(tmp_path)
    assert (by_itself["QLinearConv"], by_itself["QLinearSoftmax"]) == (2, 1), "none of this is needed"
    quantized(SOFT_CONVOLUTION, tmp_path, "node_s", form=form)
    run = run_operators(tmp_path)
    assert (run["QLinearConv"], run["QLinearSoftmax"], run["Softmax"]) == (2, 0, 1)


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_a_convolution_whose_weight_the_runtime_would_round_by_itself(tmp_path: Path, form: str) -> None:
    model = network(
        ("Conv", "x w1", "a"),
        ("Conv", "a w2", "b"),
        ("Conv", "b w3", "y"),
        weights=(weight("w1", 8, 8, 1), weight("w2", 8, 8, 1), weight("w3", 8, 8, 1)),
        shape=(1, 8, 6),
    )
    quantized(model, tmp_path, "node_b", form=form)
    run = run_operators(tmp_path)
    assert (run["QLinearConv"], run["Conv"] + run["FusedConv"]) == (2, 1)


def test_what_is_returned_in_float_needs_no_screen(tmp_path: Path) -> None:
    model = network(("Conv", "x w1", "a"), ("Softmax", "a", "y"), weights=(weight("w1", 8, 8, 1),), shape=(1, 8, 6))
    made = quantized(model, tmp_path, "node_y")
    assert reads(made, "node_y") == ["DequantizeLinear"]
    run = run_operators(tmp_path)
    assert (run["QLinearConv"], run["Softmax"]) == (1, 1)


def test_a_weight_of_several_is_stored_in_float_as_well(tmp_path: Path) -> None:
    tied = network(("MatMul", "x w", "a"), ("MatMul", "a w", "y"), weights=(weight("w", 8, 8),))
    made = quantized(tied, tmp_path, "node_y")
    assert reads(made, "node_y") == ["MatMul", "given"]
    assert reads(made, "node_a") == ["DequantizeLinear"] * 2
    stored = {tensor.name: tensor for tensor in made.graph.initializer}
    np.testing.assert_array_equal(numpy_helper.to_array(stored["w"]), numpy_helper.to_array(weight("w", 8, 8)))


def test_a_bias_of_several(tmp_path: Path) -> None:
    tied = network(
        ("Gemm", "x w1 bias", "a"),
        ("Gemm", "a w2 bias", "y"),
        weights=(weight("w1", 8, 8), weight("w2", 8, 8), weight("bias", 8)),
    )
    made = quantized(tied, tmp_path, "node_y")
    onnx.checker.check_model(made, full_check=True)
    assert reads(made, "node_y") == ["Gemm", "given", "given"]
    run_operators(tmp_path)


def test_nothing_changes_where_nothing_is_excluded(tmp_path: Path) -> None:
    ours = quantized(SUM_OF_PRODUCTS, tmp_path)
    assert ours == quantized(SUM_OF_PRODUCTS, tmp_path, free=False)


def test_a_weight_that_two_gemms_turn_round(tmp_path: Path) -> None:
    """ONNX Runtime turns it round for each of them, in its place; a square one is then wrong without a word."""
    model = network(("Gemm", "x w", "a"), ("Gemm", "a w", "y"), weights=(weight("w", 8, 8),))
    for node in model.graph.node:
        node.attribute.append(helper.make_attribute("transB", 1))
    source, target = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    onnx.save(model, source)
    make_quantizer(Quantization()).run(Job(source, target, "", ()))
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    before, after = (
        ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for path in (source, target)
    )
    assert np.abs(before - after).max() < 0.05 * np.abs(before).max()
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".onnx"] == []


def test_a_body_comes_after_what_it_reads(tmp_path: Path) -> None:
    """ONNX Runtime's dynamic quantizer puts a node first whose inputs are there, whatever its bodies read."""
    then, other = (
        helper.make_graph(
            [helper.make_node("Identity", ["a"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        )
        for name in ("then", "else")
    )
    model = network(("MatMul", "x w", "a"), weights=(weight("w", 8, 8),))
    choice = helper.make_node("If", ["choice"], ["y"], name="node_y", then_branch=then, else_branch=other)
    model.graph.node.append(choice)
    model.graph.input.append(helper.make_tensor_value_info("choice", TensorProto.BOOL, []))
    made = quantized(model, tmp_path, form="")
    assert [node.op_type for node in made.graph.node][-1] == "If"
    onnx.checker.check_model(made)
