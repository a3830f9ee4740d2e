"""Modules as columns of the page: what each is, what is charged to it, and what is laid over it.

Nodes and weights are counted as all verbs count them (`graph/module_totals.py`).

A new overlay (a figure for each module, such as energy) is a reader in `show/data/overlays.py`, a function here
that makes columns of it, a line in `data.py:_overlaid`, and a way to colour by it in `colours.js`.

    number  module       nodes
    0       (model)          3
    1       encoder         28
    2       (no module)      5       after all modules: what belongs to none

    {"name": [0, 1], "nodes": [3, 28, 5], …}
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import PurePath

from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.module_totals import ModuleTotals
from modelexport.graph.parameters import ParameterMatching
from modelexport.graph.types import Dims, type_name
from modelexport.record.hierarchy import TensorInfo
from modelexport.record.polynomial import Polynomial
from modelexport.record.provenance import Confidence, Provenance
from modelexport.record.results.cost import Cost
from modelexport.show.data.overlays import CallVerdict, Profiled, Verified
from modelexport.show.page.nodes import Json, ModuleTree, Texts, shape_text

_NONE = -1  # where a column of numbers has nothing to say


def module_columns(file: TaggedFile, tree: ModuleTree, texts: Texts) -> Json:
    """What `tree.js` and `details.js` show of a module.

    The last number of a column of amounts is that of what belongs to no module. `_NONE` stands for nothing, which a
    list of numbers has no word for.
    """
    provenance = file.provenance
    tags, calls = provenance.tags.by_path, provenance.hierarchy.call_counts
    modules = [row.item for row in tree.rows]
    confidences = _count_confidences(file, tree)
    totals = ModuleTotals.of(file.graph, provenance, ParameterMatching(file.graph, provenance, file.inlined))
    paths = [*(module.path for module in modules), None]
    own, inside = [totals.own(path) for path in paths], [totals.total(path) for path in paths]
    return {
        "parent": [_NONE if row.parent is None else row.parent for row in tree.rows],
        "name": [texts.number(row.name) for row in tree.rows],
        "class": [texts.number(module.class_name) for module in modules],
        "package": [texts.number(module.package) for module in modules],
        "tag": [texts.number(tags.get(module.path, "")) for module in modules],
        "calls": [calls.get(module.path, 0) for module in modules],
        "container": [int(module.container) for module in modules],
        "aliases": [texts.numbers_of(module.aliases) for module in modules],
        "absent": [texts.number(provenance.absent.get(module.path, "")) for module in modules],
        "tensors": [_tensors(module.tensors, texts) for module in modules],
        **{name: [getattr(amounts, name) for amounts in own] for name in ("nodes", "parameters", "bytes")},
        # Weights that modules share count for each of them, and once around them: these are no sums of parts.
        "totals": {name: [getattr(amounts, name) for amounts in inside] for name in ("parameters", "bytes")},
        "confidence": [confidences[level] for level in Confidence],
    }


def call_columns(provenance: Provenance, tree: ModuleTree) -> Json:
    """Every call, in order; `parent` is the number of the call that made it."""
    sites = provenance.hierarchy.calls
    numbers = {site.call: number for number, site in enumerate(sites)}
    return {
        "module": [tree.number_at(site.call.path) for site in sites],
        "index": [site.call.index for site in sites],
        "parent": [_NONE if site.parent is None else numbers.get(site.parent, _NONE) for site in sites],
    }


def weight_columns(file: TaggedFile, tree: ModuleTree, texts: Texts) -> Json:
    """What is stored in the file, by the module that it is charged to."""
    known, types = file.provenance.hierarchy.tensor_owners, file.types
    shown = [
        (name, attribution, file.graph.initializers[name])
        for name, attribution in file.provenance.initializers.items()
        if name in file.graph.initializers
    ]
    dtypes = [types.dtype(name) for name, _, _ in shown]
    return {
        "name": [texts.number(name) for name, _, _ in shown],
        "module": [tree.number_of(attribution) for _, attribution, _ in shown],
        "dtype": [texts.number(type_name(dtype) if dtype else "") for dtype in dtypes],
        "shape": [texts.number(_shape(types.dims(name), tensor.shape)) for name, _, tensor in shown],
        "bytes": [tensor.nbytes for _, _, tensor in shown],
        "named": [int(name in known) for name, _, _ in shown],
        "confidence": [attribution.confidence.value for _, attribution, _ in shown],
    }


def _shape(dims: Dims | None, shape: Iterable[int]) -> str:
    return " × ".join(map(str, shape)) if dims is None else shape_text(dims)


def _tensors(tensors: Iterable[TensorInfo], texts: Texts) -> list[list[int]]:
    """Parameters and buffers as PyTorch has them; what the file stores of them is in the columns of weights."""
    shown = ((item.name, " × ".join(map(str, item.shape)) or "scalar", item.dtype) for item in tensors)
    return [texts.numbers_of(words) for words in shown]


def _count_confidences(file: TaggedFile, tree: ModuleTree) -> dict[Confidence, list[int]]:
    counts = {level: [0] * (tree.no_module + 1) for level in Confidence}
    for entry in file.provenance.nodes.values():
        counts[entry.attribution.confidence][tree.number_of(entry.attribution)] += 1
    return counts


_EQUAL = 999.0  # JSON has no infinity; decibels never come near this
_DIGITS = 3  # of microseconds and decibels


def cost_columns(cost: Cost, sizes: Mapping[str, int], tree: ModuleTree, nodes: Mapping[str, int]) -> Json:
    """FLOPs of modules by themselves and of nodes, with axes of these sizes; those of a node may be unknown."""
    own = [0] * (tree.no_module + 1)
    for module in cost.modules:
        own[_number(tree, module.path)] += _at(module.own.flops, sizes)
    known = {item.key: None if item.flops is None else _at(item.flops, sizes) for item in cost.nodes}
    return {"flops": own, "nodes": [known.get(key) for key in nodes]}


def _at(size: Polynomial, sizes: Mapping[str, int]) -> int:
    """Axes whose size depends on what the model is fed are taken to be 1."""
    return size.at({**dict.fromkeys(size.axes, 1), **sizes}).value or 0


def profile_columns(profiled: Profiled, tree: ModuleTree, nodes: Mapping[str, int]) -> Json:
    """Of modules without what is inside of them; nodes that ONNX Runtime made are on no page."""
    own = [0.0] * (tree.no_module + 1)
    for path, time in profiled.own.items():
        own[_number(tree, path)] += time
    times = {nodes[key]: round(time, _DIGITS) for key, time in profiled.nodes.items() if key in nodes}
    return {"own": [round(time, _DIGITS) for time in own], "nodes": times}


def verification_columns(verified: Verified, tree: ModuleTree, nodes: Mapping[str, int], texts: Texts) -> Json:
    """A call that was not compared has null, and is drawn without a colour."""
    verdicts, reference = verified.calls.values(), verified.reference
    return {
        # The folders of the machine that it was measured on are nobody's business; a hub id stays what it is.
        "reference": PurePath(reference).name if reference.endswith(".onnx") else reference,
        "calls": {
            "module": [tree.number_at(call.path) for call in verified.calls],
            "call": [call.index for call in verified.calls],
            "status": [item.status.value for item in verdicts],
            "sqnr": [_decibels(item) for item in verdicts],
            "max_abs": [item.max_abs for item in verdicts],
            "reason": [texts.number(item.reason) for item in verdicts],
        },
        "nodes": {nodes[key]: verdict.value for key, verdict in verified.nodes.items() if key in nodes},
    }


def _decibels(item: CallVerdict) -> float | None:
    """None is drawn without a colour, `_EQUAL` as the best there is."""
    if item.sqnr is None:
        return None
    return _EQUAL if math.isinf(item.sqnr) else round(item.sqnr, _DIGITS)


def _number(tree: ModuleTree, path: str | None) -> int:
    return tree.no_module if path is None else tree.number_at(path)
