"""From the shapes of a model's inputs to those of everything in it, and to the work of every node.

The nodes of a file with functions put in the place of their calls, each with its attributes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import onnx

from modelexport.graph.file.weights import storage_size
from modelexport.graph.functions import Inlined, InlinedModel, inline_graph
from modelexport.graph.index import MAIN, Graph, Node
from modelexport.graph.operators import RANDOM, named
from modelexport.graph.protos import plain_domain
from modelexport.inspect.cost.contents import computed_content, made_type
from modelexport.inspect.cost.control import controlled
from modelexport.inspect.cost.known import Known, Partial, constant_of, inferred, plain_attribute
from modelexport.inspect.cost.rules import Piece, Work, work_of
from modelexport.inspect.cost.shapes import made_shapes
from modelexport.inspect.cost.values import CANNOT, Operator, Unknown, Value, product
from modelexport.record.polynomial import Polynomial, sizes_sum
from modelexport.record.results.cost import ZERO, Kind

_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


class Unfolded(InlinedModel):
    def __init__(self, proto: onnx.ModelProto, inlined: Inlined) -> None:
        super().__init__(proto, inlined)
        self._opsets = {plain_domain(opset.domain): opset.version for opset in proto.opset_import}
        self._members: dict[str, list[Node]] = {}
        for node in self.graph.nodes:
            self._members.setdefault(node.graph, []).append(node)

    def nodes(self, graph_id: str) -> Sequence[Node]:
        return self._members.get(graph_id, ())

    def domain(self, node: Node) -> str:
        return plain_domain(node.domain)

    def opset(self, node: Node) -> int:
        return self._opsets.get(plain_domain(node.domain), 1)

    def attributes(self, node: Node) -> dict[str, Any]:
        attributes = self.node_proto(node).attribute
        return {item.name: plain_attribute(item) for item in attributes if item.type not in _GRAPHS}


# What they make is the weight that they read, in another form.
_SAME_WEIGHT = named("Identity Transpose Reshape Cast DequantizeLinear Squeeze Unsqueeze Flatten")


class Propagation:
    def __init__(
        self, proto: onnx.ModelProto, graph: Graph, at: Mapping[str, int], inlined: Inlined | None = None
    ) -> None:
        """inlined  the graph without functions, where that is known already"""
        self.unfolded = Unfolded(proto, inlined or inline_graph(graph))
        self.graph = self.unfolded.graph
        self.known = Known(proto, graph, at)

    def pieces(self) -> list[Piece]:
        return self.run(MAIN, Polynomial.of(1))

    def run(self, graph_id: str, times: Polynomial) -> list[Piece]:
        """The work of a graph's nodes, in the order in which they run."""
        found: list[Piece] = []
        for node in self.unfolded.nodes(graph_id):
            held = self.graph.bodies.get(node.key, ())
            if held:
                found.append(self._piece(node, Work(Kind.CONTROL, ZERO, ZERO), times, ZERO))
                found += controlled(self, node, held, times)
            else:
                found.append(self._plain(node, times))
        return found

    def attributes(self, node: Node) -> dict[str, Any]:
        return self.unfolded.attributes(node)

    def _plain(self, node: Node, times: Polynomial) -> Piece:
        op = self._operator(node)
        made = self._made(op, node)
        for name, value in zip(node.outputs, made, strict=False):
            self.known[name] = value
        work = work_of(op, [value.shape for value in made])
        return self._piece(node, work, times, _made_bytes(op, made))

    def _piece(self, node: Node, work: Work, times: Polynomial, makes: Polynomial | None) -> Piece:
        calls, key = self.unfolded.origin(node)
        reads = tuple(dict.fromkeys(name for name in node.inputs if name in self.graph.initializers))
        weights = tuple(dict.fromkeys(value.weight for value in self.known.all(node.inputs) if value.weight))
        return Piece(key, calls, work, times, reads, weights, makes)

    def _operator(self, node: Node) -> Operator:
        return Operator(
            op_type=node.op_type,
            domain=self.unfolded.domain(node),
            attributes=self.unfolded.attributes(node),
            inputs=tuple(self.known[name] if name else None for name in node.inputs),
            names=node.inputs,
            outputs=node.outputs,
            opset=self.unfolded.opset(node),
        )

    def _made(self, op: Operator, node: Node) -> list[Value]:
        if op.op_type == "Constant" and not op.domain:
            return [constant_of(self.unfolded.node_proto(node))]
        shapes, types = self._shapes(op, node)
        content = computed_content(op)
        weight = next((value.weight for value in op.inputs if value is not None), "")
        fixed = op.fixed and bool(op.inputs) and op.op_type not in RANDOM
        return [
            Value(
                *self.known.shaped(name, shapes[place] if place < len(shapes) else None, types[place]),
                content=content if place == 0 else None,
                fixed=fixed,
                weight=weight if place == 0 and op.op_type in _SAME_WEIGHT else "",
            )
            for place, name in enumerate(node.outputs)
        ]

    def _shapes(self, op: Operator, node: Node) -> tuple[Sequence[Partial | None], Sequence[int]]:
        """Shapes by our own rules, and by ONNX's inference where there is none; and types."""
        shapes: Sequence[Partial | None]
        try:
            shapes = made_shapes(op) or ()
        except CANNOT:
            shapes = ()
        types = [made_type(op, place) for place in range(len(op.outputs))]
        if len(shapes) < len(op.outputs):
            more = inferred(op, self.unfolded.node_proto(node))
            shapes = [*shapes, *(shape for _, shape in more[len(shapes) :])]
            types = [dtype or old for old, (dtype, _) in zip(types, more, strict=False)] or types
        return shapes, types


def _made_bytes(op: Operator, made: Sequence[Value]) -> Polynomial | None:
    if made and all(value.fixed for value in made):
        return ZERO
    sizes = [_bytes(value) for value, name in zip(made, op.outputs, strict=False) if name]
    return None if None in sizes else sizes_sum(size for size in sizes if size is not None)


def _bytes(value: Value) -> Polynomial | None:
    eight = _eight(value.dtype)
    if value.shape is None or not eight:
        return None
    try:
        count = product(value.shape)
    except Unknown:
        return None
    return Polynomial.of(count) * (eight // 8) if eight % 8 == 0 else -(-Polynomial.of(count) * eight // 8)


@cache
def _eight(dtype: int) -> int:
    """How many bytes eight numbers of a type take; 0 for texts."""
    return storage_size(onnx.TensorProto(data_type=dtype, dims=[8]))
