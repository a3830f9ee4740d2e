"""Value numbering: the values of a graph by congruence class, with the nodes that make and read each class.

Values are congruent if equal operators compute them from congruent values, or if a pass-through node (Cast, Identity,
QuantizeLinear …) hands one on as the other. Tools merge congruent computations and put casts and quantizers between any
two nodes; so lineage matches classes, and neither shows.

    x ──► Softmax ──► a                   class 0: x, q        classes of one Softmax are one class,
    x ──► Softmax ──► b                   class 1: a, b        and so is what is only quantized
    x ──► QuantizeLinear ──► q

The numbers are those of one graph. Which class after is which class before is what `Anchors` knows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from itertools import chain

from modelexport.graph.algorithms import ValueNumbers, backward_slice
from modelexport.graph.constants import is_all, scalar_contents
from modelexport.graph.index import FLOATS, Graph, Node
from modelexport.graph.operators import (
    family,
    is_commutative,
    is_moving,
    is_passing,
    is_random,
    is_rearranging,
    is_view,
)

# In the place of an input or output that is left out, or of a class that is not known.
NO_CLASS = -1
# Neutral elements: the number that leaves the other operand as it is, and the inputs that may be it.
_NEUTRAL = {
    "Add": (0, (0, 1)),
    "Sub": (0, (1,)),
    "Mul": (1, (0, 1)),
    "Div": (1, (1,)),
    "Pow": (1, (1,)),
    "And": (1, (0, 1)),
    "Or": (0, (0, 1)),
}
# Constants that a weight was ever seen to be computed from, with room to spare.
_MOST_CONSTANTS = 64
# Nodes in a row that tools are known to drop.
_STEPS = 4
# Operators that one operator is believed to do the work of without further signs.
_LARGEST_STEP = 32


class ValueClasses:
    """
    class_of      by the name of a value: its class id
    nodes         one node for each distinct computation, in file order
    congruent     by the key of such a node, or of a pass-through one that makes more than it hands on (a scale): all
                  nodes that compute the same, itself first
    pass_through  nodes that hand a value on
    cast_chain    by a value that is handed on: a number for what was done to it since it was made (casts, quantizers)
    copies        by the key of a pass-through node: all that hand the same value on by the same cast chain
    producers     by class id: the node that makes it
    readers       by class id: the nodes that read it
    constants     by id of a class that holds a constant: the content if it is known, else None
    foldable      ids of classes that are computed from constants alone (constant folding)
    names         by id of a class that holds a constant: one value of it
    literals      nodes that only hold a constant
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.class_of: dict[str, int] = {}
        self.nodes: list[Node] = []
        self.congruent: dict[str, list[Node]] = {}
        self.pass_through: list[Node] = []
        self.cast_chain: dict[str, int] = {}
        self.copies: dict[str, list[Node]] = {}
        self.literals: list[Node] = []
        self.producers: dict[int, Node] = {}
        self.readers: dict[int, list[Node]] = {}
        self.constants: dict[int, bytes | None] = {}
        self.foldable: set[int] = set()
        self.names: dict[int, str] = {}
        self._numbers = ValueNumbers()
        self._inputs: dict[str, tuple[int, ...]] = {}
        # By the key of a node: what is asked many times of it, once the graph is numbered.
        self._outputs: dict[str, tuple[int, ...]] = {}
        self._data: dict[str, tuple[int, ...]] = {}
        self._constants_above: dict[str, tuple[int, ...]] = {}
        self._weights: dict[str, tuple[int, ...]] = {}
        self._holders = frozenset(graph.body_owner.values())
        self._first: dict[int, Node] = {}
        self._copies: dict[tuple[int, int], list[Node]] = {}
        self._dequantized: set[int] = set()
        for tensor in graph.initializers.values():
            self._add_constant(tensor.name, tensor.content)
        for node in graph.nodes:
            self._add_node(node)

    def congruent_nodes(self, node: Node) -> list[Node]:
        """All nodes that compute the same. A quantizer that finds its own scale hands on, and has no others."""
        return self.congruent.get(node.key, [node])

    def inputs(self, node: Node) -> tuple[int, ...]:
        return self._inputs[node.key]

    def outputs(self, node: Node) -> tuple[int, ...]:
        known = self._outputs.get(node.key)
        return self._outputs.setdefault(node.key, self._number_outputs(node)) if known is None else known

    def _number_outputs(self, node: Node) -> tuple[int, ...]:
        return tuple([self.class_of[value] if value else NO_CLASS for value in node.outputs])

    def result(self, node: Node) -> int:
        """The class of the first value that a node makes."""
        return next((self.class_of[value] for value in node.outputs if value), NO_CLASS)

    def data_inputs(self, node: Node) -> tuple[int, ...]:
        known = self._data.get(node.key)
        if known is None:
            constants = self.constants
            known = tuple([each for each in self._inputs[node.key] if each != NO_CLASS and each not in constants])
            self._data[node.key] = known
        return known

    def constant_inputs(self, node: Node) -> tuple[int, ...]:
        return tuple([class_id for class_id in self._inputs[node.key] if class_id in self.constants])

    def is_scale(self, class_id: int) -> bool:
        """Whether a quantizer has found it beside the value that it hands on; or such a scale times a constant."""
        producer = self.producers.get(class_id)
        if producer is None or is_passing(producer):
            return producer is not None
        read = self.data_inputs(producer) if producer.operator == "Mul" else ()
        return len(read) == 1 and read[0] in self.producers and is_passing(self.producers[read[0]])

    def readers_of(self, class_id: int) -> list[Node]:
        return self.readers.get(class_id, [])

    def size(self, class_id: int) -> int:
        """How many elements a constant has; 0 if that is not known."""
        tensor = self.graph.initializers.get(self.names.get(class_id, ""))
        return 0 if tensor is None else math.prod(tensor.shape)

    def weights(self, node: Node) -> tuple[int, ...]:
        """The weights that a node reads, be it through nodes that work on constants alone (a Transpose of a weight)."""
        known = self._weights.get(node.key)
        if known is None:
            known = self._weights[node.key] = tuple(filter(self.is_weight, self.constants_above(node)))
        return known

    def constants_above(self, node: Node) -> tuple[int, ...]:
        """The constants that a node reads, be it through nodes that work on constants alone."""
        known = self._constants_above.get(node.key)
        if known is None:
            known = self._constants_above[node.key] = tuple(self._find_constants_above(node))
        return known

    def _find_constants_above(self, node: Node) -> Iterator[int]:
        waiting, seen = list(self.inputs(node)), set[int]()
        while waiting and len(seen) < _MOST_CONSTANTS:
            class_id = waiting.pop()
            if class_id in seen:
                continue
            seen.add(class_id)
            if class_id in self.constants:
                yield class_id
            elif class_id in self.foldable and class_id in self.producers:
                waiting += self.inputs(self.producers[class_id])

    def reads_weight(self, node: Node) -> bool:
        return bool(self.weights(node))

    def is_weight(self, class_id: int) -> bool:
        """Whether a constant holds several numbers that are no indices or sizes: floats, or what becomes floats."""
        tensor = self.graph.initializers.get(self.names.get(class_id, ""))
        if tensor is None or math.prod(tensor.shape) <= 1:
            return False
        return tensor.dtype in FLOATS or class_id in self._dequantized

    def is_neutral(self, node: Node) -> bool:
        """Whether a node only adds zero, multiplies by one or the like."""
        number, indices = _NEUTRAL.get(node.operator, (0, ()))
        return any(self._holds(node.inputs[index], number) for index in indices if index < len(node.inputs))

    def _holds(self, value: str, number: int) -> bool:
        class_id = self.class_of.get(value, NO_CLASS)
        tensor = self.graph.initializers.get(self.names.get(class_id, ""))
        return self.constants.get(class_id) in scalar_contents(number) if tensor is None else is_all(tensor, number)

    def content_inputs(self, node: Node) -> tuple[int, ...]:
        """What the numbers that a node makes come from: no shapes and indices, and nothing that is always the same."""
        return self.data_inputs(node)[:1] if is_moving(node) else self.varying_inputs(node)

    def content_above(self, class_id: int) -> tuple[int, ...]:
        """What the numbers of a value come from; nothing for a value from outside."""
        producer = self.producers.get(class_id)
        return () if producer is None else self.content_inputs(producer)

    def varying_inputs(self, node: Node) -> tuple[int, ...]:
        """What a node reads, but for constants and what is computed from constants alone."""
        read = self.data_inputs(node)
        return read if self.foldable.isdisjoint(read) else tuple(each for each in read if each not in self.foldable)

    def walk_up(self, class_id: int) -> Iterator[int]:
        """The chain of values above one, each made from the next alone, as far as that goes or matters.

        x ──► Relu ──► r ──► Reshape ──► s        walk_up(s): r, x
        """
        for _ in range(_STEPS):
            read = self.content_above(class_id)
            if len(read) != 1:
                break
            class_id = read[0]
            yield class_id

    def nodes_between(self, start: int, end: int) -> list[Node]:
        """The nodes on the way from one value to another that is made from it alone; none if it is not."""
        chain = [end, *self.walk_up(end)]
        return [self.producers[class_id] for class_id in chain[: chain.index(start)]] if start in chain else []

    def nodes_joining(self, class_id: int, other: int) -> list[Node]:
        """The nodes between two values, whichever comes first."""
        return self.nodes_between(class_id, other) or self.nodes_between(other, class_id)

    def adjacent_nodes(self, nodes: Sequence[Node], others: Sequence[Node]) -> list[Node]:
        """Those of some nodes that read what one of others makes, or make what one of these reads."""
        made = {class_id for node in others for class_id in self.outputs(node)}
        read = {class_id for node in others for class_id in self.inputs(node)}
        apart = (made.isdisjoint(self.inputs(node)) and read.isdisjoint(self.outputs(node)) for node in nodes)
        return [node for node, is_apart in zip(nodes, apart, strict=True) if not is_apart]

    def is_one_step(self, start: int, end: int, known: set[int]) -> bool:
        """Whether a value is made from another and known ones alone, and no single value lies between the two."""
        step = self._slice_between(start, end, known)
        made = {start}
        for index, node in enumerate(step[:-1]):
            made.update(self.outputs(node))
            read = {class_id for later in step[index + 1 :] for class_id in self.varying_inputs(later)}
            if len(read & made) == 1 and not all(map(is_rearranging, step[: index + 1])):
                return False
        return bool(step)

    def _slice_between(self, start: int, end: int, known: set[int]) -> list[Node]:
        """The nodes from one value to another, in file order; none if something else goes in, or it is far."""
        stops, read = {start, *known}, set[int]()

        def step(node: Node) -> Iterator[Node]:
            inputs = self.varying_inputs(node)
            read.update(inputs)
            return (self.producers[each] for each in inputs if each not in stops and each in self.producers)

        nodes = backward_slice([self.producers[end]], step, limit=_LARGEST_STEP)
        made = {class_id for node in nodes for class_id in self.outputs(node)}
        if len(nodes) == _LARGEST_STEP or start not in read or not read <= stops | made:
            return []
        return sorted(nodes, key=lambda node: node.position)

    def path_to(self, node: Node, keys: set[str], steps: int) -> list[Node]:
        """A node and all above it that lead to it from one of others within some steps."""
        path = [node]
        for class_id in self.varying_inputs(node) if steps else ():
            producer = self.producers.get(class_id)
            above = [] if producer is None else self.path_to(producer, keys, steps - 1)
            if any(each.key in keys for each in above):
                path += above
        return path

    def drop_last_views(self, nodes: Sequence[Node], *, is_viewed: bool) -> tuple[Node, ...]:
        """Some nodes without views of what comes out of them, and of what goes in if those undid these.

            x ──► Reshape ──► Erf ──► Mul ──► m ──► Reshape ──► y        what made y from x may be Erf and Mul alone

        A view changes no numbers. One beside a transposition is a part of what the two do to their order.

        is_viewed  whether there is another view behind them, which was dropped
        """
        last = self._drop_border_views(nodes, at_end=True)
        return self._drop_border_views(last, at_end=False) if is_viewed or len(last) < len(nodes) else last

    def _drop_border_views(self, nodes: Sequence[Node], *, at_end: bool) -> tuple[Node, ...]:
        left = {node.key: node for node in nodes}
        while True:
            border = [node.key for node in left.values() if is_view(node) and self._is_at_border(node, left, at_end)]
            if not border or len(border) == len(left):
                return tuple(left.values())
            for key in border:
                del left[key]

    def _is_at_border(self, view: Node, keys: Collection[str], at_end: bool) -> bool:
        maker = self.producers.get(self.content_inputs(view)[0])
        above = [maker] if maker is not None and maker.key in keys else []
        below = [reader for reader in self.readers_of(self.result(view)) if reader.key in keys]
        moves = any(is_rearranging(each) and not is_view(each) for each in (*above, *below))
        return not moves and not (below if at_end else above)

    def pair_interfaces(self, graph_id: str, other: ValueClasses, other_id: str) -> Iterator[tuple[int, int]]:
        """What goes into and comes out of a body or function, with the same of another one, in their order."""
        own, others = self.graph, other.graph
        inputs = zip(own.body_inputs[graph_id], others.body_inputs[other_id], strict=False)
        outputs = zip(own.body_outputs[graph_id], others.body_outputs[other_id], strict=False)
        for value, origin in chain(inputs, outputs):
            yield self.class_of.get(value, NO_CLASS), other.class_of.get(origin, NO_CLASS)

    def _number_value(self, value: str) -> int:
        """Values from outside (graph inputs, a body's inputs) are congruent to themselves alone."""
        if value not in self.class_of:
            self.class_of[value] = self._numbers(("value", value))
        return self.class_of[value]

    def _add_constant(self, value: str, content: bytes | None) -> None:
        # Content that does not lie in the graph is not read here: such a constant is congruent to itself alone.
        class_id = self._numbers(("constant", content) if content is not None else ("value", value))
        self.class_of[value] = class_id
        self.constants.setdefault(class_id, content)
        self.names.setdefault(class_id, value)

    def _add_node(self, node: Node) -> None:
        if node.operator == "Constant":
            self._add_constant(node.outputs[0], node.constant or node.attributes)
            self.literals.append(node)
            self._inputs[node.key] = ()
            return
        inputs = tuple(self._number_value(value) if value else NO_CLASS for value in node.inputs)
        self._inputs[node.key] = inputs
        hands_on = is_passing(node)
        # Only the first output is handed on. DynamicQuantizeLinear also makes a scale and a zero point:
        # https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html
        if hands_on:
            self.class_of[node.outputs[0]] = inputs[0]
            self._add_pass_through(node)
        operation = self._number_operation(node, inputs)
        for index, output in enumerate(node.outputs):
            if output and not (hands_on and index == 0):
                self.class_of[output] = self._numbers.number_output(operation, index)
        self._register(node, operation, hands_on=hands_on)
        # A body may read values from outside that its node does not list.
        if self._are_fixed(inputs) and node.key not in self._holders and not is_random(node):
            self.foldable.update(self._number_outputs(node))

    def _are_fixed(self, inputs: Sequence[int]) -> bool:
        for class_id in inputs:
            if class_id != NO_CLASS and class_id not in self.constants and class_id not in self.foldable:
                return False
        return bool(inputs)

    def _add_pass_through(self, node: Node) -> None:
        self.pass_through.append(node)
        if node.operator == "DequantizeLinear":
            self._dequantized.add(self.class_of[node.inputs[0]])
        value, output = node.inputs[0], node.outputs[0]
        chain = self._numbers(("cast chain", self.cast_chain.get(value), node.op_type, node.attributes))
        self.cast_chain[output] = chain
        self.copies[node.key] = self._copies.setdefault((self.class_of[output], chain), [])
        self.copies[node.key].append(node)

    def _register(self, node: Node, operation: int, *, hands_on: bool) -> None:
        first = self._first.setdefault(operation, node)
        computes = not hands_on or len(node.outputs) > 1
        if computes:
            self.congruent.setdefault(first.key, []).append(node)
        if first is not node:
            return
        # The first of congruent nodes stands for all: it alone is a producer and a reader.
        if not hands_on:
            self.nodes.append(node)
        for index, output in enumerate(node.outputs):
            if output and not (hands_on and index == 0):
                self.producers[self.class_of[output]] = node
        if computes:
            for class_id in dict.fromkeys(self._inputs[node.key]):
                if class_id != NO_CLASS:
                    self.readers.setdefault(class_id, []).append(node)

    def _number_operation(self, node: Node, inputs: Sequence[int]) -> int:
        # A loop may compute something else each time, and so does a draw of random numbers.
        if node.key in self._holders or is_random(node) or not any(node.outputs):
            return self._numbers(("node", node.key))
        operator = (node.op_type, node.domain, node.attributes)
        return self._numbers.number_operation(operator, inputs, commutative=is_commutative(family(node.operator)))
