"""What tools get in place of a file that they would refuse or break: its weights are where they look for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

import modelexport as mx
from modelexport.errors import ToolFailed
from modelexport.graph.file.reading import open_model
from modelexport.graph.file.tagged_file import open_tagged
from modelexport.graph.file.writing import save_model
from modelexport.transform.tools.quantizers import Quantization, make_quantizer
from modelexport.transform.tools.tool import Job

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


WEIGHTS = {"table": (96, 64), "down": (96, 64), "w": (64, 96), "unit": (1, 96, 48), "square": (64, 64)}


def matmul_model(path: Path, *, shared: bool = False) -> Path:
    """Products, two of them by the same weight, and a lookup.

    shared  whether the lookup is in what a product reads as well
    """
    random = np.random.default_rng(0)
    stored = [
        numpy_helper.from_array(random.normal(size=shape).astype(np.float32), name)
        for name, shape in (
            ("table", (96, 64)),
            ("down", (96, 64)),
            ("w", (64, 96)),
            ("unit", (1, 96, 48)),
            ("square", (64, 64)),
        )
    ]
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["h"], name="lookup"),
        helper.make_node("MatMul", ["h", "square"], ["h1"], name="first"),
        helper.make_node("MatMul", ["h1", "w"], ["a"], name="second"),
        helper.make_node("MatMul", ["a", "table" if shared else "down"], ["b"], name="third"),
        helper.make_node("MatMul", ["b", "w"], ["c"], name="fourth"),
        helper.make_node("MatMul", ["c", "unit"], ["y"], name="fifth"),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [5])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5, 48])
    graph = helper.make_graph(nodes, "g", [ids], [y], stored)
    opsets = [helper.make_opsetid("", 21)]
    path.write_bytes(helper.make_model(graph, ir_version=10, opset_imports=opsets).SerializeToString())
    return path


@pytest.mark.parametrize("spread", [False, True], ids=["one file", "external data"])
@pytest.mark.parametrize("kind", ["int4", "uint4"])
@pytest.mark.parametrize("op_types", [("MatMul",), ("MatMul", "Gather")], ids=["products", "lookups, too"])
def test_weights_that_are_read_one_by_one_become_what_the_quantizer_makes_of_the_whole_model(
    kind: str, op_types: tuple[str, ...], spread: bool, tmp_path: Path
) -> None:
    path = matmul_model(tmp_path / "a.onnx")
    whole = MatMulNBitsQuantizer(
        onnx.load(path), block_size=32, is_symmetric=kind == "int4", op_types_to_quantize=op_types
    )
    whole.process()
    if spread:
        save_model(open_model(path), path, external_data=True)
    target = tmp_path / "b.onnx"
    settings = Quantization(weight_type=kind, op_types=op_types, block=32)
    make_quantizer(settings).run(Job(path, target, "", ()))
    assert (tmp_path / "b.onnx.data").exists() == spread
    made, expected = onnx.load(target), whole.model.model
    assert list(made.graph.node) == list(expected.graph.node)
    stored = {tensor.name: tensor.SerializeToString() for tensor in expected.graph.initializer}
    # A weight that two products share is stored once.
    assert len(made.graph.initializer) == len(stored)
    found = {tensor.name: tensor for tensor in made.graph.initializer}
    for tensor in found.values():
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    assert found.keys() == stored.keys()
    assert [name for name, tensor in found.items() if tensor.SerializeToString() != stored[name]] == []
    assert list(made.opset_import) == list(expected.opset_import)


def test_two_weights_of_one_name_are_refused(tmp_path: Path) -> None:
    path = matmul_model(tmp_path / "a.onnx", shared=True)
    settings = Quantization(weight_type="int4", op_types=("MatMul", "Gather"), block=32)
    with pytest.raises(ToolFailed, match="two weights with one name, 'table_Q4'"):
        make_quantizer(settings).run(Job(path, tmp_path / "b.onnx", "", ()))
