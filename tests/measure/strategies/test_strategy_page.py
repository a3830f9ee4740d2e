"""Files and tables that strategies are measured with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from measure.pages import fill_blocks
from measure.sections import STRATEGIES_PAGE
from measure.strategies.judged_exports import write_nameless
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator


def test_the_page_has_a_place_for_every_table() -> None:
    names = ("summary", "dynamo", "torchscript", "nameless", "attach", "usage", "layers")
    assert fill_blocks(STRATEGIES_PAGE.read_text(), dict.fromkeys(names, "")).count("<!-- measured") == len(names)


def test_a_nameless_file_says_nothing_but_does_the_same(tmp_path: Path) -> None:
    """Bodies too: they may read what is outside of them."""
    write_source(tmp_path / "source.onnx")
    write_nameless(tmp_path / "source.onnx", tmp_path / "nameless.onnx")
    model = onnx.load(tmp_path / "nameless.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert b"secret" not in model.SerializeToString()
    assert [value.name for value in (*model.graph.input, *model.graph.output)] == ["x", "c", "y"]
    feed = {"x": np.array([1.0, 2.0], np.float32)}
    for condition in (True, False):
        results = [
            list(ReferenceEvaluator(onnx.load(tmp_path / file)).run(None, {**feed, "c": np.array(condition)}))
            for file in ("source.onnx", "nameless.onnx")
        ]
        np.testing.assert_array_equal(results[0][0], results[1][0])


def write_source(path: Path) -> None:
    """A choice between two bodies that read a value from outside, with something secret wherever text can be."""
    branches = [
        helper.make_graph(
            [helper.make_node(op, ["secret_sum", "secret_weight"], ["secret_inner"], name=f"secret_{op}")],
            "secret_body",
            [],
            [helper.make_tensor_value_info("secret_inner", onnx.TensorProto.FLOAT, [2])],
        )
        for op in ("Mul", "Sub")
    ]
    add = helper.make_node("Add", ["x", "secret_weight"], ["secret_sum"], name="secret_add", doc_string="secret")
    add.metadata_props.add(key="secret", value="secret")
    choice = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    graph = helper.make_graph(
        [add, choice],
        "secret_graph",
        [
            helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.array([3.0, 5.0], np.float32), "secret_weight")],
        value_info=[helper.make_tensor_value_info("secret_sum", onnx.TensorProto.FLOAT, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10, doc_string="secret")
    model.metadata_props.add(key="secret", value="secret")
    onnx.save(model, path)
