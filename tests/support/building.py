"""Small hierarchies and graphs, made by hand or at random."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from modelexport.attribute.scopes import SCOPES_KEY
from modelexport.graph.index import Graph, index_model
from modelexport.record.document import write_document
from modelexport.record.hierarchy import ROOT, CallSite, Hierarchy, Module, ModuleCall, TensorInfo, join, lineage_of
from modelexport.record.provenance import (
    Attribution,
    Claim,
    Confidence,
    Evidence,
    EvidenceKind,
    NodeEntry,
    Origin,
    Provenance,
    unattributed,
)
from modelexport.record.tags import Scope, TagPolicy, TorchNN

CONTAINERS = ("ModuleList", "ModuleDict", "Sequential")
PARAMETERS = {
    "Linear": ("weight", "bias"),
    "Conv2d": ("weight",),
    "BatchNorm2d": ("weight", "bias"),
    "LayerNorm": ("weight", "bias"),
    "Embedding": ("weight",),
    "ReLU": (),
    "Dropout": (),
    "Identity": (),
}


def module(path: str, class_name: str, package: str | None = None, aliases: Sequence[str] = ()) -> Module:
    """A module of torch.nn where the class is one of torch's, else of the package `net`."""
    container = class_name in CONTAINERS
    known = container or class_name in PARAMETERS
    return Module(
        path,
        class_name,
        package or ("torch.nn.modules" if known else "net"),
        parameters=tuple(TensorInfo(name, (2, 3), "float32", 24) for name in PARAMETERS.get(class_name, ())),
        aliases=tuple(aliases),
        container=container,
    )


def run(*paths: str) -> tuple[CallSite, ...]:
    """Calls in the order in which they began, each made from the latest call of the nearest module above it."""
    latest: dict[str, ModuleCall] = {}
    counts: dict[str, int] = {}
    sites = []
    for path in paths:
        above = [latest[name] for name in lineage_of(path) if name in latest and name != path]
        call = ModuleCall(path, counts.get(path, 0))
        counts[path] = call.index + 1
        latest[path] = call
        sites.append(CallSite(call, above[-1] if above else None))
    return tuple(sites)


def tree(classes: Mapping[str, str], *calls: str) -> Hierarchy:
    """A hierarchy from paths and class names; without `calls`, every module that is no container ran once."""
    modules = [module(path, class_name) for path, class_name in classes.items()]
    ran = calls or tuple(part.path for part in modules if not part.container)
    return Hierarchy.of(modules, run(*ran))


def node(
    op_type: str,
    inputs: str,
    outputs: str,
    name: str = "",
    scope: Sequence[str] = (),
    **attributes: Any,
) -> onnx.NodeProto:
    """A node; names are separated by blanks, `_` is a left-out value, `scope` is what dynamo writes."""
    proto = helper.make_node(op_type, _names(inputs), _names(outputs), name or None, **attributes)
    if scope:
        set_metadata(proto, {SCOPES_KEY: repr(list(scope))})
    return proto


def _names(text: str) -> list[str]:
    return ["" if name == "_" else name for name in text.split()]


def set_metadata(
    holder: onnx.ModelProto | onnx.GraphProto | onnx.NodeProto | onnx.ValueInfoProto | onnx.TensorProto,
    entries: Mapping[str, str],
) -> None:
    for key, value in entries.items():
        holder.metadata_props.add(key=key, value=value)


def weight(name: str, *values: float) -> onnx.TensorProto:
    """A tensor with its data in it; without values it has a header alone, like a large weight."""
    if values:
        return numpy_helper.from_array(np.array(values, np.float32), name)
    return TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[64, 64])


def body(
    *nodes: onnx.NodeProto, outputs: str, inputs: str = "", weights: Iterable[onnx.TensorProto] = ()
) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "body", _values(inputs), _values(outputs), list(weights))


def model(
    *nodes: onnx.NodeProto,
    inputs: str = "x",
    outputs: str = "y",
    weights: Iterable[str | onnx.TensorProto] = (),
    functions: Iterable[onnx.FunctionProto] = (),
    ir_version: int = 10,
) -> onnx.ModelProto:
    tensors = [weight(item) if isinstance(item, str) else item for item in weights]
    graph = helper.make_graph(list(nodes), "main", _values(inputs), _values(outputs), tensors)
    imports = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, ir_version=ir_version, opset_imports=imports, functions=list(functions))


def _values(names: str) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names.split()]


def graph(
    *nodes: onnx.NodeProto, inputs: str = "x", outputs: str = "y", weights: Iterable[str | onnx.TensorProto] = ()
) -> Graph:
    return index_model(model(*nodes, inputs=inputs, outputs=outputs, weights=weights))


def claim(*owners: str, confidence: Confidence = Confidence.EXACT, strategy: str = "test") -> Claim:
    """A claim for calls as they are written: `block.fc#2`."""
    return Claim(tuple(map(ModuleCall.parse, owners)), confidence, (Evidence(EvidenceKind.SCOPE, "test"),), strategy)


def owners(claims: Mapping[str, Claim]) -> dict[str, tuple[str, ...]]:
    """What claims say, as written."""
    return {key: tuple(map(str, found.owners)) for key, found in claims.items()}


def attribution(hierarchy: Hierarchy, *calls: str) -> Attribution:
    found = tuple(map(ModuleCall.parse, calls))
    if not found:
        return unattributed("nobody knows")
    return Attribution(found, hierarchy.common_ancestor(found), Confidence.EXACT, (Evidence(EvidenceKind.SCOPE, "t"),))


def provenance(proto: onnx.ModelProto, hierarchy: Hierarchy, found: Mapping[str, Sequence[str]]) -> Provenance:
    """Every node by its key with the calls that `found` gives it."""
    entries = [
        NodeEntry(item.key, item.name, item.op_type, attribution(hierarchy, *found.get(item.key, ())))
        for item in index_model(proto).nodes
    ]
    return Provenance(hierarchy, {entry.key: entry for entry in entries}, {}, Origin("test", "test"))


# Random values. Module names may hold anything but a dot.
_NAMES = st.text("ab01/%#|_ é[", min_size=1, max_size=3)
_CLASSES = st.sampled_from(
    [
        ("Block", "net"),
        ("Linear", "torch.nn.modules.linear"),
        ("LayerNorm", "torch.nn.modules.normalization"),
        ("ModuleList", "torch.nn.modules.container"),
        ("Sequential", "torch.nn.modules.container"),
        ("BertLayer", "transformers.models.bert.modeling_bert"),
        ("A.b/c%", "__main__"),
    ]
)
_TEXT = st.text('abc é"\\\n', max_size=4)


@st.composite
def module_trees(draw: st.DrawFn) -> list[Module]:
    """Modules in the order in which torch lists them: each before its children, root first."""
    children: dict[str, list[str]] = {ROOT: []}
    for _ in range(draw(st.integers(0, 7))):
        parent = draw(st.sampled_from(sorted(children)))
        path = join(parent, draw(_NAMES))
        if path not in children:
            children[path] = []
            children[parent].append(path)
    return [draw(_modules(path)) for path in _in_order(ROOT, children)]


def _in_order(path: str, children: Mapping[str, list[str]]) -> list[str]:
    return [path, *(below for child in children[path] for below in _in_order(child, children))]


@st.composite
def _modules(draw: st.DrawFn, path: str) -> Module:
    class_name, package = draw(_CLASSES)
    tensors = st.builds(
        TensorInfo, _NAMES, st.tuples(st.integers(0, 3)), st.sampled_from(["float32", "int64"]), st.integers(0, 99)
    )
    return Module(
        path,
        class_name,
        package,
        tuple(draw(st.lists(tensors, max_size=2))),
        tuple(draw(st.lists(tensors, max_size=1))),
        tuple(draw(st.lists(_TEXT, max_size=2))),
        container=class_name in CONTAINERS,
    )


@st.composite
def hierarchies(draw: st.DrawFn) -> Hierarchy:
    modules = draw(module_trees())
    paths = [part.path for part in modules]
    if draw(st.booleans()):
        place = draw(st.integers(0, len(modules) - 1))
        modules[place] = replace(modules[place], aliases=("another.name", "a third"))
    sites = [CallSite(ModuleCall(ROOT), None)]
    counts = {ROOT: 1}
    for _ in range(draw(st.integers(0, 6))):
        parent, path = draw(st.sampled_from(sites)).call, draw(st.sampled_from(paths))
        sites.append(CallSite(ModuleCall(path, counts.get(path, 0)), parent))
        counts[path] = counts.get(path, 0) + 1
    return Hierarchy.of(modules, sites)


evidences = st.builds(Evidence, st.sampled_from(EvidenceKind), _TEXT, _TEXT)


def calls_of(hierarchy: Hierarchy) -> st.SearchStrategy[ModuleCall]:
    return st.builds(ModuleCall, st.sampled_from(sorted(hierarchy.modules)), st.integers(0, 2))


def claims_on(hierarchy: Hierarchy) -> st.SearchStrategy[Claim]:
    return st.builds(
        Claim,
        st.lists(calls_of(hierarchy), max_size=3, unique=True).map(tuple),
        st.sampled_from(Confidence),
        st.lists(evidences, max_size=2).map(tuple),
        st.sampled_from(["first", "second"]),
    )


@st.composite
def attributions_on(draw: st.DrawFn, hierarchy: Hierarchy) -> Attribution:
    best = draw(claims_on(hierarchy))
    if not best.owners:
        return unattributed(draw(_TEXT) or "unknown")
    lost = draw(st.lists(claims_on(hierarchy), max_size=1))
    ancestor = hierarchy.common_ancestor(best.owners)
    return Attribution(best.owners, ancestor, best.confidence, best.evidence, lost=tuple(lost))


globs = st.lists(st.sampled_from(["*", "a*", "*.b", "Linear", "B*", "?"]), max_size=2).map(tuple)
policies = st.builds(
    TagPolicy,
    st.sampled_from(Scope),
    st.sampled_from(TorchNN),
    st.sampled_from([(), ("Linear",), ("LayerNorm", "ModuleList")]),
    globs,
    globs,
)


@st.composite
def provenances(draw: st.DrawFn) -> Provenance:
    hierarchy = draw(hierarchies())
    answers = attributions_on(hierarchy)
    keys = draw(st.lists(_TEXT, max_size=4, unique=True))
    nodes = {key: NodeEntry(key, draw(_TEXT), draw(st.sampled_from(["Add", "MatMul"])), draw(answers)) for key in keys}
    absent = st.dictionaries(st.sampled_from([*hierarchy.modules, "elsewhere"]), _TEXT, max_size=2)
    return Provenance(
        hierarchy,
        nodes,
        draw(st.dictionaries(_TEXT, answers, max_size=2)),
        Origin(
            draw(_TEXT),
            draw(_TEXT),
            draw(_TEXT),
            draw(_TEXT),
            draw(st.dictionaries(_TEXT, _TEXT, max_size=2)),
            draw(st.dictionaries(_TEXT, st.dictionaries(st.integers(0, 3), st.integers(1, 99)), max_size=2)),
        ),
        draw(policies),
        draw(absent),
    )


def to_document(value: Provenance) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(write_document(value))
    return found


def damage(document: Any, data: st.DataObject) -> None:
    """Put something else in the place of some value, however deep."""
    here = document
    while True:
        keys = sorted(here) if isinstance(here, dict) else range(len(here))
        place: Any = data.draw(st.sampled_from(list(keys)))
        below = here[place]
        if not (isinstance(below, dict | list) and below) or data.draw(st.booleans()):
            here[place] = data.draw(st.sampled_from([None, 7, -1, "text", [], {}, [[]], float("inf"), [None, None]]))
            return
        here = below
