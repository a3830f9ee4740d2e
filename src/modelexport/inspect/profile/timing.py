"""The time of each module from the time of each node.

A node that does the work of several modules is charged to the module around them all, and said to be shared. So every
node is in exactly one place, and the parts add up to the whole.

How often modules are called in one run of a model.

A module that is called twice has two recorded calls, with nodes of their own, or with a node that both have in common.
In the body of a Loop, calls are made as often as the body runs, which is how often its nodes do, however many were
recorded. A module may itself have a Loop or an If, whose nodes run more or less often than it is called: nodes in the
fewest bodies count.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise

from modelexport.record.hierarchy import ROOT, Hierarchy, ModuleCall, parent_path
from modelexport.record.provenance import Provenance
from modelexport.record.results.profile import RUNS_FOR_SPREAD, KernelEvent, ModuleTime, NodeTime, SharedTime


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


@dataclass(slots=True)
class _Series:
    """The events of one node.

    times  its time in each run
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
    series: Mapping[tuple[str, ...], _Series] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[KernelEvent], record: Provenance, runs: int) -> Timeline:
        series: dict[tuple[str, ...], _Series] = {}
        for event in events:
            one = series.setdefault(event.keys, _Series([0.0] * runs, event.depth, event.repeated, event.provider))
            one.times[event.run] += event.own
            one.kernels += 1
        order = {key: place for place, key in enumerate(record.nodes)}
        return cls(record, runs, dict(sorted(series.items(), key=lambda item: order[item[0][0]])))

    def nodes(self) -> tuple[NodeTime, ...]:
        """In the order of the file."""
        return tuple(self._node(keys, one) for keys, one in self.series.items())

    def _node(self, keys: tuple[str, ...], series: _Series) -> NodeTime:
        entry = self.record.nodes[keys[0]]
        return NodeTime(
            key=keys[0],
            name=entry.name,
            op_type=entry.op_type,
            owners=self._owners(keys),
            module=self._place(keys),
            time=statistics.median(series.times),
            kernels=series.kernels / self.runs,
            provider=series.provider,
            others=keys[1:],
        )

    def _owners(self, keys: tuple[str, ...]) -> tuple[ModuleCall, ...]:
        nodes = self.record.nodes
        return tuple(dict.fromkeys(owner for key in keys for owner in nodes[key].attribution.owners))

    def _around(self, keys: tuple[str, ...]) -> ModuleCall | None:
        """The module call around everything that these nodes may be part of."""
        places = [self.record.nodes[key].attribution.ancestor for key in keys]
        known = [place for place in places if place is not None]
        return self.record.hierarchy.common_ancestor(known) if len(known) == len(places) else None

    def _place(self, keys: tuple[str, ...]) -> str | None:
        """The innermost module around it all, if in other calls: what two calls of a module share is inside of it."""
        return None if self._around(keys) is None else self.record.hierarchy.common_module(self._owners(keys))

    def modules(self, nodes: Sequence[NodeTime]) -> tuple[ModuleTime, ...]:
        """In the order of the hierarchy; what belongs to no module comes last."""
        hierarchy = self.record.hierarchy
        inside: dict[str, list[NodeTime]] = {}
        for node in nodes:
            for path in _upwards(node.module, hierarchy):
                inside.setdefault(path, []).append(node)
        calls = calls_by_module(self._called(nodes), hierarchy)
        found = [
            self._module(path, module.class_name, inside[path], calls.get(path, 0.0))
            for path, module in hierarchy.modules.items()
            if path in inside
        ]
        strays = [node for node in nodes if node.module is None]
        return (*_compared(found), *([self._module(None, "", strays, 0.0)] if strays else ()))

    def _called(self, nodes: Iterable[NodeTime]) -> Iterator[Ran]:
        for node in nodes:
            around = self._around(node.keys)
            calls = (() if around is None else (around,)) if node.others else node.owners
            series = self.series[node.keys]
            yield Ran(calls, series.depth, series.repeated, node.kernels)

    def _module(self, path: str | None, class_name: str, inside: list[NodeTime], calls: float) -> ModuleTime:
        own = [node for node in inside if node.module == path]
        by_run = [sum(times) for times in zip(*(self.series[node.keys].times for node in inside), strict=True)]
        return ModuleTime(
            path=path,
            class_name=class_name,
            time=sum(node.time for node in inside),
            own=sum(node.time for node in own),
            median=statistics.median(by_run),
            spread=spread(by_run),
            charged=sum(sum(self.series[node.keys].times) for node in own),
            nodes=len(inside),
            calls=calls,
            kernels=sum(node.kernels for node in inside),
            operators=_sums((node.op_type, node.time) for node in inside),
            providers=_sums((node.provider, node.time) for node in inside),
            shared=_shared(own),
        )


def spread(numbers: Sequence[float]) -> float | None:
    """How far the middle half of some numbers is apart, as a share of their median; None if nothing says so."""
    if len(numbers) < RUNS_FOR_SPREAD:
        return None
    low, middle, high = statistics.quantiles(numbers, n=4, method="inclusive")
    if low == high:
        return 0.0
    return (high - low) / middle if middle else None


def _compared(modules: Sequence[ModuleTime]) -> Iterator[ModuleTime]:
    """With what is known about each and those next to it in time: whether they differ by more than their runs do."""
    siblings: dict[str, list[ModuleTime]] = {}
    for module in modules:
        if module.path:
            siblings.setdefault(parent_path(module.path), []).append(module)
    alike: dict[str | None, list[str]] = {}
    for group in siblings.values():
        for one, other in pairwise(sorted(group, key=lambda module: module.median)):
            if other.median - one.median < max(_apart(one), _apart(other)):
                alike.setdefault(one.path, []).append(other.path or ROOT)
                alike.setdefault(other.path, []).append(one.path or ROOT)
    for module in modules:
        yield replace(module, alike=tuple(alike.get(module.path, ())))


def _apart(module: ModuleTime) -> float:
    return module.median * (module.spread or 0.0)


def _upwards(path: str | None, hierarchy: Hierarchy) -> Iterable[str]:
    """A module and those around it."""
    while path is not None:
        if path in hierarchy.modules:
            yield path
        path = None if path == ROOT else parent_path(path)


def _shared(own: Iterable[NodeTime]) -> tuple[SharedTime, ...]:
    groups: dict[tuple[tuple[str, ...], bool], list[NodeTime]] = {}
    for node in own:
        if node.sharers:
            groups.setdefault((node.sharers, bool(node.others)), []).append(node)
    found = [
        SharedTime(modules, sum(one.time for one in nodes), len(nodes), unclear)
        for (modules, unclear), nodes in groups.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.time))


def _sums(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Added up by name, the largest first."""
    found: dict[str, float] = {}
    for name, time in pairs:
        found[name] = found.get(name, 0.0) + time
    return dict(sorted(found.items(), key=lambda item: -item[1]))
