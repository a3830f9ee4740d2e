"""Kernel events: each event of a profile, joined with the node of the graph that it is about.

An event of ONNX Runtime's profile has the name of its node, or the node's operator and number if that has no
name. Neither needs to be unique: optimizers give one name to several nodes, and the branches of an If number theirs
alike. What events have besides is order. One run of a graph is one group of events, and the groups of a node's
subgraphs are inside of its event, so that a group is held against a graph as a whole:

    events   MatMul_0  Relu_1  If_2 [ Add_0 ]          one group, with a group inside
    nodes    MatMul    Relu    If   { then: Add, else: Sub }

ONNX Runtime writes a graph that it has changed in the order in which it runs it, and leaves one that it has not changed
in the order of its numbers; whichever of the two fits is how the events are read. Every node of a graph runs when the
graph does, so that a reading with nodes left over counts only if there is no other. Where several readings fit, nothing
in the profile says which is right, and the event keeps all of its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from modelexport.errors import UserError
from modelexport.graph.index import MAIN, Graph, Node
from modelexport.record.results.profile import KernelEvent, RawEvent, RawRun

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
