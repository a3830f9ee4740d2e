"""What happens to queries and keys between their projection and their product: scaling, and turning by position.

Turned by position (rotary): a value and a shuffled copy of it, each multiplied by a table, and added. The tables are
sines and cosines, or constants where an exporter could work them out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from modelexport.graph.index import Node
from modelexport.roles.attention import Attention
from modelexport.roles.constants import is_single
from modelexport.roles.flow import Flow, Trace
from modelexport.roles.operators import ANGLES, data_inputs

POSITION = "position"


def operand_roles(flow: Flow, attentions: Iterable[Attention], known: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    seen: set[str] = set()
    for item in attentions:
        for value in (item.query, item.key):
            for node in _back_to_source(flow, value, seen):
                role = "" if node.key in known else _role(flow, node, item.kind)
                if role:
                    found.setdefault(node.key, role)
                if role == POSITION:
                    found.update(dict.fromkeys(_angles(flow, node, seen), POSITION))
    return found


def _back_to_source(flow: Flow, value: str, seen: set[str]) -> Iterable[Node]:
    """The nodes between a value and the products that it comes from. Each is given once."""
    waiting = [value]
    while waiting:
        node = flow.graph.producers.get(waiting.pop())
        if node is None or node.key in seen or flow.trace(node.key).sources == {node.key}:
            continue
        seen.add(node.key)
        yield node
        waiting += [item for item in data_inputs(node.op_type, node.inputs) if flow.trace(item).sources]


def _role(flow: Flow, node: Node, kind: str) -> str:
    moving = [flow.trace(value) for value in node.inputs if flow.trace(value).sources]
    beside = [value for value in node.inputs if not flow.trace(value).sources]
    if node.op_type == "RotaryEmbedding" or (node.op_type in ("Add", "Sub") and _are_copies(moving)):
        return POSITION
    if node.op_type in ("Mul", "Div") and beside and moving:
        if flow.trace(beside[0]).angle or (not _is_scale(flow, beside[0]) and _is_turned(flow, node)):
            return POSITION
        return f"{kind}.scale" if _is_scale(flow, beside[0]) else ""
    return ""


def _are_copies(traces: list[Trace]) -> bool:
    return len(traces) > 1 and len({trace.sources for trace in traces}) == 1


def _is_scale(flow: Flow, value: str) -> bool:
    """One constant number, or one that was worked out from a shape."""
    return is_single(flow.graph, value) or not (flow.trace(value).weight or flow.trace(value).learned)


def _is_turned(flow: Flow, node: Node) -> bool:
    """The product goes into a sum with another copy of itself, and nowhere else."""
    readers = flow.graph.consumers.get(node.outputs[0], ())
    if len(readers) != 1 or readers[0].op_type not in ("Add", "Sub"):
        return False
    return _are_copies([flow.trace(value) for value in readers[0].inputs])


def _angles(flow: Flow, node: Node, seen: set[str]) -> Iterable[str]:
    """The sines and cosines that a multiplication reads."""
    waiting = [value for value in node.inputs if flow.trace(value).angle and not flow.trace(value).sources]
    while waiting:
        maker = flow.graph.producers.get(waiting.pop())
        if maker is None or maker.key in seen:
            continue
        seen.add(maker.key)
        if maker.op_type in ANGLES:
            yield maker.key
        else:
            waiting += [value for value in maker.inputs if flow.trace(value).angle]
