"""Attributes, tensors and types as text: what is written can be read back, and what differs is written differently."""

from __future__ import annotations

import ast
import math

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tests.support.building import body, model, node

from modelexport.graph.index import MAIN, node_key
from modelexport.show.formats.literals import (
    SHOWN_ELEMENTS,
    attribute_fact,
    fact_text,
    float_literal,
    graphs_of,
    string_literal,
    strings_literal,
    tensor_text,
    typed_ports,
)


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_read_back_by_python(data: bytes) -> None:
    literal = string_literal(data)
    assert literal.isprintable()
    assert '"' not in literal  # Model Explorer drops them
    found = ast.literal_eval(literal)
    assert (found.encode() if isinstance(found, str) else found) == data


@given(st.lists(st.text()))
def test_any_list_of_names_is_read_back(names: list[str]) -> None:
    assert ast.literal_eval(strings_literal(names)) == names


def test_half_of_a_surrogate_pair_is_written_as_bytes() -> None:
    assert ast.literal_eval(strings_literal(["a", "\ud800"])) == ["a", b"\xed\xa0\x80"]


@given(st.floats())
def test_any_float_is_read_back(number: float) -> None:
    found = float(float_literal(number))
    assert found == number or (math.isnan(found) and math.isnan(number))
    assert fact_text(number) == float_literal(number)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3),
        (-(2**63), -(2**63)),
        (0.5, 0.5),
        ("text", "'text'"),
        (b"\xff'", "b'\\xff\\x27'"),
        ([1, -2], "[1, -2]"),
        ([1.0, math.inf], "[1.0, inf]"),
        (["a", "it's"], "['a', 'it\\'s']"),
    ],
)
def test_attributes_are_literals(value: object, expected: object) -> None:
    assert attribute_fact(helper.make_attribute("a", value)) == expected


@pytest.mark.parametrize(("kind", "text"), [("INTS", "ints []"), ("FLOATS", "floats []"), ("STRINGS", "strings []")])
def test_an_empty_list_says_what_it_is_a_list_of(kind: str, text: str) -> None:
    assert attribute_fact(onnx.AttributeProto(name="a", type=kind)) == text


def test_an_attribute_of_a_function_names_what_it_refers_to() -> None:
    referring = onnx.AttributeProto(name="a", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    assert attribute_fact(referring) == "@alpha (FLOAT)"


def test_bodies_are_told_apart_by_their_content() -> None:
    bodies = [body(node(op_type, "x", "y"), outputs="y") for op_type in ("Relu", "Relu", "Abs")]
    first, again, other = (attribute_fact(helper.make_attribute("body", each)) for each in bodies)
    assert first == again != other
    assert str(first).startswith("GRAPH sha256:")


def test_several_tensors_are_a_list() -> None:
    tensors = [numpy_helper.from_array(np.array([number], np.int64)) for number in (1, 2)]
    assert attribute_fact(helper.make_attribute("a", tensors)) == "[int64[1] [1], int64[1] [2]]"


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([1.5, -2], np.float32), "float[2] [1.5, -2.0]"),
        (np.array([[True], [False]]), "bool[2, 1] [True, False]"),
        (np.array(7, np.uint8), "uint8[] [7]"),
        (np.zeros((0, 3), np.float16), "float16[0, 3] []"),
        (np.array(["a", "b'"], object), "string[2] ['a', 'b\\'']"),
    ],
)
def test_few_elements_are_shown(array: np.ndarray, expected: str) -> None:
    assert tensor_text(numpy_helper.from_array(array)) == expected


@pytest.mark.parametrize("kind", [TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.INT4, TensorProto.UINT4])
def test_types_that_numpy_does_not_have_are_shown_too(kind: int) -> None:
    tensor = helper.make_tensor("t", kind, [3], [1, 2, 3])
    numbers = ast.literal_eval(tensor_text(tensor).partition(" ")[2])
    assert numbers == [1, 2, 3]


def test_many_elements_are_told_apart_by_a_digest() -> None:
    numbers = np.arange(SHOWN_ELEMENTS + 1)
    shown = [tensor_text(numpy_helper.from_array(array)) for array in (numbers, numbers.copy(), numbers[::-1])]
    assert shown[0] == shown[1] != shown[2]
    assert shown[0].startswith(f"int64[{SHOWN_ELEMENTS + 1}] sha256:")
    assert "sha256" not in tensor_text(numpy_helper.from_array(numbers[:-1]))


def test_many_texts_are_told_apart_by_where_they_end() -> None:
    more = ["x"] * SHOWN_ELEMENTS
    lists = [["a", "b", *more], ["b", "a", *more], ["ab", "", *more]]
    texts = {tensor_text(numpy_helper.from_array(np.array(each, object))) for each in lists}
    assert len(texts) == 3


def test_weights_beside_the_file_are_named_and_not_read() -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="it's gone.bin")
    assert tensor_text(tensor) == "float[2] in 'it\\'s gone.bin' at 0"
    tensor.external_data.add(key="offset", value="64")
    assert tensor_text(tensor).endswith(" at 64")


def test_a_damaged_tensor_is_still_told_apart() -> None:
    damaged = [TensorProto(data_type=TensorProto.FLOAT, dims=[2], raw_data=data) for data in (b"abc", b"abd")]
    unknown = TensorProto(data_type=999, dims=[1], raw_data=b"a")
    texts = {tensor_text(tensor) for tensor in (*damaged, unknown)}
    assert len(texts) == 3
    assert all("sha256:" in text for text in texts)


FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", 3])
TYPES = {
    "float[n, 3]": FLOATS,
    "float[?]": helper.make_tensor_type_proto(TensorProto.FLOAT, [None]),
    "int64[]": helper.make_tensor_type_proto(TensorProto.INT64, []),
    "bool": helper.make_tensor_type_proto(TensorProto.BOOL, None),
    "sparse float[2]": helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [2]),
    "sequence of float[n, 3]": helper.make_sequence_type_proto(FLOATS),
    "optional sequence of float[n, 3]": helper.make_optional_type_proto(helper.make_sequence_type_proto(FLOATS)),
    "map from string to float[n, 3]": helper.make_map_type_proto(TensorProto.STRING, FLOATS),
    "": onnx.TypeProto(),
}


@pytest.mark.parametrize(("text", "proto"), TYPES.items(), ids=TYPES)
def test_types_are_written_as_they_nest(text: str, proto: onnx.TypeProto) -> None:
    proto_model = model(node("Identity", "x", "y"))
    proto_model.graph.input[0].CopyFrom(helper.make_value_info("x", proto))
    port = typed_ports(graphs_of(proto_model))["x"]
    assert f"{port.dtype}{port.shape}" == text


def test_stored_tensors_have_their_type_and_shape() -> None:
    proto = model(node("Relu", "x", "y"), weights=["w"])
    values = helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("i", TensorProto.INT64, [1], [3])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [5, 6]))
    ports = typed_ports(graphs_of(proto))
    assert (ports["w"].dtype, ports["w"].shape) == ("float", "[64, 64]")
    assert (ports["s"].dtype, ports["s"].shape) == ("float", "[5, 6]")  # its own, and not that of what is stored


def test_every_graph_is_found_after_the_one_that_holds_it() -> None:
    inner = body(node("Relu", "i", "r"), outputs="r")
    outer = body(node("If", "c", "m", then_branch=inner, else_branch=inner), outputs="m")
    function = helper.make_function("own", "F", ["a"], ["b"], [node("Relu", "a", "b")], [helper.make_opsetid("", 20)])
    proto = model(node("Loop", "x", "y", body=outer), node("Relu", "y", "z"), outputs="z", functions=[function])
    parts = list(graphs_of(proto))
    assert (parts[0].id, parts[-1].id) == (MAIN, "own::F")
    nodes = {""}  # no owner, or one that was seen before
    for part in parts:
        assert part.owner in nodes
        nodes |= {node_key(each, part.id) for each in part.proto.node}
    assert len(parts) == 5
