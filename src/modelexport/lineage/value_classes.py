"""Values that are the same as far as their meaning goes, and what makes and reads each of them.

Tools merge equal computations, and add casts and quantizers between any two nodes. So what is linked are not values but
classes of them: values that equal operators compute from equal inputs, and whatever is only handed on in another type.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from modelexport.graph.index import FLOATS, Graph, Node
from modelexport.graph.operators import family, is_commutative, is_moving, is_passing, is_random

# In the place of an input or output that is left out.
NOTHING = -1
# Values that a weight was ever seen to be computed from, with room to spare.
_MOST_CONSTANTS = 64
# Nodes in a row that tools are known to drop.
_STEPS = 4


class Classes:
    """The values of one graph by class.

    of         the class of each value
    nodes      one node for each distinct computation, in file order: the others are its twins
    twins      by the key of such a node, or of a passing one that makes more than it hands on (a scale): all nodes that
               do the same, itself first
    passing    nodes that hand a value on
    ways       what was done to a value that is handed on since it was made, as a number: equal if that was the same
    copies     by the key of such a node: all that hand the same value on in the same way
    makers     the node that makes the values of a class
    readers    the nodes that read a value of a class
    constants  classes that hold constants: the content if it is known, else nothing
    fixed      classes that are computed from constants alone
    names      one value of each class that is a constant
    literals   nodes that only hold a constant
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.of: dict[str, int] = {}
        self.nodes: list[Node] = []
        self.twins: dict[str, list[Node]] = {}
        self.passing: list[Node] = []
        self.ways: dict[str, int] = {}
        self.copies: dict[str, list[Node]] = {}
        self.literals: list[Node] = []
        self.makers: dict[int, Node] = {}
        self.readers: dict[int, list[Node]] = {}
        self.constants: dict[int, bytes | None] = {}
        self.fixed: set[int] = set()
        self.names: dict[int, str] = {}
        self._numbers: dict[object, int] = {}
        self._inputs: dict[str, tuple[int, ...]] = {}
        self._holders = frozenset(graph.body_owner.values())
        self._first: dict[object, Node] = {}
        self._copies: dict[object, list[Node]] = {}
        for tensor in graph.initializers.values():
            self._add_constant(tensor.name, tensor.content)
        for node in graph.nodes:
            self._add(node)

    def twins_of(self, node: Node) -> list[Node]:
        """All nodes that do the same; a quantizer that finds its scale hands on, and has no others."""
        return self.twins.get(node.key, [node])

    def inputs(self, node: Node) -> tuple[int, ...]:
        """The classes of what a node reads, in their places."""
        return self._inputs[node.key]

    def outputs(self, node: Node) -> tuple[int, ...]:
        return tuple(self.of[value] if value else NOTHING for value in node.outputs)

    def result(self, node: Node) -> int:
        """The class of the first value that a node makes."""
        return next((self.of[value] for value in node.outputs if value), NOTHING)

    def data_inputs(self, node: Node) -> list[int]:
        """What a node reads, but for constants."""
        return [place for place in self.inputs(node) if place != NOTHING and place not in self.constants]

    def constant_inputs(self, node: Node) -> list[int]:
        return [place for place in self.inputs(node) if place in self.constants]

    def readers_of(self, place: int) -> list[Node]:
        return self.readers.get(place, [])

    def size(self, place: int) -> int:
        """How many elements a constant has; 0 if that is not known."""
        tensor = self.graph.initializers.get(self.names.get(place, ""))
        return 0 if tensor is None else math.prod(tensor.shape)

    def weights(self, node: Node) -> Iterator[int]:
        """The weights that a node reads, be it through nodes that work on constants alone."""
        waiting, seen = list(self.inputs(node)), set[int]()
        while waiting and len(seen) < _MOST_CONSTANTS:
            place = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            if place in self.constants and self.is_weight(place):
                yield place
            elif place in self.fixed and place in self.makers:
                waiting += self.inputs(self.makers[place])

    def weighs(self, node: Node) -> bool:
        """Whether a node reads any weight."""
        return next(self.weights(node), None) is not None

    def is_weight(self, place: int) -> bool:
        """Whether a constant holds several numbers that are no places or sizes."""
        tensor = self.graph.initializers.get(self.names.get(place, ""))
        return tensor is not None and tensor.dtype in FLOATS and math.prod(tensor.shape) > 1

    def content(self, node: Node) -> list[int]:
        """What the numbers that a node makes come from: no shapes and places, and nothing that is always the same."""
        return self.data_inputs(node)[:1] if is_moving(node) else self._varying(node)

    def count_varying(self, node: Node) -> int:
        """How many of the values that a node reads are not always the same."""
        return len(self._varying(node))

    def _varying(self, node: Node) -> list[int]:
        return [place for place in self.data_inputs(node) if place not in self.fixed]

    def made_from(self, place: int) -> Iterator[int]:
        """The values that a value is made from, each from the next alone, as far as that goes or matters."""
        for _ in range(_STEPS):
            maker = self.makers.get(place)
            read = [] if maker is None else self.content(maker)
            if len(read) != 1:
                break
            place = read[0]
            yield place

    def ends(self, graph_id: str, other: Classes, other_id: str) -> Iterator[tuple[int, int]]:
        """What goes into and comes out of a body or function, with the same of another one, in their order."""
        mine, theirs = self.graph, other.graph
        for values, others in (
            (mine.body_inputs[graph_id], theirs.body_inputs[other_id]),
            (mine.body_outputs[graph_id], theirs.body_outputs[other_id]),
        ):
            for value, origin in zip(values, others, strict=False):
                yield self.of.get(value, NOTHING), other.of.get(origin, NOTHING)

    def between(self, start: int, end: int) -> list[Node]:
        """The nodes on the way from one value to another that is made from it alone; none if it is not."""
        steps = [end, *self.made_from(end)]
        return [self.makers[place] for place in steps[: steps.index(start)]] if start in steps else []

    def _number(self, description: object) -> int:
        return self._numbers.setdefault(description, len(self._numbers))

    def _class_of(self, value: str) -> int:
        """Values from outside (graph inputs, a body's inputs) are equal to themselves alone."""
        if value not in self.of:
            self.of[value] = self._number(("value", value))
        return self.of[value]

    def _add_constant(self, value: str, content: bytes | None) -> None:
        number = self._number(("constant", content) if content is not None else ("value", value))
        self.of[value] = number
        self.constants.setdefault(number, content)
        self.names.setdefault(number, value)

    def _add(self, node: Node) -> None:
        if node.op_type == "Constant":
            self._add_constant(node.outputs[0], node.constant or node.attributes)
            self.literals.append(node)
            self._inputs[node.key] = ()
            return
        inputs = tuple(self._class_of(value) if value else NOTHING for value in node.inputs)
        self._inputs[node.key] = inputs
        passing = is_passing(node)
        if passing:
            self.of[node.outputs[0]] = inputs[0]
            self._add_passing(node)
        description = self._description(node, inputs)
        for place, output in enumerate(node.outputs):
            if output and not (passing and place == 0):
                self.of[output] = self._number((description, place))
        self._register(node, description, passing=passing)
        if self._is_fixed(node, inputs):
            self.fixed.update(self.outputs(node))

    def _add_passing(self, node: Node) -> None:
        self.passing.append(node)
        way = hash((self.ways.get(node.inputs[0]), node.op_type, node.attributes))
        self.ways[node.outputs[0]] = way
        self.copies[node.key] = self._copies.setdefault((self.of[node.outputs[0]], way), [])
        self.copies[node.key].append(node)

    def _register(self, node: Node, description: object, *, passing: bool) -> None:
        first = self._first.setdefault(description, node)
        makes = not passing or len(node.outputs) > 1
        if makes:
            self.twins.setdefault(first.key, []).append(node)
        if first is not node:
            return
        if not passing:
            self.nodes.append(node)
        for place, output in enumerate(node.outputs):
            if output and not (passing and place == 0):
                self.makers[self.of[output]] = node
        if makes:
            for number in dict.fromkeys(self._inputs[node.key]):
                if number != NOTHING:
                    self.readers.setdefault(number, []).append(node)

    def _is_fixed(self, node: Node, inputs: Sequence[int]) -> bool:
        known = [place == NOTHING or place in self.constants or place in self.fixed for place in inputs]
        return bool(known) and all(known) and node.key not in self._holders and not is_random(node)

    def _description(self, node: Node, inputs: Sequence[int]) -> object:
        if node.key in self._holders or is_random(node) or not any(node.outputs):
            return ("value", node.key)
        ordered = tuple(sorted(inputs)) if is_commutative(family(node.op_type)) else tuple(inputs)
        return (node.op_type, node.domain, node.attributes, ordered)
