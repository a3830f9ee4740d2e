"""Kinds of mutations: what is done to the files of a seed, each by a function of its own.

message    fields of the model, by reflection          record     the packed record or outline, decoded and encoded
document   a sidecar, description, overlay or config   external   where data is said to lie
wiring     names of values: circles, twins, nothing    growth     functions and bodies that unfold to far more
blind      bytes, whatever they mean                   exchange   a file of another seed in the place of this one
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from random import Random

import onnx
from onnx import helper

from measure.fuzzing.mutate_documents import mutate_json_file, mutate_packed
from measure.fuzzing.mutate_messages import INTEGERS, TEXTS, mutate_bytes, mutate_message, serialize

Files = dict[Path, bytes]
FIFO = "fifo"
# A NUL ends the name of a file for the system, and not for Python; a name may have 255 bytes.
_DATA_PLACES = (
    FIFO, "/dev/zero", "/dev/stdin", "../partner.onnx", "..", ".", "", "missing.data", "a/b", "model.onnx",
    "a\0b", "model.onnx.data\0", "\0", "w" * 300,
)  # fmt: skip
_MESSAGES = (".onnx",)
# Protobuf does not read messages nested more than 100 deep; a body in a body is three.
_DEEPEST = 28


class NotApplicable(Exception):
    """A seed that has nothing of what a mutation changes."""


def _read(data: bytes) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.ParseFromString(data)
    return model


def _mutate_message(data: bytes, random: Random) -> bytes:
    model = _read(data)
    mutate_message(model, random)
    return serialize(model)


def _mutate_record(data: bytes, random: Random) -> bytes:
    model = _read(data)
    packed = [entry for entry in model.metadata_props if ":" in entry.value]
    if not packed:
        raise NotApplicable
    entry = random.choice(packed)
    entry.value = mutate_packed(entry.value, random)
    return serialize(model)


def _mutate_external(data: bytes, random: Random) -> bytes:
    """Have a tensor say that its data lies somewhere else, or change what it says."""
    model = _read(data)
    tensors = [*model.graph.initializer]
    tensors += [attribute.t for node in model.graph.node for attribute in node.attribute if attribute.HasField("t")]
    if not tensors:
        raise NotApplicable
    tensor = random.choice(tensors)
    said = {entry.key: entry.value for entry in tensor.external_data}
    said.setdefault("location", "model.onnx.data")
    key = random.choice(("location", "location", "offset", "length", "checksum", random.choice(TEXTS)))
    numbers = tuple(map(str, INTEGERS))
    said[key] = random.choice(_DATA_PLACES if key == "location" else (*numbers, *numbers, *TEXTS))
    tensor.data_location = onnx.TensorProto.EXTERNAL
    if random.random() < 0.8:
        tensor.ClearField("raw_data")
    del tensor.external_data[:]
    for name, value in said.items():
        tensor.external_data.add(key=name, value=value)
    return serialize(model)


def _mutate_wiring(data: bytes, random: Random) -> bytes:
    """Circles, values that are made twice, values from nowhere, outputs that nothing makes."""
    model = _read(data)
    graphs = [model.graph.node, *(function.node for function in model.functions)]
    graphs += [item.g.node for node in model.graph.node for item in node.attribute if item.HasField("g")]
    nodes = random.choice([graph for graph in graphs if graph] or [[]])
    if not nodes:
        raise NotApplicable
    for _ in range(random.choice((1, 2, 5))):
        node, other = random.choice(nodes), random.choice(nodes)
        names = node.input if random.random() < 0.6 else node.output
        given = (*other.output, *other.input, "", "nowhere", *(item.name for item in model.graph.initializer))
        if names:
            names[random.randrange(len(names))] = random.choice(given)
        else:
            names.append(random.choice(given))
        if random.random() < 0.2:
            node.op_type = random.choice([item.op_type for item in nodes])
    return serialize(model)


def _grow(data: bytes, random: Random) -> bytes:
    """Functions that call each other twice, or in a long chain, or in a circle; bodies in bodies."""
    model = _read(data)
    if not model.graph.node:
        raise NotApplicable
    depth = random.choice((3, 12, 30, 60, 400))
    if random.random() < 0.3:
        _nest_bodies(model, min(depth, _DEEPEST))
        return serialize(model)
    calls = random.choice((1, 2, 2, 3))
    for level in range(depth):
        below = f"F{level + 1}" if level + 1 < depth else random.choice(("Relu", "F0", "Missing"))
        domain = "grown" if below.startswith(("F", "M")) else ""
        names = [f"v{number}" for number in range(calls + 1)]
        body = [helper.make_node(below, [given], [made], domain=domain) for given, made in pairwise(names)]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("grown", 1)]
        model.functions.append(helper.make_function("grown", f"F{level}", [names[0]], [names[-1]], body, opsets))
    model.opset_import.append(helper.make_opsetid("grown", 1))
    node = random.choice(model.graph.node)
    node.op_type, node.domain = "F0", "grown"
    del node.input[1:], node.output[1:], node.attribute[:]
    return serialize(model)


def _nest_bodies(model: onnx.ModelProto, depth: int) -> None:
    last = model.graph.node[-1]
    given = last.input[0] if last.input else ""
    body = helper.make_graph([helper.make_node("Relu", [given], ["inner"])], "body", [], [])
    body.output.add(name="inner")
    for level in range(depth):
        name = f"level{level}"
        node = helper.make_node("If", ["which"], [name], then_branch=body, else_branch=body if level < 8 else None)
        body = helper.make_graph([node], "body", [], [])
        body.output.add(name=name)
    model.graph.node.append(helper.make_node("If", ["which"], ["nested"], then_branch=body))


_FILE_MUTATIONS: Mapping[str, tuple[tuple[str, ...], Callable[[bytes, Random], bytes]]] = {
    "message": (_MESSAGES, _mutate_message),
    "record": (_MESSAGES, _mutate_record),
    "external": (_MESSAGES, _mutate_external),
    "wiring": (_MESSAGES, _mutate_wiring),
    "growth": (_MESSAGES, _grow),
    "document": ((".json",), mutate_json_file),
    "blind": (("",), mutate_bytes),
}
EXCHANGE = "exchange"
# How often each is drawn.
MUTATIONS = {
    "message": 35, "record": 15, "external": 6, "wiring": 12, "growth": 5, "document": 10, "blind": 15, EXCHANGE: 2,
}  # fmt: skip


def mutate_files(files: Files, mutable: list[Path], kind: str, other: Files, random: Random) -> Files:
    """The files of a seed, with those of `mutable` that are drawn tampered with.

    other  files of another seed, to exchange with
    """
    if kind == EXCHANGE:
        return {**files, random.choice(mutable): random.choice([data for _, data in sorted(other.items())])}
    endings, mutate = _FILE_MUTATIONS[kind]
    fitting = [path for path in mutable if path.name.endswith(endings)]
    if not fitting:
        raise NotApplicable
    path = random.choice(fitting)
    return {**files, path: mutate(files[path], random)}


def write_files(files: Files, folder: Path) -> None:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
        fifo = (folder / path).parent / FIFO
        if not fifo.exists():
            os.mkfifo(fifo)
