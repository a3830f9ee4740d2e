"""Synthetic graphs of any size, with their record: for speed, where a real model would take long to export.

write_layers   transformer layers, each with its linear modules
write_flat     one module that holds all others itself
write_single   one module that does everything itself
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from modelexport.graph.file.metadata import EmbedOptions, Level, embed
from modelexport.graph.index import index_model
from modelexport.record.hierarchy import CallSite, Hierarchy, Module, ModuleCall, TensorInfo
from modelexport.record.provenance import Attribution, Confidence, Evidence, EvidenceKind, NodeEntry, Origin, Provenance

NODES_OF_LAYER = 19
_WIDTH = 16
_NODES_OF_PART = 4
_PARTS = ("query", "key", "value", "output", "up", "down")
_LINEAR = (TensorInfo("weight", (16, 16), "float32", 1024), TensorInfo("bias", (16,), "float32", 64))
_OPERATORS = ("Relu", "Sigmoid", "Tanh", "Abs", "Neg", "Exp")
_ROOT = ModuleCall("")


def layers_model(layers: int) -> onnx.ModelProto:
    """Layers of attention and feed-forward with weights of their own."""
    generator = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    value = "x"
    for number in range(layers):
        value = _add_layer(number, value, nodes, weights, generator)
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 8, _WIDTH]) for name in ("x", value)]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _add_layer(
    number: int,
    value: str,
    nodes: list[onnx.NodeProto],
    weights: list[onnx.TensorProto],
    generator: np.random.Generator,
) -> str:
    def add(operator: str, inputs: list[str], name: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [f"{number}/{name}"], **attributes))
        return f"{number}/{name}"

    def weight(name: str, *shape: int) -> str:
        array = generator.standard_normal(shape).astype(np.float32)
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


def write_layers(size: int, path: Path) -> Provenance:
    """Transformer layers, each with its linear modules; so many nodes, or a few more."""
    layers = -(-size // NODES_OF_LAYER)
    calls = {call.path: call for number in range(layers) for call in (_layer(number), *_calls(number))}

    def owner(key: str) -> ModuleCall:
        number, part, *_ = key.split("/")  # `12/query/MatMul`, `12/Softmax`
        return calls.get(f"layers.{number}.{part}") or calls[f"layers.{number}"]

    return _write_tagged(layers_model(layers), path, _layered(layers), owner)


def write_flat(size: int, path: Path) -> Provenance:
    """A model that holds all of its modules itself, each reading one that ran shortly before and one from anywhere."""
    modules = size // _NODES_OF_PART
    calls = [ModuleCall(f"part{number}") for number in range(modules)]
    chance = random.Random(0)
    nodes: list[onnx.NodeProto] = []
    made = ["x"]
    for number in range(modules):
        value = chance.choice(made[-20:])
        for step in range(_NODES_OF_PART - 1):
            nodes.append(helper.make_node(chance.choice(_OPERATORS), [value], [f"{number}/{step}"]))
            value = f"{number}/{step}"
        nodes.append(helper.make_node("Add", [value, chance.choice(made)], [f"{number}/sum"]))
        made.append(f"{number}/sum")
    sites = [CallSite(_ROOT, None), *(CallSite(call, _ROOT) for call in calls)]
    hierarchy = Hierarchy.of(
        [Module("", "Flat", "bench"), *(Module(call.path, "Part", "bench") for call in calls)], sites
    )
    return _write_tagged(_model(nodes), path, hierarchy, lambda key: calls[int(key.split("/")[0])])


def write_single(size: int, path: Path) -> Provenance:
    """One module that does everything itself."""
    chance = random.Random(0)
    made = ["x"]
    nodes = []
    for number in range(size):
        inputs = [made[-1], chance.choice(made[-500:])] if number % 3 == 0 else [chance.choice(made[-5:])]
        operator = "Add" if len(inputs) > 1 else chance.choice(_OPERATORS)
        nodes.append(helper.make_node(operator, inputs, [f"v{number}"]))
        made.append(f"v{number}")
    hierarchy = Hierarchy.of([Module("", "Single", "bench")], [CallSite(_ROOT, None)])
    return _write_tagged(_model(nodes), path, hierarchy, lambda _: _ROOT)


def _write_tagged(
    model: onnx.ModelProto, path: Path, hierarchy: Hierarchy, owner: Callable[[str], ModuleCall]
) -> Provenance:
    graph = index_model(model)
    known: Mapping[str, Attribution] = {node.key: _exact(owner(node.key)) for node in graph.nodes}
    record = Provenance(
        hierarchy=hierarchy,
        nodes={node.key: NodeEntry(node.key, node.name, node.op_type, known[node.key]) for node in graph.nodes},
        initializers={name: _exact(ModuleCall(name.rpartition(".")[0])) for name in graph.initializers},
        origin=Origin("by hand", "by hand", graph.fingerprint),
    )
    embed(model, record, EmbedOptions(level=Level.LEAN), None)
    path.write_bytes(model.SerializeToString())
    return record


def _model(nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("x", nodes[-1].output[0])]
    graph = helper.make_graph(nodes, "nodes", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _exact(call: ModuleCall) -> Attribution:
    return Attribution((call,), call, Confidence.EXACT, (Evidence(EvidenceKind.SCOPE, "by hand"),))


def _layer(number: int) -> ModuleCall:
    return ModuleCall(f"layers.{number}")


def _calls(number: int) -> list[ModuleCall]:
    return [ModuleCall(f"layers.{number}.{part}") for part in _PARTS]


def _layered(layers: int) -> Hierarchy:
    modules = [Module("", "Layers", "bench"), Module("layers", "ModuleList", "torch.nn", container=True)]
    sites = [CallSite(_ROOT, None)]
    for number in range(layers):
        modules.append(Module(_layer(number).path, "Layer", "bench"))
        sites.append(CallSite(_layer(number), _ROOT))
        for call in _calls(number):
            modules.append(Module(call.path, "Linear", "torch.nn", _LINEAR))
            sites.append(CallSite(call, _layer(number)))
    return Hierarchy.of(modules, sites)
