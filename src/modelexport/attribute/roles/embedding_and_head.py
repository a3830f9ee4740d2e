"""Embeddings and positions, steps on queries and keys, stem and head.

Embedding: a table that is read by rows, by what the model is fed. Read by a count (a range, a running sum, a constant
row of indices as long as the table), it is a position, and so is adding it, or adding any constant that differs along
two axes, to a stream. A table that is read by indices of which nothing is known gets no role.

    input_ids ─► Gather(table) ─► Add ─► …       Gather embedding, Add position
    Range ─► Gather(table) ────────► ┘           Gather position

Query and key steps: what happens to queries and keys between their projection and their product. Rotary positions are a
value and a shuffled copy of it, each multiplied by a table, and added; the tables are sines and cosines, or constants
where an exporter could work them out (https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html).

    q ─┬► Mul(cos) ─────────► Add ─► Mul(0.125) ─► scores      both Mul and the Add position, Mul(0.125) attention.scale
       └► shuffle ─► Mul(sin) ─┘

Stem and head: for products that are neither attention nor feed-forward, where they stand in the network decides.

    head         after the last repeated block: no block depends on it
    stem         a convolution before the first block that has a residual add
    convolution  any other convolution
    projection   any other product with a weight
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from modelexport.attribute.roles.attention import Attention, score_addends
from modelexport.attribute.roles.value_origins import RoleFlow, ValueOrigin
from modelexport.graph.constants import is_single
from modelexport.graph.index import FLOATS, Node
from modelexport.graph.operators import ANGLES, CONVOLUTIONS, data_inputs

EMBEDDING, POSITION = "embedding", "position"
_AXES_OF_A_TABLE = 2  # positions and channels; a bias differs along channels alone


def find_embeddings(flow: RoleFlow, attentions: Iterable[Attention], known: Mapping[str, str]) -> dict[str, str]:
    rated = ((node.key, _role_of_input(flow, node)) for node in flow.order if node.key not in known)
    roles = {key: role for key, role in rated if role}
    return roles | dict.fromkeys(_tables_on_scores(flow, attentions), POSITION)


def _role_of_input(flow: RoleFlow, node: Node) -> str:
    """Of a lookup, or of an addition to a stream."""
    origin = flow.origin(node.key)
    if node.operator == "EmbedLayerNormalization":
        return EMBEDDING  # ONNX Runtime's fusion of lookups, additions and the first norm
    if node.operator == "Gather" and origin.sources == {node.key} and (origin.counted or origin.content):
        return POSITION if origin.counted else EMBEDDING
    for value, stream in (node.inputs, node.inputs[::-1]) if node.operator == "Add" and origin.content else ():
        if flow.origin(stream).content and (_is_position(flow, value) or _is_constant_table(flow, value)):
            return POSITION
    return ""


def _is_position(flow: RoleFlow, value: str) -> bool:
    """It comes from one table, read by a count, and nothing else."""
    origin = flow.origin(value)
    sources = origin.sources
    if origin.angle and not origin.content:
        return True
    return len(sources) == 1 and origin.positional and all(flow.origin(source).counted for source in sources)


def _is_constant_table(flow: RoleFlow, value: str) -> bool:
    tensor = flow.graph.initializers.get(flow.origin(value).weight)
    if tensor is None or tensor.dtype not in FLOATS or not flow.origin(value).learned:
        return False
    return sum(size > 1 for size in tensor.shape) >= _AXES_OF_A_TABLE


def _tables_on_scores(flow: RoleFlow, attentions: Iterable[Attention]) -> Iterator[str]:
    """Tables that reach the scores of an attention without being projected: relative positions."""
    seen: set[str] = set()

    def is_table(node: Node) -> bool:
        origin = flow.origin(node.key)
        return node.operator == "Gather" and origin.sources == {node.key} and not origin.content

    def learned_inputs(node: Node) -> Sequence[str]:
        return node.inputs if flow.origin(node.key).learned and not is_table(node) else ()

    for item in attentions:
        if item.softmax is not None:
            seen.update(product.key for product in score_addends(flow, item.softmax))
            beside = [value for node, followed in item.steps for value in node.inputs if value != followed]
            yield from (node.key for node in flow.walk_back(beside, learned_inputs, seen) if is_table(node))


def find_query_key_steps(flow: RoleFlow, attentions: Iterable[Attention], known: Mapping[str, str]) -> dict[str, str]:
    roles: dict[str, str] = {}
    seen: set[str] = set()
    for item in attentions:
        for value in (item.query, item.key):
            for node in _back_to_source(flow, value, seen):
                role = "" if node.key in known else _role_of_step(flow, node, item.kind)
                if role:
                    roles.setdefault(node.key, role)
                if role == POSITION:
                    roles.update(dict.fromkeys(_angles(flow, node, seen), POSITION))
    return roles


def _back_to_source(flow: RoleFlow, value: str, seen: set[str]) -> Iterator[Node]:
    """The nodes between a value and the products that it comes from, and these. Each is given once."""

    def inputs_with_sources(node: Node) -> list[str]:
        is_source = flow.origin(node.key).sources == {node.key}
        inputs = () if is_source else data_inputs(node)
        return [item for item in inputs if flow.origin(item).sources]

    return flow.walk_back([value], inputs_with_sources, seen)


def _role_of_step(flow: RoleFlow, node: Node, kind: str) -> str:
    moving = [flow.origin(value) for value in node.inputs if flow.origin(value).sources]
    beside = [value for value in node.inputs if not flow.origin(value).sources]
    if node.operator == "RotaryEmbedding" or (node.operator in ("Add", "Sub") and _are_copies(moving)):
        return POSITION
    if node.operator in ("Mul", "Div") and beside and moving:
        if flow.origin(beside[0]).angle or (not _is_scale(flow, beside[0]) and _is_turned(flow, node)):
            return POSITION
        return f"{kind}.scale" if _is_scale(flow, beside[0]) else ""
    return ""


def _are_copies(origins: list[ValueOrigin]) -> bool:
    return len(origins) > 1 and len({origin.sources for origin in origins}) == 1


def _is_scale(flow: RoleFlow, value: str) -> bool:
    """One constant number, or one that was worked out from a shape."""
    return is_single(flow.graph, value) or not (flow.origin(value).weight or flow.origin(value).learned)


def _is_turned(flow: RoleFlow, node: Node) -> bool:
    """The product goes into a sum with another copy of itself, and nowhere else."""
    readers = flow.graph.consumers.get(node.outputs[0], ())
    if len(readers) != 1 or readers[0].operator not in ("Add", "Sub"):
        return False
    return _are_copies([flow.origin(value) for value in readers[0].inputs])


def _angles(flow: RoleFlow, node: Node, seen: set[str]) -> Iterator[str]:

    def inputs_with_angles(maker: Node) -> list[str]:
        inputs = () if maker.operator in ANGLES else maker.inputs
        return [value for value in inputs if flow.origin(value).angle]

    tables = [value for value in node.inputs if flow.origin(value).angle and not flow.origin(value).sources]
    return (maker.key for maker in flow.walk_back(tables, inputs_with_angles, seen) if maker.operator in ANGLES)


HEAD, STEM, CONVOLUTION, PROJECTION = "head", "stem", "convolution", "projection"


@dataclass(frozen=True, slots=True)
class NetworkPositions:
    """Keys of nodes by where they stand relative to the repeated blocks.

    inside   in a block that repeats
    after    made of something from inside a block
    before   something inside a block is made of it
    begun    inside a block, or made of a residual add
    """

    inside: frozenset[str]
    after: frozenset[str]
    before: frozenset[str]
    begun: frozenset[str]


def find_heads(flow: RoleFlow, positions: NetworkPositions, known: Mapping[str, str]) -> dict[str, str]:
    behind = positions.after - positions.inside - positions.before - known.keys()
    weighted = ((key, product.node) for key, product in flow.products.items() if product.weight)
    return {key: HEAD for key, node in weighted if key in behind and node.operator not in CONVOLUTIONS}


def name_other_products(flow: RoleFlow, positions: NetworkPositions, known: Mapping[str, str]) -> dict[str, str]:
    roles: dict[str, str] = {}
    for key, product in flow.products.items():
        if not product.weight or key in known:
            continue
        if product.node.operator in CONVOLUTIONS:
            is_stem = key in positions.before and key not in positions.begun
            roles[key] = STEM if is_stem else CONVOLUTION
        elif flow.origin(product.data).content:
            roles[key] = PROJECTION
    return roles


def locate_nodes(flow: RoleFlow, lists: Mapping[str, str], residuals: Mapping[str, str]) -> NetworkPositions:
    """`lists` says for the nodes inside a repeated block which list that block is in.

    Lists whose blocks add nothing back (convolutions in front of a network) do not count where others do.
    """
    begun_lists = {lists[key] for key in residuals if key in lists}
    blocks = frozenset(key for key, name in lists.items() if name in begun_lists or not begun_lists)
    after, begun, before = set[str](), set[str](), set[str]()
    for node in flow.order:
        made_of = [item.key for item in flow.graph.predecessors(node)]
        if any(key in blocks or key in after for key in made_of):
            after.add(node.key)
        if node.key in blocks or any(key in begun or key in residuals for key in made_of):
            begun.add(node.key)
    for node in reversed(flow.order):  # readers first
        readers = [reader for reader in flow.graph.successors(node) if reader.key in blocks or reader.key in before]
        # Who reads merely the shape of a value does not depend on it.
        if any(set(node.outputs) & set(data_inputs(reader)) for reader in readers):
            before.add(node.key)
    return NetworkPositions(blocks, frozenset(after), frozenset(before), frozenset(begun))
