"""How often modules are called in one run of a model.

A module that is called twice has two recorded calls, with nodes of their own, or with a node that both have in common.
In the body of a Loop, calls are made as often as the body runs, which is how often its nodes do, however many were
recorded. A module may itself have a Loop or an If, whose nodes run more or less often than it is called: nodes in the
fewest bodies count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from modelexport.record.hierarchy import Hierarchy, ModuleCall


@dataclass(frozen=True, slots=True)
class Ran:
    """A node as evidence of module calls.

    calls     that it is part of
    depth     how many bodies it is in
    repeated  whether one of them is that of a Loop or the like
    kernels   how often it ran in one run of the model
    """

    calls: tuple[ModuleCall, ...]
    depth: int
    repeated: bool
    kernels: float


def calls_by_module(nodes: Iterable[Ran], hierarchy: Hierarchy) -> dict[str, float]:
    """By module path."""
    best: dict[ModuleCall, tuple[int, float]] = {}
    for node in nodes:
        for calls in _by_path(node.calls, hierarchy):
            times = node.kernels / len(calls) if node.repeated else node.kernels
            for call in calls:
                best[call] = max(best.get(call, (-node.depth, 0.0)), (-node.depth, times))
    found: dict[str, float] = {}
    for call, (_, times) in best.items():
        found[call.path] = found.get(call.path, 0.0) + times
    return found


def _by_path(calls: Iterable[ModuleCall], hierarchy: Hierarchy) -> Iterable[list[ModuleCall]]:
    """Calls and those that were open while they ran, those of one module together."""
    found: dict[str, list[ModuleCall]] = {}
    for call in dict.fromkeys(chain.from_iterable(map(hierarchy.stack, calls))):
        found.setdefault(call.path, []).append(call)
    return found.values()
