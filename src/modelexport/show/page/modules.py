"""Modules as columns: what each is, what is charged to it, and how well that is known.

Nodes and weights are counted as all verbs count them (`graph/module_totals.py`).

What is laid over the modules: cost, time, error and difference, as columns.

What `diff` found between another file and the one that is shown, module by module and in words.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath

from modelexport.graph.module_totals import ModuleTotals
from modelexport.graph.types import type_name
from modelexport.record.hierarchy import ModuleCall, TensorInfo
from modelexport.record.polynomial import Polynomial
from modelexport.record.provenance import Confidence, Provenance
from modelexport.record.results.cost import Cost
from modelexport.record.results.diff import Change, Diff, FieldChange, ModuleChange, NodeChange, NodeRef, WeightChange
from modelexport.show.page.nodes import Content, Json, ModuleTree, Texts, shape_text
from modelexport.show.page.overlays import CallVerdict, Profiled, Verified

_NONE = -1


def module_columns(content: Content, texts: Texts) -> Json:
    tree, provenance = content.tree, content.provenance
    tags, calls = provenance.tags.by_path, provenance.hierarchy.call_counts
    modules = [place.module for place in tree.places]
    totals, confidences = ModuleTotals.of(content.graph, provenance), _confidences(content)
    paths = [*(module.path for module in modules), None]
    own, inside = [totals.own(path) for path in paths], [totals.total(path) for path in paths]
    return {
        "parent": [_NONE if place.parent is None else place.parent for place in tree.places],
        "name": [texts.place(place.name) for place in tree.places],
        "class": [texts.place(module.class_name) for module in modules],
        "package": [texts.place(module.package) for module in modules],
        "tag": [texts.place(tags.get(module.path, "")) for module in modules],
        "calls": [calls.get(module.path, 0) for module in modules],
        "container": [int(module.container) for module in modules],
        "aliases": [texts.places(module.aliases) for module in modules],
        "absent": [texts.place(provenance.absent.get(module.path, "")) for module in modules],
        "tensors": [_tensors(module.tensors, texts) for module in modules],
        "nodes": [amounts.nodes for amounts in own],
        "parameters": [amounts.parameters for amounts in own],
        "bytes": [amounts.bytes for amounts in own],
        # Weights that modules share count for each of them, and once around them: these are no sums of parts.
        "totals": {
            "parameters": [amounts.parameters for amounts in inside],
            "bytes": [amounts.bytes for amounts in inside],
        },
        "confidence": [confidences[level] for level in Confidence],
    }


def call_columns(provenance: Provenance, content: Content) -> Json:
    """Every call, in order; `parent` is the number of the call that made it."""
    sites = provenance.hierarchy.calls
    numbers = {site.call: number for number, site in enumerate(sites)}
    return {
        "module": [content.tree.place_at(site.call.path) for site in sites],
        "index": [site.call.index for site in sites],
        "parent": [_NONE if site.parent is None else numbers.get(site.parent, _NONE) for site in sites],
    }


def weight_columns(content: Content, texts: Texts) -> Json:
    """What is stored in the file, by the module that it is charged to."""
    known = content.provenance.hierarchy.tensor_owners
    shown = [
        (name, attribution, content.graph.initializers[name])
        for name, attribution in content.provenance.initializers.items()
        if name in content.graph.initializers
    ]
    return {
        "name": [texts.place(name) for name, _, _ in shown],
        "module": [content.tree.place_of(attribution) for _, attribution, _ in shown],
        "dtype": [texts.place(_dtype(content, name)) for name, _, _ in shown],
        "shape": [texts.place(_shape(content, name, tensor.shape)) for name, _, tensor in shown],
        "bytes": [tensor.nbytes for _, _, tensor in shown],
        "named": [int(name in known) for name, _, _ in shown],
        "confidence": [attribution.confidence.value for _, attribution, _ in shown],
    }


def _dtype(content: Content, name: str) -> str:
    dtype = content.types.dtype(name)
    return type_name(dtype) if dtype else ""


def _shape(content: Content, name: str, shape: Iterable[int]) -> str:
    dims = content.types.dims(name)
    return " × ".join(map(str, shape)) if dims is None else shape_text(dims)


def _tensors(tensors: Iterable[TensorInfo], texts: Texts) -> list[list[int]]:
    shown = ((item.name, " × ".join(map(str, item.shape)) or "scalar", item.dtype) for item in tensors)
    return [texts.places(words) for words in shown]


def _confidences(content: Content) -> dict[Confidence, list[int]]:
    """How many own nodes of each module are known how well."""
    counts = {level: [0] * (content.tree.nobody + 1) for level in Confidence}
    for entry in content.provenance.nodes.values():
        counts[entry.attribution.confidence][content.tree.place_of(entry.attribution)] += 1
    return counts


# JSON has no infinity. Decibels never come near this.
_EQUAL = 999.0
_DIGITS = 3


def cost_columns(cost: Cost, sizes: Mapping[str, int], tree: ModuleTree, nodes: Mapping[str, int]) -> Json:
    """FLOPs of modules by themselves and of nodes, with axes of these sizes; those of a node may be unknown."""
    own = [0] * (tree.nobody + 1)
    for module in cost.modules:
        own[_place(tree, module.path)] += _at(module.own.flops, sizes)
    known = {item.key: None if item.flops is None else _at(item.flops, sizes) for item in cost.nodes}
    return {"flops": own, "nodes": [known.get(key) for key in nodes]}


def _at(size: Polynomial, sizes: Mapping[str, int]) -> int:
    """Axes whose size depends on what the model is fed are taken to be 1."""
    return size.at({**dict.fromkeys(size.axes, 1), **sizes}).value or 0


def profile_columns(profiled: Profiled, tree: ModuleTree, nodes: Mapping[str, int]) -> Json:
    own = [0.0] * (tree.nobody + 1)
    for path, time in profiled.own.items():
        own[_place(tree, path)] += time
    times = {nodes[key]: round(time, _DIGITS) for key, time in profiled.nodes.items() if key in nodes}
    return {"own": [round(time, _DIGITS) for time in own], "nodes": times}


def verification_columns(verified: Verified, tree: ModuleTree, nodes: Mapping[str, int], texts: Texts) -> Json:
    found = verified.calls.values()
    return {
        "reference": _without_folder(verified.reference),
        "calls": {
            "module": [tree.place_at(call.path) for call in verified.calls],
            "call": [call.index for call in verified.calls],
            "status": [item.status.value for item in found],
            "sqnr": [_decibels(item) for item in found],
            "max_abs": [item.max_abs for item in found],
            "reason": [texts.place(item.reason) for item in found],
        },
        "nodes": {nodes[key]: verdict.value for key, verdict in verified.nodes.items() if key in nodes},
    }


def _without_folder(reference: str) -> str:
    """The folders of the machine that it was measured on are nobody's business; a hub id stays what it is."""
    return PurePath(reference).name if reference.endswith(".onnx") else reference


def _decibels(item: CallVerdict) -> float | None:
    if item.sqnr is None:
        return None
    return _EQUAL if math.isinf(item.sqnr) else round(item.sqnr, _DIGITS)


def _place(tree: ModuleTree, path: str | None) -> int:
    return tree.nobody if path is None else tree.place_at(path)


# States that the page has colours for, beside those of `Change`.
_SAME, _INSIDE = "same", "inside"
_MOST_LINES = 60
_MOST_NAMES = 4
_MOST_OPERATORS = 8


def difference_columns(diff: Diff, tree: ModuleTree, texts: Texts, charged: Mapping[str, int]) -> Json:
    """`diff` is from the other file to the one that is shown; `charged` has the place of each node by key.

    What replaced nodes of several modules at once is told of the module around them. It changed those modules too.
    """
    states = [_SAME] * (tree.nobody + 1)
    lines: dict[int, list[str]] = {}
    for module in diff.modules:
        here = None if module.right is None else ModuleCall.parse(module.right).path
        place = tree.by_path.get(here) if here is not None else None
        if place is None:
            # It is in the other file alone, so that only the model as a whole can tell.
            lines.setdefault(0, []).append(_gone(module))
            continue
        states[place] = "added" if module.change is Change.ADDED else "changed"
        lines.setdefault(place, []).extend(_module_lines(module))
        for inside, line in _told_around(module, place, charged):
            states[inside] = "changed" if states[inside] == _SAME else states[inside]
            lines.setdefault(inside, []).append(line)
    lines.setdefault(0, []).extend(map(_field_line, diff.model))
    _mark_around(states, tree, changed_root=bool(lines[0]))
    return {
        "against": PurePath(diff.left.path).name,
        "identical": diff.identical,
        "state": states,
        "lines": {place: texts.places(_cut(found)) for place, found in lines.items() if found},
    }


def _told_around(module: ModuleChange, place: int, charged: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    for change in module.changes:
        places = dict.fromkeys(charged.get(node.key, place) for node in change.right)
        yield from ((inside, _node_line(change)) for inside in places if inside != place)


def _mark_around(states: list[str], tree: ModuleTree, *, changed_root: bool) -> None:
    """A module around one that changed has a change inside."""
    for number in range(len(tree.places) - 1, 0, -1):
        parent = tree.places[number].parent
        if parent is not None and states[number] != _SAME and states[parent] == _SAME:
            states[parent] = _INSIDE
    if changed_root and states[0] in (_SAME, _INSIDE):
        states[0] = "changed"


def _module_lines(module: ModuleChange) -> Iterator[str]:
    if module.change is Change.ADDED:
        yield f"in this file alone: {int(module.nodes.right)} nodes, {module.parameters} parameters"
    if module.class_changed:
        yield f"class {module.classes[0]} → {module.classes[1]}"
    yield from map(_node_line, module.changes)
    yield from map(_weight_line, module.weights)
    if module.cost is not None:
        yield from (f"{name} {left.short} → {right.short}" for name, (left, right) in module.cost.amounts.items())


def _gone(module: ModuleChange) -> str:
    name = module.left if module.left is not None else module.right
    return f"not in this file: {name or '(model)'} {module.classes[0]}, {int(module.nodes.left)} nodes"


def _node_line(change: NodeChange) -> str:
    if change.change is Change.ADDED:
        return f"added {_nodes(change.right)}"
    if change.change is Change.REMOVED:
        return f"removed {_nodes(change.left)}"
    if change.change is Change.REPLACED:
        return f"{_operators(change.left)} → {_operators(change.right)}: {_nodes(change.right)}"
    return f"{_nodes(change.right)}: {'; '.join(map(_field_line, change.fields))}"


def _nodes(nodes: tuple[NodeRef, ...]) -> str:
    shown = [f"{node.op_type} {node.name or node.key}" for node in nodes[:_MOST_NAMES]]
    more = len(nodes) - _MOST_NAMES
    return ", ".join([*shown, f"and {more} more"] if more > 0 else shown)


def _operators(nodes: tuple[NodeRef, ...]) -> str:
    counts = Counter(node.op_type for node in nodes)
    shown = [name if count == 1 else f"{name} ×{count}" for name, count in counts.items()]
    more = [f"{len(shown) - _MOST_OPERATORS} others"] if len(shown) > _MOST_OPERATORS else []
    return " + ".join([*shown[:_MOST_OPERATORS], *more]) or "nothing"


def _field_line(field: FieldChange) -> str:
    return f"{field.what} {field.left or '(none)'} → {field.right or '(none)'}"


def _weight_line(weight: WeightChange) -> str:
    far = "" if weight.largest is None else f", largest difference {weight.largest:.2g}"
    values = "" if weight.values is None else f", {weight.values.left} → {weight.values.right}"
    return f"weight {weight.name}: {weight.form}{far}{values}"


def _cut(lines: list[str]) -> list[str]:
    more = len(lines) - _MOST_LINES
    return lines if more <= 0 else [*lines[:_MOST_LINES], f"and {more} more differences"]
