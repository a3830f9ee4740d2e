"""Graphs with modules, made by hand, that parts are cut out of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelexport.graph.file.reading import ModelFile
from modelexport.graph.index import index_model
from modelexport.record.hierarchy import CallSite, Hierarchy, Module, ModuleCall, TensorInfo, parent_path
from modelexport.record.provenance import Attribution, Confidence, Evidence, EvidenceKind, NodeEntry, Origin, Provenance
from modelexport.transform.extract.assembly import ExtractedPart, assemble_part
from modelexport.transform.extract.cut import Cut, Cutter
from modelexport.transform.extract.selection import select_modules

SHARED = Evidence(EvidenceKind.LINEAGE, "torch optimizer", "shared from 2")
FUSED = Evidence(EvidenceKind.LINEAGE, "torch optimizer", "fused from 2")


@dataclass(frozen=True)
class Handmade:
    """A graph with modules. Nodes are `output = Op(inputs)` with owners; values are float [batch, 4] unless stated."""

    nodes: Sequence[tuple[str, str, Sequence[str], str]]
    calls: Sequence[tuple[str, str]]
    outputs: Sequence[str]
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    classes: Mapping[str, str] = field(default_factory=dict)
    through: Mapping[str, int] = field(default_factory=dict)

    def file(self) -> ModelFile:
        made = [helper.make_node(op, inputs, [output], name=f"n_{output}") for output, op, inputs, _ in self.nodes]
        given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])]
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in self.outputs]
        stored = [numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        graph = helper.make_graph(made, "g", given, ends, stored)
        return ModelFile(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)]), {})

    def hierarchy(self) -> Hierarchy:
        called = [ModuleCall.parse(call) for call, _ in self.calls]
        paths = dict.fromkeys(["", *(parent_path(call.path) for call in called), *(call.path for call in called)])
        modules = [self._module(path) for path in sorted(paths)]
        sites = [
            CallSite(ModuleCall.parse(call), None if call == "" else ModuleCall.parse(by), self.through.get(call))
            for call, by in self.calls
        ]
        return Hierarchy.of(modules, sites)

    def _module(self, path: str) -> Module:
        name = self.classes.get(path, "Part")
        package = "torch.nn.modules.dropout" if name == "Dropout" else "net"
        weight = [
            TensorInfo("weight", array.shape, "float32", array.nbytes)
            for key, array in self.weights.items()
            if key == f"{path}.weight"
        ]
        return Module(path, name, package, tuple(weight), arguments=("x",), container=name == "ModuleList")

    def provenance(self) -> Provenance:
        hierarchy = self.hierarchy()

        def credited(key: str, owners: str) -> Attribution:
            calls = tuple(ModuleCall.parse(one) for one in owners.split("+"))
            evidence = tuple(filter(None, [Evidence(EvidenceKind.SCOPE, "hand"), self.evidence.get(key)]))
            return Attribution(calls, hierarchy.common_ancestor(calls), Confidence.EXACT, evidence)

        nodes = {
            output: NodeEntry(output, f"n_{output}", op, credited(output, owners))
            for output, op, _, owners in self.nodes
        }
        weights = {name: credited(name, parent_path(name)) for name in self.weights}
        graph = index_model(self.file().proto)
        return Provenance(hierarchy, nodes, weights, Origin("hand", "hand", graph.fingerprint))

    def cut(self, *modules: str) -> Cut:
        provenance = self.provenance()
        return Cutter(self.file(), provenance).cut(select_modules(provenance, modules))

    def extract(self, *modules: str) -> ExtractedPart:
        file, provenance = self.file(), self.provenance()
        cutter = Cutter(file, provenance)
        return assemble_part(file, provenance, cutter.cut(select_modules(provenance, modules)), cutter.types)


def run(extracted: ExtractedPart, **feed: np.ndarray) -> list[np.ndarray]:
    runtime = pytest.importorskip("onnxruntime")
    onnx.checker.check_model(extracted.file.proto, full_check=True)
    data = extracted.file.proto.SerializeToString()
    found: list[np.ndarray] = runtime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feed)
    return found


ROW = np.array([[1.0, -2.0, 3.0, -4.0]], np.float32)
