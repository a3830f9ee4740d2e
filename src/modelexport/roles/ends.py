"""Products that are neither attention nor feed-forward: where they stand in the network says what they are.

head         after the last repeated block: no block depends on it
stem         a convolution before the first block that has a residual add
convolution  any other
projection   any other product with a weight
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from modelexport.graph.index import Node
from modelexport.roles.flow import Flow
from modelexport.roles.operators import CONVOLUTIONS, data_inputs

HEAD, STEM, CONVOLUTION, PROJECTION = "head", "stem", "convolution", "projection"


@dataclass(frozen=True, slots=True)
class Places:
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


def head_roles(flow: Flow, places: Places, known: Mapping[str, str]) -> dict[str, str]:
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


def other_products(flow: Flow, places: Places, known: Mapping[str, str]) -> dict[str, str]:
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


def find_places(flow: Flow, lists: Mapping[str, str], residuals: Mapping[str, str]) -> Places:
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
    for node in reversed(flow.order):
        if any(reader.key in blocks or reader.key in before for reader in _readers(flow, node)):
            before.add(node.key)
    return Places(blocks, frozenset(after), frozenset(before), frozenset(begun))


def _readers(flow: Flow, node: Node) -> list[Node]:
    """Nodes that read the content of what a node makes, not merely its shape."""
    readers = flow.graph.successors(node)
    made = set(node.outputs)
    return [reader for reader in readers if made & set(data_inputs(reader.op_type, reader.inputs))]
