"""Files as other tools leave them: our record taken out, or every name replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx


def plain_copy(path: Path, target: Path) -> Path:
    """The file as torch alone would have written it."""
    model = onnx.load(path)
    holders: list[Any] = [model, *_nodes(model.graph)]
    for holder in holders:
        kept = [item for item in holder.metadata_props if not item.key.startswith("pkg.modelexport.")]
        del holder.metadata_props[:]
        holder.metadata_props.extend(kept)
    onnx.save(model, target)
    return target


def renamed_copy(path: Path, target: Path) -> Mapping[str, str]:
    """The file with every name replaced and all metadata gone; the new name of each value."""
    model = onnx.load(path)
    fixed = {value.name for value in (*model.graph.input, *model.graph.output)}
    names: dict[str, str] = {}

    def new(name: str) -> str:
        return name if not name or name in fixed else names.setdefault(name, f"v{len(names)}")

    del model.metadata_props[:]
    _rename(model.graph, new)
    onnx.save(model, target)
    return names


def _rename(graph: onnx.GraphProto, new: Callable[[str], str]) -> None:
    named: list[Any] = [*graph.initializer, *graph.value_info]
    for item in named:
        item.name = new(item.name)
    for place, node in enumerate(graph.node):
        node.name, node.doc_string = f"n{place}", ""
        del node.metadata_props[:]
        node.input[:] = map(new, node.input)
        node.output[:] = map(new, node.output)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, new)


def _nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    inner = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return [*graph.node, *(node for body in inner for node in _nodes(body))]
