"""The same model under other names and in another order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import onnx

from modelexport.graph.index import subgraphs_with_ids


def scrambled(model: onnx.ModelProto, seed: int = 0, *, notes: bool = True) -> onnx.ModelProto:
    """Every value, weight and node renamed, nodes in another order in which they can run, weights in any order.

    notes  keep metadata of the model and of nodes; the names of inputs and outputs stay in any case
    """
    chance = random.Random(seed)
    found = onnx.ModelProto()
    found.CopyFrom(model)
    ends = {value.name for value in (*found.graph.input, *found.graph.output)}
    names = sorted(set(_made(found.graph)) - ends)
    numbers = list(range(len(names)))
    chance.shuffle(numbers)
    _rename(found.graph, {name: f"value_{number}" for name, number in zip(names, numbers, strict=True)}, chance)
    for function in found.functions:
        for node in function.node:
            node.name = f"node_{chance.getrandbits(32)}"
    if not notes:
        found.ClearField("metadata_props")
        _clear_notes(found.graph)
    return found


def _made(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from filter(None, node.output)
        for _, body in subgraphs_with_ids(node, ""):
            yield from (value.name for value in body.input)
            yield from _made(body)


def _rename(graph: onnx.GraphProto, names: Mapping[str, str], chance: random.Random) -> None:
    values: list[onnx.TensorProto | onnx.ValueInfoProto] = [
        *graph.initializer,
        *graph.input,
        *graph.output,
        *graph.value_info,
    ]
    for value in values:
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.name = f"node_{chance.getrandbits(32)}"
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for _, body in subgraphs_with_ids(node, ""):
            _rename(body, names, chance)
    _shuffle_nodes(graph, chance)
    _shuffle(graph.initializer, chance)
    _shuffle(graph.value_info, chance)


def _shuffle(messages: Any, chance: random.Random) -> None:
    """A repeated field of any kind."""
    copies = list(messages)
    chance.shuffle(copies)
    copies = [type(one).FromString(one.SerializeToString()) for one in copies]
    del messages[:]
    messages.extend(copies)


def _shuffle_nodes(graph: onnx.GraphProto, chance: random.Random) -> None:
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    makers = {output: place for place, node in enumerate(nodes) for output in node.output if output}
    needs = [{makers[name] for name in _read(node) if name in makers} - {place} for place, node in enumerate(nodes)]
    readers: dict[int, list[int]] = {}
    for place, needed in enumerate(needs):
        for one in needed:
            readers.setdefault(one, []).append(place)
    missing = [len(needed) for needed in needs]
    ready = [place for place, count in enumerate(missing) if not count]
    del graph.node[:]
    while ready:
        spot = chance.randrange(len(ready))
        ready[spot], ready[-1] = ready[-1], ready[spot]
        place = ready.pop()
        graph.node.append(nodes[place])
        for reader in readers.get(place, ()):
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """What a node reads, in its bodies as well."""
    yield from node.input
    for _, body in subgraphs_with_ids(node, ""):
        for inner in body.node:
            yield from _read(inner)
        yield from (value.name for value in body.output)


def _clear_notes(graph: onnx.GraphProto) -> None:
    graph.ClearField("metadata_props")
    for node in graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
        for _, body in subgraphs_with_ids(node, ""):
            _clear_notes(body)


def reordered(proto: onnx.ModelProto, random: Random) -> onnx.ModelProto:
    """The same graph in another order in which it can run."""
    waiting = list(proto.graph.node)
    there = {value.name for value in proto.graph.input} | {tensor.name for tensor in proto.graph.initializer}
    placed: list[onnx.NodeProto] = []
    while waiting:
        ready = [one for one in waiting if reads(one) <= there]
        chosen = random.choice(ready)
        waiting.remove(chosen)
        placed.append(chosen)
        there |= set(chosen.output)
    found = onnx.ModelProto()
    found.CopyFrom(proto)
    del found.graph.node[:]
    found.graph.node.extend(placed)
    return found


def reads(proto: onnx.NodeProto) -> set[str]:
    """What a node and its bodies read from outside."""
    found = {name for name in proto.input if name}
    for attribute in proto.attribute:
        if attribute.HasField("g"):
            inside = {output for one in attribute.g.node for output in one.output}
            found |= {name for one in attribute.g.node for name in reads(one)} - inside
    return found
