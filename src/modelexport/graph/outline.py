"""Outlines: a graph in brief, small enough to travel inside of a file that a tool made of it; sketches of constants.

An outline keeps nodes, edges and headers, with digests of four bytes in the place of attributes and constants. So the
graph before can be matched with the graph after, long after the file before is gone:

    Conv(x, w; strides=[2, 2])    ->    Conv, x, w, digest of the attributes; w: float32 (64, 3, 7, 7), sketch of w

A sketch is what eight numbers of a weight look like, from the first corner to the last: their middle, their spread, and
where between the two each lies, in steps that survive float16 and quantization. Sides of a shape are kept sorted, and
those of 1 left out, so that a transposed or reshaped weight can be found by it. Making one reads eight numbers and
nothing else; of weights packed into bytes, eight rows are read, and those in NCHWc order as a whole.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

import numpy as np
import onnx

from modelexport.graph.dequantize import PACKED, Arrays, dequantize_rows, packed_weight_shape, stored_weight_input
from modelexport.graph.file.external import is_external
from modelexport.graph.file.filling import FilledWeight
from modelexport.graph.file.reading import ModelFile, has_numbers, initializer_array
from modelexport.graph.file.weights import has_data
from modelexport.graph.index import MAIN, Graph, Node, Tensor, walk_nodes
from modelexport.graph.nchwc import BLOCKS, blocked_weights, unblocked
from modelexport.graph.protos import find_attribute
from modelexport.record.outline import (
    PLACES,
    STEPS,
    Body,
    Outline,
    OutlineNode,
    OutlineTensor,
    Sketch,
    Sketches,
    lengthened,
    shortened,
)

# Enough to tell the attributes and constants of one graph apart.
_DIGEST_SIZE = 4


def outlined(graph: Graph, sketches: Sketches) -> Outline:
    constants = [*graph.initializers, *(node.key for node in graph.nodes if node.constant is not None)]
    by_name = ((name, sketches(name)) for name in constants)
    return Outline(
        nodes=tuple(map(_outline_node, graph.nodes)),
        inputs=graph.inputs,
        outputs=graph.outputs,
        initializers={
            name: OutlineTensor(tensor.dtype, tensor.shape, digest(tensor.content))
            for name, tensor in graph.initializers.items()
        },
        bodies={
            graph_id: Body(graph.body_owner.get(graph_id, ""), graph.body_inputs[graph_id], yields)
            for graph_id, yields in graph.body_outputs.items()
            if graph_id != MAIN
        },
        sketches={name: kept for name, kept in by_name if kept is not None and not kept.quantized},
    )


def graph_of(outline: Outline) -> Graph:
    """The graph, with digests in the place of attributes and constants: as `digested` gives it."""
    bodies = outline.bodies.items()
    initializers = {
        name: Tensor(name, header.dtype, header.shape, header.content.encode() or None)
        for name, header in outline.initializers.items()
    }
    return Graph(
        nodes=tuple(_indexed_node(node, position) for position, node in enumerate(outline.nodes)),
        inputs=outline.inputs,
        outputs=outline.outputs,
        initializers=MappingProxyType(initializers),
        body_owner=MappingProxyType({name: body.owner for name, body in bodies if body.owner}),
        body_outputs=MappingProxyType({MAIN: outline.outputs, **{name: body.yields for name, body in bodies}}),
        body_inputs=MappingProxyType({MAIN: outline.inputs, **{name: body.takes for name, body in bodies}}),
    )


def digested(graph: Graph) -> Graph:
    """A graph that can be compared with one from an outline."""

    def digest_node(node: Node) -> Node:
        constant = None if node.constant is None else digest(node.constant).encode()
        return replace(node, attributes=digest(node.attributes).encode(), constant=constant)

    stored = graph.initializers.items()
    initializers = {name: replace(tensor, content=digest(tensor.content).encode() or None) for name, tensor in stored}
    return replace(graph, nodes=tuple(map(digest_node, graph.nodes)), initializers=MappingProxyType(initializers))


def _outline_node(node: Node) -> OutlineNode:
    return OutlineNode(
        key=node.key,
        op_type=node.op_type,
        domain=node.domain,
        graph=node.graph,
        inputs=node.inputs,
        outputs=node.outputs,
        attributes=digest(node.attributes),
        constant=digest(node.constant),
    )


def _indexed_node(node: OutlineNode, position: int) -> Node:
    return Node(
        key=node.key,
        name="",
        op_type=node.op_type,
        domain=node.domain,
        graph=node.graph,
        position=position,
        inputs=node.inputs,
        outputs=node.outputs,
        attributes=node.attributes.encode(),
        constant=node.constant.encode() or None,
        metadata={},
    )


def digest(data: bytes | None) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_SIZE).hexdigest() if data else ""


_FLOATS = frozenset("fV")  # V: those that numpy does not have by itself, and integers of four bits
_INTEGERS = ("int", "uint")
# In the place of an infinity, which a file in float16 may hold as the largest number that it has.
_LARGEST = float(np.finfo(np.float16).max)
# Shorter tensors of integers are indices and shapes.
_QUANTIZED_FROM = 16


def sketch(array: np.ndarray | FilledWeight) -> Sketch | None:
    """None for what is empty, no numbers, or too short to be a quantized weight."""
    is_integer = array.dtype.name.startswith(_INTEGERS)
    is_float = array.dtype.kind in _FLOATS and not is_integer
    if not array.size or not (is_float or (is_integer and array.size >= _QUANTIZED_FROM)):
        return None
    elements = array[_places(array.shape)] if array.ndim else np.broadcast_to(np.asarray(array), PLACES)
    return _sketch_elements(elements, array.shape, quantized=not is_float)


def sketch_packed(node: onnx.NodeProto, arrays: Arrays) -> Sketch | None:
    """That of a weight that is packed into bytes, by the numbers that it stands for: it lies in blocks with scales.

    before    MatMul(x, w: 64 x 32)          after    MatMulNBits(x, 32 x 2 x 16 bytes, 64 scales)
    """
    shape = packed_weight_shape(node, arrays)
    if shape is None or not all(shape):
        return None
    rows, columns = _places(shape)
    weight = dequantize_rows(node, arrays, rows.tolist())
    return None if weight is None else _sketch_elements(weight[np.arange(PLACES), columns], shape, quantized=True)


@lru_cache(maxsize=1024)
def _places(shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Where the numbers of a sketch lie along each side."""
    return tuple(((np.arange(PLACES) * 2 + 1) * side) // (2 * PLACES) for side in shape)


def _sketch_elements(elements: np.ndarray, shape: tuple[int, ...], *, quantized: bool) -> Sketch:
    # Of eight numbers numpy's own calls would take longer than what they do.
    numbers = [_finite(number) for number in elements.astype(np.float64).tolist()]
    middle, spread = (max(numbers) + min(numbers)) / 2, (max(numbers) - min(numbers)) / 2
    steps = [round((number - middle) / spread * STEPS) for number in numbers] if spread else [0] * PLACES
    sides = tuple(sorted(side for side in shape if side > 1))
    # As precise as a sketch is kept, so that one that was just made equals one that was read.
    middle, spread = lengthened(shortened(middle)), lengthened(shortened(spread))
    return Sketch(sides, middle, spread, tuple(steps), quantized)


def _finite(number: float) -> float:
    if math.isfinite(number):
        return number
    return 0.0 if math.isnan(number) else math.copysign(_LARGEST, number)


def sketches_like(file: ModelFile, known: Iterable[Sketch | None]) -> Sketches:
    """Those of a file whose blocked weights have the order in which most of them are known.

    One that is known as it lies was not touched: the zeros at the end of a bias may be its own, and fill up no block.
    """
    names = frozenset(blocked_weights(file.proto))
    as_it_lies = sketches_of(file)
    if not names:
        return as_it_lies
    there = frozenset(known) - {None}
    candidates = [sketches_of(file, block) for block in BLOCKS]
    in_order = max(candidates, key=lambda sketches: sum(sketches(name) in there for name in sorted(names)))

    def find(name: str) -> Sketch | None:
        ordered = in_order(name)
        if name in names and ordered not in there and (lying := as_it_lies(name)) in there:
            return lying
        return ordered

    return find


def sketches_of(file: ModelFile, block: int = 0) -> Sketches:
    """By name, each made when it is asked for. block: channels in a block of blocked weights; 0: taken as they lie."""
    blocked = frozenset(blocked_weights(file.proto) if block else ())
    tensors = {tensor.name: tensor for tensor in file.proto.graph.initializer}
    for key, node in walk_nodes(file.proto):
        value = find_attribute(node, "value") if node.op_type == "Constant" else None
        # `weights` are by name, and belong to initializers: a constant has its own numbers or none.
        if value is not None and has_data(value.t) and not is_external(value.t):
            tensors[key] = value.t

    packed = _packed_weights(file)

    def find(name: str) -> Sketch | None:
        tensor = tensors.get(name)
        if name in packed:
            return sketch_packed(packed[name], _stored_inputs(file, packed[name], tensors))
        if tensor is None or 0 in tensor.dims or not has_numbers(file, tensor):
            return None
        weight = file.weights.get(name)
        if isinstance(weight, FilledWeight) and weight.shape:
            return sketch(weight)
        content = initializer_array(file, tensor)
        return sketch(unblocked(content, block) if name in blocked else content)

    return find


def _packed_weights(file: ModelFile) -> dict[str, onnx.NodeProto]:
    """By name of a weight that is packed into bytes: a node that unpacks it."""
    nodes = [node for node in file.proto.graph.node if node.op_type in PACKED]
    return {node.input[stored_weight_input(node) or 0]: node for node in nodes}


def _stored_inputs(
    file: ModelFile, node: onnx.NodeProto, tensors: Mapping[str, onnx.TensorProto]
) -> dict[int, np.ndarray]:
    stored = {index: tensors[name] for index, name in enumerate(node.input) if name in tensors}
    return {index: initializer_array(file, tensor) for index, tensor in stored.items() if has_numbers(file, tensor)}
