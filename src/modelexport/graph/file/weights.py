"""Weight data: the bytes of a tensor, apart from its header, cut out of protobuf's wire format without decoding it.

A message is a row of fields, each a tag (number and wire type) and a value; a submessage, a string and a packed array
are all "a length and that many bytes". So a field of 400 MB costs as much to step over as one of 4 bytes, and a message
with one field replaced is the old bytes before it, the new bytes, and the old bytes after it.
https://protobuf.dev/programming-guides/encoding/

    tensor on the wire   dims 8, 4 | data_type 1 | name "fc.weight" | raw_data <128 bytes>
    detach(tensor)       header without raw_data, and a `WeightData` that knows its size and gives its bytes when asked
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol, TypeAlias

import numpy as np
import onnx
import onnx.numpy_helper

from modelexport.errors import ModelExportError

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5

_WIDTH = {FIXED64: 8, FIXED32: 4}
_VARINT_BITS = 64
# A byte of a number from here on is followed by another one; the smallest tag is that of field 1.
_CONTINUED, _FIRST_TAG = 0x80, 8


class WireError(ValueError):
    """These bytes are not a protobuf message."""


class Deferred(Protocol):
    """Bytes of a known number that are fetched when they are written, and not before."""

    @property
    def nbytes(self) -> int: ...
    def raw(self) -> memoryview: ...


Part: TypeAlias = memoryview | Deferred
Edit: TypeAlias = Callable[[memoryview], Sequence[Part] | None]
"""Takes a field's value and gives the parts of the new one, or None to leave the field as it is."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message: its tag begins at `start`, what follows tag and length at `value`."""

    number: int
    wire_type: int
    start: int
    value: int
    end: int


def fields(message: memoryview) -> Iterator[Field]:
    return (Field(*bounds) for bounds in field_bounds(message))


def field_bounds(message: memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """The same as plain numbers, number, wire type, start, value and end: a graph has tens of thousands of fields."""
    position, size = 0, len(message)
    while position < size:
        start = position
        tag = message[position]
        if tag < _CONTINUED:
            position += 1
        else:
            tag, position = _read_varint(message, position)
        value, position = _bounds(message, position, tag & 7)
        # Field 0 does not exist, and a length that points behind the end is how truncation shows.
        if tag < _FIRST_TAG or position > size:
            raise WireError(f"a field at byte {start} of {size} does not end")
        yield tag >> 3, tag & 7, start, value, position


def _bounds(message: memoryview, position: int, wire_type: int) -> tuple[int, int]:
    """Where the value that follows the tag begins and ends."""
    if wire_type == DELIMITED:
        if position < len(message) and (length := message[position]) < _CONTINUED:
            return position + 1, position + 1 + length
        length, position = _read_varint(message, position)
        return position, position + length
    if wire_type == VARINT:
        return position, _read_varint(message, position)[1]
    if wire_type in _WIDTH:
        return position, position + _WIDTH[wire_type]
    raise WireError(f"wire type {wire_type} at byte {position}")


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
    result = shift = 0
    size = len(message)
    while position < size and shift < _VARINT_BITS:
        byte = message[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7
    raise WireError(f"a number at byte {position} of {size} does not end")


def varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def size_of(parts: Sequence[Part]) -> int:
    return sum(part.nbytes for part in parts)


def delimited(number: int, parts: Sequence[Part]) -> list[Part]:
    head = varint(number << 3 | DELIMITED) + varint(size_of(parts))
    return [memoryview(head), *parts]


def rewrite(message: memoryview, edits: Mapping[int, Edit]) -> list[Part]:
    """The message with the value of every field that has an edit replaced by what the edit makes of it."""
    parts: list[Part] = []
    copied = 0
    for number, wire_type, start, value, end in field_bounds(message):
        if wire_type != DELIMITED or number not in edits:
            continue
        edited = edits[number](message[value:end])
        if edited is not None:
            parts += [message[copied:start], *delimited(number, edited)]
            copied = end
    return [*parts, message[copied:]]


def join(parts: Sequence[Part]) -> bytes:
    return b"".join(part if isinstance(part, memoryview) else part.raw() for part in parts)


_SEGMENT, _STRING_DATA, _NAME, _RAW_DATA, _EXTERNAL_DATA = 3, 6, 8, 9, 13
# Numbers of the fields of onnx.TensorProto: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
_DATA_FIELDS = {
    4: "float_data",
    5: "int32_data",
    _STRING_DATA: "string_data",
    7: "int64_data",
    _RAW_DATA: "raw_data",
    10: "double_data",
    11: "uint64_data",
}

_TYPED_DATA = tuple(name for number, name in _DATA_FIELDS.items() if number != _RAW_DATA)

# Bytes of a number in fields whose numbers all have one width.
_FIXED_WIDTH = {4: 4, 10: 8}

# Bits of one element; types below eight are packed, low bits first.
_TYPES_OF_WIDTH = {
    128: "COMPLEX128",
    64: "INT64 UINT64 DOUBLE COMPLEX64",
    32: "FLOAT INT32 UINT32",
    16: "FLOAT16 BFLOAT16 INT16 UINT16",
    8: "INT8 UINT8 BOOL FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2 FLOAT8E5M2FNUZ FLOAT8E8M0",
    6: "FLOAT6E2M3 FLOAT6E3M2",
    4: "INT4 UINT4 FLOAT4E2M1",
    2: "INT2 UINT2",
}
_WIDTH_BY_NAME = {name: width for width, names in _TYPES_OF_WIDTH.items() for name in names.split()}
# Joined by name, because an older onnx knows fewer types.
_WIDTH_OF_TYPE = {
    number: _WIDTH_BY_NAME[name] for name, number in onnx.TensorProto.DataType.items() if name in _WIDTH_BY_NAME
}


class WeightData(Protocol):
    """The data of one tensor, wherever it is."""

    @property
    def nbytes(self) -> int:
        """Size of what `raw` gives."""

    @property
    def field_number(self) -> int:
        """The field of a TensorProto that holds this data."""

    def raw(self) -> memoryview:
        """The elements as `raw_data` has them: little-endian, in row order, types below a byte packed."""

    def fields(self) -> list[Part]:
        """The data as fields of a TensorProto in wire format."""


@dataclass(frozen=True, eq=False)
class Span:
    """Raw data that lies in a buffer: a mapped file, or what an exporter wrote into memory."""

    data: memoryview
    field_number = _RAW_DATA

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def raw(self) -> memoryview:
        return self.data

    def fields(self) -> list[Part]:
        return delimited(_RAW_DATA, [self.data])


@dataclass(frozen=True, eq=False)
class Lazy:
    """Raw data that somebody else holds, such as torch or an external data file."""

    nbytes: int
    tensor_bytes: Callable[[], bytes | memoryview]
    field_number = _RAW_DATA

    def raw(self) -> memoryview:
        data = memoryview(self.tensor_bytes()) if self.nbytes else memoryview(b"")
        if data.nbytes != self.nbytes:
            raise ModelExportError(f"a tensor of {self.nbytes} bytes gave {data.nbytes} when it was read")
        return data.cast("B")

    def fields(self) -> list[Part]:
        return delimited(_RAW_DATA, [self])


@dataclass(frozen=True, eq=False)
class Typed:
    """Data that lies in a buffer as protobuf numbers (`float_data` and its kin) and is copied as such.

    tensor: the whole serialized TensorProto. values: the fields in it that are data.
    """

    nbytes: int
    field_number: int
    tensor: memoryview
    values: tuple[memoryview, ...]

    @property
    def field_name(self) -> str:
        return _DATA_FIELDS[self.field_number]

    def count(self) -> int:
        """How many numbers there are: packed ones follow each other, others have a field each."""
        return sum(
            self._count_packed(run[field.value : field.end]) if field.wire_type == DELIMITED else 1
            for run in self.values
            for field in fields(run)
        )

    def _count_packed(self, numbers: memoryview) -> int:
        if self.field_number in _FIXED_WIDTH:
            return len(numbers) // _FIXED_WIDTH[self.field_number]
        # The last byte of a number has its highest bit clear.
        return int(np.count_nonzero(np.frombuffer(numbers, np.int8) >= 0))

    def raw(self) -> memoryview:
        return memoryview(_converted(onnx.TensorProto.FromString(bytes(self.tensor))))

    def fields(self) -> list[Part]:
        return list(self.values)


@dataclass(frozen=True, eq=False)
class Detached:
    """A tensor taken apart: `header` is the serialized TensorProto without its data."""

    name: str
    header: memoryview
    data: WeightData


def storage_size(tensor: onnx.TensorProto) -> int:
    """How many bytes a tensor's elements take in `raw_data` by its shape and type; 0 for strings."""
    return storage_bytes(tensor.data_type, tensor.dims)


def storage_bytes(data_type: int, shape: Iterable[int]) -> int:
    bits = math.prod(shape) * _WIDTH_OF_TYPE.get(data_type, 0)
    return max(0, -(-bits // 8))


def typed_field(data_type: int) -> str:
    """The field of a TensorProto that holds numbers of this type where they are not raw."""
    return _FIELD_OF_TYPE.get(data_type, "int32_data")


def count_values(data_type: int, elements: int) -> int:
    """How many numbers that field has for so many elements: complex ones are two, and those that fit share a byte."""
    if data_type in _COMPLEX:
        return 2 * elements
    return -(-elements // (8 // min(_WIDTH_OF_TYPE.get(data_type, 8), 8)))


_TYPES = onnx.TensorProto
_COMPLEX = frozenset((_TYPES.COMPLEX64, _TYPES.COMPLEX128))
_FIELD_OF_TYPE: dict[int, str] = {
    _TYPES.FLOAT: "float_data",
    _TYPES.COMPLEX64: "float_data",
    _TYPES.DOUBLE: "double_data",
    _TYPES.COMPLEX128: "double_data",
    _TYPES.INT64: "int64_data",
    _TYPES.UINT32: "uint64_data",
    _TYPES.UINT64: "uint64_data",
    _TYPES.STRING: "string_data",
}


def detach(tensor: memoryview, above: int) -> Detached | None:
    """Take a serialized TensorProto apart; None if it has no name or no more than `above` bytes of data."""
    # The whole message is no larger than its data may be: no need to look inside.
    if len(tensor) <= above:
        return None
    header, values = _split(tensor)
    name = _name_of_plain(header)
    if not name or sum(len(run) for _, run in values) <= above:
        return None
    data = _data(tensor, header, values)
    # Of raw data, tag and length do not count: an exporter has not written them yet when it asks the same.
    return Detached(name, header, data) if data and not (isinstance(data, Span) and data.nbytes <= above) else None


def attach(header: memoryview, data: WeightData) -> list[Part]:
    """The serialized TensorProto with its data in it, fields in the order that protobuf writes."""
    later = (field.start for field in fields(header) if field.number > data.field_number)
    # Readers accept any order, but bytes that equal protobuf's own keep files comparable.
    at = next(later, len(header))
    return [header[:at], *data.fields(), header[at:]]


def name_of_empty(tensor: memoryview) -> str | None:
    """The name of a serialized TensorProto that has no data, neither inside nor in another file."""
    holds_data = any(field.number in _DATA_FIELDS for field in fields(tensor))
    return None if holds_data else _name_of_plain(tensor)


def has_data(tensor: onnx.TensorProto) -> bool:
    # To list the fields would copy the data.
    return tensor.HasField("raw_data") or any(len(getattr(tensor, name)) for name in _TYPED_DATA)


def clear_data(tensor: onnx.TensorProto) -> None:
    for name in _DATA_FIELDS.values():
        tensor.ClearField(name)


def data_inside(tensor: onnx.TensorProto) -> WeightData:
    if tensor.HasField("raw_data"):
        return Span(memoryview(tensor.raw_data))
    return Lazy(storage_size(tensor), lambda: _converted(tensor))


def _converted(tensor: onnx.TensorProto) -> bytes:
    """The values of a tensor's typed fields as raw data."""
    return onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor)).raw_data


def _split(tensor: memoryview) -> tuple[memoryview, list[tuple[int, memoryview]]]:
    """The fields that are not data, joined, and the runs of equal fields that are."""
    header: list[Part] = []
    values: list[tuple[int, memoryview]] = []
    end = 0
    for number, run in groupby(fields(tensor), key=lambda field: field.number if field.number in _DATA_FIELDS else 0):
        # Values that are not packed can be millions of fields: only the last of a run is kept.
        start, end = end, deque(run, maxlen=1)[0].end
        if number:
            values.append((number, tensor[start:end]))
        else:
            header.append(tensor[start:end])
    return memoryview(join(header)), values


def _name_of_plain(header: memoryview) -> str | None:
    """The name of a tensor that is whole by itself: not a segment of another, not in another file."""
    name: str | None = None
    for field in fields(header):
        if field.number in (_SEGMENT, _EXTERNAL_DATA):
            return None
        if field.number == _NAME:
            name = bytes(header[field.value : field.end]).decode()
    return name


def _data(tensor: memoryview, header: memoryview, values: list[tuple[int, memoryview]]) -> WeightData | None:
    """The data of a tensor that has one kind of it; None for strings and what only protobuf can sort out."""
    numbers = {number for number, _ in values}
    if numbers == {_RAW_DATA}:
        return _raw_span([run for _, run in values])
    # More than one kind of data is invalid; which of them counts is left to protobuf.
    if len(numbers) != 1 or numbers & {_RAW_DATA, _STRING_DATA}:
        return None
    size = storage_size(onnx.TensorProto.FromString(bytes(header)))
    return Typed(size, numbers.pop(), tensor, tuple(run for _, run in values))


def _raw_span(runs: list[memoryview]) -> Span | None:
    spans = [(run, field) for run in runs for field in fields(run)]
    # A field that occurs twice is legal for protobuf, where the last one wins.
    if len(spans) != 1 or spans[0][1].wire_type != DELIMITED:
        return None
    run, field = spans[0]
    return Span(run[field.value : field.end])
