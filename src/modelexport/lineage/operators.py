"""What is known of operators in general, whoever made the model.

Tools replace an operator by one that does the same work in another way: in integers, with another layout, with the next
operator thrown in. Their names say so: `QLinearConv`, `NhwcFusedConv`, `MatMulIntegerToFloat`.
"""

from __future__ import annotations

from functools import cache

from modelexport.graph.index import Node
from modelexport.graph.randomness import DRAWING

# What goes in comes out: in another type, with other steps between numbers, or in another layout of memory.
_PASSING = frozenset(
    {
        "Identity",
        "Cast",
        "CastLike",
        "Dropout",
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "ReorderInput",
        "ReorderOutput",
        "MemcpyFromHost",
        "MemcpyToHost",
    }
)
_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_MOVES = frozenset({"Slice", "Expand", "Tile", "Pad"})
_LINEAR = frozenset({"Add", "Sub", "Mul", "Div", "BatchNormalization", "MatMul", "Gemm", "Conv"})
_PRODUCTS = frozenset({"MatMul", "Conv", "ConvTranspose"})
_COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Xor", "Max", "Min", "Sum", "Mean", "Equal"})
_PREFIXES = ("DynamicQuantize", "QLinear", "Nhwc", "Fused", "Simplified", "Quick", "Fast", "Bias", "Skip")
_SUFFIXES = ("IntegerToFloat", "Integer", "NBits")
_SAME_WORK = {"CastLike": "Cast", "Gemm": "MatMul", "QGemm": "MatMul", "QAttention": "Attention"}


def is_passing(node: Node) -> bool:
    """Whether the first output is the first input as far as its meaning goes."""
    return node.op_type in _PASSING and bool(node.inputs and node.inputs[0])


def is_view(node: Node) -> bool:
    """Whether the numbers and their order stay as they are."""
    return node.op_type in _VIEWS


def is_rearranging(node: Node) -> bool:
    """Whether the numbers stay as they are, perhaps in another order."""
    return is_view(node) or node.op_type == "Transpose"


def is_moving(node: Node) -> bool:
    """Whether the numbers are those of the first input, perhaps not all of them or more than once."""
    return is_view(node) or node.op_type in _MOVES


def is_linear(node: Node) -> bool:
    """Whether what a node does with constants can be done by the weights of the node before it."""
    return node.op_type in _LINEAR


def is_product(node: Node) -> bool:
    """Whether a node sums up products with weights, which can take in what is done with its result."""
    return family(node.op_type) in _PRODUCTS


def is_commutative(family: str) -> bool:
    return family in _COMMUTATIVE


def is_random(node: Node) -> bool:
    """Whether equal inputs do not make it equal."""
    return node.op_type in DRAWING


@cache
def family(op_type: str) -> str:
    """The plain operator whose work this one does, perhaps among others."""
    name = op_type
    while True:
        shorter = _shortened(name)
        if shorter == name:
            return _SAME_WORK.get(name, name)
        name = shorter


def _shortened(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix) and len(name) > len(prefix):
            return name.removeprefix(prefix)
    for suffix in _SUFFIXES:
        if name.endswith(suffix) and len(name) > len(suffix):
            return name.removesuffix(suffix)
    return name
