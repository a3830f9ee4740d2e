"""Whether a graph is one: every value made once, and before it is read.

Whoever asks where nodes come from needs no more than that; ONNX's own checker also wants weights, types and operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import onnx

from modelexport.errors import FileUnreadable
from modelexport.graph.index import KEY_SEPARATOR, MAIN, Graph, Node
from modelexport.record.wording import some_of


def ensure_sound(proto: onnx.ModelProto, graph: Graph, subject: str) -> None:
    """Raise FileUnreadable for a graph that nothing certain can be said about. `subject` is what it is called."""
    problem = next(_problems(proto, graph), None)
    if problem is not None:
        raise FileUnreadable(
            f"{subject} is not a valid ONNX graph: {problem}", "Make the file again with the tool that wrote it."
        )


def _problems(proto: onnx.ModelProto, graph: Graph) -> Iterator[str]:
    stored = Counter(tensor.name for tensor in proto.graph.initializer)
    yield from (f"there are {count} initializers named {name!r}" for name, count in stored.items() if count > 1)
    given = {*graph.initializers, *(value for values in graph.takes.values() for value in values)}
    made = Counter(output for node in graph.nodes for output in node.outputs if output)
    yield from (f"{count} nodes make the value {_told(value)}" for value, count in made.items() if count > 1)
    yield from (f"a node makes the value {_told(value)}, which is given" for value in made if value in given)
    known = {*given, *made, *(tensor.values.name for tensor in proto.graph.sparse_initializer)}
    for node in graph.nodes:
        strange = [value for value in node.inputs if value and value not in known]
        if strange:
            who = f"the {node.op_type} that makes {_told(node.key)}"
            yield f"{who} reads {_told(strange[0])}, which nobody makes"
    yield from (f"it returns {value!r}, which nobody makes" for value in graph.yields[MAIN] if value not in known)
    if graph.nodes and not graph.yields[MAIN]:
        yield "it returns nothing"
    cycle = cycle_in(graph)
    if cycle:
        yield f"nodes read each other in a circle: {some_of(list(map(_told, cycle)))}"


def cycle_in(graph: Graph) -> tuple[str, ...]:
    """The keys of some nodes that read each other in a circle; none if there are none.

    An index is in an order in which nodes can run, so that only those of a circle come before what they read.
    """
    for node in graph.nodes:
        late = any(
            graph.producers[value].position >= node.position for value in node.inputs if value in graph.producers
        )
        way = _way_back(graph, node) if late else ()
        if way:
            return tuple(sorted({_outermost(graph, key) for key in way}))
    return ()


def _way_back(graph: Graph, start: Node) -> tuple[str, ...]:
    """The nodes from one to itself, each of which reads from the next; nothing if there is no such way."""
    inside: dict[str, list[Node]] = {}
    for node in graph.nodes:
        inside.setdefault(graph.owners.get(node.graph, ""), []).append(node)
    came_from: dict[str, str] = {}
    waiting = [start]
    while waiting:
        here = waiting.pop()
        for above in (*graph.predecessors(here), *inside.get(here.key, ())):
            if above.key == start.key:
                return _steps(came_from, here.key, start.key)
            if above.key not in came_from:
                came_from[above.key] = here.key
                waiting.append(above)
    return ()


def _steps(came_from: Mapping[str, str], end: str, start: str) -> tuple[str, ...]:
    found = [end]
    while found[-1] != start:
        found.append(came_from[found[-1]])
    return tuple(reversed(found))


def _outermost(graph: Graph, key: str) -> str:
    while (owner := graph.owners.get(graph.by_key[key].graph)) is not None:
        key = owner
    return key


def _told(value: str) -> str:
    """A value by the name that it has in the file, and where that is."""
    graph_id, _, name = value.rpartition(KEY_SEPARATOR)
    return f"{name!r} in {graph_id!r}" if graph_id else repr(name)
