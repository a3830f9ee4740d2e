"""Modules that one of the files has and the other has not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

from modelexport.diffing.modules import Modules
from modelexport.diffing.regions import Region
from modelexport.graph.index import Node
from modelexport.record.changes import Amount, Change, ModuleChange
from modelexport.record.hierarchy import ROOT, ModuleCall


def absent_modules(modules: Modules, regions: Sequence[Region]) -> list[ModuleChange]:
    """The outermost modules all of whose nodes are gone, without any others in their place; and those that are new."""
    plain = [region for region in regions if not (region.left and region.right)]
    gone = {node.key for region in plain for node in region.left}
    fresh = {node.key for region in plain for node in region.right}
    return [*_absent(modules, 0, gone), *_absent(modules, 1, fresh)]


def _absent(modules: Modules, side: int, keys: set[str]) -> Iterator[ModuleChange]:
    inside = _inside(modules, side)
    whole = {call for call, nodes in inside.items() if call != ROOT and _is_whole(modules, side, nodes, keys)}
    whole -= set(_still_there(modules, side, whole))
    for call in inside:
        outer = modules.stack(side, call)[:-1]
        if call not in whole or any(one in whole for one in outer) or not _is_gone(modules, side, call, inside[call]):
            continue
        yield _change(modules, side, call, inside[call])


def _is_whole(modules: Modules, side: int, nodes: Sequence[Node], keys: set[str]) -> bool:
    """Whether all nodes are among some; or most, and all with weights: others may need what the rest makes."""
    rest = [node for node in nodes if node.key not in keys]
    if not rest:
        return True
    few = len(rest) < len(nodes) / 2 and any(True for _ in _weights(modules, side, nodes))
    return few and not any(True for _ in _weights(modules, side, rest))


def _still_there(modules: Modules, side: int, calls: Iterable[str]) -> Iterator[str]:
    """Calls whose partner in the other file has weights: these may reach its nodes by another way."""
    inside = _inside(modules, 1 - side)
    partners = modules.aligned if side == 0 else modules.backwards
    for call in calls:
        nodes = inside.get(partners[call], ()) if call in partners else ()
        if any(True for _ in _weights(modules, 1 - side, nodes)):
            yield call


def _inside(modules: Modules, side: int) -> Mapping[str, list[Node]]:
    """By call: the nodes in it and in everything inside of it."""
    calls = modules.left if side == 0 else modules.right
    found: dict[str, list[Node]] = {}
    for node in modules.sides[side].flow.order:
        for call in modules.stack(side, calls[node.key]):
            found.setdefault(call, []).append(node)
    return found


def _is_gone(modules: Modules, side: int, call: str, nodes: Iterable[Node]) -> bool:
    """A module without weights may be there still and have nothing to do."""
    if any(True for _ in _weights(modules, side, nodes)):
        return True
    other = modules.sides[1 - side]
    return other.hierarchy is None or ModuleCall.parse(call).path not in other.hierarchy.modules


def _weights(modules: Modules, side: int, nodes: Iterable[Node]) -> Iterator[int]:
    """The sizes of the weights that nodes read, each once."""
    flow = modules.sides[side].flow
    read = {one.name: one for node in nodes for _, one in flow.read_constants(node) if not one.small}
    yield from (prod(constant.shape) for constant in read.values())


def _change(modules: Modules, side: int, call: str, nodes: Sequence[Node]) -> ModuleChange:
    name = modules.class_of(side, call)
    parameters = sum(_weights(modules, side, nodes))
    if side == 0:
        return ModuleChange(Change.REMOVED, call, None, (name, ""), Amount(len(nodes), 0), parameters)
    return ModuleChange(Change.ADDED, None, call, ("", name), Amount(0, len(nodes)), parameters)
