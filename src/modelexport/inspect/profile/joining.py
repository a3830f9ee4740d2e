"""Which node of the graph an event of ONNX Runtime's profile is about.

An event has the name of its node, or the node's operator and number if it has none. Neither needs to be unique:
optimizers give one name to several nodes, and the branches of an If number theirs alike. What events have besides is
order: one run of a graph is one group of events, and the groups of a node's bodies are inside of its event. So a
group is held against a graph as a whole. ONNX Runtime writes a graph that it has changed in the order in which it runs
it, and leaves one that it has not changed in the order of its numbers; whichever of the two fits is how the events are
read. Every node of a graph runs when the graph does, so that a reading with nodes left over counts only if there is no
other. Where several readings fit, nothing in the profile says which is right, and the event keeps all of its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from modelexport.errors import UserError
from modelexport.graph.index import MAIN, Graph, Node
from modelexport.record.results.profile import KernelEvent, RawEvent, RawRun

# Operators that run a body of theirs no more than once.
_ONCE = frozenset({"If"})

# What an event looks like, times left out: name, operator, number, and the groups inside of it. And a group of them.
_Event = tuple[str, str, int, tuple["_Shape", ...]]
_Shape = tuple[_Event, ...]


def join_events(runs: Sequence[RawRun], graph: Graph) -> list[KernelEvent]:
    """The events by node key, in the order in which they began. Raises UserError for the profile of another file."""
    reader = _Reader(graph)
    begin = runs[0].start if runs else 0.0
    found: list[KernelEvent] = []
    for number, run in enumerate(runs):
        reading = reader.read(_shape(run.events), (MAIN,))
        if reading is None:
            raise _is_of_another_file(run.events, graph)
        for (event, around), keys in zip(_unfolded(run.events), reading.keys, strict=True):
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


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a group of events may be about.

    keys   for each event, and for those inside of it right after it: the nodes that it may be about
    exact  whether every node of the graph has an event, in an order that the file may have
    """

    keys: tuple[tuple[str, ...], ...]
    exact: bool


class _Reader:
    """Reads groups of events; one that it has seen before is not read again."""

    def __init__(self, graph: Graph) -> None:
        self._bodies = graph.subgraphs
        self._nodes: dict[str, list[Node]] = {}
        for node in graph.nodes:
            self._nodes.setdefault(node.graph, []).append(node)
        self._seen: dict[tuple[_Shape, tuple[str, ...]], _Reading | None] = {}

    def read(self, group: _Shape, graphs: tuple[str, ...]) -> _Reading | None:
        """As a run of one of some graphs; None if it is of none of them."""
        if (group, graphs) not in self._seen:
            nodes = [self._nodes.get(one, []) for one in graphs]
            found = [reading for one in nodes for reading in self._in_order(group, one)]
            self._seen[group, graphs] = _either(found) or _either([self._by_name(group, one) for one in nodes])
        return self._seen[group, graphs]

    def _in_order(self, group: _Shape, nodes: list[Node]) -> Iterator[_Reading | None]:
        """The events, as they ran or as they are numbered, are the nodes in the order of the file."""
        ran = range(len(group))
        for order in (ran, sorted(ran, key=lambda place: group[place][2])):
            about = dict(zip(order, nodes, strict=False))
            if len(group) == len(nodes) and all(_fits(event, about[place]) for place, event in enumerate(group)):
                yield self._inside(group, [[about[place]] for place in ran], exact=True)

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
        return self._inside(group, choices, exact=False)

    def _inside(self, group: _Shape, choices: Sequence[list[Node]], *, exact: bool) -> _Reading | None:
        """What is left of the choices once what ran inside is held against them."""
        found: list[tuple[str, ...]] = []
        alike: dict[int, tuple[str, ...]] = {}  # of many nodes that nothing tells apart, one tuple and not one each
        for event, nodes in zip(group, choices, strict=True):
            if not nodes:
                return None
            if not event[3]:
                if id(nodes) not in alike:
                    alike[id(nodes)] = tuple(node.key for node in nodes)
                found.append(alike[id(nodes)])
                continue
            merged = _either([self._with_bodies(event[3], node) for node in nodes])
            if merged is None:
                return None
            found += merged.keys
            exact &= merged.exact
        return _Reading(tuple(found), exact)

    def _with_bodies(self, groups: Iterable[_Shape], node: Node) -> _Reading | None:
        """An event as that of a node: each group inside of it is a run of one of the node's bodies."""
        found: list[tuple[str, ...]] = [(node.key,)]
        exact = True
        for group in groups:
            reading = self.read(group, self._bodies.get(node.key, ()))
            if reading is None:
                return None
            found += reading.keys
            exact &= reading.exact
        return _Reading(tuple(found), exact)


def _fits(event: _Event, node: Node) -> bool:
    name, op_type, index, _ = event
    return node.op_type == op_type and name == (node.name or f"{op_type}_{index}")


def _either(readings: Iterable[_Reading | None]) -> _Reading | None:
    """Several readings of the same events as one: each event may be about any of the nodes."""
    fitting = [one for one in readings if one is not None]
    best = [one for one in fitting if one.exact] or fitting
    if len(best) < 2:
        return best[0] if best else None
    keys = tuple(
        tuple(dict.fromkeys(chain.from_iterable(one))) for one in zip(*(one.keys for one in best), strict=True)
    )
    return _Reading(keys, best[0].exact)


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
