"""What is laid over the modules: cost, time, error and difference, as columns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath

from modelexport.pages.columns import Json, Texts
from modelexport.pages.module_tree import ModuleTree
from modelexport.pages.overlays import CallVerdict, Profiled, Verified
from modelexport.record.cost import Cost
from modelexport.record.polynomial import Polynomial

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
