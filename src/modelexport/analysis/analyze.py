"""Summing up a file by module: nodes, weights, operators, and how well each is known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from modelexport.analysis.amounts import ModuleSums, sum_by_module
from modelexport.analysis.facts import (
    Analysis,
    Coverage,
    FileFacts,
    ModuleFacts,
    NodeFacts,
    RoleFacts,
    Tally,
    Unowned,
)
from modelexport.graph.index import Graph
from modelexport.record.hierarchy import Module
from modelexport.record.provenance import NodeEntry, Provenance


@dataclass(frozen=True)
class Subject:
    """An opened file: its header, its graph, and its record fitted to that graph."""

    path: Path
    proto: onnx.ModelProto
    graph: Graph
    provenance: Provenance


def analyze_file(subject: Subject, filter_tag: str | None = None) -> Analysis:
    """Everything about a file, or about those of its nodes and weights whose tag contains `filter_tag`."""
    whole = subject.provenance
    shown = _filtered(whole, filter_tag) if filter_tag else whole
    owned = sum_by_module(whole, subject.graph)
    sums = owned if shown is whole else sum_by_module(shown, subject.graph)
    modules = tuple(_module(module, shown, sums) for module in shown.hierarchy.modules.values())
    if filter_tag:
        modules = tuple(module for module in modules if module.total.nodes or module.total.bytes)
    nodes = tuple(_node(entry, shown) for entry in shown.nodes.values())
    return Analysis(
        file=_file(subject),
        nodes=nodes,
        modules=modules,
        coverage=_coverage(shown),
        unowned=tuple(_unowned(whole, owned, filter_tag or "")),
        roles=_roles(nodes),
        filter_tag=filter_tag or "",
    )


def _filtered(provenance: Provenance, text: str) -> Provenance:
    nodes = {key: entry for key, entry in provenance.nodes.items() if text in provenance.tag(entry.attribution)}
    initializers = {
        name: attribution
        for name, attribution in provenance.initializers.items()
        if text in provenance.tag(attribution)
    }
    return replace(provenance, nodes=nodes, initializers=initializers)


def _file(subject: Subject) -> FileFacts:
    origin = subject.provenance.origin
    return FileFacts(
        path=str(subject.path),
        ir_version=subject.proto.ir_version,
        opsets={opset.domain or "ai.onnx": opset.version for opset in subject.proto.opset_import},
        exporter=origin.exporter,
        strategy=origin.strategy,
        model=origin.model,
        tools=dict(origin.tools),
        fingerprint=subject.graph.fingerprint,
        matches_record=origin.graph == subject.graph.fingerprint,
    )


def _node(entry: NodeEntry, provenance: Provenance) -> NodeFacts:
    attribution = entry.attribution
    return NodeFacts(
        name=entry.name,
        key=entry.key,
        op_type=entry.op_type,
        module=attribution.module,
        modules=attribution.modules,
        tag=provenance.tag(attribution),
        confidence=attribution.confidence,
        evidence=tuple(map(str, attribution.evidence)),
        reason=attribution.reason,
        role=attribution.role,
        layer=attribution.layer_id,
    )


def _roles(nodes: Iterable[NodeFacts]) -> tuple[RoleFacts, ...]:
    """Roles as they come in the graph, parts of one thing beside each other."""
    found: dict[str, dict[str, list[NodeFacts]]] = {}
    for node in nodes:
        if node.role:
            kind = found.setdefault(node.role.partition(".")[0], {})
            kind.setdefault(node.role, []).append(node)
    return tuple(_role(role, alike) for kind in found.values() for role, alike in kind.items())


def _role(role: str, nodes: Sequence[NodeFacts]) -> RoleFacts:
    layers = {node.layer for node in nodes if node.layer is not None}
    return RoleFacts(role, len(nodes), tuple(sorted(layers)))


def _module(module: Module, provenance: Provenance, sums: ModuleSums) -> ModuleFacts:
    return ModuleFacts(
        path=module.path,
        class_name=module.class_name,
        tag=provenance.tags.by_path.get(module.path, ""),
        calls=provenance.hierarchy.call_counts.get(module.path, 0),
        own=sums.own(module.path),
        total=sums.total(module.path),
    )


def _coverage(provenance: Provenance) -> Coverage:
    return Coverage(
        nodes=Tally.of(entry.attribution for entry in provenance.nodes.values()),
        initializers=Tally.of(provenance.initializers.values()),
    )


def _unowned(provenance: Provenance, sums: ModuleSums, text: str) -> Iterable[Unowned]:
    for path, module in provenance.hierarchy.modules.items():
        if not sums.owns(path) and text in provenance.tags.tag(path):
            inside = sums.owns_inside(path)
            yield Unowned(path, module.class_name, inside, _why(provenance, module, inside))


def _why(provenance: Provenance, module: Module, inside: bool) -> str:
    if module.path in provenance.absent:
        return provenance.absent[module.path]
    if module.path not in provenance.hierarchy.call_counts:
        return "it only holds other modules" if module.container else "it was not called"
    if inside:
        return "the modules inside of it issue all of its operators"
    return "nothing of it is in the graph any more"
