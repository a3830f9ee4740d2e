"""Which module call issued an FX node, read from the module stack that torch keeps with the node."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch

from modelexport.record.hierarchy import Hierarchy, ModuleCall

_CALL_NUMBER = re.compile(r"@(\d+)$")
_Stack = tuple[ModuleCall | None, ...]


def fx_calls(nodes: Iterable[torch.fx.Node], hierarchy: Hierarchy) -> dict[str, ModuleCall]:
    """The innermost module call of each FX node by the node's name; nodes whose call is not certain are left out."""
    stacks = fx_stacks(nodes, hierarchy)
    return {name: stack[-1] for name, stack in stacks.items() if stack and stack[-1] is not None}


def fx_stacks(nodes: Iterable[torch.fx.Node], hierarchy: Hierarchy) -> dict[str, _Stack]:
    """The calls that were open for each FX node, outermost first; None in the place of one that is not certain.

    The stack's keys number the calls: `L__self___layer@2`.
    """
    stacks: dict[str, _Stack] = {}
    order: dict[str, dict[str, int]] = {}
    for node in nodes:
        entries: Mapping[str, tuple[str, object]] = node.meta.get("nn_module_stack") or {}
        stacks[node.name] = tuple(_call(key, path, hierarchy, order) for key, (path, _) in entries.items())
    # Each name of a module is numbered by itself. Their common order tells the calls only if every call left a node.
    unclear = {
        path
        for path, keys in order.items()
        if hierarchy.modules[path].aliases and len(keys) != hierarchy.call_counts.get(path, 0)
    }
    return {
        name: tuple(None if call is None or call.path in unclear else call for call in stack)
        for name, stack in stacks.items()
    }


def _call(key: str, path: str, hierarchy: Hierarchy, order: dict[str, dict[str, int]]) -> ModuleCall | None:
    own = hierarchy.canonical.get(path)
    if own is None:
        return None
    place = order.setdefault(own, {}).setdefault(key, len(order[own]))
    call = ModuleCall(own, place if hierarchy.modules[own].aliases else _number(key))
    return call if call in hierarchy.stacks else None


def _number(key: str) -> int:
    found = _CALL_NUMBER.search(key)
    return int(found[1]) if found else 0
