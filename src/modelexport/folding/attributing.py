"""What the record of a folded file says.

A node inside of a function stands for one in every call of it, and belongs to all modules that those belong to. A call
belongs to the module that it stands for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import onnx

from modelexport.folding.patterns import Function, Region, Regions
from modelexport.folding.plan import Plan
from modelexport.graph.folded import FOLDED_DOMAIN
from modelexport.graph.index import MAIN, bodies, function_id, node_key, walk_nodes
from modelexport.graph.order import in_order
from modelexport.record.evidence import Attribution, Confidence, Evidence, EvidenceKind, unattributed
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.provenance import NodeEntry, Provenance

_Value = TypeVar("_Value", str, int | None)


def folded_record(
    provenance: Provenance, plan: Plan, names: Mapping[int, str], folded: onnx.ModelProto, fingerprint: str
) -> tuple[Provenance, frozenset[str]]:
    """The record of the folded graph, and the keys of the nodes that it has and the flat one had not."""
    made = _Attributions(provenance, plan.regions)
    found: dict[str, Attribution] = {}
    for item, node in zip(plan.items, folded.graph.node, strict=True):
        if item in plan.regions.called:
            found[node_key(node, MAIN)] = made.of_calls([plan.regions.called[item]])
    protos = {function.name: function for function in folded.functions if function.domain == FOLDED_DOMAIN}
    for function in plan.functions:
        proto = protos[names[function.number]]
        found.update(made.of_function(function, proto))
    missing = unattributed("not in the record: the graph was changed after export")
    nodes = {}
    for key, node in walk_nodes(folded):
        known = provenance.nodes.get(key)
        attribution = found.get(key) or (known.attribution if known is not None else missing)
        nodes[key] = NodeEntry(key, node.name, node.op_type, attribution)
    origin = replace(provenance.origin, graph=fingerprint)
    return replace(provenance, nodes=nodes, origin=origin, edges=None), frozenset(found)


class _Attributions:
    def __init__(self, provenance: Provenance, regions: Regions) -> None:
        self._record = provenance
        self._regions = regions

    def of_function(self, function: Function, proto: onnx.FunctionProto) -> Iterator[tuple[str, Attribution]]:
        graph_id = function_id(proto)
        for number, node in enumerate(proto.node):
            items = [region.items[number] for region in function.calls]
            if items[0] in self._regions.called:
                yield node_key(node, graph_id), self.of_calls([self._regions.called[item] for item in items])
            else:
                atoms = [self._regions.atom_at(region, number).proto for region in function.calls]
                columns = [keys_inside(node, graph_id), *(keys_inside(atom, MAIN) for atom in atoms)]
                for key, *keys in zip(*columns, strict=True):
                    yield key, shared([self._record.recorded(one) for one in keys], self._record.hierarchy)

    def of_calls(self, regions: Sequence[Region]) -> Attribution:
        owners = tuple(dict.fromkeys(region.call for region in regions))
        inside = [self._record.recorded(node_key(atom.proto, MAIN)) for atom in self._regions.atoms(regions[0])]
        return Attribution(
            owners,
            self._record.hierarchy.common_ancestor(owners),
            min((one.confidence for one in inside if one.owners), default=Confidence.INFERRED),
            (Evidence(EvidenceKind.LINEAGE, "fold", f"{len(inside)} node{'s' * (len(inside) > 1)}"),),
            layer_id=_common([one.layer_id for one in inside]) if len(owners) == 1 else None,
        )


def shared(found: Sequence[Attribution], hierarchy: Hierarchy) -> Attribution:
    """The attribution of a node that stands for several."""
    if len(found) == 1:
        return found[0]
    known = [one for one in found if one.owners] or list(found[:1])
    owners = tuple(dict.fromkeys(call for one in known for call in one.owners))
    common = set.intersection(*(set(one.evidence) for one in known))
    reason = Evidence(EvidenceKind.LINEAGE, "fold", f"{len(found)} calls")
    return Attribution(
        owners,
        hierarchy.common_ancestor(owners),
        min(one.confidence for one in known),
        (*(one for one in known[0].evidence if one in common), reason) if owners else (),
        known[0].reason,
        role=_common([one.role for one in known]) or "",
        layer_id=_common([one.layer_id for one in known]),
    )


def keys_inside(node: onnx.NodeProto, graph_id: str) -> Iterator[str]:
    """The keys of a node and of all nodes in its bodies."""
    key = node_key(node, graph_id)
    yield key
    for body_id, body in bodies(node, key):
        for inner in in_order(body.node):
            yield from keys_inside(inner, body_id)


def _common(values: Sequence[_Value]) -> _Value | None:
    return values[0] if len(set(values)) == 1 else None
