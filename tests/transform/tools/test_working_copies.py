"""What tools get in place of a file that they would refuse or break: its weights are where they look for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import modelexport as mx
from modelexport.graph.file.tagged_file import open_tagged

CHANNELS = 4
SHAPE = [1, CHANNELS, 8, 8]


def write(nodes: Sequence[onnx.NodeProto], path: Path, stored: Sequence[TensorProto] = (), ir_version: int = 8) -> Path:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in ("x", "y"))
    # Up to IR 3, initializers are inputs too.
    inputs = [helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in stored]
    graph = helper.make_graph(nodes, "g", [x, *(inputs if ir_version <= 3 else ())], [y], list(stored))
    opsets = [helper.make_opsetid("", 13 if ir_version > 3 else 9)]
    path.write_bytes(helper.make_model(graph, ir_version=ir_version, opset_imports=opsets).SerializeToString())
    return path


def constant(name: str, *shape: int) -> onnx.NodeProto:
    values = np.random.default_rng(len(name)).normal(size=shape).astype(np.float32)
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(values))


@pytest.mark.parametrize("static", [False, True])
def test_weights_in_constant_nodes_are_quantized(static: bool, tmp_path: Path) -> None:
    nodes = [
        constant("w", CHANNELS, CHANNELS, 1, 1),
        constant("b", CHANNELS),
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="/enc/conv/Conv"),
        helper.make_node("Relu", ["c"], ["y"], name="/enc/act/Relu"),
    ]
    result = mx.quantize(write(nodes, tmp_path / "a.onnx"), tmp_path / "b.onnx", static=static)
    assert result.path is not None
    assert not [note for note in result.notes if "nothing was quantized" in note]
    written = open_tagged(result.path)
    narrow = [tensor for tensor in written.proto.graph.initializer if list(tensor.dims) == [CHANNELS, CHANNELS, 1, 1]]
    assert [tensor.data_type for tensor in narrow] in ([TensorProto.INT8], [TensorProto.UINT8])
    modules = {entry.op_type: entry.attribution.module for entry in written.provenance.nodes.values()}
    assert modules["Conv" if static else "ConvInteger"] == "enc.conv"


def test_inputs_that_were_weights_are_not_left_behind(tmp_path: Path) -> None:
    """ONNX Runtime computes what ConstantOfShape makes, and nobody reads its shape any more."""
    shapes = [numpy_helper.from_array(np.array([CHANNELS, CHANNELS, 1, 1]), name) for name in ("s", "t")]
    filling = helper.make_tensor("filling", TensorProto.FLOAT, [1], [2])
    nodes = [
        helper.make_node("ConstantOfShape", ["s"], ["v"], value=filling),
        helper.make_node("Conv", ["x", "v"], ["c"], name="/enc/conv/Conv"),
        helper.make_node("ConstantOfShape", ["t"], ["w"], value=filling),
        helper.make_node("Conv", ["c", "w"], ["y"], name="/dec/conv/Conv"),
    ]
    source = write(nodes, tmp_path / "a.onnx", shapes, ir_version=3)
    before = source.read_bytes()
    result = mx.run_tool(source, "ort:extended", tmp_path / "b.onnx")
    assert result.path is not None
    assert [value.name for value in open_tagged(result.path).proto.graph.input] == ["x"]
    assert source.read_bytes() == before
