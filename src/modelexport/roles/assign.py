"""Roles and layers for all nodes and initializers of a record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from modelexport.graph.index import Graph
from modelexport.record.provenance import NodeEntry, Provenance
from modelexport.roles.attention import attention_roles, find_attentions
from modelexport.roles.embeddings import embedding_roles
from modelexport.roles.ends import find_places, head_roles, other_products
from modelexport.roles.flow import Flow, trace_flow
from modelexport.roles.layers import Layers
from modelexport.roles.mlp import mlp_roles
from modelexport.roles.norms import find_norms
from modelexport.roles.operators import MOVES
from modelexport.roles.residuals import find_residuals
from modelexport.roles.rotation import operand_roles


def assign_roles(graph: Graph, provenance: Provenance) -> Provenance:
    """The same record with role and layer of every node and initializer filled in."""
    layers = Layers(provenance.hierarchy)
    flow = trace_flow(graph)
    roles = _find_roles(flow, _lists(provenance, layers))
    numbers = {key: layers.of(entry.attribution) for key, entry in provenance.nodes.items()}
    return replace(
        provenance,
        nodes={key: _with_role(entry, roles.get(key, ""), numbers[key]) for key, entry in provenance.nodes.items()},
        initializers={
            name: replace(attribution, role=_role_of_weight(graph, name, roles), layer_id=_layer(graph, name, numbers))
            for name, attribution in provenance.initializers.items()
        },
    )


def _lists(provenance: Provenance, layers: Layers) -> dict[str, str]:
    """For nodes inside a repeated block: the path of the list that holds the block."""
    blocks = {key: layers.block(entry.attribution) for key, entry in provenance.nodes.items()}
    return {key: layers.container(block.path) for key, block in blocks.items() if block is not None}


def _find_roles(flow: Flow, lists: Mapping[str, str]) -> dict[str, str]:
    """Earlier rules win: each one is told what is known already."""
    roles = find_norms(flow)
    attentions = find_attentions(flow)
    roles |= attention_roles(flow, attentions)
    roles |= operand_roles(flow, attentions, roles)
    roles |= embedding_roles(flow, attentions, roles)
    roles |= find_residuals(flow, roles)
    places = find_places(flow, lists, {key: role for key, role in roles.items() if role == "residual"})
    roles |= head_roles(flow, places, roles)
    roles |= mlp_roles(flow, roles)
    roles |= other_products(flow, places, roles)
    roles |= _biases(flow, roles)
    roles |= _moved_weights(flow, roles)
    return roles


def _biases(flow: Flow, roles: Mapping[str, str]) -> dict[str, str]:
    """Adding a vector to a product is part of it."""
    found: dict[str, str] = {}
    for key, product in flow.products.items():
        readers = flow.graph.consumers.get(product.node.outputs[0], ())
        if key in roles and len(readers) == 1 and readers[0].op_type == "Add" and readers[0].key not in roles:
            others = [value for value in readers[0].inputs if value not in product.node.outputs]
            if product.weight and others and flow.trace(others[0]).weight:
                found[readers[0].key] = roles[key]
    return found


def _moved_weights(flow: Flow, roles: Mapping[str, str]) -> dict[str, str]:
    """Transposing or converting a weight is part of what reads it."""
    found: dict[str, str] = {}
    for node in reversed(flow.order):
        if node.op_type in MOVES and node.key not in roles and flow.trace(node.key).weight:
            readers = flow.graph.successors(node)
            role = _agreed(found.get(reader.key) or roles.get(reader.key, "") for reader in readers)
            if role:
                found[node.key] = role
    return found


def _agreed(roles: Iterable[str]) -> str:
    distinct = set(roles)
    return distinct.pop() if len(distinct) == 1 else ""


def _with_role(entry: NodeEntry, role: str, layer: int | None) -> NodeEntry:
    return replace(entry, attribution=replace(entry.attribution, role=role, layer_id=layer))


def _role_of_weight(graph: Graph, name: str, roles: Mapping[str, str]) -> str:
    return _agreed(roles.get(reader.key, "") for reader in graph.consumers.get(name, ()))


def _layer(graph: Graph, name: str, numbers: Mapping[str, int | None]) -> int | None:
    """The layer of everything that reads it; a weight that several layers read is part of none."""
    distinct = {numbers.get(reader.key) for reader in graph.consumers.get(name, ())}
    return distinct.pop() if len(distinct) == 1 else None
