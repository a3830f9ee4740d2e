"""A small tagged file, made by hand: two blocks between an embedding and a residual, and a module that never runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelexport.graph.file.metadata import EmbedOptions, Level, embed, sidecar_path
from modelexport.graph.index import index_model
from modelexport.record.document import write_document
from modelexport.record.hierarchy import CallSite, Hierarchy, Module, ModuleCall, TensorInfo
from modelexport.record.provenance import Attribution, Confidence, Evidence, EvidenceKind, NodeEntry, Origin, Provenance

# First output of each node, its operator, its inputs, and the module that issued it.
NODES = (
    ("e", "Gather", ("emb.weight", "ids"), "emb"),
    ("h0", "MatMul", ("e", "layers.0.fc.weight"), "layers.0.fc"),
    ("r0", "Relu", ("h0",), "layers.0"),
    ("h1", "MatMul", ("r0", "layers.1.fc.weight"), "layers.1.fc"),
    ("r1", "Relu", ("h1",), "layers.1"),
    ("y", "Add", ("r1", "e"), ""),
)
WEIGHTS = {"emb.weight": (10, 4), "layers.0.fc.weight": (4, 4), "layers.1.fc.weight": (4, 4)}


def _module(path: str, class_name: str, package: str, *, container: bool = False) -> Module:
    shape = WEIGHTS.get(f"{path}.weight")
    weight = () if shape is None else (TensorInfo("weight", shape, "float32", 4 * prod(shape)),)
    return Module(path, class_name, package, weight, container=container)


def small_hierarchy(*, without: str | None = None) -> Hierarchy:
    modules = [
        _module("", "Net", "my.nets"),
        _module("emb", "Embedding", "torch.nn.modules.sparse"),
        _module("layers", "ModuleList", "torch.nn.modules.container", container=True),
    ]
    calls = [CallSite(ModuleCall(""), None), CallSite(ModuleCall("emb"), ModuleCall(""))]
    for block in ("layers.0", "layers.1"):
        modules.append(_module(block, "Block", "my.nets"))
        modules.append(_module(f"{block}.fc", "Linear", "torch.nn.modules.linear"))
        calls.append(CallSite(ModuleCall(block), ModuleCall("")))
        calls.append(CallSite(ModuleCall(f"{block}.fc"), ModuleCall(block)))
    modules.append(_module("drop", "Dropout", "torch.nn.modules.dropout"))
    return Hierarchy.of([module for module in modules if module.path != without], calls)


def credited(*calls: str, confidence: Confidence = Confidence.EXACT) -> Attribution:
    owners = tuple(map(ModuleCall.parse, calls))
    evidence = (Evidence(EvidenceKind.SCOPE, "hand"),)
    return Attribution(owners, small_hierarchy().common_ancestor(owners), confidence, evidence)


@dataclass(frozen=True)
class SmallFile:
    """A recipe for a tagged file. `owners` overrides attributions and `names` node names, both by node key."""

    owners: Mapping[str, Attribution] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    level: Level = Level.FULL
    sidecar: bool = True
    hierarchy: Hierarchy = field(default_factory=small_hierarchy)

    def proto(self) -> onnx.ModelProto:
        nodes = [helper.make_node(op, inputs, [output], name=self._name(output)) for output, op, inputs, _ in NODES]
        ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [2])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])
        weights = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in WEIGHTS.items()]
        graph = helper.make_graph(nodes, "g", [ids], [y], weights)
        return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])

    def provenance(self) -> Provenance:
        entries = {
            key: NodeEntry(key, self._name(key), op, self.owners.get(key, credited(module)))
            for key, op, _, module in NODES
        }
        weights = {name: credited(name.rpartition(".")[0]) for name in WEIGHTS}
        fingerprint = index_model(self.proto()).fingerprint
        origin = Origin("enhanced_semantic", "dynamo", fingerprint, "Net", {"torch": "2.13.0"})
        return Provenance(self.hierarchy, entries, weights, origin)

    def write(self, path: Path) -> Path:
        model, provenance = self.proto(), self.provenance()
        embed(model, provenance, EmbedOptions(self.level))
        onnx.save(model, path)
        if self.sidecar:
            sidecar_path(path).write_text(write_document(provenance), encoding="utf-8")
        return path

    def but(self, **owners: Attribution) -> SmallFile:
        return replace(self, owners={**self.owners, **owners})

    def _name(self, key: str) -> str:
        return self.names.get(key, f"node_{key}")


@pytest.fixture
def small() -> SmallFile:
    return SmallFile()


@pytest.fixture
def small_path(small: SmallFile, tmp_path: Path) -> Path:
    """A sound file with its record inside and beside it."""
    return small.write(tmp_path / "small.onnx")
