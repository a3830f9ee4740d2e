"""Which operand of a product of scores is the key: the one whose axis is summed over in the product with the values.

The axis is followed from the second product back to the first, counted from the last, because reshapes in
between split and merge the axes in front.
"""

from __future__ import annotations

from modelexport.graph.index import Node
from modelexport.roles.attributes import integer, integers, text
from modelexport.roles.flow import Flow, Product
from modelexport.roles.operators import data_inputs

_LAST, _BEFORE_LAST = -1, -2


def key_is_left(scores: Product, chain: list[tuple[Node, str]], context: Product) -> bool:
    """`chain` holds the nodes from the operand of `context` back to `scores`, each with the input that was followed."""
    probabilities = chain[0][0].outputs if chain else scores.node.outputs
    axis = _summed_axis(context, is_left=context.left in probabilities)
    for node, _ in chain:
        axis = _before(node, axis)
    return _belongs_to_left(scores, axis)


def _summed_axis(product: Product, *, is_left: bool) -> int:
    terms = _terms(product)
    if terms is not None:
        left, right, result = terms
        mine, other = (left, right) if is_left else (right, left)
        summed = [label for label in mine if label in other and label not in result]
        return mine.index(summed[0]) - len(mine) if summed else _LAST
    flipped = bool(integer(product.node, "transA" if is_left else "transB"))
    return _LAST if is_left != flipped else _BEFORE_LAST


def _before(node: Node, axis: int) -> int:
    """The axis of a node's input that becomes this axis of its output."""
    order = integers(node, "perm") if node.op_type == "Transpose" else ()
    return order[axis] - len(order) if len(order) >= -axis else axis


def _belongs_to_left(product: Product, axis: int) -> bool:
    terms = _terms(product)
    if terms is not None:
        left, right, result = terms
        label = result[axis] if len(result) >= -axis else result[-1]
        return label in left and label not in right
    return axis == _BEFORE_LAST


def _terms(product: Product) -> tuple[str, str, str] | None:
    """The two operands and the result of an Einsum, as labels of axes."""
    if product.node.op_type != "Einsum":
        return None
    operands, _, result = text(product.node, "equation").replace(" ", "").replace("...", "").partition("->")
    terms = operands.split(",")
    return (terms[0], terms[1], result) if len(terms) == 2 else None


def chain_back(flow: Flow, value: str, scores: Product) -> list[tuple[Node, str]]:
    """The nodes from a value back to the product that it comes from, each with the input that leads there."""
    passed: list[tuple[Node, str]] = []
    while True:
        node = flow.graph.producers.get(value)
        if node is None or node.key == scores.key:
            return passed
        leading = [item for item in data_inputs(node.op_type, node.inputs) if scores.key in flow.trace(item).sources]
        if not leading:
            return passed
        passed.append((node, leading[0]))
        value = leading[0]
