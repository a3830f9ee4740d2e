"""Embeddings and positions: tables read by rows.

Read by what the model is fed, it is an embedding. Read by a count (a range, a running sum, a constant row of indices
as long as the table), it is a position, and so is adding it, or adding any constant that differs along two axes, to a
stream.
A table that is read by indices of which nothing is known gets no role.

What happens to queries and keys between their projection and their product: scaling, and turning by position.

Turned by position (rotary): a value and a shuffled copy of it, each multiplied by a table, and added. The tables are
sines and cosines, or constants where an exporter could work them out.

Products that are neither attention nor feed-forward: where they stand in the network says what they are.

head         after the last repeated block: no block depends on it
stem         a convolution before the first block that has a residual add
convolution  any other
projection   any other product with a weight
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from modelexport.attribute.roles.attention import Attention, score_addends
from modelexport.attribute.roles.value_origins import RoleFlow, ValueOrigin
from modelexport.graph.constants import is_single
from modelexport.graph.index import FLOATS, Node
from modelexport.graph.operators import ANGLES, CONVOLUTIONS, data_inputs

EMBEDDING, POSITION = "embedding", "position"
_AXES_OF_A_TABLE = 2


def find_embeddings(flow: RoleFlow, attentions: Iterable[Attention], known: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in flow.order:
        if node.key in known:
            continue
        role = ""
        if node.op_type == "Gather":
            role = _looked_up(flow, node)
        elif node.op_type == "Add":
            role = _added(flow, node)
        elif node.op_type == "EmbedLayerNormalization":
            role = EMBEDDING
        if role:
            found[node.key] = role
    found.update(dict.fromkeys(_added_to_scores(flow, attentions), POSITION))
    return found


def _looked_up(flow: RoleFlow, node: Node) -> str:
    trace = flow.trace(node.key)
    if trace.sources != {node.key}:
        return ""
    if trace.counted:
        return POSITION
    return EMBEDDING if trace.content else ""


def _added(flow: RoleFlow, node: Node) -> str:
    if not flow.trace(node.key).content:
        return ""
    for value, other in (node.inputs, node.inputs[::-1]):
        if flow.trace(other).content and (_is_position(flow, value) or _is_constant_table(flow, value)):
            return POSITION
    return ""


def _is_position(flow: RoleFlow, value: str) -> bool:
    """It comes from one table, read by a count, and nothing else."""
    trace = flow.trace(value)
    sources = trace.sources
    if trace.angle and not trace.content:
        return True
    return len(sources) == 1 and trace.positional and all(flow.trace(source).counted for source in sources)


def _is_constant_table(flow: RoleFlow, value: str) -> bool:
    tensor = flow.graph.initializers.get(flow.trace(value).weight)
    if tensor is None or tensor.dtype not in FLOATS or not flow.trace(value).learned:
        return False
    return sum(size > 1 for size in tensor.shape) >= _AXES_OF_A_TABLE


def _added_to_scores(flow: RoleFlow, attentions: Iterable[Attention]) -> Iterable[str]:
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


ROTARY_POSITION = "position"


def find_query_key_steps(flow: RoleFlow, attentions: Iterable[Attention], known: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    seen: set[str] = set()
    for item in attentions:
        for value in (item.query, item.key):
            for node in _back_to_source(flow, value, seen):
                role = "" if node.key in known else _role(flow, node, item.kind)
                if role:
                    found.setdefault(node.key, role)
                if role == ROTARY_POSITION:
                    found.update(dict.fromkeys(_angles(flow, node, seen), ROTARY_POSITION))
    return found


def _back_to_source(flow: RoleFlow, value: str, seen: set[str]) -> Iterable[Node]:
    """The nodes between a value and the products that it comes from. Each is given once."""
    waiting = [value]
    while waiting:
        node = flow.graph.producers.get(waiting.pop())
        if node is None or node.key in seen or flow.trace(node.key).sources == {node.key}:
            continue
        seen.add(node.key)
        yield node
        waiting += [item for item in data_inputs(node.op_type, node.inputs) if flow.trace(item).sources]


def _role(flow: RoleFlow, node: Node, kind: str) -> str:
    moving = [flow.trace(value) for value in node.inputs if flow.trace(value).sources]
    beside = [value for value in node.inputs if not flow.trace(value).sources]
    if node.op_type == "RotaryEmbedding" or (node.op_type in ("Add", "Sub") and _are_copies(moving)):
        return ROTARY_POSITION
    if node.op_type in ("Mul", "Div") and beside and moving:
        if flow.trace(beside[0]).angle or (not _is_scale(flow, beside[0]) and _is_turned(flow, node)):
            return ROTARY_POSITION
        return f"{kind}.scale" if _is_scale(flow, beside[0]) else ""
    return ""


def _are_copies(traces: list[ValueOrigin]) -> bool:
    return len(traces) > 1 and len({trace.sources for trace in traces}) == 1


def _is_scale(flow: RoleFlow, value: str) -> bool:
    """One constant number, or one that was worked out from a shape."""
    return is_single(flow.graph, value) or not (flow.trace(value).weight or flow.trace(value).learned)


def _is_turned(flow: RoleFlow, node: Node) -> bool:
    """The product goes into a sum with another copy of itself, and nowhere else."""
    readers = flow.graph.consumers.get(node.outputs[0], ())
    if len(readers) != 1 or readers[0].op_type not in ("Add", "Sub"):
        return False
    return _are_copies([flow.trace(value) for value in readers[0].inputs])


def _angles(flow: RoleFlow, node: Node, seen: set[str]) -> Iterable[str]:
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


HEAD, STEM, CONVOLUTION, PROJECTION = "head", "stem", "convolution", "projection"


@dataclass(frozen=True, slots=True)
class NetworkPositions:
    """Keys of nodes by where they stand.

    inside   in a block that repeats
    after    made of something from inside a block
    before   something inside a block is made of it
    begun    inside a block, or made of a residual add
    """

    inside: frozenset[str]
    after: frozenset[str]
    before: frozenset[str]
    begun: frozenset[str]


def find_heads(flow: RoleFlow, places: NetworkPositions, known: Mapping[str, str]) -> dict[str, str]:
    return {
        key: HEAD
        for key, product in flow.products.items()
        if product.weight
        and key not in known
        and key in places.after
        and key not in places.inside
        and key not in places.before
        and product.node.op_type not in CONVOLUTIONS
    }


def name_other_products(flow: RoleFlow, places: NetworkPositions, known: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, product in flow.products.items():
        if not product.weight or key in known:
            continue
        if product.node.op_type in CONVOLUTIONS:
            is_stem = key in places.before and key not in places.begun
            found[key] = STEM if is_stem else CONVOLUTION
        elif flow.trace(product.data).content:
            found[key] = PROJECTION
    return found


def locate_nodes(flow: RoleFlow, lists: Mapping[str, str], residuals: Mapping[str, str]) -> NetworkPositions:
    """`lists` says for the nodes inside a repeated block which list that block is in.

    Lists whose blocks add nothing back (convolutions in front of a network) do not count where others do.
    """
    begun_lists = {lists[key] for key in residuals if key in lists}
    blocks = frozenset(key for key, name in lists.items() if name in begun_lists or not begun_lists)
    after, begun, before = set[str](), set[str](), set[str]()
    if not blocks and not residuals:
        return NetworkPositions(blocks, frozenset(after), frozenset(before), frozenset(begun))
    for node in flow.order:
        made_of = [item.key for item in flow.graph.predecessors(node)]
        if any(key in blocks or key in after for key in made_of):
            after.add(node.key)
        if node.key in blocks or any(key in begun or key in residuals for key in made_of):
            begun.add(node.key)
    for node in reversed(flow.order):
        if any(reader.key in blocks or reader.key in before for reader in _readers(flow, node)):
            before.add(node.key)
    return NetworkPositions(blocks, frozenset(after), frozenset(before), frozenset(begun))


def _readers(flow: RoleFlow, node: Node) -> list[Node]:
    """Nodes that read the content of what a node makes, not merely its shape."""
    readers = flow.graph.successors(node)
    made = set(node.outputs)
    return [reader for reader in readers if made & set(data_inputs(reader.op_type, reader.inputs))]
