"""Embeddings and positions: tables read by rows.

Read by what the model is fed, it is an embedding. Read by a count (a range, a running sum, a constant row of indices
as long as the table), it is a position, and so is adding it, or adding any constant that differs along two axes, to a
stream.
A table that is read by indices of which nothing is known gets no role.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from modelexport.graph.index import FLOATS, Node
from modelexport.roles.attention import Attention, score_addends
from modelexport.roles.flow import Flow

EMBEDDING, POSITION = "embedding", "position"
_AXES_OF_A_TABLE = 2


def embedding_roles(flow: Flow, attentions: Iterable[Attention], known: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in flow.order:
        if node.key in known:
            continue
        role = _looked_up(flow, node) if node.op_type == "Gather" else _added(flow, node)
        if node.op_type == "EmbedLayerNormalization":
            role = EMBEDDING
        if role:
            found[node.key] = role
    found.update(dict.fromkeys(_added_to_scores(flow, attentions), POSITION))
    return found


def _looked_up(flow: Flow, node: Node) -> str:
    trace = flow.trace(node.key)
    if trace.sources != {node.key}:
        return ""
    if trace.counted:
        return POSITION
    return EMBEDDING if trace.content else ""


def _added(flow: Flow, node: Node) -> str:
    if node.op_type != "Add" or not flow.trace(node.key).content:
        return ""
    for value, other in (node.inputs, node.inputs[::-1]):
        if flow.trace(other).content and (_is_position(flow, value) or _is_constant_table(flow, value)):
            return POSITION
    return ""


def _is_position(flow: Flow, value: str) -> bool:
    """It comes from one table, read by a count, and nothing else."""
    trace = flow.trace(value)
    sources = trace.sources
    if trace.angle and not trace.content:
        return True
    return len(sources) == 1 and trace.positional and all(flow.trace(source).counted for source in sources)


def _is_constant_table(flow: Flow, value: str) -> bool:
    tensor = flow.graph.initializers.get(flow.trace(value).weight)
    if tensor is None or tensor.dtype not in FLOATS or not flow.trace(value).learned:
        return False
    return sum(size > 1 for size in tensor.shape) >= _AXES_OF_A_TABLE


def _added_to_scores(flow: Flow, attentions: Iterable[Attention]) -> Iterable[str]:
    """Tables that reach the scores of an attention without being projected: relative positions."""
    seen: set[str] = set()
    for item in attentions:
        if item.softmax is None:
            continue
        products = {product.key for product in score_addends(flow, item.softmax)}
        waiting = [value for node, followed in item.steps for value in node.inputs if value != followed]
        while waiting:
            node = flow.graph.producers.get(waiting.pop())
            if node is None or node.key in seen or node.key in products:
                continue
            seen.add(node.key)
            trace = flow.trace(node.key)
            if node.op_type == "Gather" and trace.sources == {node.key} and not trace.content:
                yield node.key
            elif trace.learned:
                waiting += node.inputs
