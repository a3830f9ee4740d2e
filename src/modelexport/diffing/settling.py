"""Of two nodes that would do as the partner of a third, the one whose module is still there.

Where a layer is taken out, what came first in it and what comes first behind it may be the same operator, on the same
value now. Which of the two is gone cannot be told from what they compute; that all of one module is gone can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from modelexport.diffing.pairs import Pairs
from modelexport.diffing.signatures import Signatures
from modelexport.graph.index import Node

# Modules with fewer nodes do not say whether they are gone.
_FEWEST = 3
_Stack = Callable[[str], tuple[str, ...]]


def settle(pairs: Pairs, side: int, told: Mapping[str, str], stack: _Stack) -> None:
    """side  of the file whose modules are known: 0 for the first"""
    flow = (pairs.left_flow, pairs.right_flow)[side]
    partners = (pairs.right, pairs.left)[side]
    mine, theirs = pairs.exact[side], pairs.exact[1 - side]
    gone = _gone(flow.order, partners, told, stack)
    if not gone:
        return

    def lost(node: Node) -> int:
        """How many nodes the largest module around a node has that is gone."""
        return max((gone[call] for call in stack(told.get(node.key, "")) if call in gone), default=0)

    spare: dict[object, list[Node]] = {}
    for node in flow.order:
        if node.key not in partners:
            for word in _words(node, mine):
                spare.setdefault(word, []).append(node)
    for node in [one for one in flow.order if one.key in partners and lost(one)]:
        partner = partners[node.key]
        candidates = (one for word in _words(partner, theirs) for one in spare.get(word, ()))
        better = next((one for one in candidates if one.key not in partners and lost(one) < lost(node)), None)
        if better is not None:
            del partners[node.key]
            pairs.add(*((better, partner) if side == 0 else (partner, better)))


def _words(node: Node, signatures: Signatures) -> tuple[object, ...]:
    """What else is the same node: what computes the same and is used alike; what does the one or the other."""
    own, value, use = signatures.own[node.key], signatures.of_value(node), signatures.up[node.key]
    return ("both", own, value, use), ("computed", own, value), ("used", own, use)


def _gone(nodes: list[Node], partners: Mapping[str, Node], told: Mapping[str, str], stack: _Stack) -> dict[str, int]:
    """Calls most of whose nodes have no partner, and how many nodes they have."""
    whole: Counter[str] = Counter()
    paired: Counter[str] = Counter()
    for node in nodes:
        for call in stack(told.get(node.key, ""))[1:]:
            whole[call] += 1
            paired[call] += node.key in partners
    return {call: count for call, count in whole.items() if count >= _FEWEST and paired[call] < count / 2}
