"""Which node of the graph an event of ONNX Runtime's profile is about.

An event has the name of its node, or the node's operator and number if it has none. Neither needs to be unique:
optimizers give one name to several nodes, and the branches of an If number theirs alike. What events have besides is
order: one run of a graph is one group of events, and the groups of a node's bodies are inside of its event. So a
group is held against a graph as a whole. ONNX Runtime writes a graph that it has changed in the order in which it runs
it, and leaves one that it has not changed in the order of its numbers; whichever of the two fits is how the events are
read. Where several readings fit, nothing in the profile says which is right, and the event keeps all of its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from modelexport.errors import UserError
from modelexport.graph.index import MAIN, Graph, Node
from modelexport.record.profile import KernelEvent, RawEvent, RawRun

# Operators that run a body of theirs no more than once.
_ONCE = frozenset({"If"})

# For each event of a group, and for those inside of it right after it: the keys of the nodes that it may be about.
_Reading = tuple[tuple[str, ...], ...]
# What an event looks like, times left out: name, operator, number, and the groups inside of it. And a group of them.
_Event = tuple[str, str, int, tuple["_Shape", ...]]
_Shape = tuple[_Event, ...]


def join_events(runs: Sequence[RawRun], graph: Graph) -> list[KernelEvent]:
    """The events by node key, in the order in which they began. Raises UserError for the profile of another file."""
    reader = _Reader(graph)
    begin = runs[0].start if runs else 0.0
    found: list[KernelEvent] = []
    for number, run in enumerate(runs):
        reading = reader.read(_shape(run.events), MAIN)
        if reading is None:
            raise _is_of_another_file(run.events, graph)
        for (event, around), keys in zip(_unfolded(run.events), reading, strict=True):
            found.append(
                KernelEvent(
                    keys=keys,
                    run=number,
                    start=event.start - begin,
                    duration=event.duration,
                    inside=sum(one.duration for body in event.bodies for one in body),
                    depth=len(around),
                    repeated=any(op_type not in _ONCE for op_type in around),
                    provider=event.provider,
                )
            )
    return found


class _Reader:
    """Reads groups of events; one that it has seen before is not read again."""

    def __init__(self, graph: Graph) -> None:
        self._bodies = graph.bodies
        self._nodes: dict[str, list[Node]] = {}
        for node in graph.nodes:
            self._nodes.setdefault(node.graph, []).append(node)
        self._seen: dict[tuple[_Shape, str], _Reading | None] = {}

    def read(self, group: _Shape, graph_id: str) -> _Reading | None:
        """None if this cannot be a run of that graph."""
        if (group, graph_id) not in self._seen:
            self._seen[group, graph_id] = self._read(group, self._nodes.get(graph_id, []))
        return self._seen[group, graph_id]

    def _read(self, group: _Shape, nodes: list[Node]) -> _Reading | None:
        ran = list(range(len(group)))
        numbered = sorted(ran, key=lambda place: group[place][2])
        ordered = [self._in_order(group, order, nodes) for order in (ran, numbered)]
        return _either([one for one in ordered if one is not None]) or self._by_name(group, nodes)

    def _in_order(self, group: _Shape, order: list[int], nodes: list[Node]) -> _Reading | None:
        """The events in some order are the nodes in that of the file."""
        if len(group) != len(nodes):
            return None
        about = dict(zip(order, nodes, strict=True))
        if not all(_fits(event, about[place]) for place, event in enumerate(group)):
            return None
        return self._inside(group, [[about[place]] for place in range(len(group))])

    def _by_name(self, group: _Shape, nodes: list[Node]) -> _Reading | None:
        """In no order that is known: of several nodes with one name, an event may be about each."""
        named: dict[tuple[str, str], list[Node]] = {}
        for node in nodes:
            named.setdefault((node.op_type, node.name), []).append(node)
        choices = []
        for name, op_type, index, _ in group:
            nameless = named.get((op_type, ""), []) if name == f"{op_type}_{index}" else []
            exact = named.get((op_type, name), [])
            choices.append(exact + nameless if exact else nameless)
        return self._inside(group, choices)

    def _inside(self, group: _Shape, choices: Sequence[list[Node]]) -> _Reading | None:
        """What is left of the choices once what ran inside is held against them."""
        found: list[tuple[str, ...]] = []
        alike: dict[int, tuple[str, ...]] = {}  # of many nodes that nothing tells apart, one tuple and not one each
        for event, nodes in zip(group, choices, strict=True):
            if not event[3]:
                if id(nodes) not in alike:
                    alike[id(nodes)] = tuple(node.key for node in nodes)
                keys = alike[id(nodes)]
                merged: _Reading | None = ()
            else:
                read = [(node.key, self._in_bodies(event[3], node)) for node in nodes]
                keys = tuple(key for key, bodies in read if bodies is not None)
                merged = _either([bodies for _, bodies in read if bodies is not None])
            if not keys or merged is None:
                return None
            found += [keys, *merged]
        return tuple(found)

    def _in_bodies(self, groups: Iterable[_Shape], node: Node) -> _Reading | None:
        """Each group inside of an event is a run of one of its node's bodies."""
        found: list[tuple[str, ...]] = []
        for group in groups:
            readings = [self.read(group, body) for body in self._bodies.get(node.key, ())]
            merged = _either([one for one in readings if one is not None])
            if merged is None:
                return None
            found += merged
        return tuple(found)


def _fits(event: _Event, node: Node) -> bool:
    name, op_type, index, _ = event
    return node.op_type == op_type and name == (node.name or f"{op_type}_{index}")


def _either(readings: Sequence[_Reading]) -> _Reading | None:
    """Several readings of the same events as one: each event may be about any of the nodes."""
    if len(readings) < 2:
        return readings[0] if readings else None
    return tuple(tuple(dict.fromkeys(key for keys in one for key in keys)) for one in zip(*readings, strict=True))


def _shape(events: Iterable[RawEvent]) -> _Shape:
    return tuple((one.name, one.op_type, one.index, tuple(map(_shape, one.bodies))) for one in events)


def _unfolded(events: Iterable[RawEvent], around: tuple[str, ...] = ()) -> Iterator[tuple[RawEvent, tuple[str, ...]]]:
    """Each event, then those inside of it; with the operators in whose bodies it is."""
    for event in events:
        yield event, around
        for body in event.bodies:
            yield from _unfolded(body, (*around, event.op_type))


def _is_of_another_file(events: Iterable[RawEvent], graph: Graph) -> UserError:
    hint = "Run the file itself: `modelexport profile FILE`."
    named = {(node.op_type, node.name) for node in graph.nodes}
    for event, _ in _unfolded(events):
        nameless = event.name == f"{event.op_type}_{event.index}" and (event.op_type, "") in named
        if (event.op_type, event.name) not in named and not nameless:
            kernel = f"{event.op_type} {event.name!r}"
            return UserError(f"the profile is of another file: it has a {kernel} that the graph does not have", hint)
    return UserError("the profile is of another file: its kernels are not those of the graph", hint)
