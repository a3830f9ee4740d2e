"""Which node of the graph an event of ONNX Runtime's profile is about.

Events have the name of their node. Optimizers leave nodes without a name, or give one to several; those are told apart
by their operator and by the order in which they run, which is that of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from modelexport.errors import UserError
from modelexport.graph.index import Graph, Node
from modelexport.record.profile import KernelEvent, RawEvent, Span


def join_events(
    events: Iterable[RawEvent], spans: Sequence[Span], graph: Graph
) -> tuple[list[KernelEvent], dict[str, str]]:
    """The events by node key, and who ran each node. Raises UserError for the profile of another file."""
    nodes: dict[tuple[str, str], list[Node]] = {}
    for node in graph.nodes:
        nodes.setdefault((node.name, node.op_type), []).append(node)
    begin = spans[0].start if spans else 0.0
    found: list[KernelEvent] = []
    providers: dict[str, str] = {}
    seen: dict[tuple[int, str, str], int] = {}
    for event, run in _by_run(events, spans):
        group = nodes.get((event.name, event.op_type))
        if group is None:
            raise UserError(
                f"the profile is of another file: it has a {event.op_type} {event.name!r} that the graph does not have"
            )
        turn = seen[run, event.name, event.op_type] = seen.get((run, event.name, event.op_type), -1) + 1
        node = group[turn % len(group)]
        found.append(KernelEvent(node.key, run, event.start - begin, event.duration))
        providers[node.key] = event.provider
    return found, providers


def _by_run(events: Iterable[RawEvent], spans: Sequence[Span]) -> Iterable[tuple[RawEvent, int]]:
    """Events in the order of time, with the number of the run that each is part of; those of no run are dropped."""
    run = 0
    for event in sorted(events, key=lambda one: one.start):
        while run < len(spans) and event.start >= spans[run].end:
            run += 1
        if run < len(spans) and event.start >= spans[run].start:
            yield event, run
