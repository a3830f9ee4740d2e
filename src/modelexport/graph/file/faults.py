"""Faults of a file: what no place behind can be asked to expect. Looked for once, when a file is opened.

    names      a name that is no UTF-8; protobuf lets them pass, and Python does not
    tensors    an unknown type, a negative side, bytes that do not fit the shape, external data at no place
    types      of values: a number that ONNX has no type for
    attributes without a type
    bodies     of a Loop without counter or condition; a Scan that does not say how many of its inputs are scanned
    functions  that unfold to more than `record/limits.py` allows, and bodies whose ids are too long for their values

Linear in the structure of a file; of weights only lengths are compared. Whatever passes may still be no valid model
(`graph/soundness.py`), but every part of it can be read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import onnx
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from modelexport.errors import FileMalformed, FileUnreadable, shorten
from modelexport.graph.file import external
from modelexport.graph.file.weights import Typed, WeightData, count_values, has_data, storage_size, typed_field
from modelexport.graph.index import function_id, node_key, subgraphs_with_ids
from modelexport.record import limits
from modelexport.record.regular_files import is_special

_KINDS = onnx.AttributeProto
_PLAIN = frozenset((_KINDS.INT, _KINDS.INTS, _KINDS.FLOAT, _KINDS.FLOATS, _KINDS.STRING, _KINDS.STRINGS))
_BODIES = frozenset((_KINDS.GRAPH, _KINDS.GRAPHS))
_NUMBERS: dict[int, str] = {_KINDS.INT: "a whole number", _KINDS.INTS: "a list of whole numbers"}
_SCAN_KINDS: dict[str, int] = {
    "num_scan_inputs": _KINDS.INT,
    "scan_input_axes": _KINDS.INTS,
    "scan_output_axes": _KINDS.INTS,
}
_DATA_TYPES = frozenset(onnx.TensorProto.DataType.values()) - {onnx.TensorProto.UNDEFINED}
_LARGEST = 2**63 - 1
_LISTED = 100
_HINT = "Make the file again with the tool that wrote it."


def ensure_text(structure: bytes, subject: str) -> None:
    """Raise FileMalformed for a serialized model with names that are no UTF-8."""
    try:
        _strict_model().FromString(structure)
    except DecodeError:
        # Not even protobuf: the caller says so in its own words.
        faults = tuple(_find_text_faults(onnx.ModelProto.FromString(structure), "model"))
        if faults:
            raise _explain(faults, subject) from None


@cache
def _strict_model() -> type[Message]:
    """The class of models whose parser checks text, which takes C a few milliseconds and Python seconds.

    Text is UTF-8 by the rules of both versions of protobuf's language, and checked in the third. So ONNX's messages are
    declared again, in the third. https://protobuf.dev/programming-guides/proto3/#scalar
    """
    file = descriptor_pb2.FileDescriptorProto()
    onnx.ModelProto.DESCRIPTOR.file.CopyToProto(file)
    file.syntax = "proto3"
    for message in file.message_type:
        for field in message.field:
            field.ClearField("default_value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(onnx.ModelProto.DESCRIPTOR.full_name))


def _find_text_faults(message: Message, place: str) -> Iterator[str]:
    """Protobuf gives text that it cannot decode as bytes."""
    for field in message.DESCRIPTOR.fields:
        content = getattr(message, field.name)
        is_list = not isinstance(content, (str, bytes, Message))
        if field.type == field.TYPE_STRING:
            wrong = (value for value in (content if is_list else [content]) if isinstance(value, bytes))
            yield from (f"{place}.{field.name} is not UTF-8: {shorten(repr(value))}" for value in wrong)
        elif field.type == field.TYPE_MESSAGE and is_list:
            for number, inner in enumerate(content):
                yield from _find_text_faults(inner, f"{place}.{field.name}[{number}]")
        elif field.type == field.TYPE_MESSAGE and message.HasField(field.name):
            yield from _find_text_faults(content, f"{place}.{field.name}")


def ensure_wellformed(
    proto: onnx.ModelProto, weights: Mapping[str, WeightData], directory: Path | None, subject: str
) -> None:
    """Raise FileMalformed with everything that is wrong."""
    faults = tuple(find_faults(proto, weights, directory))
    if faults:
        raise _explain(faults, subject)


def _explain(faults: Sequence[str], subject: str) -> FileMalformed:
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return FileMalformed(f"{subject} cannot be read: {faults[0]}{more}", _HINT, faults[:_LISTED])


def find_faults(
    proto: onnx.ModelProto, weights: Mapping[str, WeightData], directory: Path | None = None
) -> Iterator[str]:
    walk = _Walk()
    yield from walk.graph_faults(proto.graph, "", weights)
    for function in proto.functions:
        yield from walk.node_faults(function.node, function_id(function))
        yield from walk.attribute_faults(function.attribute_proto, function.name)
        yield from _type_faults(function.value_info)
    for training in proto.training_info:
        yield from walk.graph_faults(training.initialization, "", {})
        yield from walk.graph_faults(training.algorithm, "", {})
    yield from _location_faults(walk.locations, directory)
    if walk.is_over:
        yield f"ids of values in bodies and functions take more than {limits.INLINED_CHARACTERS:,} characters"
    elif proto.functions:
        yield from _function_faults(proto)


def _function_faults(proto: onnx.ModelProto) -> Iterator[str]:
    names = [function_id(function) for function in proto.functions]
    if len(set(names)) < len(names):
        repeated = next(name for index, name in enumerate(names) if name in names[:index])
        yield f"there are several functions {shorten(repeated)!r}"
        return
    from modelexport.graph.functions import measure_calls

    unfolded = measure_calls(proto)
    if unfolded.depth > limits.CALL_DEPTH:
        yield f"its functions call each other {unfolded.depth:,} deep, more than {limits.CALL_DEPTH}"
    elif unfolded.nodes > limits.INLINED_NODES:
        yield f"with its functions in the place of their calls it has more than {limits.INLINED_NODES:,} nodes"
    elif unfolded.characters > limits.INLINED_CHARACTERS:
        yield f"with its functions in the place of their calls, names take {unfolded.characters:,} characters"


def _location_faults(locations: Iterable[str], directory: Path | None) -> Iterator[str]:
    """A pipe or a device; a file that is not there, or outside of the folder, is told when its data is asked for."""
    for location in locations if directory is not None else ():
        with suppress(FileUnreadable):
            if is_special(external.find_data_file("a tensor", directory, location)):
                yield f"the data file {shorten(location)!r} is not a regular file"


class _Walk:
    """
    id_characters  how much the ids of graphs take before the names of the values inside (`graph/index.py`)
    locations      files that external data is in
    """

    def __init__(self) -> None:
        self.id_characters = 0
        self.locations: dict[str, None] = {}

    @property
    def is_over(self) -> bool:
        return self.id_characters > limits.INLINED_CHARACTERS

    def graph_faults(self, graph: onnx.GraphProto, graph_id: str, weights: Mapping[str, WeightData]) -> Iterator[str]:
        for tensor in graph.initializer:
            yield from self._tensor_faults(tensor, weights.get(tensor.name))
        for sparse in graph.sparse_initializer:
            yield from self._sparse_faults(sparse)
        for values in (graph.input, graph.output, graph.value_info):
            yield from _type_faults(values)
        self.id_characters += len(graph_id) * (len(graph.input) + len(graph.output) + len(graph.initializer) + 1)
        yield from self.node_faults(graph.node, graph_id)

    def node_faults(self, nodes: Sequence[onnx.NodeProto], graph_id: str) -> Iterator[str]:
        for node in nodes:
            if graph_id:
                self.id_characters += len(graph_id) * (1 + len(node.input) + len(node.output))
            attributes = node.attribute
            if not attributes:
                continue
            kinds = {attribute.type for attribute in attributes}
            if kinds <= _PLAIN:
                continue
            yield from self.attribute_faults(attributes, node.op_type)
            if node.op_type in ("Loop", "Scan") and node.domain in ("", "ai.onnx"):
                yield from _body_faults(node)
            if kinds & _BODIES and not self.is_over:
                for body_id, body in subgraphs_with_ids(node, node_key(node, graph_id)):
                    yield from self.graph_faults(body, body_id, {})

    def attribute_faults(self, attributes: Iterable[onnx.AttributeProto], operator: str) -> Iterator[str]:
        for attribute in attributes:
            kind = attribute.type
            if kind in _PLAIN or attribute.ref_attr_name:  # a reference has no value of its own
                continue
            if kind == _KINDS.UNDEFINED:
                yield f"the attribute {shorten(attribute.name)!r} of a {shorten(operator)} has no type that ONNX knows"
            elif kind == _KINDS.TENSOR:
                yield from self._tensor_faults(attribute.t, None)
            elif kind == _KINDS.SPARSE_TENSOR:
                yield from self._sparse_faults(attribute.sparse_tensor)
            for tensor in attribute.tensors:
                yield from self._tensor_faults(tensor, None)
            for sparse in attribute.sparse_tensors:
                yield from self._sparse_faults(sparse)

    def _tensor_faults(self, tensor: onnx.TensorProto, data: WeightData | None) -> Iterator[str]:
        if external.is_external(tensor):
            self.locations.update((entry.value, None) for entry in tensor.external_data if entry.key == "location")
        fault = _find_tensor_fault(tensor, data)
        if fault:
            yield f"the tensor {shorten(tensor.name)!r} {fault}"

    def _sparse_faults(self, sparse: onnx.SparseTensorProto) -> Iterator[str]:
        yield from self._tensor_faults(sparse.values, None)
        yield from self._tensor_faults(sparse.indices, None)
        if any(side < 0 for side in sparse.dims):
            yield f"the sparse tensor {shorten(sparse.values.name)!r} has the shape {shorten(str(list(sparse.dims)))}"


def _body_faults(node: onnx.NodeProto) -> Iterator[str]:
    """What a body takes first, and what is scanned, decides what all other values of the node stand for.

    https://onnx.ai/onnx/operators/onnx__Loop.html, https://onnx.ai/onnx/operators/onnx__Scan.html
    """
    name = shorten(node.name)
    for attribute in node.attribute:
        takes, makes = len(attribute.g.input), len(attribute.g.output)
        if attribute.type in _BODIES and attribute.name != "body":
            body = shorten(repr(attribute.name))
            yield f"the {node.op_type} {name!r} has a body {body}, and it takes one named 'body'"
        elif node.op_type == "Loop" and attribute.name == "body" and (takes < 2 or makes < 1):
            yield (
                f"the Loop {name!r} has a body with {takes} inputs and {makes} outputs, and it takes 2 at "
                f"least and makes 1 at least"
            )
        elif node.op_type == "Scan" and attribute.name in _SCAN_KINDS and not attribute.ref_attr_name:
            wanted = _SCAN_KINDS[attribute.name]
            if attribute.type != wanted:
                yield f"the attribute {attribute.name} of the Scan {name!r} is not {_NUMBERS[wanted]}"


def _find_tensor_fault(tensor: onnx.TensorProto, data: WeightData | None) -> str:
    """Empty for nothing. A tensor without any data is a header alone: its numbers are not known."""
    if tensor.data_type not in _DATA_TYPES:
        return f"is of type {tensor.data_type}, which ONNX does not have"
    size = math.prod(tensor.dims)
    if size > _LARGEST or any(side < 0 for side in tensor.dims):
        return f"has the shape {shorten(str(list(tensor.dims)))}"
    if tensor.HasField("segment"):
        return "is a segment of another, which nobody reads"
    if external.is_external(tensor):
        return _find_external_fault(tensor)
    return _find_size_fault(tensor, data, size)


def _find_size_fault(tensor: onnx.TensorProto, data: WeightData | None, size: int) -> str:
    if isinstance(data, Typed) or not (data or tensor.HasField("raw_data")):
        field, expected = typed_field(tensor.data_type), count_values(tensor.data_type, size)
        if isinstance(data, Typed):
            has = data.count() if data.field_name == field else 0
        else:
            has = len(getattr(tensor, field)) if has_data(tensor) else expected
        return "" if has == expected else f"has {has} values in {field}; shape and type take {expected}"
    has, needed = len(tensor.raw_data) if data is None else data.nbytes, storage_size(tensor)
    fits = has == needed and tensor.data_type != onnx.TensorProto.STRING
    return "" if fits else f"has {has} bytes of data; shape and type take {needed}"


def _find_external_fault(tensor: onnx.TensorProto) -> str:
    try:
        data = external.external_data(tensor, None)
    except FileUnreadable as error:
        return f"is in another file at no place: {shorten(error.message)}"
    needed = storage_size(tensor)
    if tensor.data_type == onnx.TensorProto.STRING:
        return "is of strings, which cannot be in another file"
    return "" if data.nbytes == needed else f"has {data.nbytes} bytes of external data; shape and type take {needed}"


def _type_faults(values: Iterable[onnx.ValueInfoProto]) -> Iterator[str]:
    for value in values:
        kind = value.type
        number = kind.tensor_type.elem_type
        # A value may have no type at all; one in a sequence or a map is looked at where it is rare.
        if number not in _DATA_TYPES and (number or not kind.HasField("tensor_type")):
            number = _find_strange_type(kind)
            if number:
                yield f"the value {shorten(value.name)!r} is of type {number}, which ONNX does not have"


def _find_strange_type(kind: onnx.TypeProto) -> int:
    """The number of an element type that ONNX does not have, inside of sequences, optionals and maps; 0 for none."""
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        number = getattr(kind, which).elem_type
        return 0 if number in _DATA_TYPES else number
    if which in ("sequence_type", "optional_type"):
        return _find_strange_type(getattr(kind, which).elem_type)
    if which == "map_type":
        key = kind.map_type.key_type
        return _find_strange_type(kind.map_type.value_type) or (0 if key in _DATA_TYPES else key)
    return 0
