"""Functions put in the place of their calls, in files that were not folded here or were changed since.

There is nobody to say what the nodes and values inside were called, so they get the name of the call before their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter

import onnx

from modelexport.errors import UserError
from modelexport.graph.functions import Attributes, given_by, resolved
from modelexport.graph.index import MAIN, bodies, called_id, function_id, node_key, walk_nodes
from modelexport.graph.protos import ONNX_DOMAINS, bodies_of, names_inside, plain_domain, rename_captured, with_inner
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.provenance import Attribution, Evidence, EvidenceKind, Provenance, unattributed
from modelexport.transform.fold.working_graph import Names

# Functions that call functions that call functions can unfold to more than any machine holds.
_MOST = 1_000_000
_DEEPEST = 100
_NO_RECORD = unattributed("there is no record")


@dataclass(frozen=True, eq=False)
class Inlining:
    """
    attributions  of the nodes that there are now, by key; empty if there was no record
    inlined       names of functions
    kept          names of functions that are still there, and why
    """

    model: onnx.ModelProto
    attributions: Mapping[str, Attribution]
    inlined: tuple[str, ...]
    kept: Mapping[str, str]


def inline_functions(model: onnx.ModelProto, record: Provenance | None) -> Inlining:
    """The model without its functions; `model` is left as it is."""
    flat = onnx.ModelProto()
    flat.CopyFrom(model)
    kept = dict(_not_inlined(model))
    functions = {function_id(one): one for one in model.functions if function_id(one) not in kept}
    inliner = _Inliner(functions, record, Names(_all_values(model)), Names(node.name for _, node in walk_nodes(model)))
    nodes = list(inliner.expanded(model.graph.node, _Scope(), _Place(MAIN, MAIN)))
    left = [one for one in model.functions if function_id(one) in kept]
    del flat.graph.node[:], flat.functions[:]
    flat.graph.node.extend(nodes)
    for function in left:
        copied = flat.functions.add()
        copied.CopyFrom(function)
        graph_id = function_id(function)
        inner = list(inliner.expanded(function.node, _Scope(functions=(graph_id,)), _Place(graph_id, graph_id)))
        del copied.node[:]
        copied.node.extend(inner)
    _set_imports(flat, functions)
    return Inlining(flat, inliner.attributions, tuple(functions), kept)


def _not_inlined(model: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    versions = {plain_domain(entry.domain): entry.version for entry in model.opset_import}
    for function in model.functions:
        for entry in function.opset_import:
            known = versions.get(plain_domain(entry.domain), entry.version)
            if known != entry.version:
                domain = entry.domain or "ai.onnx"
                yield function_id(function), f"it is written for {domain} {entry.version}, the model for {known}"
    yield from ((name, "it calls itself, or a function that does") for name in _endless(model))


def _endless(model: onnx.ModelProto) -> set[str]:
    """Functions that could never be put in the place of all their calls."""
    known = {function_id(function) for function in model.functions}
    calls = {
        function_id(one): {called_id(inner) for node in one.node for inner in with_inner(node)} & known
        for one in model.functions
    }
    sorter = TopologicalSorter(calls)
    with suppress(CycleError):  # what does not depend on a cycle is sorted all the same
        sorter.prepare()
    while ready := sorter.get_ready():
        sorter.done(*ready)
        known.difference_update(ready)
    return known


def _set_imports(flat: onnx.ModelProto, gone: Mapping[str, onnx.FunctionProto]) -> None:
    """Domains that only functions used are used by the model now; those of the functions themselves by nobody."""
    known = {plain_domain(entry.domain) for entry in flat.opset_import}
    for function in gone.values():
        for entry in function.opset_import:
            if plain_domain(entry.domain) not in known:
                known.add(plain_domain(entry.domain))
                flat.opset_import.append(entry)
    used = {plain_domain(node.domain) for _, node in walk_nodes(flat)}
    stale = {function.domain for function in gone.values()} - used - ONNX_DOMAINS
    left = [entry for entry in flat.opset_import if entry.domain not in stale]
    del flat.opset_import[:]
    flat.opset_import.extend(left)


@dataclass(frozen=True)
class _Place:
    """The ids of the graph that nodes are taken from and of the one that they go to.

    nodes  as they were there, where they have been given other names since
    """

    old: str
    new: str
    nodes: tuple[onnx.NodeProto, ...] = ()


@dataclass(frozen=True)
class _Scope:
    """Where nodes are put: what values are called there, and the calls around them.

    values      by the names in a function; a name that is not there is as it was
    prefix      goes before names; empty in the main graph
    attributes  that the call gives to the function
    calls       attributions of the calls around, from the outside in
    functions   that are being unfolded
    """

    values: dict[str, str] = field(default_factory=dict)
    prefix: str = ""
    attributes: Attributes = field(default_factory=dict)
    calls: tuple[Attribution, ...] = ()
    functions: tuple[str, ...] = ()

    def value(self, name: str) -> str:
        return self.values.get(name, name)


class _Inliner:
    def __init__(
        self, functions: Mapping[str, onnx.FunctionProto], record: Provenance | None, values: Names, nodes: Names
    ) -> None:
        self._functions = functions
        self._record = record
        self._values = values
        self._nodes = nodes
        self._count = 0
        self.attributions: dict[str, Attribution] = {}

    def expanded(self, nodes: Sequence[onnx.NodeProto], scope: _Scope, place: _Place) -> Iterator[onnx.NodeProto]:
        """Nodes with functions in the place of calls."""
        for node, before in zip(nodes, place.nodes or nodes, strict=True):
            name = called_id(node)
            old = node_key(before, place.old)
            if name in self._functions and name not in scope.functions:
                yield from self._called(node, scope, old, place.new)
            else:
                made = self._copied(node, scope, old, place.new)
                self._expand_bodies(before, made, scope, (old, node_key(made, place.new)))
                yield made

    def _called(self, node: onnx.NodeProto, scope: _Scope, key: str, new: str) -> Iterator[onnx.NodeProto]:
        name = called_id(node)
        if len(scope.functions) > _DEEPEST:
            raise UserError(f"functions call each other more than {_DEEPEST} deep, down to {name!r}")
        function = self._functions[name]
        prefix = f"{scope.prefix}{node.name or next(filter(None, node.output), node.op_type)}/"
        values = dict(zip(function.input, [*map(scope.value, node.input), *[""] * len(function.input)], strict=False))
        made = [pair for pair in zip(function.output, map(scope.value, node.output), strict=False) if pair[1]]
        passed = []
        for inner, outer in made:
            if inner in values:  # given and returned as it is, or returned twice
                passed.append((inner, outer))
            else:
                values[inner] = outer
        for output in (output for inner in function.node for output in inner.output if output):
            if output not in values:
                values[output] = self._values.free(prefix + output)
        attributes = given_by([node], self._functions, scope.attributes)
        calls = (*scope.calls, self._known(key))
        inside = _Scope(values, prefix, attributes, calls, (*scope.functions, name))
        yield from self.expanded(function.node, inside, _Place(name, new))
        for inner, outer in passed:
            identity = onnx.helper.make_node(
                "Identity", [values[inner]], [outer], name=self._nodes.free(f"{prefix}Identity")
            )
            self.attributions[node_key(identity, new)] = calls[-1]
            yield identity

    def _copied(self, node: onnx.NodeProto, scope: _Scope, old: str, new: str) -> onnx.NodeProto:
        self._count += 1
        if self._count > _MOST:
            raise UserError(f"without functions the graph would have more than {_MOST:,} nodes")
        made = onnx.NodeProto()
        made.CopyFrom(node)
        if scope.calls:
            made.input[:] = map(scope.value, node.input)
            made.output[:] = map(scope.value, node.output)
            rename_captured(made, scope.value, lambda name: self._values.free(scope.prefix + name))
            self._rename(made, scope.prefix)
            _set_attributes(made, scope.attributes)
        self.attributions[node_key(made, new)] = self._attribution(old, scope)
        return made

    def _rename(self, node: onnx.NodeProto, prefix: str) -> None:
        node.name = self._nodes.free(f"{prefix}{node.name or node.op_type}")
        for body in bodies_of(node):
            for inner in body.node:
                self._rename(inner, prefix)

    def _expand_bodies(
        self, before: onnx.NodeProto, made: onnx.NodeProto, scope: _Scope, keys: tuple[str, str]
    ) -> None:
        """Calls inside of bodies, where everything has its name already. What was there before has the old keys."""
        for (old, was), (new, body) in zip(bodies(before, keys[0]), bodies(made, keys[1]), strict=True):
            inside = _Scope(functions=scope.functions)
            inner = list(self.expanded(list(body.node), inside, _Place(old, new, tuple(was.node))))
            for node in inner if scope.calls else ():
                key = node_key(node, new)
                if self._record is not None:
                    self.attributions[key] = narrowed(self.attributions[key], scope.calls, self._record.hierarchy)
            del body.node[:]
            body.node.extend(inner)

    def _known(self, key: str) -> Attribution:
        return _NO_RECORD if self._record is None else self._record.recorded(key)

    def _attribution(self, key: str, scope: _Scope) -> Attribution:
        found = self._known(key)
        if self._record is None or not scope.calls:
            return found
        return narrowed(found, scope.calls, self._record.hierarchy)


def narrowed(found: Attribution, calls: Sequence[Attribution], hierarchy: Hierarchy) -> Attribution:
    """What a node of a function belongs to in one call of it: those of its modules that the call is for."""
    if not found.owners:
        return next((call for call in reversed(calls) if call.owners), found)
    owners = found.owners
    for call in calls:
        mine = set(call.owners)
        fitting = tuple(owner for owner in owners if mine & set(hierarchy.stack(owner)))
        owners = fitting or owners
    if owners == found.owners:
        return found
    evidence = Evidence(EvidenceKind.LINEAGE, "flatten", "one of several calls")
    return replace(
        found,
        owners=owners,
        ancestor=hierarchy.common_ancestor(owners),
        evidence=(*found.evidence, evidence),
    )


def _set_attributes(node: onnx.NodeProto, given: Attributes) -> None:
    """Attributes that refer to those of the call, in a node and its bodies."""
    if any(one.ref_attr_name for one in node.attribute):
        found = list(resolved(node.attribute, given))
        del node.attribute[:]
        node.attribute.extend(found)
    for body in bodies_of(node):
        for inner in body.node:
            _set_attributes(inner, given)


def _all_values(model: onnx.ModelProto) -> Iterator[str]:
    graph = model.graph
    yield from (value.name for value in (*graph.input, *graph.output, *graph.value_info))
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from (*node.input, *node.output, *names_inside(node))
