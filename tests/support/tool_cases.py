"""Small graphs before and after a tool, with the values that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from measure.lineage.scoring import Score, ToolOutcome, ToolResult
from measure.lineage.truth import Truth
from measure.lineage.value_comparison import run_values
from onnx import helper, numpy_helper
from tests.support import building

from modelexport.graph.file.reading import parse_model
from modelexport.graph.file.tagged_file import Ancestor
from modelexport.graph.index import Graph, Node, index_model
from modelexport.graph.outline import digested, sketches_of
from modelexport.record.hierarchy import Hierarchy

Arrays = dict[str, np.ndarray]

SIZE = 6


def random(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tensor(name: str, array: np.ndarray) -> onnx.TensorProto:
    return numpy_helper.from_array(array, name)


def square(name: str, seed: int) -> onnx.TensorProto:
    """A matrix that takes what the model is given, and makes something of the same size."""
    return tensor(name, random(SIZE, SIZE, seed=seed))


def model(
    *nodes: onnx.NodeProto, outputs: str = "y", weights: Sequence[onnx.TensorProto] = (), inputs: str = "x"
) -> onnx.ModelProto:
    """One that may use ONNX Runtime's own operators."""
    proto = building.model(*nodes, inputs=inputs, outputs=outputs, weights=weights)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto


def values(proto: onnx.ModelProto, feed: Mapping[str, np.ndarray] | None = None) -> Arrays:
    return run_values(parse_model(proto.SerializeToString()), feed or {"x": random(4, SIZE, seed=99)})


@dataclass(frozen=True)
class Case:
    """A graph that a tool made something of.

    owners  of the nodes before, by key, as they are written
    """

    before: onnx.ModelProto
    after: onnx.ModelProto
    hierarchy: Hierarchy
    owners: Mapping[str, Sequence[str]]

    @property
    def ancestor(self) -> Ancestor:
        file = parse_model(self.before.SerializeToString())
        record = building.provenance(self.before, self.hierarchy, self.owners)
        weights = {name: building.attribution(self.hierarchy, "") for name in file.graph.initializers}
        record = replace(record, initializers=weights)
        return Ancestor("before", record, digested(file.graph), sketches_of(file))

    @property
    def values(self) -> tuple[Arrays, Arrays]:
        return values(self.before), values(self.after)

    def truth(self, *, ran: bool = True, **after: np.ndarray) -> Truth:
        """after  values in the place of those that ONNX Runtime would make"""
        made = values(self.before)
        return Truth((index_model(self.before), made if ran else {}), (self.graph, after), self.ancestor.record)

    @property
    def graph(self) -> Graph:
        return index_model(self.after)

    def node(self, key: str) -> Node:
        return self.graph.by_key[key]


def result(chain: str = "int8", *, row: str = "net", exporter: str = "dynamo", **figures: int) -> ToolResult:
    """A result that is the same whatever was hidden."""
    score = Score(**figures)
    return ToolResult(row, exporter, chain, ToolOutcome.OK, scores=dict.fromkeys((0.0, 0.5, 0.9), score))


def dense(*nodes: onnx.NodeProto, outputs: str = "y") -> onnx.ModelProto:
    """With the weights of two dense layers."""
    biases = [tensor("b1", random(SIZE, seed=3)), tensor("b2", random(SIZE, seed=4))]
    return model(*nodes, outputs=outputs, weights=[square("w1", 1), *biases, square("w2", 2)])


DENSE = dense(
    building.node("MatMul", "x w1", "h1"),
    building.node("Add", "h1 b1", "a1"),
    building.node("Relu", "a1", "r1"),
    building.node("MatMul", "r1 w2", "h2"),
    building.node("Add", "h2 b2", "y"),
)


def after_dense(*nodes: onnx.NodeProto) -> Case:
    """What a tool made of two dense layers and an activation."""
    hierarchy = building.tree({"": "Net", "fc1": "Linear", "act": "ReLU", "fc2": "Linear"})
    owners = {"h1": ["fc1"], "a1": ["fc1"], "r1": ["act"], "h2": ["fc2"], "y": ["fc2"]}
    return Case(DENSE, dense(*nodes), hierarchy, owners)


def fused_gemm(inputs: str, output: str) -> onnx.NodeProto:
    """ONNX Runtime's dense layer with an activation."""
    return building.node("FusedGemm", inputs, output, domain="com.microsoft", activation="Relu")
