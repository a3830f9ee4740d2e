"""A graph as it is compared: what is computed, from what, and which constants go into it. Names do not matter here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from modelexport.graph.canonical import type_of
from modelexport.graph.domains import ONNX_DOMAINS, plain_domain
from modelexport.graph.index import FLOATS, MAIN, Graph, Node

# The order of what they read changes nothing, not even the last bit.
COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Xor", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor"})
# More elements than this make a weight; fewer may say how a node does its work.
FEW = 16


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is stored in the file. `digest` stands for type, shape and content; None if it is not to be read.

    small  it says how its readers work (an axis, a shape, a scale) and is no weight
    """

    name: str
    dtype: int
    shape: tuple[int, ...]
    digest: str | None
    small: bool


@dataclass(frozen=True, slots=True)
class Use:
    """A reader of a value, and the place where it reads it."""

    reader: Node
    place: int


class Flow:
    """
    graph      without functions
    digest_of  by the name of a constant
    told       by the key of a node: the module call that it is said to belong to; None if nobody says so
    order      nodes as they can run, without those that only hold a constant; bodies before the node that runs them
    """

    def __init__(
        self, graph: Graph, digest_of: Callable[[str], str | None], told: Mapping[str, str] | None = None
    ) -> None:
        self.graph = graph
        self.told: Mapping[str, str] = told or {}
        self.constants = dict(_constants(graph, digest_of))
        self._members: dict[str, list[Node]] = {}
        for node in graph.nodes:
            if node.key not in self.constants:
                self._members.setdefault(node.graph, []).append(node)
        roots = [MAIN, *(name for name in self._members if name != MAIN and name not in graph.owners)]
        self.order = [node for root in roots for node in self._ordered(root)]
        self.by_key = {node.key: node for node in self.order}

    def _ordered(self, graph_id: str) -> Iterator[Node]:
        for node in self._members.get(graph_id, ()):
            for body in self.graph.bodies.get(node.key, ()):
                yield from self._ordered(body)
            yield node

    @cached_property
    def uses(self) -> Mapping[str, tuple[Use, ...]]:
        """By value: the nodes that read it, in their order."""
        found: dict[str, list[Use]] = {}
        for node in self.order:
            for place, value in enumerate(node.inputs):
                if value and value not in self.constants:
                    found.setdefault(value, []).append(Use(node, place))
        return {value: tuple(uses) for value, uses in found.items()}

    @cached_property
    def producers(self) -> Mapping[str, tuple[Node, int]]:
        """By value: the node that makes it, and as which of its outputs."""
        return {value: (node, place) for node in self.order for place, value in enumerate(node.outputs) if value}

    def read_constants(self, node: Node) -> Iterator[tuple[int, Constant]]:
        """The constants that a node reads, with their places."""
        for place, value in enumerate(node.inputs):
            if value in self.constants:
                yield place, self.constants[value]


def _constants(graph: Graph, digest_of: Callable[[str], str | None]) -> Iterator[tuple[str, Constant]]:
    for name, tensor in graph.initializers.items():
        yield name, _constant(name, tensor.dtype, tensor.shape, digest_of(name))
    for node in graph.nodes:
        if is_literal(node):
            dtype, shape = type_of(node.constant)
            yield node.key, _constant(node.key, dtype, shape, digest_of(node.key))


def is_literal(node: Node) -> bool:
    """Whether a node only holds a constant."""
    return node.op_type == "Constant" and node.domain in ONNX_DOMAINS and bool(node.outputs)


def _constant(name: str, dtype: int, shape: tuple[int, ...], digest: str | None) -> Constant:
    size = prod(shape)
    return Constant(name, dtype, shape, digest, small=size < FEW and (dtype not in FLOATS or size <= 1))


def operator_of(node: Node) -> tuple[str, str]:
    return node.op_type, plain_domain(node.domain)
