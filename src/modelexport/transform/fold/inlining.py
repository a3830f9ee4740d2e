"""Inlining of functions in a model: for files that were not folded here, or were changed since.

    y = Block(x)   name "blk"          blk/Exp:  blk/b = Exp(x)
                                       blk/Relu: y     = Relu(blk/b)

Nobody says what the nodes and values inside were called, so the names of the calls go before their own. The graph
without functions comes from `graph/functions.py`; here it becomes protos again. A function stays a function if it calls
itself, or is written for another opset than the model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import onnx

from modelexport.graph.functions import InlinedModel, find_endless, inline_graph
from modelexport.graph.index import (
    KEY_SEPARATOR,
    MAIN,
    Node,
    called_id,
    function_id,
    index_model,
    subgraphs_with_ids,
    value_id,
    walk_nodes,
)
from modelexport.graph.parameters import CallOwners
from modelexport.graph.protos import ONNX_DOMAINS, declared, names_inside, plain_domain, rename_values, with_inner
from modelexport.record.provenance import Attribution, Evidence, EvidenceKind, Provenance
from modelexport.transform.fold.working_graph import FreeNames


@dataclass(frozen=True, eq=False)
class InliningResult:
    """
    attributions  of the nodes that there are now, by key; empty if there was no record
    inlined       names of functions
    kept          names of functions that are still there, and why
    """

    model: onnx.ModelProto
    attributions: Mapping[str, Attribution]
    inlined: tuple[str, ...]
    kept: Mapping[str, str]


def inline_functions(model: onnx.ModelProto, record: Provenance | None) -> InliningResult:
    """The model without its functions; `model` is left as it is."""
    flat = onnx.ModelProto()
    flat.CopyFrom(model)
    kept = dict(_find_kept_functions(model))
    functions = {function_id(function): function for function in model.functions if function_id(function) not in kept}
    built = _FlatModel(model, kept)
    del flat.graph.node[:], flat.functions[:]
    flat.graph.node.extend(built.build_nodes(MAIN))
    for function in (function for function in model.functions if function_id(function) in kept):
        copied = flat.functions.add()
        copied.CopyFrom(function)
        del copied.node[:]
        copied.node.extend(built.build_nodes(function_id(function)))
    _set_imports(flat, functions)
    attributions: dict[str, Attribution] = {}
    if record is not None:
        by_call = CallAttributions(record)
        for node in built.inlined.graph.nodes:
            calls, own = built.inlined.origin(node.key)
            attributions[node.key] = by_call.find(own, calls)
    return InliningResult(flat, attributions, tuple(functions), kept)


def _find_kept_functions(model: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    """Ids of functions that cannot be inlined, with the reason.

    A model has one version of each operator set, but each function may import another one of its own.
    https://onnx.ai/onnx/repo-docs/IR.html#functions
    """
    versions = {plain_domain(entry.domain): entry.version for entry in model.opset_import}
    for function in model.functions:
        for entry in function.opset_import:
            known = versions.get(plain_domain(entry.domain), entry.version)
            if known != entry.version:
                domain = entry.domain or "ai.onnx"
                yield function_id(function), f"it is written for {domain} {entry.version}, the model for {known}"
    ids = {function_id(function) for function in model.functions}
    calls = {
        function_id(function): {called_id(inner) for node in function.node for inner in with_inner(node)} & ids
        for function in model.functions
    }
    yield from ((name, "it calls itself, or a function that does") for name in find_endless(calls))


def _set_imports(flat: onnx.ModelProto, gone: Mapping[str, onnx.FunctionProto]) -> None:
    """Domains that only functions used are used by the model now; those of the functions themselves by nobody."""
    known = {plain_domain(entry.domain) for entry in flat.opset_import}
    for entry in (entry for function in gone.values() for entry in function.opset_import):
        if plain_domain(entry.domain) not in known:
            known.add(plain_domain(entry.domain))
            flat.opset_import.append(entry)
    used = {plain_domain(node.domain) for _, node in walk_nodes(flat)}
    # onnx.checker wants the standard domain to be imported, whether a node is of it or not.
    stale = {function.domain for function in gone.values()} - used - ONNX_DOMAINS
    left = [entry for entry in flat.opset_import if entry.domain not in stale]
    del flat.opset_import[:]
    flat.opset_import.extend(left)


class _FlatModel:
    """Protos of the nodes of a graph whose functions are inlined, under the names that they have in the file to be."""

    def __init__(self, model: onnx.ModelProto, kept: Collection[str]) -> None:
        self._protos = dict(walk_nodes(model))
        self._values = FreeNames(_all_values(model))
        self._nodes = FreeNames(node.name for node in self._protos.values())
        graph = index_model(model)
        self.inlined = inline_graph(graph, kept, lambda calls, name: self._values.free(self._prefix(calls) + name))
        self._model = InlinedModel(model, self.inlined)

    def _prefix(self, calls: Sequence[str]) -> str:
        """What goes before a name inside: calls without a name go by what they make."""
        protos = (self._protos[call] for call in calls)
        return "".join(f"{call.name or next(filter(None, call.output), call.op_type)}/" for call in protos)

    def build_nodes(
        self, graph_id: str, declared_values: Iterable[str] = (), outer: Mapping[str, str] | None = None
    ) -> list[onnx.NodeProto]:
        """
        declared_values  ids of what a subgraph is given or stores
        outer            by the ids of values that are visible from the graphs around: their names
        """
        nodes = self.inlined.graph.members.get(graph_id, ())
        inside = (*declared_values, *self.inlined.graph.body_inputs[graph_id])
        own = {*inside, *(value for node in nodes for value in node.outputs)} if graph_id else ()
        names = {**(outer or {}), **{value: value.removeprefix(f"{graph_id}{KEY_SEPARATOR}") for value in own}}
        return [self._build_node(node, names) for node in nodes]

    def _build_node(self, node: Node, names: Mapping[str, str]) -> onnx.NodeProto:
        proto = onnx.NodeProto()
        proto.CopyFrom(self._model.node_proto(node))
        proto.input[:] = (names.get(value, value) for value in node.inputs)
        proto.output[:] = (names.get(value, value) for value in node.outputs)
        if node.key in self.inlined.origins:
            calls, own = self.inlined.origin(node.key)
            # An Identity for what a function returns as it was given stands for the call itself.
            around = calls if node.op_type == self._protos[own].op_type else (*calls, own)
            proto.name = self._nodes.free(f"{self._prefix(around)}{proto.name or proto.op_type}")
        for graph_id, subgraph in subgraphs_with_ids(proto, node.key):
            self._build_subgraph(subgraph, graph_id, names)
        return proto

    def _build_subgraph(self, subgraph: onnx.GraphProto, graph_id: str, outer: Mapping[str, str]) -> None:
        old_id, rename = self.inlined.subgraphs.get(graph_id, (graph_id, str))
        ids = {name: rename(value_id(old_id, name)) for name in declared(subgraph)}
        nodes = self.build_nodes(graph_id, ids.values(), outer)
        names = {name: value.removeprefix(f"{graph_id}{KEY_SEPARATOR}") for name, value in ids.items()}
        returned = (outer.get(value, value) for value in self.inlined.graph.body_outputs[graph_id])
        outputs = dict(zip((value.name for value in subgraph.output), returned, strict=True))
        # A value of its own goes before one that it only returns from outside.
        rename_values(subgraph, {**outputs, **names})
        del subgraph.node[:]
        subgraph.node.extend(nodes)


class CallAttributions:
    """What a node of a function belongs to in one call of it: those of its modules that the call is for."""

    def __init__(self, record: Provenance) -> None:
        self._record = record
        self._owners = CallOwners(lambda key: record.recorded(key).owners, record.hierarchy.stack, lambda owner: owner)
        self._attribute = cache(self._attribute_owners)

    def find(self, key: str, calls: Sequence[str]) -> Attribution:
        """
        key    of the node in its function
        calls  keys of the calls around it, from the outside in
        """
        if not self._owners.find(key):
            around = next((call for call in reversed(calls) if self._owners.find(call)), key)
            return self._record.recorded(around)
        return self._attribute(key, self._owners.find_number(key, calls))

    def _attribute_owners(self, key: str, number: int) -> Attribution:
        attribution, owners = self._record.recorded(key), self._owners.numbered(number)
        if owners == attribution.owners:
            return attribution
        evidence = (*attribution.evidence, Evidence(EvidenceKind.LINEAGE, "flatten", "one of several calls"))
        ancestor = self._record.hierarchy.common_ancestor(owners)
        return replace(attribution, owners=owners, ancestor=ancestor, evidence=evidence)


def _all_values(model: onnx.ModelProto) -> Iterator[str]:
    graph = model.graph
    yield from (value.name for value in (*graph.input, *graph.output, *graph.value_info))
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from (*node.input, *node.output, *names_inside(node))
