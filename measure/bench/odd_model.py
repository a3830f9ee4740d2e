"""A model that no exporter makes: all kinds of attributes, bodies, functions, names that other formats cannot write."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

# Control characters, characters that XML forbids or changes, markup, quotes, and what viewers keep for themselves.
NAMES = (
    "\x01\x02",
    "tab\tline\nreturn\r",
    "not a character \ufffe\uffff",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    "<script>alert(1)</script>",
    "]]>",
    "\"quoted\" 'twice' `thrice`",
    '＂wide＂ \\＂ \\\\"',
    "back\\slash\\",
    "a/b;c|d::e",
    "_x0041_",
    "&amp; %25 #35;",
    "__proto__x",
    "=cmd()",
    " dense<1>",
    "end",
)


def odd_model() -> onnx.ModelProto:
    nodes = [helper.make_node("Identity", ["x"], [name], name=f"name of {name}") for name in NAMES]
    nodes += [
        _with_attributes(),
        helper.make_node("Mul", ["x", "x"], ["squared"], name=""),
        helper.make_node("Clip", ["squared", "", "stored"], ["clipped"], doc_string="doc \x0b <b>"),
        helper.make_node("Split", ["clipped"], ["first", "", "third"], num_outputs=3),
        helper.make_node("If", ["condition"], ["chosen"], then_branch=_branch("x"), else_branch=_branch("third")),
        helper.make_node("Twice", ["chosen"], ["twice"], domain="own", factor=2.5),
        helper.make_node("Twice", ["twice"], ["once"], domain="own", overload="not", factor=1.0),
        helper.make_node("Add", ["once", "sparse"], ["y"]),
    ]
    for place, name in enumerate(NAMES):
        nodes[place].metadata_props.add(key=name, value=name[::-1])
    graph = helper.make_graph(
        nodes,
        "odd <graph>",
        [_info("x", ["batch <1>", None, 3]), helper.make_tensor_value_info("condition", TensorProto.BOOL, [])],
        [_info("y", ["batch <1>", None, 3]), helper.make_empty_tensor_value_info("squared")],
        [
            numpy_helper.from_array(np.array(6, np.float32), "stored"),
            numpy_helper.from_array(np.ones((40, 40), np.float32), "large"),
        ],
        value_info=[_info(NAMES[0], [1])],
        sparse_initializer=[_sparse()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    return helper.make_model(
        graph, opset_imports=opsets, functions=[_function(opsets), _function(opsets, "not")], ir_version=10
    )


def _info(name: str, shape: list[int | str | None]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _with_attributes() -> onnx.NodeProto:
    values: dict[str, Any] = {
        "int": 1,
        "negative": -(2**63),
        "float": 0.1,
        "whole": 2.0,
        "infinite": float("inf"),
        "nothing": float("nan"),
        "text": "1",
        "empty": "",
        "lines": "a\nb\"c'd\\e \x00 ]]> \ufffe",
        "bytes": b"\xff\xfe'\"",
        "ints": [1, -2],
        "floats": [1.0, float("-inf"), 1e-30],
        "strings": ["a, b", "[1]", "'"],
        "tensor": numpy_helper.from_array(np.arange(6, dtype=np.int64).reshape(2, 3)),
        "large": numpy_helper.from_array(np.arange(100, dtype=np.float64)),
        "half": numpy_helper.from_array(np.array([1.5, np.nan], np.float16)),
        "words": TensorProto(data_type=TensorProto.STRING, dims=[2], string_data=[b"a]", b'"\xff']),
        "brain": helper.make_tensor("", TensorProto.BFLOAT16, [2], [1.5, -2.0]),
        "four_bits": helper.make_tensor("", TensorProto.INT4, [3], [1, -2, 7]),
        "none": helper.make_tensor("", TensorProto.FLOAT, [0, 3], []),
        "type": helper.make_tensor_type_proto(TensorProto.FLOAT, [1, "n"]),
        "sparse": _sparse(),
        "__proto__": 1,
        '"onnx" <b>': 1,
    }
    node = helper.make_node("Everything", ["x"], ["everything"], name="attributes", domain="own", **values)
    node.attribute.append(AttributeProto(name="no_ints", type=AttributeProto.INTS))
    node.attribute.append(AttributeProto(name="no_floats", type=AttributeProto.FLOATS))
    node.attribute.append(AttributeProto(name="no_strings", type=AttributeProto.STRINGS))
    tensors = [numpy_helper.from_array(np.array(1, np.int32)), numpy_helper.from_array(np.array([1, 2], np.float32))]
    node.attribute.append(AttributeProto(name="tensors", type=AttributeProto.TENSORS, tensors=tensors))
    return node


def _sparse() -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.array([1, 2], np.float32), "sparse")
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([0, 4]), "indices"), [3, 3])


def _branch(read: str) -> onnx.GraphProto:
    """It reads from outside, has a weight of its own, and a branch inside of it that reads from outside of both."""
    inner = helper.make_graph([helper.make_node("Neg", ["x"], ["n"])], "inner", [], [_info("n", [1])])
    straight = helper.make_graph([], "straight", [], [_info(read, [1])])
    nodes = [
        helper.make_node("Add", [read, "own"], ["sum"]),
        helper.make_node("If", ["condition"], ["deep"], then_branch=inner, else_branch=straight),
        helper.make_node("Mul", ["sum", "deep"], ["out"]),
    ]
    return helper.make_graph(
        nodes, f"reads {read}", [], [_info("out", [1])], [numpy_helper.from_array(np.array(1, np.float32), "own")]
    )


def _function(opsets: list[onnx.OperatorSetIdProto], overload: str = "") -> onnx.FunctionProto:
    referring = helper.make_node("Constant", [], ["factor"])
    referring.attribute.append(AttributeProto(name="value_float", type=AttributeProto.FLOAT, ref_attr_name="factor"))
    nodes = [referring, helper.make_node("Mul", ["v", "factor"], ["w"])]
    return helper.make_function(
        "own", "Twice", ["v"], ["w"], nodes, opsets[:1], attributes=["factor"], overload=overload
    )
