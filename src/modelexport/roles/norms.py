"""Normalizations: one operator, or the arithmetic that it was taken apart into.

Taken apart, it is always a value divided by the root of the mean of its squares; a layer norm takes the mean off first.
"""

from __future__ import annotations

from collections.abc import Iterator

from modelexport.graph.index import Node
from modelexport.roles.constants import constant
from modelexport.roles.flow import Flow, is_cast
from modelexport.roles.operators import NORMS

NORM = "norm"
_NEGATIVE_ROOT = -0.5


def find_norms(flow: Flow) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in flow.order:
        if node.op_type in NORMS:
            members = [node, *_affine(flow, node)]
        elif node.op_type == "Sqrt" or _is_negative_root(flow, node):
            members = _around(flow, node)
        else:
            continue
        found.update((member.key, NORM) for member in members)
    return found


def _is_negative_root(flow: Flow, node: Node) -> bool:
    exponent = constant(flow.graph, node.inputs[1]) if node.op_type == "Pow" else None
    return exponent is not None and exponent.tolist() == [_NEGATIVE_ROOT]


def _around(flow: Flow, root: Node) -> list[Node]:
    """All nodes of the normalization that takes this square root; none if it is not one."""
    before = _squares(flow, root)
    if not before:
        return []
    square = before[-1]
    centered = square.inputs[0]
    after = _division(flow, root, centered)
    if not after:
        return []
    return [root, *before, *_mean(flow, centered), *after, *_affine(flow, after[-1])]


def _squares(flow: Flow, root: Node) -> list[Node]:
    """From the root back to the square, over the mean and the number that keeps it above zero."""
    passed: list[Node] = []
    node = flow.graph.producers.get(root.inputs[0])
    averaged = False
    while node is not None:
        passed.append(node)
        if averaged and _is_square(node):
            return passed
        if node.op_type == "ReduceMean":
            averaged = True
        elif node.op_type not in ("Add", "Cast", "Clip", "Max"):
            return []
        computed = [value for value in node.inputs if flow.trace(value).content]
        node = flow.graph.producers.get(computed[0]) if len(computed) == 1 else None
    return []


def _is_square(node: Node) -> bool:
    return (node.op_type == "Mul" and node.inputs[0] == node.inputs[1]) or node.op_type == "Pow"


def _division(flow: Flow, root: Node, centered: str) -> list[Node]:
    """From the root on to where it divides the value that was squared."""
    passed: list[Node] = []
    value = root.outputs[0]
    while True:
        readers = [node for node in flow.graph.consumers.get(value, ()) if node.op_type in _AFTER_ROOT]
        meeting = [node for node in readers if node.op_type in ("Mul", "Div") and _reads(flow, node, centered)]
        if meeting:
            return [*passed, meeting[0]]
        if len(readers) != 1 or readers[0].op_type == "Mul":
            return []
        passed.append(readers[0])
        value = readers[0].outputs[0]


_AFTER_ROOT = frozenset({"Reciprocal", "Div", "Mul", "Cast"})


def _reads(flow: Flow, node: Node, value: str) -> bool:
    return any(flow.uncast(item) == flow.uncast(value) for item in node.inputs)


def _mean(flow: Flow, centered: str) -> list[Node]:
    """The subtraction of the mean, and the mean; none where only squares are averaged."""
    taken = flow.graph.producers.get(flow.uncast(centered))
    if taken is None or taken.op_type != "Sub":
        return []
    mean = flow.graph.producers.get(flow.uncast(taken.inputs[1]))
    return [taken, mean] if mean is not None and mean.op_type == "ReduceMean" else []


def _affine(flow: Flow, node: Node) -> Iterator[Node]:
    """What scales and shifts the result by weights, each once."""
    waiting = ["Mul", "Add"]
    value = node.outputs[0]
    while waiting:
        readers = flow.graph.consumers.get(value, ())
        if len(readers) != 1:
            return
        reader = readers[0]
        if reader.op_type in waiting and _has_vector(flow, reader):
            del waiting[: waiting.index(reader.op_type) + 1]
            yield reader
        elif not (is_cast(reader) or reader.op_type == "Reshape"):
            return
        value = reader.outputs[0]


def _has_vector(flow: Flow, node: Node) -> bool:
    """One of its inputs is made of a weight with at most one dimension of more than one number."""
    for value in node.inputs:
        tensor = flow.graph.initializers.get(_weight_behind(flow, value))
        if tensor is not None and sum(size > 1 for size in tensor.shape) == 1:
            return True
    return False


def _weight_behind(flow: Flow, value: str) -> str:
    """The weight that a value is, or that it becomes by adding a constant (some norms store their scale less one)."""
    weight = flow.trace(value).weight
    maker = flow.graph.producers.get(flow.uncast(value))
    if weight or maker is None or flow.trace(value).content or maker.op_type != "Add":
        return weight
    return next((flow.trace(item).weight for item in maker.inputs if flow.trace(item).weight), "")
