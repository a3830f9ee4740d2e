"""Profile: the time of each kernel, joined with the node that it ran, and summed up by module.

Joining. An event of ONNX Runtime's profile has the name of its node, or the node's operator and number if that has no
name. Neither needs to be unique: optimizers give one name to several nodes, and the branches of an If number theirs
alike. What events have besides is order. One run of a graph is one group of events, and the groups of a node's
subgraphs are inside of its event, so that a group is held against a graph as a whole:

    events   MatMul_0  Relu_1  If_2 [ Add_0 ]          one group, with a group inside
    nodes    MatMul    Relu    If   { then: Add, else: Sub }

ONNX Runtime writes a graph that it has changed in the order in which it runs it, and leaves one that it has not changed
in the order of its numbers; whichever of the two fits is how the events are read. Every node of a graph runs when the
graph does, so that a reading with nodes left over counts only if there is no other. Where several readings fit, nothing
in the profile says which is right, and the event keeps all of its nodes.

Summing up. A node is an own node of one module, as in all verbs (`graph/module_totals.py`); if it does the work of
several, its time is told apart as shared. So the parts add up.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

from modelexport.errors import UserError
from modelexport.graph.index import MAIN, Graph, Node
from modelexport.graph.module_totals import own_module
from modelexport.record.hierarchy import ROOT, ModuleCall, lineage_of, parent_path
from modelexport.record.provenance import Confidence, Provenance
from modelexport.record.results.profile import (
    RUNS_FOR_SPREAD,
    KernelEvent,
    ModuleTime,
    NodeTime,
    RawEvent,
    RawRun,
    SharedTime,
)

# Operators that run a subgraph of theirs no more than once.
_RUN_ONCE = frozenset({"If"})

# An event without its times: name, operator, number, and the groups inside of it. And a group of them.
_Event = tuple[str, str, int, tuple["_Group", ...]]
_Group = tuple[_Event, ...]


def join_events(runs: Sequence[RawRun], graph: Graph) -> list[KernelEvent]:
    """The events by node key, in the order in which they began. Raises UserError for the profile of another file."""
    reader = _GroupReader(graph)
    begin = runs[0].start if runs else 0.0
    joined: list[KernelEvent] = []
    for number, run in enumerate(runs):
        reading = reader.read(_without_times(run.events), (MAIN,))
        if reading is None:
            raise _is_of_another_file(run.events, graph)
        for (event, around), keys in zip(_walk_events(run.events), reading.keys, strict=True):
            joined.append(
                KernelEvent(
                    keys=keys,
                    run=number,
                    start=event.start - begin,
                    duration=event.duration,
                    inside=sum(inner.duration for body in event.bodies for inner in body),
                    depth=len(around),
                    repeated=any(op_type not in _RUN_ONCE for op_type in around),
                    provider=event.provider,
                )
            )
    return joined


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a group of events may be about.

    keys   for each event, and for those inside of it right after it: the nodes that it may be about
    exact  whether every node of the graph has an event, in an order that the file may have
    """

    keys: tuple[tuple[str, ...], ...]
    exact: bool


class _GroupReader:
    """Reads groups of events; one that it has seen before is not read again."""

    def __init__(self, graph: Graph) -> None:
        self._subgraphs = graph.subgraphs
        self._members = graph.members
        self._seen: dict[tuple[_Group, tuple[str, ...]], _Reading | None] = {}

    def read(self, group: _Group, graph_ids: tuple[str, ...]) -> _Reading | None:
        """As a run of one of some graphs; None if it is of none of them."""
        if (group, graph_ids) not in self._seen:
            graphs = [self._members.get(graph_id, ()) for graph_id in graph_ids]
            readings = [reading for nodes in graphs for reading in self._read_in_order(group, nodes)]
            by_name = (self._read_by_name(group, nodes) for nodes in graphs)
            self._seen[group, graph_ids] = _merge_readings(readings) or _merge_readings(by_name)
        return self._seen[group, graph_ids]

    def _read_in_order(self, group: _Group, nodes: Sequence[Node]) -> Iterator[_Reading | None]:
        """The events, as they ran or as they are numbered, are the nodes in the order of the file."""
        ran = range(len(group))
        for order in (ran, sorted(ran, key=lambda position: group[position][2])):
            about = dict(zip(order, nodes, strict=False))
            # An event of a node without a name is called after its operator and number.
            fitting = len(group) == len(nodes) and all(
                about[position].op_type == op_type and name == (about[position].name or f"{op_type}_{index}")
                for position, (name, op_type, index, _) in enumerate(group)
            )
            if fitting:
                yield self._read_inside(group, [[about[position]] for position in ran], exact=True)

    def _read_by_name(self, group: _Group, nodes: Sequence[Node]) -> _Reading | None:
        """In no order that is known: of several nodes with one name, an event may be about each."""
        by_name: dict[tuple[str, str], list[Node]] = {}
        for node in nodes:
            by_name.setdefault((node.op_type, node.name), []).append(node)
        choices = []
        for name, op_type, index, _ in group:
            nameless = by_name.get((op_type, ""), []) if name == f"{op_type}_{index}" else []
            exact = by_name.get((op_type, name), [])
            choices.append(exact + nameless if exact else nameless)
        return self._read_inside(group, choices, exact=False)

    def _read_inside(self, group: _Group, choices: Sequence[list[Node]], *, exact: bool) -> _Reading | None:
        """What is left of the choices once what ran inside is held against them."""
        keys: list[tuple[str, ...]] = []
        alike: dict[int, tuple[str, ...]] = {}  # of many nodes that nothing tells apart, one tuple and not one each
        for event, nodes in zip(group, choices, strict=True):
            if not nodes:
                return None
            if not event[3]:
                if id(nodes) not in alike:
                    alike[id(nodes)] = tuple(node.key for node in nodes)
                keys.append(alike[id(nodes)])
                continue
            merged = _merge_readings(self._read_subgraphs(event[3], node) for node in nodes)
            if merged is None:
                return None
            keys += merged.keys
            exact &= merged.exact
        return _Reading(tuple(keys), exact)

    def _read_subgraphs(self, groups: Iterable[_Group], node: Node) -> _Reading | None:
        """An event as that of a node: each group inside of it is a run of one of the node's subgraphs."""
        keys: list[tuple[str, ...]] = [(node.key,)]
        exact = True
        for group in groups:
            reading = self.read(group, self._subgraphs.get(node.key, ()))
            if reading is None:
                return None
            keys += reading.keys
            exact &= reading.exact
        return _Reading(tuple(keys), exact)


def _merge_readings(readings: Iterable[_Reading | None]) -> _Reading | None:
    """Several readings of the same events as one: each event may be about any of the nodes."""
    fitting = [reading for reading in readings if reading is not None]
    best = [reading for reading in fitting if reading.exact] or fitting
    if len(best) < 2:
        return best[0] if best else None
    per_event = zip(*(reading.keys for reading in best), strict=True)
    return _Reading(tuple(tuple(dict.fromkeys(chain.from_iterable(keys))) for keys in per_event), best[0].exact)


def _without_times(events: Iterable[RawEvent]) -> _Group:
    """What is left is equal for all runs, and for all rounds of a Loop, so that it is read once."""
    return tuple((event.name, event.op_type, event.index, tuple(map(_without_times, event.bodies))) for event in events)


def _walk_events(
    events: Iterable[RawEvent], around: tuple[str, ...] = ()
) -> Iterator[tuple[RawEvent, tuple[str, ...]]]:
    """Each event, then those inside of it; with the operators in whose subgraphs it is."""
    for event in events:
        yield event, around
        for body in event.bodies:
            yield from _walk_events(body, (*around, event.op_type))


def _is_of_another_file(events: Iterable[RawEvent], graph: Graph) -> UserError:
    """With the first kernel that the graph does not have, if it is as simple as that."""
    hint = "Run the file itself: `modelexport profile FILE`."
    names = {(node.op_type, node.name) for node in graph.nodes}
    for event, _ in _walk_events(events):
        nameless = event.name == f"{event.op_type}_{event.index}" and (event.op_type, "") in names
        if (event.op_type, event.name) not in names and not nameless:
            kernel = f"{event.op_type} {event.name!r}"
            return UserError(f"the profile is of another file: it has a {kernel} that the graph does not have", hint)
    return UserError("the profile is of another file: its kernels are not those of the graph", hint)


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
