"""Files as other tools write them, made by hand: external data, old versions, functions, bodies, odd tensors.

Each is a small network of two layers whose nodes are named as TorchScript names them (`/layers.0/fc/MatMul`), changed
into the variant that its function is named after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 16


def plain(*, ir_version: int = 8, opset: int = 17) -> onnx.ModelProto:
    """x ─► layers.0 (MatMul, Add, Relu) ─► layers.1 ─► y"""
    random = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for number in range(2):
        path, scope = f"layers.{number}.fc", f"/layers.{number}"
        for name, shape in (("weight", (WIDTH, WIDTH)), ("bias", (WIDTH,))):
            array = random.standard_normal(shape).astype(np.float32)
            weights.append(numpy_helper.from_array(array, f"{path}.{name}"))
        product, total = f"{scope}/fc/MatMul_output_0", f"{scope}/fc/Add_output_0"
        last = "y" if number else f"{scope}/act/Relu_output_0"
        nodes += [
            helper.make_node("MatMul", [value, f"{path}.weight"], [product], f"{scope}/fc/MatMul"),
            helper.make_node("Add", [product, f"{path}.bias"], [total], f"{scope}/fc/Add"),
            helper.make_node("Relu", [total], [last], f"{scope}/act/Relu"),
        ]
        value = last
    graph = helper.make_graph(nodes, "plain", [_floats("x")], [_floats("y")], weights)
    if ir_version < 4:  # every initializer had to be an input as well
        graph.input.extend(helper.make_tensor_value_info(item.name, TensorProto.FLOAT, item.dims) for item in weights)
    return _model(graph, ir_version, helper.make_opsetid("", opset))


def opset_of(ir_version: int) -> int:
    """An operator set that existed when a version of the format was current."""
    return {3: 7, 4: 9, 5: 10, 6: 11, 7: 14, 8: 15, 9: 20, 10: 21}.get(ir_version, 22)


def plain_of_version(ir_version: int) -> onnx.ModelProto:
    return plain(ir_version=ir_version, opset=opset_of(ir_version))


def with_function() -> onnx.ModelProto:
    model = plain()
    last = model.graph.node[-1]
    last.op_type, last.domain = "Act", "local"
    body = [helper.make_node("Neg", ["a"], ["b"], "neg"), helper.make_node("Relu", ["b"], ["c"], "relu")]
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("local", "Act", ["a"], ["c"], body, opsets))
    model.opset_import.append(helper.make_opsetid("local", 1))
    return model


def with_bodies() -> onnx.ModelProto:
    """An If around a Loop, whose body reads a value from outside of both."""
    inner = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["goes"], "/head/loop/Identity"),
            helper.make_node("Add", ["state", "y0"], ["next"], "/head/loop/Add"),
        ],
        "body",
        [_scalar("count", TensorProto.INT64), _scalar("go", TensorProto.BOOL), _floats("state")],
        [_scalar("goes", TensorProto.BOOL), _floats("next")],
    )
    loop = helper.make_node("Loop", ["trips", "", "y0"], ["looped"], "/head/loop/Loop", body=inner)
    then = helper.make_graph([loop], "then", [], [_floats("looped")])
    other = helper.make_graph([helper.make_node("Neg", ["y0"], ["other"], "/head/Neg")], "else", [], [_floats("other")])
    model = plain()
    model.graph.node[-1].output[0] = "y0"
    model.graph.node.append(
        helper.make_node("If", ["which"], ["y"], "/head/If", then_branch=then, else_branch=other),
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "which"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(2), "trips"))
    return model


def with_sparse_weight() -> onnx.ModelProto:
    model = plain()
    values = helper.make_tensor("layers.0.fc.weight", TensorProto.FLOAT, [2], [1.0, 2.0])
    indices = helper.make_tensor("indices", TensorProto.INT64, [2], [0, 17])
    del model.graph.initializer[0]
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [WIDTH, WIDTH]))
    return model


def with_quantized_weights() -> onnx.ModelProto:
    """A weight of eight bits and one of four, each with its DequantizeLinear."""
    model = plain(ir_version=10, opset=21)
    graph = model.graph
    for number, dtype in enumerate((TensorProto.INT8, TensorProto.INT4)):
        name = f"layers.{number}.fc.weight"
        index = next(index for index, item in enumerate(graph.initializer) if item.name == name)
        small = np.arange(WIDTH * WIDTH) % 7
        stored = helper.make_tensor(f"{name}_quantized", dtype, [WIDTH, WIDTH], small.tolist())
        graph.initializer[index].CopyFrom(stored)
        graph.initializer.append(numpy_helper.from_array(np.array(0.1, np.float32), f"{name}_scale"))
        node = helper.make_node("DequantizeLinear", [stored.name, f"{name}_scale"], [name], f"{name}_DequantizeLinear")
        graph.node.insert(0, node)
    return model


def with_custom_domain() -> onnx.ModelProto:
    """An operator that no runtime here knows."""
    model = plain()
    last = model.graph.node[-1]
    last.op_type, last.domain = "Wave", "com.example"
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    return model


def without_names() -> onnx.ModelProto:
    model = plain()
    for node in model.graph.node:
        node.name = ""
    texts = {name: f"v{number}" for number, name in enumerate(item.name for item in model.graph.initializer)}
    texts |= {node.output[0]: f"t{number}" for number, node in enumerate(model.graph.node[:-1])}
    for node in model.graph.node:
        node.input[:] = [texts.get(name, name) for name in node.input]
        node.output[:] = [texts.get(name, name) for name in node.output]
    for item in model.graph.initializer:
        item.name = texts[item.name]
    return model


def with_hidden_size() -> onnx.ModelProto:
    """It states no size of its input `a b`, and takes 14 numbers only."""
    value = helper.make_tensor_value_info("a b", TensorProto.FLOAT, ["rows", "columns"])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [7, 2])
    shape = numpy_helper.from_array(np.array([7, 2]), "shape")
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["a b", "shape"], ["y"])], "hidden", [value], [made], [shape]
    )
    return _model(graph, 8, helper.make_opsetid("", 17))


def without_nodes() -> onnx.ModelProto:
    """A constant is returned, and nothing is computed."""
    weight = numpy_helper.from_array(np.zeros((1, WIDTH), np.float32), "y")
    return _model(helper.make_graph([], "empty", [], [_floats("y")], [weight]), 8, helper.make_opsetid("", 17))


_Maker = Callable[[], onnx.ModelProto]
VARIANTS: Mapping[str, _Maker] = {
    **{f"ir{version}": partial(plain_of_version, version) for version in range(3, 14)},
    **{f"opset{opset}": partial(plain, opset=opset) for opset in (7, 9, 11, 13, 15)},
    "function": with_function,
    "bodies": with_bodies,
    "sparse": with_sparse_weight,
    "quantized": with_quantized_weights,
    "custom": with_custom_domain,
    "nameless": without_names,
    "empty": without_nodes,
}


def save_external(path: Path) -> None:
    onnx.save(plain(), path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=64)


def save_huge(path: Path, size: int) -> None:
    """Weights in a file of so many bytes, which takes no room on the disk: whoever reads them all does not return."""
    model = plain()
    for tensor in model.graph.initializer:
        del tensor.external_data[:]
        if len(tensor.dims) > 1:
            rows = size // (4 * WIDTH)
            tensor.dims[0] = rows
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", f"{path.name}.data"), ("offset", "0"), ("length", str(rows * WIDTH * 4))):
                tensor.external_data.add(key=key, value=value)
    onnx.save(model, path)
    with path.with_name(f"{path.name}.data").open("wb") as data:
        data.truncate(size)


def _model(graph: onnx.GraphProto, ir_version: int, opset: onnx.OperatorSetIdProto) -> onnx.ModelProto:
    model = helper.make_model(graph, opset_imports=[opset], producer_name="by hand")
    model.ir_version = ir_version
    return model


def _floats(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, WIDTH])


def _scalar(name: str, dtype: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, [])
