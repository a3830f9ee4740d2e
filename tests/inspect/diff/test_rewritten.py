"""Where a tool has rewritten what lies around a node."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper
from tests.support.stacks import WIDTH, Save, stack

import modelexport as mx


def as_gemm(model: onnx.ModelProto) -> onnx.ModelProto:
    """Every product with its bias as a Gemm between two Reshapes, and every residual the other way round."""

    def rewritten(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        name = node.output[0].partition(".")[0]
        if node.op_type == "MatMul":
            yield helper.make_node("Reshape", [node.input[0], "rows"], [f"{name}.rows"])
            yield helper.make_node("Gemm", [f"{name}.rows", f"{name}.w", f"{name}.b"], [f"{name}.gemm"])
            yield helper.make_node("Reshape", [f"{name}.gemm", "rows"], [f"{name}.back"])
        elif node.op_type == "Relu":
            yield helper.make_node("Relu", [f"{name}.back"], node.output)
        elif node.output[0].endswith(".out"):
            yield helper.make_node("Sum", node.input, node.output)
        elif node.op_type == "Softmax":
            yield node

    nodes = [made for node in model.graph.node for made in rewritten(node)]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1, WIDTH]), "rows"))
    onnx.checker.check_model(model)
    return model


def test_a_node_is_the_same_though_nothing_beside_it_is(save: Save) -> None:
    found = mx.diff(save(stack()), save(as_gemm(stack())))
    assert {f"l{number}.relu" for number in range(6)} <= found.pairs.keys()
    gone = {node.op_type for _, change in found.node_changes() for node in change.left}
    assert gone == {"MatMul", "Add"}
