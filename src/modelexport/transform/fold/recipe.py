"""Flattening recipe: what it takes to make a folded model flat again, byte for byte.

Functions and calls say what is computed. What they cannot say is listed here, in the order in which calls are unfolded:
names, doc strings and metadata of nodes, names of values, the order of the file, types of values inside of functions.

    {"texts": [...], "values": [0, 1, 1, …], "names": [4, 1, 1, …], "order": …}      numbers as steps, compressed

It travels in the metadata of the folded model, with a digest of the graph that it is for and of the one that it gives.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice, pairwise
from typing import Any

import onnx

from modelexport.errors import RecordUnreadable, UserError
from modelexport.graph.file.metadata import FOLDED_DOMAIN, FOLDED_KEY, PREFIX
from modelexport.graph.protos import rename_captured
from modelexport.record.packed import squeeze_bzip2, unsqueeze_bzip2
from modelexport.transform.fold.working_graph import constant_tensor

_NAME = "modelexport-folded-1"
# Some hundred bytes for each node are usual; what torch writes on nodes can take some thousand.
_LARGEST = 1 << 28
# What reading a payload raises that somebody has changed: base64, zlib, JSON, and columns that do not fit.
_DAMAGE = (ValueError, TypeError, KeyError, IndexError, OSError, EOFError, AttributeError, RecursionError)
# No number of a text: a field that is empty is not a field that is absent.
ABSENT = -1


@dataclass(frozen=True)
class NodeLabels:
    """What says nothing about what a node does. Numbers are those of texts; ABSENT for a field that is not there.

    tensor  the name of the tensor that a Constant holds
    """

    name: int = ABSENT
    doc_string: int = ABSENT
    tensor: int = ABSENT
    metadata: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class HiddenType:
    """A type of a value that is inside of a function: its position among all types, its name, and all else of it."""

    position: int
    name: int
    rest: int


@dataclass(frozen=True)
class FlatteningRecipe:
    """
    graph     the fingerprint of the folded graph that this is for
    flat      the digest of the graph that it gives
    ends      the digest of what goes in and comes out: types of values inside are true only as long as it is the same
    header    the flat model without its graph and functions, serialized
    record    the packed record, if it is not in the header
    texts     what is referred to by number
    values    names of the values inside of functions, call by call
    nodes     what belongs to each node that is inside of a function, call by call
    order     the number in the flat file of every node, as calls are unfolded; empty if that is the order of the file
    explicit  nodes that are not what unfolding makes of them, by their number in the flat file
    types     types of values that are inside of functions
    rests     all but the names of types, serialized
    """

    graph: str
    flat: str
    ends: str
    header: bytes
    record: str = ""
    texts: tuple[str, ...] = ()
    values: tuple[int, ...] = ()
    nodes: tuple[NodeLabels, ...] = ()
    order: tuple[int, ...] = ()
    explicit: dict[int, bytes] = field(default_factory=dict)
    types: tuple[HiddenType, ...] = ()
    rests: tuple[bytes, ...] = ()


def write_recipe(model: onnx.ModelProto, recipe: FlatteningRecipe) -> None:
    document = _to_document(recipe)
    if len(json.dumps(document)) > _LARGEST:
        raise UserError(
            f"what is written on the nodes of this file comes to more than {_LARGEST >> 20} MB",
            "Strip it first, or export with --strip-exporter-metadata.",
        )
    kept = [entry for entry in model.metadata_props if entry.key != FOLDED_KEY]  # of an earlier folding
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    model.metadata_props.add(key=FOLDED_KEY, value=f"{_NAME}:{squeeze_bzip2(document)}")


def read_recipe(model: onnx.ModelProto) -> FlatteningRecipe | None:
    """The recipe in a model; None if it has none. Raises RecordUnreadable for one that is damaged."""
    packed = next((entry.value for entry in model.metadata_props if entry.key == FOLDED_KEY), None)
    if packed is None:
        return None
    name, _, payload = packed.partition(":")
    if name != _NAME:
        raise RecordUnreadable(
            f"the file was folded by another version of modelexport: it starts with {name[:24]!r}",
            "Flatten it with the version that folded it.",
        )
    try:
        return _from_document(unsqueeze_bzip2(payload, _LARGEST))
    except _DAMAGE as error:
        raise RecordUnreadable(
            f"what is needed to flatten the file is damaged: {error}", "Fold the flat file again."
        ) from error


def _to_document(recipe: FlatteningRecipe) -> dict[str, Any]:
    """Column by column: numbers of one kind side by side compress far better than records one after the other."""
    metadata: dict[tuple[tuple[int, int], ...], int] = {}
    columns = [metadata.setdefault(node.metadata, len(metadata)) for node in recipe.nodes]
    return {
        "graph": recipe.graph,
        "flat": recipe.flat,
        "ends": recipe.ends,
        "header": _encode_bytes(recipe.header),
        "record": recipe.record,
        "texts": recipe.texts,
        "values": _delta_encode(recipe.values),
        "names": _delta_encode(node.name for node in recipe.nodes),
        "docs": [node.doc_string for node in recipe.nodes],
        "tensors": [node.tensor for node in recipe.nodes],
        "metadata": _delta_encode(columns),
        "metadata_table": [[number for pair in entry for number in pair] for entry in metadata],
        "order": _delta_encode(recipe.order),
        "explicit": [[number, _encode_bytes(node)] for number, node in recipe.explicit.items()],
        "type_places": _delta_encode(hidden.position for hidden in recipe.types),
        "type_names": _delta_encode(hidden.name for hidden in recipe.types),
        "type_rests": [hidden.rest for hidden in recipe.types],
        "rests": [_encode_bytes(rest) for rest in recipe.rests],
    }


def _from_document(document: dict[str, Any]) -> FlatteningRecipe:
    table = [tuple(zip(row[::2], row[1::2], strict=True)) for row in document["metadata_table"]]
    metadata = [table[number] for number in _delta_decode(document["metadata"])]
    nodes = zip(_delta_decode(document["names"]), document["docs"], document["tensors"], metadata, strict=True)
    positions, names = _delta_decode(document["type_places"]), _delta_decode(document["type_names"])
    types = zip(positions, names, document["type_rests"], strict=True)
    return FlatteningRecipe(
        graph=document["graph"],
        flat=document["flat"],
        ends=document["ends"],
        header=base64.b64decode(document["header"]),
        record=document["record"],
        texts=tuple(document["texts"]),
        values=_delta_decode(document["values"]),
        nodes=tuple(NodeLabels(*node) for node in nodes),
        order=_delta_decode(document["order"]),
        explicit={number: base64.b64decode(node) for number, node in document["explicit"]},
        types=tuple(HiddenType(*hidden) for hidden in types),
        rests=tuple(map(base64.b64decode, document["rests"])),
    )


def _delta_encode(numbers: Iterable[int]) -> list[int]:
    """Each number as the step from the one before: numbers mostly rise by one, and equal steps compress well."""
    return [number - before for before, number in pairwise(chain([0], numbers))]


def _delta_decode(steps: Iterable[int]) -> tuple[int, ...]:
    return tuple(accumulate(steps, initial=0))[1:]  # from a number: damaged steps of another type must not add up


def _encode_bytes(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def apply_recipe(model: onnx.ModelProto, recipe: FlatteningRecipe) -> onnx.ModelProto:
    """The flat model. Raises ValueError or LookupError if the recipe is not for this model."""
    return assemble_flat_model(model, recipe, unfold_nodes(model, recipe))


def assemble_flat_model(
    model: onnx.ModelProto, recipe: FlatteningRecipe, nodes: Iterable[onnx.NodeProto]
) -> onnx.ModelProto:
    """The flat model with these nodes. What others wrote on the model since it was folded stays on it."""
    flat = onnx.ModelProto.FromString(recipe.header)
    metadata = list(_merge_metadata(flat.metadata_props, model.metadata_props))
    del flat.metadata_props[:]
    flat.metadata_props.extend(metadata)
    flat.functions.extend(function for function in model.functions if function.domain != FOLDED_DOMAIN)
    graph = flat.graph
    graph.CopyFrom(model.graph)
    del graph.node[:]
    graph.node.extend(nodes)
    if digest_io(graph) == recipe.ends:  # else shapes inside may be others, and none is better than a wrong one
        types = list(_merge_types(model.graph.value_info, recipe))
        del graph.value_info[:]
        graph.value_info.extend(types)
    return flat


def unfold_nodes(model: onnx.ModelProto, recipe: FlatteningRecipe) -> list[onnx.NodeProto]:
    unfolding = _Unfolding(
        {function.name: function for function in model.functions if function.domain == FOLDED_DOMAIN},
        recipe,
        iter(recipe.values),
        iter(recipe.nodes),
    )
    unfolded = list(unfolding.nodes(model.graph.node))
    numbered = dict(zip(recipe.order or range(len(unfolded)), unfolded, strict=True))
    if numbered.keys() != set(range(len(unfolded))):
        raise ValueError("two nodes have one place")
    nodes = [numbered[number] for number in range(len(numbered))]
    for number, explicit in recipe.explicit.items():
        nodes[number] = onnx.NodeProto.FromString(explicit)
    return nodes


@dataclass(eq=False)
class _Unfolding:
    """
    values  names that are still to be given out, by number of a text
    labels  what is still to be written on nodes
    open    functions that are being unfolded: one that is met again calls itself
    """

    functions: Mapping[str, onnx.FunctionProto]
    recipe: FlatteningRecipe
    values: Iterator[int]
    labels: Iterator[NodeLabels]
    open: set[str] = field(default_factory=set)

    def nodes(self, nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
        """Nodes of the main graph, with those of a function in the place of each call."""
        for node in nodes:
            if node.domain == FOLDED_DOMAIN:
                yield from self._called(node.op_type, list(node.input), list(node.output))
            else:
                yield node

    def _called(self, name: str, inputs: list[str], outputs: list[str]) -> Iterator[onnx.NodeProto]:
        function = self.functions[name]
        if name in self.open:
            raise ValueError(f"the function {name!r} calls itself")
        self.open.add(name)
        names = dict(zip(function.input, inputs, strict=True))
        names.update(zip(function.output, outputs, strict=True))
        for node in function.node:
            for output in node.output:
                if output and output not in names:
                    names[output] = self.recipe.texts[next(self.values)]
            read = [names[name] if name else name for name in node.input]
            results = [names[name] if name else name for name in node.output]
            if node.domain == FOLDED_DOMAIN:
                yield from self._called(node.op_type, read, results)
            else:
                unfolded = onnx.NodeProto()
                unfolded.CopyFrom(node)
                unfolded.input[:], unfolded.output[:] = read, results
                rename_captured(unfolded, names.__getitem__)
                self._label(unfolded)
                yield unfolded
        self.open.discard(name)

    def _label(self, node: onnx.NodeProto) -> None:
        labels, texts = next(self.labels), self.recipe.texts
        tensor = constant_tensor(node)
        fields: list[tuple[onnx.NodeProto | onnx.TensorProto, str, int]] = [
            (node, "name", labels.name),
            (node, "doc_string", labels.doc_string),
        ]
        if tensor is not None:
            fields.append((tensor, "name", labels.tensor))
        for message, field_name, number in fields:
            message.ClearField(field_name)
            if number != ABSENT:
                setattr(message, field_name, texts[number])
        del node.metadata_props[:]
        for key, value in labels.metadata:
            node.metadata_props.add(key=texts[key], value=texts[value])


def has_same_opsets(model: onnx.ModelProto, recipe: FlatteningRecipe) -> bool:
    before, now = (
        {entry.domain: entry.version for entry in proto.opset_import if entry.domain != FOLDED_DOMAIN}
        for proto in (onnx.ModelProto.FromString(recipe.header), model)
    )
    return before == now


def _merge_metadata(
    flat: Iterable[onnx.StringStringEntryProto], folded: Iterable[onnx.StringStringEntryProto]
) -> Iterator[onnx.StringStringEntryProto]:
    """Our own entries of the flat model, and those of others as they are in the folded one, in their old order."""
    foreign_entries = {entry.key: entry for entry in folded if not entry.key.startswith(PREFIX)}
    for entry in flat:
        if entry.key.startswith(PREFIX):
            yield entry
        elif entry.key in foreign_entries:
            yield foreign_entries.pop(entry.key)
    yield from foreign_entries.values()


def _merge_types(shown: Iterable[onnx.ValueInfoProto], recipe: FlatteningRecipe) -> Iterator[onnx.ValueInfoProto]:
    """The types that the folded graph has, and those of the recipe where they belong.

    Many tools take types away, or add some: then those of the recipe are still true, and only their places are not.
    """
    waiting = iter(shown)
    position = 0
    for hidden in recipe.types:
        yield from islice(waiting, hidden.position - position)
        value = onnx.ValueInfoProto.FromString(recipe.rests[hidden.rest])
        value.name = recipe.texts[hidden.name]
        yield value
        position = hidden.position + 1
    yield from waiting


def digest_graph(graph: onnx.GraphProto) -> str:
    """What a graph computes and what its nodes and values are called, but no shapes and no data of initializers."""
    digest = hashlib.sha256()
    for part in (*graph.node, *graph.quantization_annotation):
        digest.update(part.SerializeToString(deterministic=True))
    inputs, outputs = (
        [(value.name, _type_without_shape(value.type)) for value in values] for values in (graph.input, graph.output)
    )
    headers = [(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in graph.initializer]
    digest.update(repr(([inputs, outputs], headers)).encode())  # files that were folded before hold this digest
    return digest.hexdigest()


def _type_without_shape(given: onnx.TypeProto) -> bytes:
    if not given.HasField("tensor_type"):
        return given.SerializeToString(deterministic=True)
    return str(given.tensor_type.elem_type).encode()


def digest_io(graph: onnx.GraphProto) -> str:
    """What goes in and comes out, with all shapes: as long as it is the same, so are those inside."""
    digest = hashlib.sha256()
    for value in (*graph.input, *graph.output):
        digest.update(value.SerializeToString(deterministic=True))
    return digest.hexdigest()
