"""Parts of a block: names for the nodes inside of a layer, from the roles that dataflow gives them.

    role                          part
    attention.query, mlp.up       the same; `attention1`, `attention2` where a block has several
    attention.softmax             attention: a step of it, and no module
    norm, convolution, projection norm1, norm2, … in the order in which they run; without a number if there is one
    residual, anything else       the block itself

Reshapes and transposes between the parts of an attention are of that attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from modelexport.attribute.roles.value_origins import RoleFlow, common_text
from modelexport.attribute.sources.repeats import Block
from modelexport.graph.index import Node

# Parts that have parts of their own, and the steps of these that are no modules.
_COMPOSED = frozenset({"attention", "cross_attention", "mlp"})
_STEPS = frozenset({"scores", "softmax", "context", "mask", "scale", "bias"})
_SINGLE = frozenset({"norm", "convolution", "projection"})


def name_parts(flow: RoleFlow, block: Block, roles: Mapping[str, str]) -> dict[str, str]:
    """By node key: the part of the block that a node is in; what is not in one is left out."""
    parts: dict[str, str] = {}
    for names in (_name_composed(block, roles), _name_single(flow, block, roles)):
        parts.update(names)
    nodes = [node for segment in block.segments for node in segment.members]
    settled = parts.keys() | {node.key for node in nodes if roles.get(node.key) == "residual"}
    _spread_to_makers(flow, [node for node in nodes if node.key not in settled], parts)
    return parts


def _name_composed(block: Block, roles: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    tops = [[roles.get(node.key, "").partition(".")[0] for node in segment.members] for segment in block.segments]
    for top in _COMPOSED:
        holding = [segment for segment, held in zip(block.segments, tops, strict=True) if top in held]
        for number, segment in enumerate(holding, 1):
            name = f"{top}{number}" if len(holding) > 1 else top
            for node in segment.members:
                head, _, component = roles.get(node.key, "").partition(".")
                if head == top:
                    yield node.key, name if component in _STEPS or not component else f"{name}.{component}"


def _name_single(flow: RoleFlow, block: Block, roles: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for role in _SINGLE:
        groups: list[list[str]] = []
        group_of: dict[str, int] = {}
        for node in (node for segment in block.segments for node in segment.members):
            if roles.get(node.key) != role:
                continue
            numbers = [group_of[maker.key] for maker in flow.graph.predecessors(node) if maker.key in group_of]
            # A norm that became arithmetic is one part; two products in a row are two.
            number = numbers[0] if numbers and role == "norm" else len(groups)
            if number == len(groups):
                groups.append([])
            groups[number].append(node.key)
            group_of[node.key] = number
        for number, keys in enumerate(groups, 1):
            yield from ((key, f"{role}{number}" if len(groups) > 1 else role) for key in keys)


def _spread_to_makers(flow: RoleFlow, nodes: Sequence[Node], parts: dict[str, str]) -> None:
    """What only one part reads is of it: weights of what reads them, other nodes of an attention or feed-forward."""
    computed = flow.graph.computed
    for node in reversed(nodes):
        around = [parts.get(reader.key, "") for reader in flow.graph.successors(node)]
        if part := _common_top(around) if node.key in computed else common_text(around):
            parts[node.key] = part
    for node in nodes:
        makers = [maker for maker in flow.graph.predecessors(node) if maker.key in computed]
        if node.key not in parts and (part := _common_top([parts.get(maker.key, "") for maker in makers])):
            parts[node.key] = part


def _common_top(parts: Sequence[str]) -> str:
    """The attention or feed-forward that all parts are of; empty if there is none."""
    top = common_text(part.partition(".")[0] for part in parts)
    return top if top.rstrip("0123456789") in _COMPOSED else ""
