"""Whether a graph is one: every value made once, and before it is read.

Whoever asks where nodes come from needs no more than that; ONNX's own checker also wants weights, types and operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx

from modelexport.errors import FileUnreadable
from modelexport.graph.index import KEY_SEPARATOR, MAIN, Graph
from modelexport.graph.order import cycle_in
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
    cycle = cycle_in(graph)
    if cycle:
        yield f"nodes read each other in a circle: {some_of(list(map(_told, cycle)))}"


def _told(value: str) -> str:
    """A value by the name that it has in the file, and where that is."""
    graph_id, _, name = value.rpartition(KEY_SEPARATOR)
    return f"{name!r} in {graph_id!r}" if graph_id else repr(name)
