"""One change in a model, of which a diff must say exactly that."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from modelexport.graph.index import FLOATS
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Provenance
from modelexport.record.results.diff import Change, Diff, ModuleChange

# Operators of one input and no attributes that can stand for each other.
_ALIKE = ("Tanh", "Sigmoid", "Relu", "Neg", "Exp", "Abs", "Erf", "Sqrt")
# Attributes that can be another number without making the model invalid.
_CHANGED: dict[str, Callable[[Any], Any]] = {
    "epsilon": lambda value: value * 10,
    "alpha": lambda value: value + 0.5,
    "beta": lambda value: value + 0.5,
    "transB": lambda value: 1 - value,
    "axis": lambda value: value - 1 if value else 1,
    "keepdims": lambda value: 1 - value,
    "approximate": lambda value: b"tanh" if value == b"none" else b"none",
    "to": lambda value: onnx.TensorProto.DOUBLE if value != onnx.TensorProto.DOUBLE else onnx.TensorProto.FLOAT,
}


@dataclass(frozen=True)
class Planted:
    """
    what     weight, attribute, operator, inserted, dropped or layer
    module   where the change is; for a weight that several modules read, all of them
    nodes    keys of the nodes of the first file that it is about
    detail   the name of the attribute or of the weight
    """

    what: str
    model: onnx.ModelProto
    modules: frozenset[str]
    nodes: frozenset[str]
    detail: str = ""


def plant(what: str, model: onnx.ModelProto, record: Provenance, seed: int = 0) -> Planted | None:
    """None if there is nothing in the model that can be changed in this way."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    return _PLANTERS[what](found, record, random.Random(seed))


def _module(record: Provenance, key: str) -> str:
    ancestor = record.nodes[key].attribution.ancestor
    return "" if ancestor is None else str(ancestor)


def _readers(model: onnx.ModelProto, value: str) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if value in node.input]


def _holders(record: Provenance, name: str, readers: list[onnx.NodeProto]) -> frozenset[str]:
    """The modules that a weight may be said to be in: who holds it, who reads it."""
    owners = record.initializers[name].owners if name in record.initializers else ()
    calls = [ModuleCall.parse(_module(record, node.output[0])) for node in readers]
    around = record.hierarchy.common_ancestor(calls)
    return frozenset({*map(str, owners), *map(str, calls), str(around)})


def _weight(model: onnx.ModelProto, record: Provenance, chance: random.Random) -> Planted | None:
    read = {name for node in model.graph.node for name in node.input}
    able = [
        tensor
        for tensor in model.graph.initializer
        if tensor.data_type in FLOATS and np.prod(tensor.dims) > 1 and tensor.name in read
    ]
    if not able:
        return None
    tensor = chance.choice(able)
    array = numpy_helper.to_array(tensor).copy()
    array.reshape(-1)[chance.randrange(array.size)] += 0.5
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    readers = _readers(model, tensor.name)
    return Planted(
        "weight",
        model,
        _holders(record, tensor.name, readers),
        frozenset(node.output[0] for node in readers),
        tensor.name,
    )


def _attribute(model: onnx.ModelProto, record: Provenance, chance: random.Random) -> Planted | None:
    able = [
        (node, item)
        for node in model.graph.node
        for item in node.attribute
        if item.name in _CHANGED and node.op_type != "Constant"
    ]
    if not able:
        return None
    node, item = chance.choice(able)
    value = _CHANGED[item.name](helper.get_attribute_value(item))
    item.CopyFrom(helper.make_attribute(item.name, value))
    key = node.output[0]
    return Planted("attribute", model, frozenset({_module(record, key)}), frozenset({key}), item.name)


def _operator(model: onnx.ModelProto, record: Provenance, chance: random.Random) -> Planted | None:
    able = [node for node in model.graph.node if node.op_type in _ALIKE]
    if not able:
        return None
    node = chance.choice(able)
    node.op_type = chance.choice([one for one in _ALIKE if one != node.op_type])
    key = node.output[0]
    return Planted("operator", model, frozenset({_module(record, key)}), frozenset({key}), node.op_type)


def _inserted(model: onnx.ModelProto, record: Provenance, chance: random.Random) -> Planted | None:
    """A node behind another one; it makes what that one made."""
    able = [node for node in model.graph.node if node.op_type in ("MatMul", "Gemm", "Add", "Mul", "Conv")]
    if not able:
        return None
    node = chance.choice(able)
    key = node.output[0]
    node.output[0] = f"{key}_before"
    place = list(model.graph.node).index(node)
    model.graph.node.insert(place + 1, helper.make_node("Tanh", [f"{key}_before"], [key], name="planted"))
    around = [_module(record, key), *(_module(record, one.output[0]) for one in _readers(model, key))]
    return Planted("inserted", model, frozenset(around), frozenset(), "Tanh")


def _dropped(model: onnx.ModelProto, record: Provenance, chance: random.Random) -> Planted | None:
    outputs = {value.name for value in model.graph.output}
    able = [
        node
        for node in model.graph.node
        if node.op_type in (*_ALIKE, "Softmax", "Gelu", "LayerNormalization") and node.output[0] not in outputs
        and len([one for one in node.output if one]) == 1
    ]  # fmt: skip
    if not able:
        return None
    node = chance.choice(able)
    key = node.output[0]
    module = _module(record, key)
    for reader in _readers(model, key):
        reader.input[:] = [node.input[0] if name == key else name for name in reader.input]
    model.graph.node.remove(node)
    return Planted("dropped", model, frozenset({module}), frozenset({key}))


def _layer(model: onnx.ModelProto, record: Provenance, chance: random.Random) -> Planted | None:
    """What reads the result of a repeated block reads what that was given, and what nobody needs any more is gone."""
    layers = list(_layers(record))
    chance.shuffle(layers)
    for layer, siblings in layers:
        planted = _without(model, record, layer, siblings)
        if planted is not None:
            return planted
    return None


def _layers(record: Provenance) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Blocks of one class in a list, that ran once each."""
    hierarchy = record.hierarchy
    for path in hierarchy.modules:
        children = [one for one in hierarchy.children(path) if one.rpartition(".")[2].isdecimal()]
        classes = {hierarchy.modules[one].class_name for one in children}
        if len(children) > 1 and len(classes) == 1 and all(hierarchy.call_counts.get(one) == 1 for one in children):
            yield from ((one, tuple(children)) for one in children)


def _without(model: onnx.ModelProto, record: Provenance, layer: str, siblings: tuple[str, ...]) -> Planted | None:
    within = record.issued_within(layer)
    inside = {key for key, entry in record.nodes.items() if within(entry.attribution)}
    makers = {name: node for node in model.graph.node for name in node.output if name}
    constants = {tensor.name for tensor in model.graph.initializer}
    outside = {name for node in model.graph.node if node.output[0] not in inside for name in node.input}
    leaves = [name for name, node in makers.items() if node.output[0] in inside and name in outside]
    enters = {
        name
        for node in model.graph.node
        if node.output[0] in inside
        for name in node.input
        if name and name not in constants and (name not in makers or makers[name].output[0] not in inside)
    }
    stream = [name for name in enters if _is_made_by(record, makers.get(name), siblings, layer)]
    outputs = {value.name for value in model.graph.output}
    made = {name for name, node in makers.items() if node.output[0] in inside}
    if len(leaves) != 1 or len(stream) != 1 or made & outputs:
        return None
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for node in found.graph.node:
        node.input[:] = [stream[0] if name == leaves[0] else name for name in node.input]
    gone = frozenset(_drop_unneeded(found))
    gone = frozenset(key for key in gone if makers[key].op_type != "Constant")
    if not gone <= inside:
        return None
    return Planted("layer", found, frozenset({layer}), gone)


def _is_made_by(record: Provenance, maker: onnx.NodeProto | None, siblings: tuple[str, ...], layer: str) -> bool:
    """Whether a value comes out of another block of the list."""
    if maker is None:
        return False
    found = record.nodes[maker.output[0]].attribution
    return any(record.issued_within(one)(found) for one in siblings if one != layer)


def _drop_unneeded(model: onnx.ModelProto) -> Iterator[str]:
    """Keys of the nodes that nothing is made of."""
    needed = {value.name for value in model.graph.output}
    kept = []
    for node in reversed(model.graph.node):
        if needed.isdisjoint(node.output):
            yield node.output[0]
            continue
        needed.update(_all_read(node))
        kept.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in reversed(kept)]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    weights = [
        onnx.TensorProto.FromString(one.SerializeToString()) for one in model.graph.initializer if one.name in needed
    ]
    del model.graph.initializer[:]
    model.graph.initializer.extend(weights)


def _all_read(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for item in node.attribute:
        for body in (*([item.g] if item.HasField("g") else []), *item.graphs):
            yield from (value.name for value in body.output)
            for inner in body.node:
                yield from _all_read(inner)


_Planter = Callable[[onnx.ModelProto, Provenance, random.Random], Planted | None]
_PLANTERS: dict[str, _Planter] = {
    "weight": _weight,
    "attribute": _attribute,
    "operator": _operator,
    "inserted": _inserted,
    "dropped": _dropped,
    "layer": _layer,
}
KINDS = tuple(_PLANTERS)


_WANTED = {
    "attribute": Change.CHANGED,
    "operator": Change.REPLACED,
    "inserted": Change.ADDED,
    "dropped": Change.REMOVED,
}


def is_told(planted: Planted, diff: Diff) -> str:
    """Empty if a diff says what was planted, where it was planted, and nothing else; else what is wrong."""
    if diff.model or len(diff.modules) != 1:
        return f"model {diff.model}, modules {[(one.path, one.change.value) for one in diff.modules]}"
    module = diff.modules[0]
    if module.path not in planted.modules:
        return f"in {module.path!r} in the place of {sorted(planted.modules)}"
    return "" if _is_right(planted, module) else f"{module}"


def _is_right(planted: Planted, module: ModuleChange) -> bool:
    if planted.what == "layer":
        return module.change is Change.REMOVED and not module.changes
    if planted.what == "dropped" and module.change is Change.REMOVED:
        return module.nodes.left == 1  # it was all that there was
    if planted.what == "weight":
        names = [one.left.name for one in module.weights if one.left is not None]
        return module.change is Change.CHANGED and names == [planted.detail] and not module.changes
    if module.change is not Change.CHANGED or module.weights or len(module.changes) != 1:
        return False
    change = module.changes[0]
    fields = [f"attribute {planted.detail}"] if planted.what == "attribute" else []
    nodes = {node.key for node in change.left}
    told = [one.what for one in change.fields]
    return change.change is _WANTED[planted.what] and nodes == planted.nodes and told == fields
