"""Mutations of protobuf messages, by reflection: every field of every message of an ONNX model can be reached.

    GraphProto.initializer      TensorProto.dims [4, 4]     → [4, -1]
    NodeProto.input             ["h0"]                      → ["h0", "h0"]
    AttributeProto.g            a body                      → another body of the file

A kind of field is drawn first, then one field of that kind: what a file has once is mutated as often as what it has a
hundred times.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

# Stands for bytes that are no UTF-8, which protobuf's Python does not let anybody assign.
_INVALID_TEXT = "in\x01valid\x01text"
_INVALID_BYTES = b"\xff\xfe\xc3\x28\xed\xa0\x80 lone\x80"
_DEEPEST = 12
INTEGERS = (0, 1, -1, 2, 3, 7, 255, 2**15, 2**31 - 1, 2**31, 2**40, 2**63 - 1, -(2**31), -(2**63), 10**9)
TEXTS = (
    "",
    " ",
    ".",
    "..",
    "/",
    "../../../../etc/passwd",
    "/dev/zero",
    "a" * 2000,
    "x" * 100_000,
    "a." * 500,
    "/" * 300,
    "0",
    "-1",
    "18446744073709551616",
    "1" * 5000,
    "nan",
    "\x00",
    "\x1b]0;evil\x07\u202e",
    "<script>alert(1)</script>",
    "=cmd|' /C calc'!A0",
    "name with spaces\nand a line",
    "\U0001f600",
    "e\u0301",
    "{}",
    "#0",
    "a#b#1",
    _INVALID_TEXT,
)
_FLOATS = (0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45, 3e38)


@dataclass(frozen=True)
class Field:
    owner: Message
    descriptor: Any
    depth: int

    @property
    def kind(self) -> tuple[str, str]:
        return self.descriptor.containing_type.name, self.descriptor.name


def serialize(model: Message) -> bytes:
    """With what stands for invalid text made invalid."""
    return model.SerializeToString().replace(_INVALID_TEXT.encode(), _INVALID_BYTES[: len(_INVALID_TEXT)])


def mutate_message(model: onnx.ModelProto, random: Random) -> None:
    """Change a few fields, in place."""
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        fields = defaultdict(list)
        for field in _walk(model, 0):
            fields[field.kind].append(field)
        _mutate_field(random.choice(fields[random.choice(sorted(fields))]), model, random)


def _walk(message: Message, depth: int) -> Iterator[Field]:
    if depth > _DEEPEST:
        return
    for descriptor in message.DESCRIPTOR.fields:
        yield Field(message, descriptor, depth)
        if descriptor.type == FieldDescriptor.TYPE_MESSAGE:
            for inside in _messages_in(message, descriptor):
                yield from _walk(inside, depth + 1)


def _messages_in(message: Message, descriptor: Any) -> Iterator[Message]:
    if descriptor.is_repeated:
        yield from getattr(message, descriptor.name)
    elif message.HasField(descriptor.name):
        yield getattr(message, descriptor.name)


def _mutate_field(field: Field, model: onnx.ModelProto, random: Random) -> None:
    if field.descriptor.is_repeated:
        _mutate_repeated(field, model, random)
    elif random.random() < 0.1:
        field.owner.ClearField(field.descriptor.name)
    elif field.descriptor.type == FieldDescriptor.TYPE_MESSAGE:
        getattr(field.owner, field.descriptor.name).CopyFrom(_draw_message(field.descriptor, model, random))
    else:
        present = getattr(field.owner, field.descriptor.name)
        setattr(field.owner, field.descriptor.name, _draw_value(field, present, model, random))


def _mutate_repeated(field: Field, model: onnx.ModelProto, random: Random) -> None:
    values = getattr(field.owner, field.descriptor.name)
    items = list(values)
    change = random.choice((_drop, _repeat, _swap, _replace, _replace, _insert, _clear))
    changed = change(items, lambda: _draw_item(field, items, model, random), random)
    copies = [_copy(item) if isinstance(item, Message) else item for item in changed]
    del values[:]
    values.extend(copies)


def _copy(message: Message) -> Message:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _draw_item(field: Field, items: list[Any], model: onnx.ModelProto, random: Random) -> Any:
    if field.descriptor.type == FieldDescriptor.TYPE_MESSAGE:
        return _draw_message(field.descriptor, model, random)
    return _draw_value(field, random.choice(items) if items else None, model, random)


Change = Callable[[list[Any], Callable[[], Any], Random], list[Any]]


def _drop(items: list[Any], _: object, random: Random) -> list[Any]:
    return [item for number, item in enumerate(items) if number != random.randrange(len(items))] if items else []


def _repeat(items: list[Any], draw: Callable[[], Any], random: Random) -> list[Any]:
    item = random.choice(items) if items else draw()
    return [*items, *[item] * random.choice((1, 1, 2, 50))]


def _swap(items: list[Any], _: object, random: Random) -> list[Any]:
    return random.sample(items, len(items))


def _replace(items: list[Any], draw: Callable[[], Any], random: Random) -> list[Any]:
    if not items:
        return [draw()]
    number = random.randrange(len(items))
    return [*items[:number], draw(), *items[number + 1 :]]


def _insert(items: list[Any], draw: Callable[[], Any], random: Random) -> list[Any]:
    number = random.randint(0, len(items))
    return [*items[:number], draw(), *items[number:]]


def _clear(_: object, __: object, ___: Random) -> list[Any]:
    return []


def _draw_message(descriptor: Any, model: onnx.ModelProto, random: Random) -> Message:
    """One of the same kind from anywhere in the model, else an empty one."""
    kind = descriptor.message_type
    alike = [item for field in _walk(model, 0) for item in _of_kind(field, kind)]
    if alike and random.random() < 0.85:
        # A copy, and a small one: bodies inside of bodies would double a file with every mutation.
        item = random.choice(alike)
        return _copy(item) if item.ByteSize() < 100_000 else kind._concrete_class()
    made: Message = kind._concrete_class()
    return made


def _of_kind(field: Field, kind: Any) -> Iterator[Message]:
    if field.descriptor.type == FieldDescriptor.TYPE_MESSAGE and field.descriptor.message_type is kind:
        yield from _messages_in(field.owner, field.descriptor)


def _draw_value(field: Field, present: Any, model: onnx.ModelProto, random: Random) -> Any:
    match field.descriptor.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            is_text = field.descriptor.type == FieldDescriptor.TYPE_STRING
            return _draw_text(model, random) if is_text else mutate_bytes(present or b"", random)
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return random.choice(_FLOATS)
        case FieldDescriptor.CPPTYPE_ENUM:
            return random.choice(field.descriptor.enum_type.values).number
    return _draw_integer(field.descriptor.cpp_type, present, random)


_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
}


def _draw_integer(kind: int, present: int | None, random: Random) -> int:
    low, high = _RANGES[kind]
    near = [(present or 0) + random.choice((-1, 1, 2)), random.randrange(40)]
    return min(max(random.choice((*INTEGERS, *near, *near, *near)), low), high)


def _draw_text(model: onnx.ModelProto, random: Random) -> str:
    """A name that the model has elsewhere, which may close a circle or define a value twice; or an odd one."""
    if random.random() < 0.5:
        return random.choice(TEXTS)
    names = [name for node in model.graph.node for name in (*node.input, *node.output, node.op_type, node.domain)]
    names += [item.name for item in model.graph.initializer] + [item.name for item in model.functions]
    return random.choice(names or TEXTS)


def mutate_bytes(data: bytes, random: Random) -> bytes:
    """Blind: bytes changed, cut out, put in, repeated or cut off."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        start = random.randrange(len(changed) + 1)
        end = min(len(changed), start + random.choice((1, 1, 2, 4, 64, 1024)))
        match random.randrange(6):
            case 0:
                changed[start:end] = random.randbytes(end - start)
            case 1:
                del changed[start:end]
            case 2:
                changed[start:start] = random.randbytes(random.choice((1, 4, 64)))
            case 3:
                changed[start:start] = changed[start:end]
            case 4:
                changed[start:end] = random.choice((b"\x00", b"\xff", b"\x7f", b"\x80")) * (end - start)
            case _:
                del changed[start if random.random() < 0.3 else end :]
    return bytes(changed)
