"""Descriptions: what a module of unknown class does, in the words of PyTorch. Never a class name that nobody wrote.

    MatMul with a weight, Add of a vector         Linear-like
    Conv with a kernel of two axes, BatchNorm     Conv2d + BatchNorm
    LayerNormalization                            LayerNorm-like; taken apart into its arithmetic: Norm-like
    more than three kinds of work                 nothing: it would describe no module but this one

Only modules without modules inside are described; constants, shapes and moving data around are no work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from modelexport.graph.index import Graph, Node
from modelexport.graph.operators import CARRIERS, MATRIX_PRODUCTS
from modelexport.record.hierarchy import Hierarchy, Module
from modelexport.record.provenance import NodeEntry, Provenance

_MOST_KINDS = 3
# PyTorch's words for ONNX operators that are called otherwise.
_WORDS = {
    "LayerNormalization": "LayerNorm",
    "SimplifiedLayerNormalization": "RMSNorm",
    "RMSNormalization": "RMSNorm",
    "BatchNormalization": "BatchNorm",
    "InstanceNormalization": "InstanceNorm",
    "GroupNormalization": "GroupNorm",
    "GlobalAveragePool": "AvgPool",
    "AveragePool": "AvgPool",
}


def describe_classes(graph: Graph, provenance: Provenance) -> Provenance:
    """The same record; modules of unknown class have a description of what their own nodes do."""
    kinds: dict[str, dict[str, None]] = {}
    for node in graph.nodes:
        entry = provenance.nodes[node.key]
        kind = _kind_of(graph, node, entry)
        if kind and node.key in graph.computed:
            for owner in entry.attribution.owners:
                kinds.setdefault(owner.path, {})[kind] = None
    tree = provenance.hierarchy
    leaves = {path: works for path, works in kinds.items() if not tree.children(path)}
    modules = [_describe(module, leaves) for module in tree.modules.values()]
    return replace(provenance, hierarchy=Hierarchy.of(modules, tree.calls))


def _describe(module: Module, kinds: Mapping[str, Mapping[str, None]]) -> Module:
    works = list(kinds.get(module.path, ()))
    # Adding is a bias, a residual or a step of something else, and describes a module only by itself.
    works = [work for work in works if work != "Add"] or works
    if module.is_class_known or not module.path or not 0 < len(works) <= _MOST_KINDS:
        return module
    return replace(module, class_name=f"{works[0]}-like" if len(works) == 1 else " + ".join(works))


def _kind_of(graph: Graph, node: Node, entry: NodeEntry) -> str:
    if entry.attribution.role == "norm":
        return _WORDS.get(node.op_type, "Norm")
    if node.operator == "Gather":
        return "Embedding" if node.inputs[:1] and node.inputs[0] in graph.initializers else ""
    if node.operator in CARRIERS:
        return ""
    if node.operator in MATRIX_PRODUCTS:
        return "Linear" if any(value in graph.initializers for value in node.inputs) else node.op_type
    if node.operator in ("Conv", "ConvTranspose", "FusedConv"):
        axes = [len(graph.initializers[value].shape) - 2 for value in node.inputs if value in graph.initializers]
        return f"{node.op_type.removeprefix('Fused')}{axes[0]}d" if axes and axes[0] > 0 else node.op_type
    return _WORDS.get(node.op_type, node.op_type)
