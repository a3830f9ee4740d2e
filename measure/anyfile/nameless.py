"""A file without names: every value, weight and node renamed, nodes in another order, metadata gone."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Mapping

import onnx

from modelexport.graph.index import KEY_SEPARATOR
from modelexport.graph.protos import names_read, subgraphs


def remove_names(model: onnx.ModelProto, seed: int = 0) -> tuple[onnx.ModelProto, Mapping[str, str]]:
    """The same model without names, and the old name of every value by its new one."""
    chance = random.Random(seed)
    nameless = onnx.ModelProto()
    nameless.CopyFrom(model)
    values = list(dict.fromkeys(_values(nameless.graph)))
    numbers = chance.sample(range(len(values)), len(values))
    names = {value: f"v{number}" for value, number in zip(values, numbers, strict=True)}
    nameless.ClearField("metadata_props")
    nameless.graph.name = "g"
    _rename(nameless.graph, names)
    _shuffle_nodes(nameless.graph, chance)
    return nameless, {new: old for old, new in names.items()}


def old_key(key: str, names: Mapping[str, str]) -> str:
    """The key of a node before its names were removed: every other part of a key is the name of a value."""
    parts = key.split(KEY_SEPARATOR)
    return KEY_SEPARATOR.join(names.get(part, part) if index % 2 == 0 else part for index, part in enumerate(parts))


def _values(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (value.name for value in (*graph.input, *graph.output))
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from filter(None, node.output)
        for body in subgraphs(node):
            yield from _values(body)


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    del graph.value_info[:]
    graph.ClearField("metadata_props")
    values: list[onnx.ValueInfoProto | onnx.TensorProto] = [*graph.input, *graph.output, *graph.initializer]
    for value in values:
        value.name = names[value.name]
        value.ClearField("metadata_props")
    for node in graph.node:
        node.name = ""
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for body in subgraphs(node):
            _rename(body, names)


def _shuffle_nodes(graph: onnx.GraphProto, chance: random.Random) -> None:
    """Another order in which the nodes can run."""
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    makers = {output: index for index, node in enumerate(nodes) for output in node.output if output}
    needs = [{makers[name] for name in names_read(node) if name in makers} for node in nodes]
    readers: dict[int, list[int]] = {}
    for index, needed in enumerate(needs):
        for maker in needed:
            readers.setdefault(maker, []).append(index)
    ready = [(chance.random(), index) for index, needed in enumerate(needs) if not needed]
    heapq.heapify(ready)
    del graph.node[:]
    while ready:
        _, index = heapq.heappop(ready)
        graph.node.append(nodes[index])
        for reader in readers.get(index, ()):
            needs[reader].discard(index)
            if not needs[reader]:
                heapq.heappush(ready, (chance.random(), reader))
