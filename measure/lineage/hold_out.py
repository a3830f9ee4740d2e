"""Hold-out: names are taken from a file, and with them everything that finding nodes again by name rests on."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx

from modelexport.graph.index import subgraphs_with_ids

_SEED = 0
_Noted = onnx.ModelProto | onnx.GraphProto | onnx.NodeProto | onnx.TensorProto | onnx.ValueInfoProto


@dataclass(frozen=True)
class Hidden:
    """A model without node names, in which some values are called otherwise. `names` are those that are gone."""

    model: onnx.ModelProto
    names: frozenset[str]


def hide(model: onnx.ModelProto, share: float) -> Hidden:
    """Take a share of the names of all values but inputs and outputs, all names of nodes, and all notes."""
    hidden = onnx.ModelProto()
    hidden.CopyFrom(model)
    _clear_notes(hidden)
    ends = {value.name for value in (*hidden.graph.input, *hidden.graph.output)}
    names = sorted(set(_made(hidden.graph)) - ends)
    gone = random.Random(_SEED).sample(names, int(len(names) * share))
    # Shuffled: a number says nothing about the place.
    _rename(hidden.graph, {name: f"hidden_{number}" for number, name in enumerate(gone)})
    return Hidden(hidden, frozenset(gone))


def _made(graph: onnx.GraphProto) -> Iterator[str]:
    """The names of weights and of whatever nodes make, in bodies too, and of what bodies are given."""
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from filter(None, node.output)
        for _, body in subgraphs_with_ids(node, ""):
            yield from (value.name for value in body.input)
            yield from _made(body)


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    del graph.value_info[:]
    _clear_notes(graph)
    values: list[onnx.TensorProto | onnx.ValueInfoProto] = [*graph.initializer, *graph.input, *graph.output]
    for value in values:
        value.name = names.get(value.name, value.name)
        _clear_notes(value)
    for node in graph.node:
        node.name = ""
        _clear_notes(node)
        node.input[:] = _renamed(node.input, names)
        node.output[:] = _renamed(node.output, names)
        for _, body in subgraphs_with_ids(node, ""):
            _rename(body, names)


def _clear_notes(holder: _Noted) -> None:
    holder.ClearField("metadata_props")
    holder.ClearField("doc_string")


def _renamed(values: Iterable[str], names: Mapping[str, str]) -> list[str]:
    return [names.get(value, value) for value in values]
