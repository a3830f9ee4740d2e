"""Which node of the graph an event of ONNX Runtime's profile is about.

Events have the name of their node. Optimizers give one name to several nodes; those are told apart by their operator
and by the order in which they run, which is that of the file. Events of a node without a name have its operator and a
number in place of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from modelexport.errors import UserError
from modelexport.graph.index import Graph, Node
from modelexport.record.profile import KernelEvent, RawEvent, Span


def join_events(
    events: Iterable[RawEvent], spans: Sequence[Span], graph: Graph
) -> tuple[list[KernelEvent], dict[str, str]]:
    """The events by node key, and who ran each node. Raises UserError for the profile of another file."""
    counted = list(_by_run(events, spans))
    nodes: dict[tuple[str, str], list[Node]] = {}
    for node in graph.nodes:
        nodes.setdefault((node.name, node.op_type), []).append(node)
    nodes.update(_without_names([event for event, _ in counted], nodes, graph))
    begin = spans[0].start if spans else 0.0
    found: list[KernelEvent] = []
    providers: dict[str, str] = {}
    seen: dict[tuple[int, str, str], int] = {}
    for event, run in counted:
        group = nodes.get((event.name, event.op_type))
        if group is None:
            raise UserError(
                f"the profile is of another file: it has a {event.op_type} {event.name!r} that the graph does not have",
                "Run the file itself: `modelexport profile FILE`.",
            )
        turn = seen[run, event.name, event.op_type] = seen.get((run, event.name, event.op_type), -1) + 1
        node = group[turn % len(group)]
        found.append(KernelEvent(node.key, run, event.start - begin, event.duration))
        providers[node.key] = event.provider
    return _without_bodies(found, graph), providers


def _without_bodies(events: Sequence[KernelEvent], graph: Graph) -> list[KernelEvent]:
    """Events of nodes that hold bodies, with what ran inside of them: it has events of its own."""
    latest: dict[str, int] = {}
    inside = [0.0] * len(events)
    for place, event in enumerate(events):
        latest[event.key] = place
        holder = latest.get(graph.owners.get(graph.by_key[event.key].graph, ""))
        if holder is not None:
            inside[holder] += event.duration
    return [replace(event, inside=time) if time else event for event, time in zip(events, inside, strict=True)]


def _without_names(
    events: Sequence[RawEvent], named: Mapping[tuple[str, str], list[Node]], graph: Graph
) -> dict[tuple[str, str], list[Node]]:
    """Nodes without a name by what events call them: an operator and a number, as in `MatMul_35`."""
    seen = dict.fromkeys((event.name, event.op_type) for event in events)
    strange: dict[str, list[str]] = {}
    for name, op_type in seen:
        if (name, op_type) not in named and _number(name, op_type) is not None and ("", op_type) in named:
            strange.setdefault(op_type, []).append(name)
    # What an optimizer wrote is in the order in which it runs; what it left alone, in the order of its numbers.
    ran = [op_type for _, op_type in seen] == [node.op_type for node in graph.nodes]
    found: dict[tuple[str, str], list[Node]] = {}
    for op_type, names in strange.items():
        group = named["", op_type]
        ordered = names if ran else sorted(names, key=lambda name: _number(name, op_type) or 0)
        found.update({(name, op_type): [group[place % len(group)]] for place, name in enumerate(ordered)})
    return found


def _number(name: str, op_type: str) -> int | None:
    number = name.removeprefix(f"{op_type}_")
    return int(number) if number != name and number.isdecimal() else None


def _by_run(events: Iterable[RawEvent], spans: Sequence[Span]) -> Iterable[tuple[RawEvent, int]]:
    """Events in the order of time, with the number of the run that each is part of; those of no run are dropped."""
    run = 0
    for event in sorted(events, key=lambda one: one.start):
        while run < len(spans) and event.start >= spans[run].end:
            run += 1
        if run < len(spans) and event.start >= spans[run].start:
            yield event, run
