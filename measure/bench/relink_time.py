"""What relinking costs: transformer layers written down by hand, with every value renamed or none.

`with names` finds everything by name, and reads no weight: whoever asks for one is refused. `90 % hidden` has no node
names and nine tenths of all tensor names replaced, so that constants have to be looked at. Each is the time of
`trace_lineage` alone, the faster of two; reading and indexing the file come before. The limit is for the last row.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from measure.bench.report import Table
from measure.lineage.hiding import hide
from modelexport.graph.index import Graph, index_model
from modelexport.graph.model_file import parse_model
from modelexport.graph.opened import ModelFile
from modelexport.graph.sketch import sketches_of
from modelexport.lineage.descent import trace_lineage

# Nodes of one layer, and how many there are to be.
_NODES_OF_LAYER = 19
SIZES = (1_000, 10_000, 50_000)
LIMIT = 20.0
# Seconds for a node in the largest graph, against those in the smallest. Linear is 1; memory is slower when it is full.
LARGEST_GROWTH = 3.0
_WIDTH = 16


def measure() -> Table:
    rows = []
    found: list[tuple[int, float, float]] = []
    for size in SIZES:
        model = layers_model(-(-size // _NODES_OF_LAYER))
        nodes, named, hidden = len(model.graph.node), _named(model), _hidden(model)
        found.append((nodes, named, hidden))
        rows.append((f"{nodes:,}", f"{named:.2f} s", f"{hidden:.2f} s", f"{hidden / nodes * 1e6:.0f} µs"))
    growth = (found[-1][2] / found[-1][0]) / (found[0][2] / found[0][0])
    text = (
        f"{(__doc__ or '').strip()}\n\nThe limit is {LIMIT:.0f} s for {SIZES[-1]:,} nodes, and {LARGEST_GROWTH:.0f} "
        f"times the time for a node in the smallest graph; it is {growth:.1f} times that."
    )
    holds = max(found[-1][1:]) <= LIMIT and growth <= LARGEST_GROWTH
    return Table("Time to relink", text, ("nodes", "with names", "90 % hidden", "for a node"), tuple(rows), holds)


def _named(model: onnx.ModelProto) -> float:
    before, after = (_opened(model)[1] for _ in range(2))
    return _seconds(lambda: trace_lineage(before, after, (_refuse, _refuse)))


def _hidden(model: onnx.ModelProto) -> float:
    (file, before), (other, after) = _opened(model), _opened(hide(model, 0.9).model)
    # Made in each round, so that nothing is kept from the one before.
    return _seconds(lambda: trace_lineage(before, after, (sketches_of(file), sketches_of(other))))


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} was read, though names decide")


def _seconds(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(2):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken)


def _opened(model: onnx.ModelProto) -> tuple[ModelFile, Graph]:
    file = parse_model(model.SerializeToString())
    return file, index_model(file.proto)


def layers_model(layers: int) -> onnx.ModelProto:
    """Layers of attention and feed-forward with weights of their own."""
    random = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    value = "x"
    for number in range(layers):
        value = _layer(number, value, nodes, weights, random)
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 8, _WIDTH]) for name in ("x", value)]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _layer(
    number: int,
    value: str,
    nodes: list[onnx.NodeProto],
    weights: list[onnx.TensorProto],
    random: np.random.Generator,
) -> str:
    def add(operator: str, inputs: list[str], name: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [f"{number}/{name}"], **attributes))
        return f"{number}/{name}"

    def weight(name: str, *shape: int) -> str:
        array = random.standard_normal(shape).astype(np.float32)
        weights.append(numpy_helper.from_array(array, f"layers.{number}.{name}"))
        return f"layers.{number}.{name}"

    def linear(read: str, name: str) -> str:
        product = add("MatMul", [read, weight(f"{name}.weight", _WIDTH, _WIDTH)], f"{name}/MatMul")
        return add("Add", [product, weight(f"{name}.bias", _WIDTH)], f"{name}/Add")

    query, key, content = (linear(value, name) for name in ("query", "key", "value"))
    turned = add("Transpose", [key], "Transpose", perm=[0, 2, 1])
    shares = add("Softmax", [add("MatMul", [query, turned], "scores")], "Softmax")
    attended = add("Add", [linear(add("MatMul", [shares, content], "context"), "output"), value], "residual")
    inner = add("Relu", [linear(attended, "up")], "Relu")
    return add("Add", [linear(inner, "down"), attended], "result")
