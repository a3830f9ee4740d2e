"""`SemanticMapper`: from the nodes of an ONNX model to modules, and to the live ones where the model is at hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import onnx

from modelexport.api.options import ExportResult
from modelexport.errors import UnknownName, UserError
from modelexport.graph.edges import edges_of
from modelexport.graph.index import MAIN, index_model, node_key, walk_nodes
from modelexport.record.evidence import Attribution
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.provenance import NodeEntry, Origin, Provenance
from modelexport.record.signals import Signals
from modelexport.resolve.provenance import build_provenance
from modelexport.roles.assign import assign_roles
from modelexport.strategies.claims import by_initializer, by_node
from modelexport.strategies.enhanced_semantic import NAME, enhanced_semantic

if TYPE_CHECKING:
    import torch


class SemanticMapper:
    """Maps the nodes of an ONNX model to modules.

    onnx_model  the model, with or without its weights
    hierarchy   the modules of the PyTorch model, to judge the nodes by with the strategy `enhanced_semantic`;
                or a record (`ExportResult.provenance`, `mx.load(path)`), to answer from as it is
    model       the live PyTorch model; only what returns live modules needs it
    result      the export that the ONNX model came from, where one did: its notes and its comparison with PyTorch
    """

    def __init__(
        self,
        onnx_model: onnx.ModelProto,
        hierarchy: Hierarchy | Provenance,
        model: torch.nn.Module | None = None,
        *,
        result: ExportResult | None = None,
    ) -> None:
        self.onnx_model = onnx_model
        self.result = result
        self._known = hierarchy
        self._model = model
        if model is not None:
            _check_fits(model, hierarchy.hierarchy if isinstance(hierarchy, Provenance) else hierarchy)

    @cached_property
    def provenance(self) -> Provenance:
        return self._known if isinstance(self._known, Provenance) else _judge(self.onnx_model, self._known)

    def map_all_nodes(self) -> dict[str, Attribution]:
        """The attribution of every node, by node name; by node key where the name is missing or not the only one."""
        nodes = self.provenance.nodes
        uses = Counter(entry.name for entry in nodes.values())
        return {
            entry.name if entry.name and uses[entry.name] == 1 else key: entry.attribution
            for key, entry in nodes.items()
        }

    def get_node_entry(self, node: onnx.NodeProto | str) -> NodeEntry:
        """The node with its attribution. A node is given as itself, by its name or by its key."""
        if not isinstance(node, (str, onnx.NodeProto)):
            raise UserError(f"{node!r} is not a node", "Give a NodeProto, a node's name or its key.")
        return self.provenance.entry(node if isinstance(node, str) else self._key(node))

    def get_node_attribution(self, node: onnx.NodeProto | str) -> Attribution:
        return self.get_node_entry(node).attribution

    def get_hf_module_for_onnx_node(self, node: onnx.NodeProto | str) -> torch.nn.Module | None:
        """The live module that issued a node; for a node with several owners, the module that encloses them all.

        None if nobody is known to have issued it: `get_node_attribution(node).reason` says why.
        """
        ancestor = self.get_node_attribution(node).ancestor
        model = self._live_model()
        return None if ancestor is None else model.get_submodule(ancestor.path)

    def get_hf_modules_for_onnx_node(self, node: onnx.NodeProto | str) -> tuple[torch.nn.Module, ...]:
        """The live modules of all owners: one, several for a fused or shared node, or none."""
        owners = self.get_node_attribution(node).owners
        model = self._live_model()
        return tuple(model.get_submodule(path) for path in dict.fromkeys(owner.path for owner in owners))

    def _live_model(self) -> torch.nn.Module:
        if self._model is None:
            raise UserError(
                "this mapper has no PyTorch model, so it cannot return a live module",
                "Make it with SemanticMapper(onnx_model, hierarchy, model=model); "
                "get_node_attribution(node).module is the module's path and needs no model.",
            )
        return self._model

    def _key(self, node: onnx.NodeProto) -> str:
        """The key of a node of this model. A node does not know its graph: what it is told by is its own content."""
        same = [(key, other) for key, other in self._by_output.get(_local(node), ()) if _same_operator(node, other)]
        if len(same) > 1:
            same = [(key, other) for key, other in same if other == node]
        if len(same) > 1:
            raise UserError(
                f"{len(same)} nodes of different graphs are all like {node.name or _local(node)!r}",
                f"Give the key of the one that is meant: {', '.join(key for key, _ in same)}.",
            )
        if not same:
            names = [entry.name or entry.key for entry in self.provenance.nodes.values()]
            raise UnknownName("node", node.name or _local(node), names)
        return same[0][0]

    @cached_property
    def _by_output(self) -> Mapping[str, list[tuple[str, onnx.NodeProto]]]:
        """Nodes of every graph by the name of their first output: unique in a graph, not in a model."""
        found: dict[str, list[tuple[str, onnx.NodeProto]]] = {}
        for key, proto in walk_nodes(self.onnx_model):
            found.setdefault(_local(proto), []).append((key, proto))
        return found


def _judge(onnx_model: onnx.ModelProto, hierarchy: Hierarchy) -> Provenance:
    graph = index_model(onnx_model)
    claims = enhanced_semantic(graph, hierarchy, Signals())
    origin = Origin(NAME, "unknown", graph.fingerprint)
    found = build_provenance(graph, hierarchy, by_node(claims), by_initializer(claims), origin)
    return assign_roles(graph, replace(found, edges=edges_of(graph)))


def _check_fits(model: torch.nn.Module, hierarchy: Hierarchy) -> None:
    """A model that is another one than was recorded would answer with wrong modules, and nobody would notice."""
    classes = {path: type(part).__name__ for path, part in model.named_modules()}
    for path, module in hierarchy.modules.items():
        if classes.get(path) != module.class_name:
            found = f"is {classes[path]}" if path in classes else "is missing"
            raise UserError(
                f"the model is not the one that was recorded: its module {path!r} {found}, "
                f"in the record it is {module.class_name}",
                "Give the model that was exported, or one built like it.",
            )


def _local(node: onnx.NodeProto) -> str:
    return node_key(node, MAIN)


def _same_operator(node: onnx.NodeProto, other: onnx.NodeProto) -> bool:
    return (node.op_type, node.domain) == (other.op_type, other.domain)
