"""Node data for Model Explorer: numbers and colours for nodes, from what `profile` and `verify` wrote as JSON.

    {"bert": {"name": "time (µs)", "results": {"node_add": {"value": 4.125}}, "gradient": […]}}

Model Explorer adds up what is inside of a layer by itself, so that there is a number for every node. What a profile
says of a kernel that is not a node of the file (ONNX Runtime fused it) goes in equal parts to the nodes of the module
that the kernel is charged to, or of those that it is for if that one has none: the sum of a layer is never less than
what the profile says of the module, and that of the model is the same.

    file        {MatMul, Add} of layer.0, both without a kernel of their own
    profile     FusedMatMul 8.0 µs, charged to layer.0
    node data   MatMul 4.0, Add 4.0; Model Explorer sums up layer.0: 8.0
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import is_within
from modelexport.record.results.verification import Verdict
from modelexport.show.data.overlays import Overlay, Profiled, Verified
from modelexport.show.formats.drawing import Box, BoxKind, Drawing
from modelexport.show.formats.model_explorer import graph_id, node_id

Json = dict[str, Any]

_HEAT = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 0.5, "bgColor": "#ffd54f"}, {"stop": 1, "bgColor": "#e53935"}]
# Light, because Model Explorer writes on them in black.
_GOOD, _BAD, _OPEN = "#a5d6a7", "#ef9a9a", "#fff59d"
_VERDICTS = {Verdict.PROVED: _GOOD, Verdict.ENCLOSED: _GOOD, Verdict.CONTRADICTED: _BAD}


@dataclass(frozen=True)
class NodeData:
    """
    suffix    what tells its file from others of the same overlay
    results   a number or a word, by the id of a box
    gradient  colours between the least and the greatest number; else each result has its own
    """

    name: str
    results: Mapping[str, Json]
    suffix: str = ""
    gradient: list[Json] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    def text(self, drawing: Drawing) -> str:
        """One object for each graph, by its id; the main one is there even if nothing is known of it."""
        by_sheet: dict[str, dict[str, Json]] = {"": {}}
        for box_id, result in self.results.items():
            by_sheet.setdefault(drawing.by_id[box_id].sheet, {})[node_id(box_id)] = result
        document: Json = {}
        for sheet, results in by_sheet.items():
            document[graph_id(sheet, drawing)] = {"name": self.name, "results": results}
            if self.gradient:
                document[graph_id(sheet, drawing)]["gradient"] = self.gradient
        return json.dumps(document, indent=1) + "\n"


def node_data(overlay: Overlay, drawing: Drawing) -> Iterator[NodeData]:
    """Numbers and words for the nodes of a drawing. A new kind of overlay is a branch here."""
    if isinstance(overlay, Profiled):
        yield _times(overlay, drawing)
    else:
        yield _errors(overlay, drawing)
        if overlay.nodes:
            yield _verdicts(overlay, drawing)


def _operators(drawing: Drawing) -> list[Box]:
    return [box for box in drawing.boxes if box.kind is BoxKind.OPERATOR]


def _times(profiled: Profiled, drawing: Drawing) -> NodeData:
    """The time of a kernel that is a node of the file is that node's; all other time is spread."""
    times = dict.fromkeys((box.id for box in _operators(drawing)), 0.0)
    timed: set[str] = set()
    spread: dict[tuple[str | None, frozenset[str]], float] = {}
    for kernel in profiled.kernels:
        box = drawing.by_id.get(kernel.key)
        # A fused kernel may have the key of a node that it took the place of: then it is charged to another module.
        if box is not None and box.id in times and kernel.charged_to == (None if box.call is None else box.call.path):
            times[box.id] += kernel.time
            timed.add(box.id)
        else:
            group = kernel.charged_to, kernel.owners
            spread[group] = spread.get(group, 0.0) + kernel.time
    lost = 0.0
    targets = _SpreadTargets(drawing, timed)
    for (path, owners), time in spread.items():
        boxes = [] if path is None else targets.of(path, owners)
        lost += 0.0 if boxes else time
        for box_id in boxes:
            times[box_id] += time / len(boxes)
    notes = (f"{lost:.0f} µs of kernels belong to no node of the file",) if lost else ()
    results = {box_id: {"value": round(time, 3)} for box_id, time in times.items()}
    return NodeData("time (µs)", results, gradient=_HEAT, notes=notes)


class _SpreadTargets:
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
        # Worked out last: it looks at every module.
        inside = (name for below, names in self._own.items() if is_within(below, path) for name in names)
        return [name for name in own if name not in self._timed] or own or shared or list(inside)


def _errors(verified: Verified, drawing: Drawing) -> NodeData:
    """The error of the innermost module call around a node that was compared."""
    errors = {
        call: {
            "value": "not finite" if item.max_abs is None else item.max_abs,
            "bgColor": _GOOD if item.agrees else _BAD,
        }
        for call, item in verified.calls.items()
        if item.agrees is not None
    }
    results: dict[str, Json] = {}
    for box in _operators(drawing):
        around = (ModuleCall(""), *drawing.stack(box.call)) if box.call is not None else ()
        error = next((errors[call] for call in reversed(around) if call in errors), None)
        if error is not None:
            results[box.id] = error
    return NodeData("error of the module (max abs)", results)


def _verdicts(verified: Verified, drawing: Drawing) -> NodeData:
    """Green: values prove the module. Red: they contradict it. Yellow: they cannot tell."""
    verdicts = {
        key: {"value": verdict.value, "bgColor": _VERDICTS.get(verdict, _OPEN)}
        for key, verdict in verified.nodes.items()
        if key in drawing.by_id
    }
    return NodeData("attribution", verdicts, suffix=".verdicts")
