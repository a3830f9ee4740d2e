"""Files of a few nodes whose cost can be worked out by hand."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

import modelexport as mx
from modelexport.record.results.cost import Cost, NodeCost

Dims = Sequence[int | str | None]
MS = "com.microsoft"
OPSETS = [helper.make_opsetid("", 23), helper.make_opsetid(MS, 1), helper.make_opsetid("local", 1)]


def value(name: str, dims: Dims | None, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, dims)


def header(name: str, dims: Sequence[int], dtype: int = TensorProto.FLOAT) -> onnx.TensorProto:
    """A weight without numbers: nobody may look at them."""
    return onnx.TensorProto(name=name, data_type=dtype, dims=dims)


def numbers(name: str, *content: int) -> onnx.TensorProto:
    return helper.make_tensor(name, TensorProto.INT64, [len(content)], content)


def file_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    weights: Sequence[onnx.TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """What the last node makes is returned, in a shape that the file does not state."""
    last = next(name for name in reversed(nodes[-1].output) if name)
    outputs = [onnx.ValueInfoProto(name=last)]
    graph = helper.make_graph(list(nodes), "g", list(inputs), outputs, list(weights))
    return helper.make_model(graph, opset_imports=OPSETS, functions=list(functions), ir_version=10)


def cost_of(model: onnx.ModelProto, at: Mapping[str, int] | None = None) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.onnx"
        path.write_bytes(model.SerializeToString())
        return mx.cost(path, at)


def single(
    op_type: str,
    given: Mapping[str, Dims | onnx.TensorProto | onnx.ValueInfoProto | None],
    *,
    domain: str = "",
    outputs: int = 1,
    **attributes: Any,
) -> NodeCost:
    """The cost of one operator that reads inputs of these shapes, and tensors; None for one that is left out."""
    inputs, weights, names = [], [], []
    for name, one in given.items():
        names.append("" if one is None else name)
        if isinstance(one, onnx.TensorProto):
            weights.append(one)
        elif isinstance(one, onnx.ValueInfoProto):
            inputs.append(one)
        elif one is not None:
            inputs.append(value(name, one))
    node = helper.make_node(op_type, names, [f"y{place}" for place in range(outputs)], domain=domain, **attributes)
    return cost_of(file_of([node], inputs, weights)).nodes[0]
