"""How often modules are called in one run of a model.

A module that is called twice has two recorded calls, with nodes of their own. A call inside of a Loop was recorded
once and is made as often as the body runs, which is how often its nodes do. A module may itself have a Loop or an If,
whose nodes run more or less often than it: those in the fewest bodies count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from modelexport.record.hierarchy import Hierarchy, ModuleCall


def calls_by_module(nodes: Iterable[tuple[Sequence[ModuleCall], int, float]], hierarchy: Hierarchy) -> dict[str, float]:
    """By module path, from nodes: the calls that each is part of, how many bodies it is in, how often it ran."""
    best: dict[ModuleCall, tuple[int, float]] = {}
    for calls, depth, kernels in nodes:
        for open_call in dict.fromkeys(one for call in calls for one in hierarchy.stack(call)):
            best[open_call] = max(best.get(open_call, (-depth, 0.0)), (-depth, kernels))
    found: dict[str, float] = {}
    for call, (_, kernels) in best.items():
        found[call.path] = found.get(call.path, 0.0) + kernels
    return found
