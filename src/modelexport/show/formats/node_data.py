"""Numbers for Model Explorer to colour nodes by, from what `profile` and `verify` wrote as JSON.

Model Explorer adds up what is inside of a layer by itself, so that there is a number for every node. What a profile
says of a kernel that is not a node of the file (ONNX Runtime fused it) goes in equal parts to the nodes of the module
that the kernel is charged to, or of those that it is for if that one has none: the sum of a layer is never less than
what the profile says of the module, and that of the model is the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modelexport.errors import FileUnreadable
from modelexport.graph.related import ensure_same_model
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.provenance import is_within
from modelexport.record.results.profile import read_json
from modelexport.show.formats.drawing import Box, Drawing, Kind
from modelexport.show.formats.model_explorer import graph_id, node_id

Json = dict[str, Any]

_HEAT = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 0.5, "bgColor": "#ffd54f"}, {"stop": 1, "bgColor": "#e53935"}]
_GOOD, _BAD, _OPEN = "#a5d6a7", "#ef9a9a", "#fff59d"
_VERDICTS = {"proved": _GOOD, "enclosed": _GOOD, "contradicted": _BAD}
_HINT = "Give what `modelexport profile` or `verify` writes with `--format json -o FILE`."


@dataclass(frozen=True)
class NodeData:
    """One number, or word, for nodes.

    suffix    what tells its file from others of the same overlay
    results   by the id of a box
    gradient  colours between the least and the greatest number; else each result has its own
    """

    name: str
    results: Mapping[str, Json]
    suffix: str = ""
    gradient: list[Json] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    def text(self, drawing: Drawing) -> str:
        by_sheet: dict[str, dict[str, Json]] = {"": {}}
        for box_id, result in self.results.items():
            by_sheet.setdefault(drawing.by_id[box_id].sheet, {})[node_id(box_id)] = result
        document: Json = {}
        for sheet, results in by_sheet.items():
            document[graph_id(sheet, drawing)] = {"name": self.name, "results": results}
            if self.gradient:
                document[graph_id(sheet, drawing)]["gradient"] = self.gradient
        return json.dumps(document, indent=1) + "\n"


def read_overlay(path: Path) -> Json:
    document = read_json(path)
    if not isinstance(document, dict) or _reader(document) is None:
        raise FileUnreadable(f"{path} is not an overlay", _HINT)
    return document


def node_data(document: Json, drawing: Drawing, hierarchy: Hierarchy, path: Path) -> list[NodeData]:
    """`path` is named if the document is not what it seems to be, or about modules that the model does not have."""
    read = _reader(document)
    try:
        ensure_same_model(hierarchy, _classes(document), path)
        return [] if read is None else list(read(document, drawing))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileUnreadable(f"{path} is damaged: {type(error).__name__} {error}", _HINT) from error


def _classes(document: Json) -> dict[str, str]:
    """Of the modules that it names, by path."""
    told = document["modules"] if "modules" in document else document["calls"]
    return {one["path"]: one["class"] for one in told if one["path"] is not None}


def _reader(document: Json) -> Callable[[Json, Drawing], Iterator[NodeData]] | None:
    if document.get("schema") != 1:
        return None
    if "time_us" in document and "nodes" in document and "modules" in document:
        return _profile
    return _verification if "calls" in document and "tolerance" in document else None


def _operators(drawing: Drawing) -> list[Box]:
    return [box for box in drawing.boxes if box.kind is Kind.OPERATOR]


def _profile(document: Json, drawing: Drawing) -> Iterator[NodeData]:
    times = dict.fromkeys((box.id for box in _operators(drawing)), 0.0)
    known: set[str] = set()
    spread: dict[tuple[str | None, frozenset[str]], float] = {}
    for node in document["nodes"]:
        box = drawing.by_id.get(node["key"])
        path, time = node["charged_to"], _finite(node["time_us"])
        if box is not None and box.id in times and path == (None if box.call is None else box.call.path):
            times[box.id] += time
            known.add(box.id)
        else:
            place = path, frozenset(ModuleCall.parse(owner).path for owner in node["modules"])
            spread[place] = spread.get(place, 0.0) + time
    lost = 0.0
    homes = _Homes(drawing, known)
    for (path, owners), time in spread.items():
        boxes = [] if path is None else homes.of(path, owners)
        lost += 0.0 if boxes else time
        for box_id in boxes:
            times[box_id] += time / len(boxes)
    notes = (f"{lost:.0f} µs of kernels belong to no node of the file",) if lost else ()
    results = {box_id: {"value": round(time, 3)} for box_id, time in times.items()}
    yield NodeData("time (µs)", results, gradient=_HEAT, notes=notes)


class _Homes:
    """Where the time of a kernel goes that is no node of the file."""

    def __init__(self, drawing: Drawing, timed: set[str]) -> None:
        self._timed = timed
        self._own: dict[str, list[str]] = {}
        for box in _operators(drawing):
            if box.call is not None:
                self._own.setdefault(box.call.path, []).append(box.id)

    def of(self, path: str, owners: Collection[str]) -> list[str]:
        """Nodes of the module that no kernel stands for; else all that it has.

        If it has none, those of the modules inside of it that the kernel is for; else of all inside of it.
        """
        own = self._own.get(path, [])
        shared = [name for owner in owners for name in self._own.get(owner, [])]
        return [name for name in own if name not in self._timed] or own or shared or self._inside(path)

    def _inside(self, path: str) -> list[str]:
        return [name for below, names in self._own.items() if is_within(below, path) for name in names]


def _verification(document: Json, drawing: Drawing) -> Iterator[NodeData]:
    told = {ModuleCall(one["path"], one["call"]): _error(one["outputs"]) for one in document["calls"] if one["outputs"]}
    found: dict[str, Json] = {}
    for box in _operators(drawing):
        around = (ModuleCall(""), *drawing.stack(box.call)) if box.call is not None else ()
        error = next((told[call] for call in reversed(around) if call in told), None)
        if error is not None:
            found[box.id] = error
    yield NodeData("error of the module (max abs)", found)
    # Nodes of the graph that ONNX Runtime made of the file are other nodes than those of the file.
    if document["proof"] and not document["as_deployed"]:
        nodes = {node["key"]: node["verdict"] for node in document["proof"]["nodes"]}
        verdicts = {
            key: {"value": verdict, "bgColor": _VERDICTS.get(verdict, _OPEN)}
            for key, verdict in nodes.items()
            if key in drawing.by_id
        }
        yield NodeData("attribution", verdicts, suffix=".verdicts")


def _error(outputs: Json) -> Json:
    value = "not finite" if outputs["max_abs"] is None else _finite(outputs["max_abs"])
    return {"value": value, "bgColor": _GOOD if outputs["agrees"] else _BAD}


def _finite(value: object) -> float:
    """Python reads `NaN` in JSON, which no browser does."""
    number = float(value) if isinstance(value, int | float) else math.nan
    if not math.isfinite(number):
        raise ValueError(f"{value!r} stands where a number should")
    return number
