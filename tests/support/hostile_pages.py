"""A tagged file whose names want to be more than names."""

from __future__ import annotations

from pathlib import Path

from onnx import TensorProto, helper

from modelexport.graph.file.metadata import EmbedOptions, embed
from modelexport.graph.index import index_model
from modelexport.record.hierarchy import CallSite, Hierarchy, Module, ModuleCall, TensorInfo
from modelexport.record.provenance import Attribution, Confidence, Evidence, EvidenceKind, NodeEntry, Origin, Provenance

NAMES = (
    "<img src=x onerror=window.hacked=1>",
    "</script><script>window.hacked=1</script>",
    '"><svg onload=window.hacked=1>',
    "<a href='javascript:window.hacked=1'>here</a>",
    "javascript:window.hacked=1",
    "<b>bold</b> &amp; <br> &lt;i&gt; $x^2$ %{label}",
    "{{plotly}} {{data}}",
    "__proto__",
    "\u202eeslaf\u2028\u0000",
    "#/?node=<script>",
)
FILE = "<img src=x onerror=window.hacked=1>.onnx"


def write_hostile(folder: Path) -> Path:
    """Every name as a module, a class, a node, an operator, a tensor, a role and a piece of evidence."""
    nodes, modules, calls = [], [Module("", NAMES[0], NAMES[1])], [CallSite(ModuleCall(""), None)]
    owners = {}
    value = "in" + NAMES[0]
    for number, name in enumerate(NAMES):
        path, after = name.replace(".", "_"), f"{name}{number}"
        modules += [_module(path, name), _module(f"{path}.{path}", name)]
        inner = ModuleCall(f"{path}.{path}")
        calls += [CallSite(ModuleCall(path), ModuleCall("")), CallSite(inner, ModuleCall(path))]
        for step, owner in ((f"{after}a", inner), (f"{after}b", ModuleCall(path)), (after, ModuleCall(""))):
            nodes.append(helper.make_node(name or "Relu", [value], [step], name=step, domain=name))
            owners[step] = owner
            value = step
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [NAMES[0], 2]) for end in ("in" + NAMES[0], value)]
    model = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]), producer_name=NAMES[0])
    model.opset_import.extend(helper.make_opsetid(name, 1) for name in NAMES)
    graph = index_model(model)
    entries = {
        node.key: NodeEntry(node.key, node.name, node.op_type, _answer(owners[node.key], node.op_type))
        for node in graph.nodes
    }
    origin = Origin(NAMES[0], NAMES[1], graph.fingerprint, NAMES[2], {NAMES[3]: NAMES[4]})
    embed(model, Provenance(Hierarchy.of(modules, calls), entries, {}, origin), EmbedOptions())
    path_of_file = folder / FILE
    path_of_file.write_bytes(model.SerializeToString())
    return path_of_file


def _module(path: str, name: str) -> Module:
    return Module(path, name, name, (TensorInfo(name, (2, 3), name, 24),), aliases=(f"{path}!",))


def _answer(owner: ModuleCall, name: str) -> Attribution:
    evidence = (Evidence(EvidenceKind.SCOPE, name, name),)
    return Attribution((owner,), owner, Confidence.EXACT, evidence, role=f"{name}.{name}")
