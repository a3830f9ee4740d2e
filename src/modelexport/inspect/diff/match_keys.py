"""Value numbering for a diff: what a node computes, and what becomes of it, as numbers that are equal in both graphs.

`NodeSignatures` gives every node three numbers: `own` (operator, attributes, constants), `down` (what it computes from
the inputs of the model on) and `up` (what is made of its results). Names do not go into them.

    x ──► MatMul(w) ──► Relu ──► y         down(Relu) = number("Relu", down(MatMul))
                                           up(MatMul) = number(own(Relu), up(Relu))

Match keys are made of these numbers: two nodes with an equal key may be partners. They are listed from certain (equal
`down` and `up`) to likely (equal operator beside equal neighbours); `pairing.py` uses them in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from modelexport.graph.algorithms import ValueNumbers
from modelexport.graph.index import FLOATS, MAIN, Graph, Node
from modelexport.graph.operators import is_commutative
from modelexport.graph.protos import ONNX_DOMAINS, plain_domain, type_of

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
class InputUse:
    """A reader of a value, and the operand that the value is to it."""

    reader: Node
    operand: int


def reads_unordered(node: Node) -> bool:
    """Whether the inputs of a node can change places."""
    return is_commutative(node.operator)


def operand(node: Node, index: int) -> int:
    """The number of an input as far as it matters: all inputs of `Max(a, b)` are one and the same operand."""
    return 0 if reads_unordered(node) else index


class DiffGraph:
    """
    graph      without functions
    digest_of  by the name of a constant
    calls      by the key of a node: the module call that it is said to belong to; None if nobody says so
    order      nodes as they can run, without those that only hold a constant; bodies before the node that runs them
    """

    def __init__(
        self, graph: Graph, digest_of: Callable[[str], str | None], calls: Mapping[str, str] | None = None
    ) -> None:
        self.graph = graph
        self.calls: Mapping[str, str] = calls or {}
        self.constants = {constant.name: constant for constant in _list_constants(graph, digest_of)}
        self.order = [node for node in graph.running_order if node.key not in self.constants]
        self.by_key = {node.key: node for node in self.order}

    @cached_property
    def uses(self) -> Mapping[str, tuple[InputUse, ...]]:
        """By value: the nodes that read it, in file order; constants are described with the node that reads them."""
        return {
            value: tuple(
                # A constant that says to read something is no reader: it is a constant all the same.
                InputUse(reader, operand(reader, index))
                for reader, index in uses
                if reader.key in self.by_key
            )
            for value, uses in self.graph.uses.items()
            if value not in self.constants
        }

    @cached_property
    def producers(self) -> Mapping[str, tuple[Node, int]]:
        """By value: the node that makes it, and as which of its outputs."""
        return {value: (node, index) for node in self.order for index, value in enumerate(node.outputs) if value}

    def maker(self, value: str) -> Node | None:
        """None for inputs of the model or of a body, and for constants."""
        return self.producers[value][0] if value in self.producers else None

    def makers(self, node: Node) -> Iterator[Node]:
        return (self.producers[value][0] for value in node.inputs if value in self.producers)

    def readers(self, node: Node) -> Iterator[Node]:
        return (use.reader for value in node.outputs for use in self.uses.get(value, ()))

    def read_constants(self, node: Node) -> Iterator[tuple[int, Constant]]:
        """The constants that a node reads, with their places."""
        for index, value in enumerate(node.inputs):
            if value in self.constants:
                yield index, self.constants[value]

    def list_weights(self, nodes: Iterable[Node]) -> list[Constant]:
        """The constants that some nodes read and that are weights, each once."""
        read = {constant.name: constant for node in nodes for _, constant in self.read_constants(node)}
        return [constant for constant in read.values() if not constant.small]


def _list_constants(graph: Graph, digest_of: Callable[[str], str | None]) -> Iterator[Constant]:
    stored = [(name, (tensor.dtype, tensor.shape)) for name, tensor in graph.initializers.items()]
    literals = [(node.key, type_of(node.constant)) for node in graph.nodes if is_literal(node)]
    for name, (dtype, shape) in (*stored, *literals):
        size = prod(shape)
        # A single float is a scale or an epsilon, but a short vector of floats is a bias: that is a weight.
        yield Constant(name, dtype, shape, digest_of(name), small=size < FEW and (dtype not in FLOATS or size <= 1))


def is_literal(node: Node) -> bool:
    """Whether a node only holds a constant."""
    return node.op_type == "Constant" and node.domain in ONNX_DOMAINS and bool(node.outputs)


def operator_key(node: Node) -> tuple[str, str]:
    return node.op_type, plain_domain(node.domain)


_Seen = Callable[[Constant], object]


def by_content(constant: Constant) -> object:
    """What a constant holds; where that is not to be read, what room it takes."""
    return (constant.dtype, constant.shape) if constant.digest is None else constant.digest


def by_shape(constant: Constant) -> object:
    """The content of what says how a node works; of weights, what room they take."""
    return by_content(constant) if constant.small else (constant.dtype, constant.shape)


class NodeSignatures:
    """
    own   by the key of a node: its operator, attributes and constants
    down  by value: what is computed there, from the inputs of the model on
    up    by the key of a node: what is made of its results, up to the outputs of the model
    """

    def __init__(self, flow: DiffGraph, numbers: ValueNumbers, seen: _Seen, ends: Mapping[str, object]) -> None:
        """ends  by inputs and outputs (`i:name`, `o:name`): what is the same in both models for those that are"""
        self.flow, self._numbers, self._seen, self._ends = flow, numbers, seen, ends
        self.own = {node.key: self._own(node) for node in flow.order}
        self.down = self._down()
        self.up = self._up()

    def of_value(self, node: Node) -> int:
        """What a node computes."""
        first = next((value for value in node.outputs if value), None)
        return self._numbers(("idle", node.key)) if first is None else self.down[first]

    def readers(self, node: Node) -> int:
        """Who reads what a node makes, in whatever place."""
        described = sorted((self.own[reader.key], self.up[reader.key]) for reader in self.flow.readers(node))
        return self._numbers(("readers", tuple(described)))

    def _own(self, node: Node) -> int:
        read = self.flow.read_constants(node)
        constants = [(operand(node, index), self._seen(constant)) for index, constant in read]
        if reads_unordered(node):
            constants.sort(key=repr)
        return self._numbers(("own", operator_key(node), node.attributes, tuple(constants)))

    def _down(self) -> dict[str, int]:
        graph = self.flow.graph
        numbers: dict[str, int] = {}
        for name in (*graph.inputs, *graph.body_inputs.get(MAIN, ())):
            numbers[name] = self._numbers(("input", self._ends.get(f"i:{name}", name)))
        # What bodies are given is known by its position: the node around them says what that is.
        for body, owner in graph.body_owner.items():
            for index, value in enumerate(graph.body_inputs[body] if owner in self.flow.by_key else ()):
                numbers[value] = self._numbers(("take", self.own[owner], body.removeprefix(owner), index))
        for node in self.flow.order:
            # Constants went into `own` already, with the operand that they are.
            read = [self._input(value, numbers) for value in node.inputs if value not in self.flow.constants]
            bodies = graph.subgraphs.get(node.key, ())
            inside = tuple(self._input(value, numbers) for body in bodies for value in graph.body_outputs[body])
            operator, commutative = (self.own[node.key], inside), reads_unordered(node)
            operation = self._numbers.number_operation(operator, read, commutative=commutative)
            for index, value in enumerate(node.outputs):
                if value:
                    numbers[value] = self._numbers.number_output(operation, index)
        return numbers

    def _input(self, value: str, numbers: Mapping[str, int]) -> int:
        if value in numbers:
            return numbers[value]
        if value in self.flow.constants:
            return self._numbers(("constant", self._seen(self.flow.constants[value])))
        return self._numbers("unknown" if value else "nothing")

    def _up(self) -> dict[str, int]:
        flow, graph = self.flow, self.flow.graph
        returned: dict[str, list[int]] = {}
        for index, value in enumerate(graph.outputs):
            number = self._numbers(("output", self._ends.get(f"o:{value}", f"{index} {value}")))
            returned.setdefault(value, []).append(number)
        numbers: dict[str, int] = {}
        for node in reversed(flow.order):
            uses = []
            for index, value in enumerate(node.outputs):
                uses += [(index, 0, end) for end in returned.get(value, ())] if value else []
                for use in flow.uses.get(value, ()):
                    reader = self._numbers((self.own[use.reader.key], numbers[use.reader.key]))
                    uses.append((index, 1 + use.operand, reader))
            owner = graph.body_owner.get(node.graph)
            if owner is not None and owner in numbers:
                body = node.graph.removeprefix(owner)
                for index, value in enumerate(graph.body_outputs[node.graph]):
                    if value and value in node.outputs:
                        end = self._numbers(("yield", body, index, numbers[owner]))
                        uses.append((node.outputs.index(value), -1, end))
            # Sorted: a reader may come earlier or later in another file.
            numbers[node.key] = self._numbers(("up", tuple(sorted(uses))))
        return numbers


def number_neighbourhoods(
    flow: DiffGraph, numbers: ValueNumbers, own: Mapping[str, int], steps: int
) -> list[dict[str, int]]:
    """By the key of a node, for 0, 1, 2 … steps: a number for the node with all that is at most so many steps away."""
    neighbourhoods = [dict(own)]
    for _ in range(steps):
        near = neighbourhoods[-1]
        described = {node.key: ("near", near[node.key], _describe_neighbours(node, flow, near)) for node in flow.order}
        neighbourhoods.append({key: numbers(description) for key, description in described.items()})
    return neighbourhoods


def _describe_neighbours(node: Node, flow: DiffGraph, near: Mapping[str, int]) -> tuple[object, ...]:
    above = [
        (operand(node, index), near[flow.producers[value][0].key])
        for index, value in enumerate(node.inputs)
        if value in flow.producers
    ]
    below = [
        (index, use.operand, near[use.reader.key])
        for index, value in enumerate(node.outputs)
        for use in flow.uses.get(value, ())
    ]
    return tuple(sorted(above)), tuple(sorted(below))


Key = Callable[[Node], object]
Description = Callable[[NodeSignatures, Node], object]

# How far around a node is looked for what makes it the only one.
NEAR = (8, 4, 2, 1)


def both_key(signatures: NodeSignatures, node: Node) -> object:
    """What computes the same and is used alike."""
    return signatures.of_value(node), signatures.own[node.key], signatures.up[node.key]


def same_readers_key(signatures: NodeSignatures, node: Node) -> object:
    """What computes the same for the same readers, where these have two of their inputs the other way round."""
    return signatures.of_value(node), signatures.own[node.key], signatures.readers(node)


def _value_key(signatures: NodeSignatures, node: Node) -> object:
    return signatures.of_value(node)


def _use_key(signatures: NodeSignatures, node: Node) -> object:
    return signatures.own[node.key], signatures.up[node.key]


def _operator_use_key(signatures: NodeSignatures, node: Node) -> object:
    """Of which the same is made; what it does itself may be something else."""
    return operator_key(node), signatures.up[node.key]


def _if_computed(key: Description) -> Description:
    """Without shape arithmetic: that is the same in many places, and goes with what reads it."""

    def describe(signatures: NodeSignatures, node: Node) -> object:
        return key(signatures, node) if node.key in signatures.flow.graph.computed else None

    return describe


CERTAIN = (_if_computed(both_key), _if_computed(same_readers_key), _if_computed(_value_key))
# From what is certain to what is likely.
CONTENT_USED: tuple[Description, ...] = (_if_computed(_use_key), _if_computed(_operator_use_key))
CONTENT = (_if_computed(_value_key), *CONTENT_USED)
REST = (_use_key, _operator_use_key, _value_key)
# Those by which nodes are looked at from the outputs on.
BACKWARDS = (*CONTENT_USED, _use_key, _operator_use_key)


def near_key(signatures: NodeSignatures, near: Mapping[str, int]) -> Key:
    return lambda node: (both_key(signatures, node), near[node.key])


def neighbourhood_key(near: Mapping[str, int]) -> Key:
    return lambda node: near[node.key]


def same_value_keys(signatures: Sequence[NodeSignatures]) -> tuple[Key, Key]:
    left, right = signatures
    return (
        lambda node: (left.of_value(node), left.own[node.key]),
        lambda node: (right.of_value(node), right.own[node.key]),
    )


def own_keys(signatures: Sequence[NodeSignatures]) -> tuple[Key, Key]:
    left, right = signatures
    return (lambda node: left.own[node.key]), (lambda node: right.own[node.key])


def attribute_key(node: Node) -> object:
    return operator_key(node), node.attributes


def within_module(key: Description, signatures: NodeSignatures) -> Key:
    """Nodes that are said to be in different modules are not the same."""

    def describe(node: Node) -> object:
        description = key(signatures, node)
        return None if description is None else (description, signatures.flow.calls.get(node.key))

    return describe


def module_neighbourhood_key(flow: DiffGraph, near: Mapping[str, int]) -> Key:
    """What is said to be in the same module, and has the same around it."""
    return lambda node: (flow.calls[node.key], near[node.key]) if node.key in flow.calls else None


def weight_key(flow: DiffGraph) -> Key:
    """By a node: its operator and the weights that it reads; None for a node that reads none."""

    def describe(node: Node) -> object:
        weights = [(index, weight.digest) for index, weight in flow.read_constants(node) if not weight.small]
        read = tuple((index, digest) for index, digest in weights if digest is not None)
        return (operator_key(node), read) if read else None

    return describe
