"""The table of operator traits: each operator once; the sets that follow from it are held to the schemas of ONNX."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx.defs
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from modelexport.graph import operators
from modelexport.graph.index import Node, index_model
from modelexport.graph.operators import (
    TRAITS,
    Trait,
    data_inputs,
    family,
    having,
    is_commutative,
    is_linear,
    is_moving,
    is_passing,
    is_product,
    is_random,
    is_rearranging,
    is_view,
)
from modelexport.graph.protos import operator_name

SCHEMAS = {schema.name: schema for schema in onnx.defs.get_all_schemas() if not schema.domain}
FLOAT = np.array([[0.5, -1.5, 2.0], [3.0, -0.25, 1.0]], np.float32)


def test_every_operator_stands_in_the_table_once() -> None:
    names = Counter(name for _, row in operators._ROWS for name in row.split())
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("op_type", sorted(having(Trait.COMMUTATIVE)))
def test_inputs_of_a_commutative_operator_can_change_places(op_type: str) -> None:
    kind = _type_of(op_type)
    left, right = (_as_type(array, kind) for array in (FLOAT, FLOAT[::-1]))
    assert np.array_equal(_run(op_type, left, right), _run(op_type, right, left))
    assert is_commutative(op_type)
    assert is_commutative(operator_name(op_type, "ai.onnx"))
    assert not is_commutative(operator_name(op_type, "somebody.else"))


@pytest.mark.parametrize("op_type", ["Sub", "Div", "Pow", "Mod", "Less", "MatMul", "QLinearAdd", "Concat", "Where"])
def test_what_is_not_commutative(op_type: str) -> None:
    assert not is_commutative(op_type)


@pytest.mark.parametrize("op_type", sorted(having(Trait.UNARY | Trait.SAME_SHAPE) & SCHEMAS.keys()))
def test_one_number_for_each_number_of_the_first_input(op_type: str) -> None:
    kind = _type_of(op_type)
    inferred = _inferred(op_type, kind, 1)
    assert [dim.dim_value for dim in inferred.tensor_type.shape.dim] == [2, 3]


@pytest.mark.parametrize("op_type", sorted(having(Trait.BOOLEAN)))
def test_what_makes_truth_values(op_type: str) -> None:
    count = 1 if op_type in having(Trait.UNARY) else 2
    assert _inferred(op_type, _type_of(op_type), count).tensor_type.elem_type == TensorProto.BOOL


def test_traits_that_imply_others() -> None:
    for narrow, wide in (
        (Trait.VIEW, Trait.ELEMENTS_ONLY),
        (Trait.RESIZING, Trait.ELEMENTS_ONLY),
        (Trait.SUBSET, Trait.ELEMENTS_ONLY),
        (Trait.ELEMENTS_ONLY, Trait.MOVEMENT),
        (Trait.RANDOM, Trait.MOVEMENT),
        (Trait.ANGLE, Trait.NO_CONTENT),
        (Trait.BOOLEAN, Trait.NO_CONTENT),
    ):
        assert having(narrow) <= having(wide), (narrow, wide)
    assert not having(Trait.UNARY) & having(Trait.BROADCAST)
    assert not having(Trait.MOVEMENT) & (operators.PRODUCTS.keys() | having(Trait.NORMALIZATION) | operators.UNARY)


def test_a_weight_that_is_rearranged_is_still_that_weight_and_a_part_of_it_is_not() -> None:
    assert {"Transpose", "Reshape", "Cast", "DequantizeLinear"} <= operators.SAME_WEIGHT
    assert not {"Slice", "Gather", "Pad", "Where", "Add"} & operators.SAME_WEIGHT


def test_where_the_two_factors_of_a_product_are() -> None:
    assert operators.PRODUCTS["MatMul"] == (0, 1)
    assert operators.PRODUCTS["QLinearConv"] == (0, 3)
    for op_type, (first, second) in operators.PRODUCTS.items():
        if op_type in SCHEMAS and op_type != "Einsum":
            inputs = SCHEMAS[op_type].inputs
            assert (inputs[first].name.lower(), inputs[second].name.lower()) in {("a", "b"), ("x", "w")}, op_type


@pytest.mark.parametrize(
    ("op_type", "inputs", "content"),
    [
        ("Where", ("c", "x", "y"), ("x", "y")),
        ("ScatterND", ("x", "i", "u"), ("x", "u")),
        ("Reshape", ("x", "shape"), ("x",)),
        ("ReduceLogSumExp", ("x", "axes"), ("x",)),
        ("Clip", ("x", "", "high"), ("x",)),
        ("Equal", ("x", "y"), ()),
        ("Shape", ("x",), ()),
        ("Add", ("x", "y"), ("x", "y")),
        ("SomethingElse", ("x", "", "y"), ("x", "y")),
    ],
)
def test_inputs_whose_content_goes_into_the_output(
    op_type: str, inputs: tuple[str, ...], content: tuple[str, ...]
) -> None:
    assert data_inputs(_node(op_type, inputs=inputs)) == content


@pytest.mark.parametrize("domain", ["", "ai.onnx", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"])
def test_an_operator_is_what_its_name_says_in_the_domains_of_onnx_and_onnx_runtime(domain: str) -> None:
    assert is_passing(_node("Identity", domain))
    assert is_view(_node("Reshape", domain))
    assert is_product(_node("QLinearConv", domain))


@pytest.mark.parametrize("domain", ["my.domain", "ai.onnx.ml", "com.microsoft.other"])
def test_an_operator_of_another_domain_has_no_trait_whatever_its_name(domain: str) -> None:
    asked = (is_passing, is_view, is_rearranging, is_moving, is_linear, is_product, is_random)
    names = ("Identity", "Reshape", "Transpose", "Slice", "Add", "QLinearConv", "RandomNormal")
    assert all(is_trait(_node(name)) for is_trait, name in zip(asked, names, strict=True))
    assert not any(is_trait(_node(name, domain)) for is_trait in asked for name in names)
    assert not is_commutative(_node("Add", domain).operator)
    assert data_inputs(_node("Reshape", domain)) == ("x", "y"), "which of its inputs say how is not known"


def test_a_shape_of_another_domain_may_return_content() -> None:
    nodes = [helper.make_node("Shape", ["x"], ["a"]), helper.make_node("Shape", ["x"], ["b"], domain="my.domain")]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    graph = index_model(helper.make_model(helper.make_graph(nodes, "g", [x], [])))
    assert graph.computed == {"x", "b"}


@pytest.mark.parametrize(
    ("op_type", "plain"),
    [("QLinearConv", "Conv"), ("NhwcFusedConv", "Conv"), ("MatMulIntegerToFloat", "MatMul"), ("QGemm", "MatMul")],
)
def test_the_plain_operator_behind_a_replacement(op_type: str, plain: str) -> None:
    assert family(op_type) == plain


def test_names_of_onnx_operators_are_spelled_as_onnx_spells_them() -> None:
    """Names that ONNX does not have are ONNX Runtime's: the list grows only on purpose."""
    own = {name for name in TRAITS if name not in SCHEMAS}
    prefixes = ("QLinear", "Fused", "Nhwc", "MatMul", "Skip", "Memcpy", "Reorder", "Bias", "Gemm", "Group", "Embed")
    others = {name for name in own if not name.startswith(prefixes)}
    assert (
        others
        == {
            *("BitCast", "ConcatTraining", "DecoderMaskedMultiHeadAttention", "DynamicQuantizeMatMul", "FastGelu"),
            *("GatherBlockQuantized", "MultiHeadAttention", "PagedAttention", "QAttention", "QGemm", "QuickGelu"),
            *("SimplifiedLayerNormalization", "SparseAttention", "TransposeMatMul"),
        }
        - SCHEMAS.keys()
    )


def _node(op_type: str, domain: str = "", inputs: tuple[str, ...] = ("x", "y")) -> Node:
    node = helper.make_node(op_type, inputs, ["z"], domain=domain)
    return index_model(helper.make_model(helper.make_graph([node], "g", [], []))).nodes[0]


def _type_of(op_type: str) -> int:
    """A type that the schema allows, floats if it does."""
    allowed = next(
        c for c in SCHEMAS[op_type].type_constraints if c.type_param_str == SCHEMAS[op_type].inputs[0].type_str
    )
    for name, kind in (("float", TensorProto.FLOAT), ("bool", TensorProto.BOOL), ("int64", TensorProto.INT64)):
        if f"tensor({name})" in allowed.allowed_type_strs:
            return kind
    raise AssertionError(op_type)


def _as_type(array: np.ndarray, kind: int) -> np.ndarray:
    return array > 0 if kind == TensorProto.BOOL else array.astype(helper.tensor_dtype_to_np_dtype(kind))


def _model(op_type: str, kind: int, count: int) -> onnx.ModelProto:
    names = [f"x{place}" for place in range(count)]
    inputs = [helper.make_tensor_value_info(name, kind, [2, 3]) for name in names]
    node = helper.make_node(op_type, names, ["y"])
    return helper.make_model(helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name="y")]))


def _run(op_type: str, *arrays: np.ndarray) -> np.ndarray:
    evaluator = ReferenceEvaluator(_model(op_type, _type_of(op_type), len(arrays)))
    (result,) = evaluator.run(None, {f"x{place}": array for place, array in enumerate(arrays)})
    return np.asarray(result)


def _inferred(op_type: str, kind: int, count: int) -> onnx.TypeProto:
    model = onnx.shape_inference.infer_shapes(_model(op_type, kind, count))
    return model.graph.output[0].type
