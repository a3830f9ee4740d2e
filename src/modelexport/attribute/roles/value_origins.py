"""Value origins (forward dataflow analysis): what each value of a graph is made of, in one pass over the nodes.

Roles are questions about the neighbourhood of a product: which product made this operand, does anything but positions
go into it, do these two come from one stream? A `ValueOrigin` answers them for every value without another walk:

    ids ─► Gather(table) ─► h ─► MatMul(w) ─► q ─► Softmax ─► p
           h: content, sources {Gather}, root Gather     q: content, sources {MatMul}, root Gather
           p: as q, for Softmax neither multiplies nor joins streams

Facts merge where values meet: flags by "or", sources by union, the root only if both have the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from onnx import TensorProto

from modelexport.graph import operators
from modelexport.graph.constants import integer, is_single, vanishes
from modelexport.graph.index import FLOATS, Graph, Node

# More sources than these and nobody asks which: it is the stream that all blocks add to.
_MOST_SOURCES = 6
CROWD = frozenset({""})
_TABLE_RANK = 2  # rows by channels
# Weights are floats, or what floats were quantized to; other integers are indices and shapes.
_LEARNED = FLOATS | set(map(TensorProto.DataType.Value, ["INT8", "UINT8", "INT4", "UINT4"]))
_LOOKUPS = frozenset({"Gather", "GatherBlockQuantized"})


@dataclass(frozen=True, slots=True)
class ValueOrigin:
    """What one value is made of.

    content     something of what the model is fed is in it, beyond shapes, masks and angles
    sources     the nearest products, embeddings and graph inputs that it comes from; `CROWD` if they are too many
    root        where its stream began: the last value that joined two streams or multiplied them
    activated   a nonlinear function was applied since its sources
    part        the value that was last cut out of something larger
    weight      the initializer that it is, however moved, cut or converted
    learned     weights of two or more dimensions went into it
    masking     a choice or a vanishing number went into it
    angle       a sine or cosine went into it
    positional  a table read by positions went into it
    counted     it counts: made by a range or a running sum
    """

    content: bool = False
    sources: frozenset[str] = frozenset()
    root: str = ""
    activated: bool = False
    part: str = ""
    weight: str = ""
    learned: bool = False
    masking: bool = False
    angle: bool = False
    positional: bool = False
    counted: bool = False


_BLANK = ValueOrigin()


@dataclass(frozen=True, slots=True)
class ProductNode:
    """A node that multiplies two operands: a matrix product or a convolution.

    weight  the operand that is a weight; empty if both are computed
    data    the other operand, where one is a weight
    """

    node: Node
    left: str
    right: str
    weight: str
    data: str

    @property
    def key(self) -> str:
        return self.node.key


@dataclass(frozen=True)
class RoleFlow:
    """A graph, its nodes in the order in which they run, the origin of every value, and every product by node key."""

    graph: Graph
    order: tuple[Node, ...]
    origins: Mapping[str, ValueOrigin]
    products: Mapping[str, ProductNode]

    def origin(self, value: str) -> ValueOrigin:
        return self.origins.get(value, _BLANK)

    def source(self, value: str) -> ProductNode | None:
        sources = self.origin(value).sources
        return self.products.get(next(iter(sources))) if len(sources) == 1 else None

    def walk_back(
        self, values: Iterable[str], onward: Callable[[Node], Iterable[str]], seen: set[str]
    ) -> Iterator[Node]:
        """Backward slice: the makers of values, each once, and on along the inputs that `onward` picks.

        seen  keys of nodes where it stops; it takes in those that it passes, so that several walks share their steps
        """
        waiting = list(values)
        while waiting:
            node = self.graph.producers.get(waiting.pop())
            if node is not None and node.key not in seen:
                seen.add(node.key)
                yield node
                waiting += onward(node)

    def uncast(self, value: str) -> str:
        maker = self.graph.producers.get(value)
        while maker is not None and is_cast(maker):
            value = maker.inputs[0]
            maker = self.graph.producers.get(value)
        return value


def trace_flow(graph: Graph) -> RoleFlow:
    tracer = _OriginTracer(graph)
    for node in graph.running_order:
        tracer.add(node)
    return RoleFlow(graph, graph.running_order, tracer.origins, tracer.products)


class _OriginTracer:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.products: dict[str, ProductNode] = {}
        self.origins: dict[str, ValueOrigin] = {}
        self.inputs = frozenset(graph.inputs) - graph.initializers.keys()
        for name in self.inputs:
            self.origins[name] = ValueOrigin(content=True, sources=frozenset({name}), root=name)
        for name, tensor in graph.initializers.items():
            learned = len(tensor.shape) >= _TABLE_RANK and tensor.dtype in _LEARNED
            masking = learned and vanishes(graph, name)
            self.origins[name] = ValueOrigin(weight=name, learned=learned and not masking, masking=masking)

    def origin(self, value: str) -> ValueOrigin:
        return self.origins.get(value, _BLANK)

    def add(self, node: Node) -> None:
        result = self._origin_of(node)
        for index, output in enumerate(filter(None, node.outputs)):
            part = output if node.operator in operators.SUBSETS and result.content else result.part
            # The values of TopK are content, its indices are not: https://onnx.ai/onnx/operators/onnx__TopK.html
            is_choice = node.operator == "TopK" and index > 0
            cut = result if result.part == part else replace(result, part=part)
            self.origins[output] = ValueOrigin(masking=True) if is_choice else cut

    def _origin_of(self, node: Node) -> ValueOrigin:
        if node.operator in operators.PRODUCTS:
            return self._multiply(node)
        if node.operator in operators.ATTENTIONS:
            return ValueOrigin(content=True, sources=frozenset({node.key}), root=node.key)
        if node.operator == "Constant":
            return ValueOrigin(weight=node.key, masking=vanishes(self.graph, node.key))
        if self._reads_table(node):
            return self._look_up(node)
        return self._combine(node)

    def _multiply(self, node: Node) -> ValueOrigin:
        first, second = operators.PRODUCTS[node.operator]
        left, right = (node.inputs[index] if index < len(node.inputs) else "" for index in (first, second))
        before, after = self.origin(left), self.origin(right)
        # Where both are constants, exporters put the weight second.
        second_first = ((right, left), (left, right))
        weight, data = next((pair for pair in second_first if self._is_weight(pair[0])), ("", ""))
        self.products[node.key] = ProductNode(node, left, right, weight, data)
        given = self.origin(data) if weight else _BLANK
        return ValueOrigin(
            content=given.content if weight else before.content or after.content,
            sources=frozenset({node.key}),
            root=given.root if weight else node.key,
            learned=True,
            angle=before.angle or after.angle,
        )

    def _is_weight(self, value: str) -> bool:
        """Stored in the file, or worked out from what is without a product: a scale taken apart from its direction."""
        origin = self.origin(value)
        computed = origin.content or origin.sources or origin.angle or origin.positional
        return bool(origin.weight) or (origin.learned and not computed)

    def _reads_table(self, node: Node) -> bool:
        if node.operator not in _LOOKUPS or integer(node, "axis" if node.operator == "Gather" else "gather_axis"):
            return False
        tensor = self.graph.initializers.get(self.origin(node.inputs[0]).weight)
        # Rows picked by a constant are a cut of the table, unless they are many: then it is read by position.
        indices = self.origin(node.inputs[1]).weight
        shape = self._shape(indices)
        many = not indices or len(shape) > 1 or next(iter(shape), 0) > 1
        is_table = tensor is not None and len(tensor.shape) == _TABLE_RANK and tensor.dtype in _LEARNED
        return is_table and many and not is_single(self.graph, node.inputs[1])

    def _shape(self, initializer: str) -> tuple[int, ...]:
        tensor = self.graph.initializers.get(initializer)
        return () if tensor is None else tensor.shape

    def _look_up(self, node: Node) -> ValueOrigin:
        table, indices = (self.origin(value) for value in node.inputs[:2])
        # A constant row of indices with one for each row of the table can only go through it in order.
        counted = indices.counted or self._shape(indices.weight)[-1:] == self._shape(table.weight)[:1]
        content, sources = node.inputs[1] in self.graph.computed, frozenset({node.key})
        positional = counted or not content
        return ValueOrigin(content, sources, node.key, learned=True, positional=positional, counted=counted)

    def _combine(self, node: Node) -> ValueOrigin:
        returned = (value for body in self.graph.subgraphs.get(node.key, ()) for value in self.graph.body_outputs[body])
        values = (*operators.data_inputs(node), *returned)
        operands = [self.origin(value) for value in values]
        content = [operand for operand in operands if operand.content]
        roots = {operand.root for operand in content}
        return ValueOrigin(
            content=bool(content),
            sources=self._sources(node, content or operands),
            root=roots.pop() if len(roots) == 1 else node.key if roots else "",
            activated=node.operator in operators.ACTIVATIONS or any(operand.activated for operand in operands),
            part=common_text(operand.part for operand in content),
            weight=operands[0].weight if node.operator in operators.CARRIERS and operands else "",
            learned=any(operand.learned for operand in operands),
            masking=self._masks(node) or any(operand.masking for operand in operands),
            angle=node.operator in operators.ANGLES or any(operand.angle for operand in operands),
            positional=any(operand.positional for operand in operands),
            counted=node.operator in ("Range", "CumSum") or any(self.origin(value).counted for value in node.inputs),
        )

    def _sources(self, node: Node, operands: list[ValueOrigin]) -> frozenset[str]:
        sources = [operand.sources for operand in operands if operand.sources]
        if node.operator not in ("Add", "Sub", "Sum"):
            # What a network is fed as it stands scales, masks or precedes (a cache) what was computed beside it.
            sources = [keys for keys in sources if not keys <= self.inputs] or sources
        union = frozenset[str]().union(*sources)
        return CROWD if union & CROWD or len(union) > _MOST_SOURCES else union

    def _masks(self, node: Node) -> bool:
        if node.operator in operators.BOOLEAN or node.operator in ("Where", "Trilu"):
            return True
        return node.operator == "Mul" and any(vanishes(self.graph, value) for value in node.inputs)


def common_text(texts: Iterable[str]) -> str:
    """The text that all of them are; empty if they differ."""
    distinct = set(texts)
    return distinct.pop() if len(distinct) == 1 else ""


def is_cast(node: Node) -> bool:
    return node.operator in ("Cast", "CastLike", "Identity")
