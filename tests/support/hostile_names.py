"""A tagged file in which every name is one that some format cannot write."""

from __future__ import annotations

from pathlib import Path

import onnx
from measure.bench.odd_model import NAMES
from onnx import TensorProto, helper

from modelexport.graph.file.metadata import EmbedOptions, embed
from modelexport.graph.index import index_model
from modelexport.record.hierarchy import CallSite, Hierarchy, Module, ModuleCall
from modelexport.record.provenance import Attribution, Confidence, Evidence, EvidenceKind, NodeEntry, Origin, Provenance

# What comes between dots is the name of a module, so that a name has none.
PATHS = [name.replace(".", "_") for name in NAMES]


def hostile_file(path: Path) -> Path:
    """One module for each name, with one more of the same name inside; each owns a node of that name."""
    nodes, modules, entries = [], [Module("", "Net", "net")], {}
    calls = [CallSite(ModuleCall(""), None)]
    read = "x"
    for name in PATHS:
        for module in (name, f"{name}.{name}"):
            modules.append(Module(module, f"Class{name}", "net"))
            above = ModuleCall("" if module == name else name)
            calls.append(CallSite(ModuleCall(module), above))
            made = f"value of {module}"
            nodes.append(helper.make_node("Relu", [read], [made], name=name))
            evidence = (Evidence(EvidenceKind.SCOPE, "hand", name),)
            owners = (ModuleCall(module),)
            entries[made] = NodeEntry(made, name, "Relu", Attribution(owners, owners[0], Confidence.EXACT, evidence))
            read = made
    first, last = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, [1])] for name in ("x", read))
    model = helper.make_model(helper.make_graph(nodes, "hostile", first, last), ir_version=10)
    origin = Origin("hand", "hand", index_model(model).fingerprint)
    embed(model, Provenance(Hierarchy.of(modules, calls), entries, {}, origin), EmbedOptions())
    onnx.save(model, path)
    return path
