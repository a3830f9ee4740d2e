"""Protobuf's wire format, as far as it takes to step over, cut out and put in fields without decoding them.

A message is a row of fields, each a tag (number and wire type) and a value; a submessage, a string and a
packed array are all "a length and that many bytes". So a field of 400 MB costs as much to step over as one of
4 bytes, and a message with one field replaced is the old bytes before it, the new bytes, and the old bytes
after it. Nothing here knows ONNX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5

_WIDTH = {FIXED64: 8, FIXED32: 4}
_VARINT_BITS = 64


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
    """The fields of a message in their order."""
    position, size = 0, len(message)
    while position < size:
        start = position
        tag, position = _read_varint(message, position)
        number, wire_type = tag >> 3, tag & 7
        value, position = _bounds(message, position, wire_type)
        if number == 0 or position > size:
            raise WireError(f"a field at byte {start} of {size} does not end")
        yield Field(number, wire_type, start, value, position)


def _bounds(message: memoryview, position: int, wire_type: int) -> tuple[int, int]:
    """Where the value that follows the tag begins and ends."""
    if wire_type == DELIMITED:
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
    """A length-delimited field with these parts as its value."""
    head = varint(number << 3 | DELIMITED) + varint(size_of(parts))
    return [memoryview(head), *parts]


def rewrite(message: memoryview, edits: Mapping[int, Edit]) -> list[Part]:
    """The message with the value of every field that has an edit replaced by what the edit makes of it."""
    parts: list[Part] = []
    copied = 0
    for field in fields(message):
        if field.wire_type != DELIMITED or field.number not in edits:
            continue
        edited = edits[field.number](message[field.value : field.end])
        if edited is not None:
            parts += [message[copied : field.start], *delimited(field.number, edited)]
            copied = field.end
    return [*parts, message[copied:]]


def join(parts: Sequence[Part]) -> bytes:
    return b"".join(part if isinstance(part, memoryview) else part.raw() for part in parts)
