"""Profile: the time of nodes, summed up by module; which node an event is about says `kernel_events.py`.

A node is an own node of one module, as in all verbs (`graph/module_totals.py`); if it does the work of
several, its time is told apart as shared. So the parts add up.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

from modelexport.graph.module_totals import own_module
from modelexport.record.hierarchy import ROOT, ModuleCall, lineage_of, parent_path
from modelexport.record.provenance import Confidence, Provenance
from modelexport.record.results.profile import (
    RUNS_FOR_SPREAD,
    KernelEvent,
    ModuleTime,
    NodeTime,
    SharedTime,
)


@dataclass(slots=True)
class _NodeSeries:
    """The events of one node, or of several that the profile does not tell apart.

    times     its time in each run
    depth     how many subgraphs it is in
    repeated  whether one of them is that of a Loop or the like, which may run more than once
    kernels   how many events there are in all runs
    """

    times: list[float]
    depth: int
    repeated: bool
    provider: str
    kernels: int = 0


@dataclass(frozen=True)
class Timeline:
    """What ran, node by node. Nodes that the profile does not tell apart are one."""

    record: Provenance
    runs: int
    series: Mapping[tuple[str, ...], _NodeSeries]

    @classmethod
    def of(cls, events: Iterable[KernelEvent], record: Provenance, runs: int) -> Timeline:
        series: dict[tuple[str, ...], _NodeSeries] = {}
        for event in events:
            empty = _NodeSeries([0.0] * runs, event.depth, event.repeated, event.provider)
            node_series = series.setdefault(event.keys, empty)
            node_series.times[event.run] += event.own
            node_series.kernels += 1
        order = {key: position for position, key in enumerate(record.nodes)}
        return cls(record, runs, dict(sorted(series.items(), key=lambda item: order[item[0][0]])))

    def nodes(self) -> tuple[NodeTime, ...]:
        """In the order of the file."""
        return tuple(self._node_time(keys, series) for keys, series in self.series.items())

    def _node_time(self, keys: tuple[str, ...], series: _NodeSeries) -> NodeTime:
        entry = self.record.nodes[keys[0]]
        owners = self._owners(keys)
        return NodeTime(
            key=keys[0],
            name=entry.name,
            op_type=entry.op_type,
            owners=owners,
            module=own_module(self.record, map(self.record.nodes.get, keys)),
            time=statistics.median(series.times),
            kernels=series.kernels / self.runs,
            provider=series.provider,
            others=keys[1:],
            default=any(self.record.recorded(key).confidence is Confidence.FALLBACK for key in keys),
        )

    def _owners(self, keys: tuple[str, ...]) -> tuple[ModuleCall, ...]:
        nodes = self.record.nodes
        return tuple(dict.fromkeys(owner for key in keys for owner in nodes[key].attribution.owners))

    def _call_around(self, keys: tuple[str, ...]) -> ModuleCall | None:
        """The module call around everything that these nodes may be part of."""
        ancestors = [self.record.nodes[key].attribution.ancestor for key in keys]
        known = [call for call in ancestors if call is not None]
        return self.record.hierarchy.common_ancestor(known) if len(known) == len(ancestors) else None

    def modules(self, nodes: Sequence[NodeTime]) -> tuple[ModuleTime, ...]:
        """In the order of the hierarchy; what belongs to no module comes last."""
        hierarchy = self.record.hierarchy
        inside: dict[str, list[NodeTime]] = {}
        for node in nodes:
            for path in () if node.module is None else lineage_of(node.module):
                inside.setdefault(path, []).append(node)
        calls = self._count_calls(nodes)
        times = [
            self._module_time(path, module.class_name, inside[path], calls.get(path, 0.0))
            for path, module in hierarchy.modules.items()
            if path in inside
        ]
        # Kernels of no module get a row of their own, so that the times of the rows add up to the whole.
        strays = [node for node in nodes if node.module is None]
        return (*_with_alike(times), *([self._module_time(None, "", strays, 0.0)] if strays else ()))

    def _count_calls(self, nodes: Iterable[NodeTime]) -> dict[str, float]:
        """How often modules are called in one run of the model, by path. Evidence is how often their nodes ran.

        A module that is called twice has two recorded calls, with nodes of their own, or with a node that both have in
        common. In the body of a Loop, calls are made as often as the body runs, which is how often its nodes do,
        however many were recorded. A module may itself have a Loop or an If, whose nodes run more or less often than it
        is called: nodes in the fewest subgraphs count.
        """
        best: dict[ModuleCall, tuple[int, float]] = {}
        for node in nodes:
            series, around = self.series[node.keys], self._call_around(node.keys)
            # Of nodes that the profile does not tell apart, only what is around them all was surely called.
            calls = (() if around is None else (around,)) if node.others else node.owners
            by_path: dict[str, list[ModuleCall]] = {}
            # Calls that were open while these ran, ran as well.
            for call in dict.fromkeys(chain.from_iterable(map(self.record.hierarchy.stack, calls))):
                by_path.setdefault(call.path, []).append(call)
            for same_module in by_path.values():
                times = node.kernels / len(same_module) if series.repeated else node.kernels
                for call in same_module:
                    best[call] = max(best.get(call, (-series.depth, 0.0)), (-series.depth, times))
        counts: dict[str, float] = {}
        for call, (_, times) in best.items():
            counts[call.path] = counts.get(call.path, 0.0) + times
        return counts

    def noise(self, nodes: Sequence[NodeTime]) -> float | None:
        """Standard errors of the times of all modules, what is inside left out, as a share of the whole time.

        That of a median over n runs is about their interquartile range, divided by the root of n.
        https://en.wikipedia.org/wiki/Median#Sampling_distribution
        """
        by_module: dict[str | None, list[NodeTime]] = {}
        for node in nodes:
            by_module.setdefault(node.module, []).append(node)
        total = sum(node.time for node in nodes)
        ranges = [interquartile_range(self._sum_by_run(own)) for own in by_module.values()]
        known = [width for width in ranges if width is not None]
        return sum(known) / math.sqrt(self.runs) / total if total and len(known) == len(ranges) else None

    def _sum_by_run(self, nodes: Iterable[NodeTime]) -> list[float]:
        return [sum(times) for times in zip(*(self.series[node.keys].times for node in nodes), strict=True)]

    def _module_time(self, path: str | None, class_name: str, inside: list[NodeTime], calls: float) -> ModuleTime:
        own = [node for node in inside if node.module == path]
        by_run = self._sum_by_run(inside)
        return ModuleTime(
            path=path,
            class_name=class_name,
            time=sum(node.time for node in inside),
            own=sum(node.time for node in own),
            spread=spread(by_run, sum(node.time for node in inside)),
            charged=sum(sum(self.series[node.keys].times) for node in own),
            nodes=len(inside),
            calls=calls,
            kernels=sum(node.kernels for node in inside),
            operators=_sum_by_name((node.op_type, node.time) for node in inside),
            providers=_sum_by_name((node.provider, node.time) for node in inside),
            shared=_shared_times(own),
        )


def spread(numbers: Sequence[float], typical: float) -> float | None:
    """How far the middle half of some numbers is apart, as a share of what is typical; None if nothing says so."""
    width = interquartile_range(numbers)
    if not width:
        return width  # also where all are 0, and there is nothing to divide by
    return width / typical if typical else None


def interquartile_range(numbers: Sequence[float]) -> float | None:
    """Quartiles, since now and then a run is many times slower than all others and would be all that is seen."""
    if len(numbers) < RUNS_FOR_SPREAD:
        return None
    low, _, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return high - low


def _with_alike(modules: Sequence[ModuleTime]) -> Iterator[ModuleTime]:
    """With those next to each in time, if they differ by no more than their runs do."""
    siblings: dict[str, list[ModuleTime]] = {}
    for module in modules:
        if module.path:
            siblings.setdefault(parent_path(module.path), []).append(module)
    alike: dict[str | None, list[str]] = {}
    for group in siblings.values():
        for faster, slower in pairwise(sorted(group, key=lambda module: module.time)):
            if slower.time - faster.time < max(_spread_time(faster), _spread_time(slower)):
                alike.setdefault(faster.path, []).append(slower.path or ROOT)
                alike.setdefault(slower.path, []).append(faster.path or ROOT)
    for module in modules:
        yield replace(module, alike=tuple(alike.get(module.path, ())))


def _spread_time(module: ModuleTime) -> float:
    return module.time * (module.spread or 0.0)


def _shared_times(own: Iterable[NodeTime]) -> tuple[SharedTime, ...]:
    """Time of nodes that do the work of several modules, by these modules; the longest first.

    Apart is what several modules may have, as nothing in the profile says which of them it was.
    """
    groups: dict[tuple[tuple[str, ...], bool], list[NodeTime]] = {}
    for node in own:
        if node.sharers:
            groups.setdefault((node.sharers, bool(node.others)), []).append(node)
    shared = [
        SharedTime(modules, sum(node.time for node in nodes), len(nodes), unclear)
        for (modules, unclear), nodes in groups.items()
    ]
    return tuple(sorted(shared, key=lambda group: -group.time))


def _sum_by_name(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Added up by name, the largest first."""
    sums: dict[str, float] = {}
    for name, time in pairs:
        sums[name] = sums.get(name, 0.0) + time
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
