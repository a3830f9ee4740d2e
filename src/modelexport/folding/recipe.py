"""What it takes to make a folded model flat again, exactly as it was: names, metadata and order of its nodes.

It travels in the metadata of the folded model. Functions and calls say what is computed; what they cannot say is listed
here, in the order in which calls are unfolded. What repeats is written once.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any

import onnx

from modelexport.errors import RecordUnreadable, UserError
from modelexport.graph.folded import FOLDED_KEY
from modelexport.record.tables import squeeze, unsqueeze

_NAME = "modelexport-folded-1"
# Some hundred bytes for each node are usual; what torch writes on nodes can take some thousand.
_LARGEST = 1 << 28
_DAMAGE = (ValueError, TypeError, KeyError, IndexError, OSError, EOFError, AttributeError, RecursionError)
ABSENT = -1


@dataclass(frozen=True)
class Loose:
    """What says nothing about what a node does. Numbers are those of texts; ABSENT for a field that is not there.

    tensor  the name of the tensor that a Constant holds
    """

    name: int = ABSENT
    doc_string: int = ABSENT
    tensor: int = ABSENT
    metadata: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Type:
    """A type of a value that is inside of a function: its place among all types, its name, and all else of it."""

    place: int
    name: int
    rest: int


@dataclass(frozen=True)
class Recipe:
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
    nodes: tuple[Loose, ...] = ()
    order: tuple[int, ...] = ()
    explicit: dict[int, bytes] = field(default_factory=dict)
    types: tuple[Type, ...] = ()
    rests: tuple[bytes, ...] = ()


def write_recipe(model: onnx.ModelProto, recipe: Recipe) -> None:
    """Put a recipe into a folded model."""
    document = _document(recipe)
    if len(json.dumps(document)) > _LARGEST:
        raise UserError(
            f"what is written on the nodes of this file comes to more than {_LARGEST >> 20} MB",
            "Strip it first, or export with --strip-exporter-metadata.",
        )
    kept = [entry for entry in model.metadata_props if entry.key != FOLDED_KEY]  # of an earlier folding
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    model.metadata_props.add(key=FOLDED_KEY, value=f"{_NAME}:{squeeze(document)}")


def read_recipe(model: onnx.ModelProto) -> Recipe | None:
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
        return _recipe(unsqueeze(payload, _LARGEST))
    except _DAMAGE as error:
        raise RecordUnreadable(
            f"what is needed to flatten the file is damaged: {error}", "Fold the flat file again."
        ) from error


def _document(recipe: Recipe) -> dict[str, Any]:
    metadata: dict[tuple[tuple[int, int], ...], int] = {}
    columns = [metadata.setdefault(node.metadata, len(metadata)) for node in recipe.nodes]
    return {
        "graph": recipe.graph,
        "flat": recipe.flat,
        "ends": recipe.ends,
        "header": _text(recipe.header),
        "record": recipe.record,
        "texts": recipe.texts,
        "values": _steps(recipe.values),
        "names": _steps(node.name for node in recipe.nodes),
        "docs": [node.doc_string for node in recipe.nodes],
        "tensors": [node.tensor for node in recipe.nodes],
        "metadata": _steps(columns),
        "metadata_table": [[number for pair in entry for number in pair] for entry in metadata],
        "order": _steps(recipe.order),
        "explicit": [[place, _text(node)] for place, node in recipe.explicit.items()],
        "type_places": _steps(one.place for one in recipe.types),
        "type_names": _steps(one.name for one in recipe.types),
        "type_rests": [one.rest for one in recipe.types],
        "rests": [_text(one) for one in recipe.rests],
    }


def _recipe(document: dict[str, Any]) -> Recipe:
    table = [tuple(zip(row[::2], row[1::2], strict=True)) for row in document["metadata_table"]]
    places = [table[place] for place in _sums(document["metadata"])]
    nodes = zip(_sums(document["names"]), document["docs"], document["tensors"], places, strict=True)
    types = zip(_sums(document["type_places"]), _sums(document["type_names"]), document["type_rests"], strict=True)
    return Recipe(
        graph=document["graph"],
        flat=document["flat"],
        ends=document["ends"],
        header=_bytes(document["header"]),
        record=document["record"],
        texts=tuple(document["texts"]),
        values=_sums(document["values"]),
        nodes=tuple(Loose(*node) for node in nodes),
        order=_sums(document["order"]),
        explicit={place: _bytes(node) for place, node in document["explicit"]},
        types=tuple(Type(place, name, rest) for place, name, rest in types),
        rests=tuple(map(_bytes, document["rests"])),
    )


def _steps(numbers: Any) -> list[int]:
    """Each number as the step from the one before: numbers mostly rise by one, and equal steps compress well."""
    found, before = [], 0
    for number in numbers:
        found.append(number - before)
        before = number
    return found


def _sums(steps: Any) -> tuple[int, ...]:
    found, before = [], 0
    for step in steps:
        before += step
        found.append(before)
    return tuple(found)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
