"""Folded model: functions, their calls, and a main graph without what went into them; and its record.

    before   MatMul_0, Relu_0 (layer.0)   MatMul_1, Relu_1 (layer.1)
    after    layer.0 = Layer(x, w0)       layer.1 = Layer(y, w1)       function Layer(x, weight): MatMul, Relu

A function is written from its first call. Nodes keep what all calls have in common: metadata, types, doc strings. Names
inside are relative to the module: `query.weight`, not `encoder.layer.0.attention.query.weight`. A node of a function
belongs to the modules of all calls; a call belongs to the module that it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import onnx

from modelexport.graph.file.metadata import FOLDED_DOMAIN, PREFIX
from modelexport.graph.index import MAIN, function_id, node_key, walk_graph_nodes, walk_nodes
from modelexport.graph.protos import names_inside, plain_domain, rename_captured, unite_types, with_inner
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.provenance import (
    Attribution,
    Confidence,
    Evidence,
    EvidenceKind,
    NodeEntry,
    Provenance,
    unattributed,
)
from modelexport.transform.fold.patterns import FoldRegion, FunctionPattern, RegionPatterns
from modelexport.transform.fold.plan import FoldingPlan, list_hidden_values
from modelexport.transform.fold.working_graph import FreeNames, constant_tensor, function_identifier, relative_name

# Functions have had types of their values, and metadata on their nodes, since this version of the format.
_IR_WITH_FUNCTION_TYPES = 10
_OPSET = 1


@dataclass(frozen=True, eq=False)
class BuiltModel:
    """`names`: of the functions, by their number."""

    model: onnx.ModelProto
    names: Mapping[int, str]


def build_folded_model(model: onnx.ModelProto, plan: FoldingPlan) -> BuiltModel:
    """The folded model; `model` is left as it is. Weights stay where they are."""
    return _FoldedModelBuilder(model, plan).build()


class _FoldedModelBuilder:
    """
    _names     of the functions, by their number
    _versions  of operator sets that the model imports, by domain
    _weights   names of initializers
    _types     by name of a value of the main graph
    """

    def __init__(self, model: onnx.ModelProto, plan: FoldingPlan) -> None:
        self._source = model
        self._plan = plan
        self._regions = plan.regions
        free_names = FreeNames(function.name for function in model.functions if function.domain == FOLDED_DOMAIN)
        self._names = {
            function.number: free_names.free(function_identifier(function.class_name)) for function in plan.functions
        }
        self._versions = {plain_domain(entry.domain): entry.version for entry in model.opset_import}
        self._weights = {tensor.name for tensor in model.graph.initializer}
        self._types = {value.name: value for value in model.graph.value_info}

    def build(self) -> BuiltModel:
        model = onnx.ModelProto()
        model.CopyFrom(self._source)
        if self._plan.functions:
            self._fold_main(model.graph)
            model.functions.extend(map(self._function, self._plan.functions))
            model.opset_import.append(onnx.helper.make_opsetid(FOLDED_DOMAIN, _OPSET))
            model.ir_version = max(model.ir_version, _IR_WITH_FUNCTION_TYPES)
        return BuiltModel(model, self._names)

    def _fold_main(self, graph: onnx.GraphProto) -> None:
        """Calls in the place of nodes; types of values that are inside of functions now would name nothing."""
        names = FreeNames(node.name for node in graph.node)
        nodes = [self._main_node(item, names) for item in self._plan.items]
        hidden = set(list_hidden_values(self._plan))
        kept = [value for value in graph.value_info if value.name not in hidden]
        del graph.node[:], graph.value_info[:]
        graph.node.extend(nodes)
        graph.value_info.extend(kept)

    def _main_node(self, item: int, names: FreeNames) -> onnx.NodeProto:
        fold_node = self._regions.fold_node(item)
        if fold_node is not None:
            return fold_node.proto
        region = self._regions.called[item]
        call = self._call(region, {})
        call.name = names.free(str(region.call))
        return call

    def _call(self, region: FoldRegion, inside: Mapping[str, str]) -> onnx.NodeProto:
        """A node that calls a region's function; `inside` names its values if it is in a function itself."""
        function = region.function
        assert function is not None
        outputs = [self._regions.value(region, output) for output in function.outputs]
        return onnx.NodeProto(
            op_type=self._names[function.number],
            domain=FOLDED_DOMAIN,
            input=[inside.get(name, name) for name in region.formals],
            output=[inside.get(name, name) for name in outputs],
        )

    def _function(self, function: FunctionPattern) -> onnx.FunctionProto:
        region = function.calls[0]
        inside = self._names_inside(function)
        nodes = list(self._nodes(function, inside))
        return onnx.FunctionProto(
            name=self._names[function.number],
            domain=FOLDED_DOMAIN,
            input=[inside[name] for name in region.formals],
            output=[inside[self._regions.value(region, output)] for output in function.outputs],
            node=nodes,
            opset_import=self._imports(nodes),
            value_info=list(self._types_inside(function, inside)),
        )

    def _names_inside(self, function: FunctionPattern) -> dict[str, str]:
        """By the names that values have in the first call: those that they have in the function."""
        region = function.calls[0]
        protos = [node.proto for node in map(self._regions.fold_node, region.items) if node is not None]
        # Names in bodies are kept as they are, so that no name outside of them may hide one.
        names = FreeNames(name for proto in protos for name in names_inside(proto))
        inside_names = {name: self._given(function, index) for index, name in enumerate(region.formals)}
        for name in (name for item in region.items for name in self._regions.makes(item) if name):
            inside_names[name] = relative_name(name, region.call)
        return {name: names.free(inside) for name, inside in inside_names.items()}

    def _given(self, function: FunctionPattern, index: int) -> str:
        """What a function is given is called as it is in all calls, or as it is in the module, or by what it is."""
        name = function.calls[0].formals[index]
        inside = relative_name(name, function.calls[0].call)
        if inside != name or (len(function.calls) > 1 and all(call.formals[index] == name for call in function.calls)):
            return inside
        return "weight" if name in self._weights else "input"

    def _nodes(self, function: FunctionPattern, inside: Mapping[str, str]) -> Iterator[onnx.NodeProto]:
        """The body: nodes of the first call with what all calls have in common, and calls of inner functions."""
        region = function.calls[0]
        names = FreeNames()
        for number, item in enumerate(region.items):
            if item in self._regions.called:
                below = self._regions.called[item]
                node = self._call(below, inside)
                core = below.call == region.call  # what a smaller body of the class does
                node.name = names.free(node.op_type if core else relative_name(str(below.call), region.call))
            else:
                protos = [self._regions.fold_node_at(call, number).proto for call in function.calls]
                node = _merge_nodes(protos)
                node.input[:] = [inside.get(name, name) for name in node.input]
                node.output[:] = [inside.get(name, name) for name in node.output]
                rename_captured(node, lambda name: inside.get(name, name))
                node.name = names.free(relative_name(node.name, region.call))
            yield node

    def _imports(self, nodes: Iterable[onnx.NodeProto]) -> list[onnx.OperatorSetIdProto]:
        domains = sorted({plain_domain(inner.domain) for node in nodes for inner in with_inner(node)})
        versions = {**self._versions, FOLDED_DOMAIN: _OPSET}
        return [onnx.helper.make_opsetid(name, versions[name]) for name in domains if name in versions]

    def _types_inside(self, function: FunctionPattern, inside: Mapping[str, str]) -> Iterator[onnx.ValueInfoProto]:
        """Types of values, as far as they are the same in all calls."""
        first = function.calls[0]
        called = {name: [call.formals[index] for call in function.calls] for index, name in enumerate(first.formals)}
        for number, item in enumerate(first.items):
            for slot, name in enumerate(self._regions.makes(item)):
                if name:
                    called[name] = [self._regions.value(call, (number, slot)) for call in function.calls]
        for name, names in called.items():
            types = [value.type for value in map(self._types.get, names) if value is not None]
            common = _intersect_types(types) if len(types) == len(names) else None
            if common is not None:
                yield onnx.ValueInfoProto(name=inside[name], type=common)


def _intersect_types(types: Sequence[onnx.TypeProto]) -> onnx.TypeProto | None:
    """What several types have in common: exporters and optimizers name unknown axes, each by a name of its own."""
    common = onnx.TypeProto()
    common.CopyFrom(types[0])
    differing = [kind for kind in types[1:] if kind != common]
    if not differing:
        return common
    tensors = [kind.tensor_type for kind in (common, *differing) if kind.HasField("tensor_type")]
    if len(tensors) <= len(differing) or len({tensor.elem_type for tensor in tensors}) > 1:
        return None  # two element types, or two types that are no tensors: they have nothing in common
    ranks = {len(tensor.shape.dim) if tensor.HasField("shape") else None for tensor in tensors}
    if len(ranks) > 1 or None in ranks:
        common.tensor_type.ClearField("shape")
        return common
    for dim, *further in zip(*(tensor.shape.dim for tensor in tensors), strict=True):
        if further.count(dim) < len(further):
            dim.Clear()
    return common


def _merge_nodes(nodes: Sequence[onnx.NodeProto]) -> onnx.NodeProto:
    shared = onnx.NodeProto()
    shared.CopyFrom(nodes[0])
    pairs = set.intersection(*({(entry.key, entry.value) for entry in node.metadata_props} for node in nodes))
    # Our own entries name the module of one call; the record of the folded file has those of all.
    pairs = {(key, value) for key, value in pairs if not key.startswith(PREFIX)}
    kept = [entry for entry in shared.metadata_props if (entry.key, entry.value) in pairs]
    del shared.metadata_props[:]
    shared.metadata_props.extend(kept)
    held = [tensor for tensor in map(constant_tensor, nodes) if tensor is not None]
    # Equal constants may bear different names: the recipe knows them, the function cannot.
    if len({tensor.name for tensor in held}) > 1:
        shared.attribute[0].t.ClearField("name")
    if any(node.doc_string != shared.doc_string for node in nodes):
        shared.ClearField("doc_string")
    unite_types(shared, nodes[1:])
    return shared


_Value = TypeVar("_Value", str, int | None)


def build_folded_record(
    provenance: Provenance, plan: FoldingPlan, names: Mapping[int, str], folded: onnx.ModelProto, fingerprint: str
) -> tuple[Provenance, frozenset[str]]:
    """The record of the folded graph, and the keys of the nodes that it has and the flat one had not."""
    combined = _FoldedAttributions(provenance, plan.regions)
    attributions: dict[str, Attribution] = {}
    for item, node in zip(plan.items, folded.graph.node, strict=True):
        if item in plan.regions.called:
            attributions[node_key(node, MAIN)] = combined.of_calls([plan.regions.called[item]])
    protos = {function.name: function for function in folded.functions if function.domain == FOLDED_DOMAIN}
    for function in plan.functions:
        attributions.update(combined.of_function(function, protos[names[function.number]]))
    missing = unattributed("not in the record: the graph was changed after export")
    nodes = {}
    for key, node in walk_nodes(folded):
        known = provenance.nodes.get(key)
        attribution = attributions.get(key) or (known.attribution if known is not None else missing)
        nodes[key] = NodeEntry(key, node.name, node.op_type, attribution)
    origin = replace(provenance.origin, graph=fingerprint)
    return replace(provenance, nodes=nodes, origin=origin, edges=None), frozenset(attributions)


@dataclass(frozen=True, eq=False)
class _FoldedAttributions:
    """Attributions of nodes that the flat graph had not: bodies of functions, and calls."""

    record: Provenance
    regions: RegionPatterns

    def of_function(self, function: FunctionPattern, proto: onnx.FunctionProto) -> Iterator[tuple[str, Attribution]]:
        graph_id = function_id(proto)
        for number, node in enumerate(proto.node):
            items = [region.items[number] for region in function.calls]
            if items[0] in self.regions.called:
                yield node_key(node, graph_id), self.of_calls([self.regions.called[item] for item in items])
            else:
                protos = (self.regions.fold_node_at(region, number).proto for region in function.calls)
                flat_keys = ([key for key, _ in walk_graph_nodes([proto], MAIN)] for proto in protos)
                keys = (key for key, _ in walk_graph_nodes([node], graph_id))
                for key, *same in zip(keys, *flat_keys, strict=True):
                    yield key, merge_attributions(list(map(self.record.recorded, same)), self.record.hierarchy)

    def of_calls(self, regions: Sequence[FoldRegion]) -> Attribution:
        """Of a node that calls a function: in the main graph for one module, in a function for those of all calls."""
        owners = tuple(dict.fromkeys(region.call for region in regions))
        keys = (node_key(fold_node.proto, MAIN) for fold_node in self.regions.fold_nodes(regions[0]))
        inside = list(map(self.record.recorded, keys))
        return Attribution(
            owners,
            self.record.hierarchy.common_ancestor(owners),
            # A call is no better known than the least known of the nodes that it stands for.
            min((attribution.confidence for attribution in inside if attribution.owners), default=Confidence.INFERRED),
            (Evidence(EvidenceKind.LINEAGE, "fold", f"{len(inside)} node{'s' * (len(inside) > 1)}"),),
            layer_id=_single_value([attribution.layer_id for attribution in inside]) if len(owners) == 1 else None,
        )


def merge_attributions(attributions: Sequence[Attribution], hierarchy: Hierarchy) -> Attribution:
    if len(attributions) == 1:
        return attributions[0]
    known = [attribution for attribution in attributions if attribution.owners] or list(attributions[:1])
    owners = tuple(dict.fromkeys(call for attribution in known for call in attribution.owners))
    common = set.intersection(*(set(attribution.evidence) for attribution in known))
    reason = Evidence(EvidenceKind.LINEAGE, "fold", f"{len(attributions)} calls")
    return Attribution(
        owners,
        hierarchy.common_ancestor(owners),
        min(attribution.confidence for attribution in known),
        (*(attribution for attribution in known[0].evidence if attribution in common), reason) if owners else (),
        known[0].reason,
        role=_single_value([attribution.role for attribution in known]) or "",
        layer_id=_single_value([attribution.layer_id for attribution in known]),
    )


def _single_value(values: Sequence[_Value]) -> _Value | None:
    """What all of them are; None if they differ."""
    return values[0] if len(set(values)) == 1 else None
