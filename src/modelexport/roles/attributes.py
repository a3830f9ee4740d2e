"""Attributes of an indexed node, read when somebody asks for one.

The index keeps attributes as one string: protobuf messages one after the other. Each begins with its name, the field
of the lowest number, so that is where the string is cut.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from modelexport.graph.index import Node
from modelexport.graph.wire import fields

_NAME = onnx.AttributeProto.NAME_FIELD_NUMBER


def integers(node: Node, name: str) -> tuple[int, ...]:
    """An attribute that is an integer or a list of them; empty if the node has none of this name."""
    found = _find(node, name)
    if found is None:
        return ()
    return (found.i,) if found.type == onnx.AttributeProto.INT else tuple(found.ints)


def integer(node: Node, name: str, default: int = 0) -> int:
    return next(iter(integers(node, name)), default)


def text(node: Node, name: str) -> str:
    found = _find(node, name)
    return "" if found is None else found.s.decode()


def _find(node: Node, name: str) -> onnx.AttributeProto | None:
    if name.encode() not in node.attributes:
        return None
    return next((item for item in _attributes(node.attributes) if item.name == name), None)


def _attributes(joined: bytes) -> Iterator[onnx.AttributeProto]:
    starts = [field.start for field in fields(memoryview(joined)) if field.number == _NAME]
    for start, end in zip(starts, [*starts[1:], len(joined)], strict=True):
        yield onnx.AttributeProto.FromString(joined[start:end])
