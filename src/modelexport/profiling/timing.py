"""The time of each module from the time of each node.

A node that does the work of several modules is charged to the module around them all, and said to be shared. So every
node is in exactly one place, and the parts add up to the whole.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from modelexport.record.evidence import Attribution
from modelexport.record.hierarchy import ROOT, Hierarchy, parent_path
from modelexport.record.profile import KernelEvent, ModuleTime, NodeTime, SharedTime
from modelexport.record.provenance import Provenance


def node_times(
    events: Iterable[KernelEvent], record: Provenance, providers: Mapping[str, str], runs: int
) -> tuple[NodeTime, ...]:
    """The nodes that ran, in file order."""
    events = list(events)
    durations = _by_run(events, runs)
    counts = Counter(event.key for event in events)
    return tuple(
        NodeTime(
            key=key,
            name=entry.name,
            op_type=entry.op_type,
            owners=entry.attribution.owners,
            time=statistics.median(durations[key]),
            calls=counts[key] / runs,
            provider=providers.get(key, ""),
        )
        for key, entry in record.nodes.items()
        if key in durations
    )


def _by_run(events: Iterable[KernelEvent], runs: int) -> dict[str, list[float]]:
    """By the key of a node: its time in each run."""
    found: dict[str, list[float]] = {}
    for event in events:
        found.setdefault(event.key, [0.0] * runs)[event.run] += event.own
    return found


def spread(numbers: Sequence[float]) -> float:
    """How far the middle half of some numbers is apart, as a share of their median."""
    middle = statistics.median(numbers)
    if len(numbers) < 2 or not middle:
        return 0.0
    low, _, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return (high - low) / middle


def module_times(
    nodes: Sequence[NodeTime], events: Iterable[KernelEvent], record: Provenance, runs: int
) -> tuple[ModuleTime, ...]:
    tree = _Tree(nodes, events, record, runs)
    paths = [path for path in record.hierarchy.modules if path in tree.inside]
    return tuple(map(tree.module, paths)) + tree.nobody()


class _Tree:
    """
    inside  by module path: the nodes whose work is done inside of it
    """

    def __init__(self, nodes: Sequence[NodeTime], events: Iterable[KernelEvent], record: Provenance, runs: int) -> None:
        self._hierarchy = record.hierarchy
        self._runs = runs
        self._places = {node.key: _place(record.nodes[node.key].attribution) for node in nodes}
        self._series = _by_run(events, runs)
        self.inside: dict[str, list[NodeTime]] = {}
        self._strays = [node for node in nodes if self._places[node.key] is None]
        for node in nodes:
            for path in _upwards(self._places[node.key], self._hierarchy):
                self.inside.setdefault(path, []).append(node)

    def module(self, path: str) -> ModuleTime:
        inside = self.inside[path]
        own = [node for node in inside if self._places[node.key] == path]
        return self._time(path, self._hierarchy.modules[path].class_name, inside, own)

    def nobody(self) -> tuple[ModuleTime, ...]:
        return (self._time(None, "", self._strays, self._strays),) if self._strays else ()

    def _time(self, path: str | None, class_name: str, inside: list[NodeTime], own: list[NodeTime]) -> ModuleTime:
        return ModuleTime(
            path=path,
            class_name=class_name,
            time=sum(node.time for node in inside),
            own=sum(node.time for node in own),
            spread=spread([sum(self._series[node.key][run] for node in inside) for run in range(self._runs)]),
            nodes=len(inside),
            calls=sum(node.calls for node in inside),
            operators=_sums((node.op_type, node.time) for node in inside),
            providers=_sums((node.provider, node.time) for node in inside),
            shared=_shared(own),
        )


def _place(attribution: Attribution) -> str | None:
    return None if attribution.ancestor is None else attribution.ancestor.path


def _upwards(path: str | None, hierarchy: Hierarchy) -> Iterable[str]:
    """A module and those around it."""
    while path is not None:
        if path in hierarchy.modules:
            yield path
        path = None if path == ROOT else parent_path(path)


def _shared(own: Iterable[NodeTime]) -> tuple[SharedTime, ...]:
    groups: dict[tuple[str, ...], list[NodeTime]] = {}
    for node in own:
        modules = tuple(dict.fromkeys(owner.path for owner in node.owners))
        if len(modules) > 1:
            groups.setdefault(modules, []).append(node)
    found = [SharedTime(modules, sum(one.time for one in nodes), len(nodes)) for modules, nodes in groups.items()]
    return tuple(sorted(found, key=lambda one: -one.time))


def _sums(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Added up by name, the largest first."""
    found: dict[str, float] = {}
    for name, time in pairs:
        found[name] = found.get(name, 0.0) + time
    return dict(sorted(found.items(), key=lambda item: -item[1]))
