"""Hold-out: names are taken from a file, and with them everything that finding nodes again by name rests on."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx

_SEED = 0


@dataclass(frozen=True)
class Hidden:
    """A model without node names, in which some values are called otherwise. `names` are those that are gone."""

    model: onnx.ModelProto
    names: frozenset[str]


def hide(model: onnx.ModelProto, share: float) -> Hidden:
    """Take a share of the names of all values but inputs and outputs, and everything that is written on nodes."""
    hidden = onnx.ModelProto()
    hidden.CopyFrom(model)
    del hidden.metadata_props[:]
    ends = {value.name for value in (*hidden.graph.input, *hidden.graph.output)}
    names = sorted(set(_made(hidden.graph)) - ends)
    gone = random.Random(_SEED).sample(names, int(len(names) * share))
    # Shuffled: a number says nothing about the place.
    _rename(hidden.graph, {name: f"hidden_{number}" for number, name in enumerate(gone)})
    return Hidden(hidden, frozenset(gone))


def _made(graph: onnx.GraphProto) -> Iterator[str]:
    """The names of weights and of whatever nodes make, in bodies too."""
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from filter(None, node.output)
        for body in _bodies(node):
            yield from _made(body)


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    del graph.value_info[:]
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for value in (*graph.input, *graph.output):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.name = ""
        del node.metadata_props[:]
        node.doc_string = ""
        node.input[:] = _renamed(node.input, names)
        node.output[:] = _renamed(node.output, names)
        for body in _bodies(node):
            _rename(body, names)


def _renamed(values: Iterable[str], names: Mapping[str, str]) -> list[str]:
    return [names.get(value, value) for value in values]
