"""Which inputs of a graph are indices, and how large they may be.

Found from dataflow alone: an input that reaches the index of a lookup, through operators that only arrange or cast it,
must stay below the number of rows that the table has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx

from modelexport.graph.index import Graph, Node, function_id, value_id, walk_nodes

# Their outputs hold elements of these inputs, and no others that matter.
_ARRANGING = {
    **dict.fromkeys(("Cast", "CastLike", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose"), (0,)),
    **dict.fromkeys(("Expand", "Tile", "Slice", "Split", "Pad", "Gather", "GatherElements", "GatherND"), (0,)),
    "Where": (1, 2),
}
# They leave the shape of their first input as it is.
_SHAPE_KEEPING = frozenset({"Cast", "CastLike", "Identity", "DequantizeLinear", "QuantizeLinear"})
# Lookups: the place of the index, the place of the table. ONNX Runtime fuses some with what comes after.
_LOOKUPS = {
    "Gather": ((1, 0),),
    "GatherElements": ((1, 0),),
    "GatherBlockQuantized": ((1, 0),),
    "EmbedLayerNormalization": ((0, 2), (1, 4)),
}
_AXIS_ATTRIBUTES = ("axis", "gather_axis")


def index_bounds(proto: onnx.ModelProto, graph: Graph) -> dict[str, int | None]:
    """Inputs that are indices, each with the size of the smallest table; None if no size is known."""
    search = _Search(proto, graph)
    found: dict[str, int | None] = {}
    for name in graph.inputs:
        bounds = list(search.bounds(name))
        if bounds:
            found[name] = min((bound for bound in bounds if bound is not None), default=None)
    return found


class _Search:
    def __init__(self, proto: onnx.ModelProto, graph: Graph) -> None:
        self._graph = graph
        self._protos = dict(walk_nodes(proto))
        self._shapes = {value.name: value.type.tensor_type.shape.dim for value in proto.graph.value_info}
        self._formals = {
            function_id(function): [value_id(function_id(function), name) for name in function.input]
            for function in proto.functions
        }
        self._returned: dict[str, list[tuple[str, int]]] = {}
        for graph_id, values in graph.yields.items():
            for place, value in enumerate(values):
                self._returned.setdefault(value, []).append((graph_id, place))

    def bounds(self, name: str) -> Iterator[int | None]:
        """Sizes of the tables that this value, or an arrangement of it, is an index into."""
        seen, waiting = {name}, [name]
        while waiting:
            value = waiting.pop()
            for node in self._graph.consumers.get(value, ()):
                places = [place for place, read in enumerate(node.inputs) if read == value]
                yield from self._looked_up(node, places)
            fresh = set(self._onward(value)) - seen
            seen |= fresh
            waiting += fresh

    def _looked_up(self, node: Node, places: Iterable[int]) -> Iterator[int | None]:
        for index, table in _LOOKUPS.get(node.op_type, ()):
            if index in places and table < len(node.inputs):
                yield self._size(node.inputs[table], self._axis(node))

    def _axis(self, node: Node) -> int:
        attributes = self._protos[node.key].attribute
        return next((attribute.i for attribute in attributes if attribute.name in _AXIS_ATTRIBUTES), 0)

    def _onward(self, value: str) -> Iterator[str]:
        """Values that hold the same elements."""
        for node in self._graph.consumers.get(value, ()):
            places = [place for place, read in enumerate(node.inputs) if read == value]
            if node.op_type == "Concat" or any(place in _ARRANGING.get(node.op_type, ()) for place in places):
                yield from filter(None, node.outputs)
            formals = self._formals.get(node.function, ())
            yield from (formals[place] for place in places if place < len(formals))
        for graph_id, place in self._returned.get(value, ()):
            for key in self._graph.runners.get(graph_id, ()):
                runner = self._graph.by_key[key]
                # What a loop's body returns goes elsewhere, and one step later.
                if runner.op_type not in ("Loop", "Scan") and place < len(runner.outputs):
                    yield runner.outputs[place]

    def _size(self, table: str, axis: int) -> int | None:
        shape = self._shape(table)
        return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None

    def _shape(self, value: str) -> Sequence[int | None] | None:
        """The shape of a stored tensor, or the one that the file states."""
        if value in self._graph.initializers:
            return self._graph.initializers[value].shape
        actual = self._actual(value)
        if actual is not None:
            return self._shape(actual)
        maker = self._graph.producers.get(value)
        if maker is not None and maker.op_type == "Constant":
            return next((list(item.t.dims) for item in self._protos[maker.key].attribute if item.name == "value"), None)
        if maker is not None and maker.op_type in _SHAPE_KEEPING:
            return self._shape(maker.inputs[0])
        stated = self._shapes.get(value)
        return None if stated is None else [dim.dim_value if dim.HasField("dim_value") else None for dim in stated]

    def _actual(self, value: str) -> str | None:
        """What a function is given for this name, if one node alone runs it."""
        for function, formals in self._formals.items():
            runners = self._graph.runners.get(function, ())
            if value in formals and len(runners) == 1:
                inputs = self._graph.by_key[runners[0]].inputs
                place = formals.index(value)
                return inputs[place] if place < len(inputs) else None
        return None
