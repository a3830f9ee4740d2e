"""The graphs that control flow nodes hold: how to give other names to what is in them, and to make them comparable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import onnx

from modelexport.graph.bodies import bodies_of, captured, declared

Rename = Callable[[str], str]


def has_bodies(node: onnx.NodeProto) -> bool:
    return any(True for _ in bodies_of(node))


def names_inside(node: onnx.NodeProto) -> Iterator[str]:
    """Names that the bodies of a node give to their own values, however deep."""
    for body in bodies_of(node):
        yield from declared(body)
        for inner in body.node:
            yield from names_inside(inner)


def rename_captured(node: onnx.NodeProto, outer: Rename, inner: Rename = str) -> None:
    """Give other names to what the bodies of a node read from outside, and to what is inside of them."""
    for body in bodies_of(node):
        _rename(body, {}, outer, inner)


def plain_bodies(node: onnx.NodeProto) -> None:
    """Take from the bodies of a node all that does not say what they do: names, metadata, documentation."""
    outside = {name: f"<{number}" for number, name in enumerate(captured(node))}
    inside: dict[str, str] = {}

    def inner(name: str) -> str:
        return inside.setdefault(name, f">{len(inside)}")

    for body in bodies_of(node):
        _rename(body, {}, outside.__getitem__, inner)
        _make_plain(body)


def unite_types(node: onnx.NodeProto, others: Sequence[onnx.NodeProto]) -> None:
    """Leave in the bodies of a node the shapes that those of others have as well: it is going to stand for all."""
    for body, *theirs in zip(bodies_of(node), *map(bodies_of, others), strict=True):
        if any(_types(body.value_info) != _types(one.value_info) for one in theirs):
            body.ClearField("value_info")
        for value, *same in zip(_ends(body), *map(_ends, theirs), strict=True):
            if any(value.type != one.type for one in same):
                _forget_shape(value.type)
        for inner, *alike in zip(body.node, *(one.node for one in theirs), strict=True):
            unite_types(inner, alike)


def _ends(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    return [*graph.input, *graph.output]


def _types(values: Iterable[onnx.ValueInfoProto]) -> list[onnx.TypeProto]:
    return [value.type for value in values]


def _forget_shape(given: onnx.TypeProto) -> None:
    kind = given.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        getattr(given, kind).ClearField("shape")
    elif kind in ("sequence_type", "optional_type"):
        _forget_shape(getattr(given, kind).elem_type)


def _rename(graph: onnx.GraphProto, known: Mapping[str, str], outer: Rename, inner: Rename) -> None:
    names = {**known, **{name: inner(name) for name in declared(graph)}}

    def named(name: str) -> str:
        return names[name] if name in names else outer(name) if name else name

    for value in (*graph.input, *graph.output):
        value.name = named(value.name)
    for value in graph.value_info:
        value.name = names.get(value.name, value.name)
    for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
        tensor.name = named(tensor.name)
    for annotation in graph.quantization_annotation:
        annotation.tensor_name = names.get(annotation.tensor_name, annotation.tensor_name)
    for node in graph.node:
        node.input[:] = map(named, node.input)
        node.output[:] = map(named, node.output)
        for body in bodies_of(node):
            _rename(body, names, outer, inner)


def _make_plain(graph: onnx.GraphProto) -> None:
    for field in ("name", "doc_string", "metadata_props", "value_info"):
        graph.ClearField(field)
    for value in _ends(graph):
        value.ClearField("doc_string")
        value.ClearField("metadata_props")
        _forget_shape(value.type)  # as outside of bodies, shapes may differ from call to call
    for node in graph.node:
        for field in ("name", "doc_string", "metadata_props"):
            node.ClearField(field)
        for body in bodies_of(node):
            _make_plain(body)
