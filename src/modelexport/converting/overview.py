"""A drawing with one box for each module instead of each node: for formats that cannot show thousands of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from modelexport.converting.drawing import Box, Drawing, Kind, Port, Sheet, Wire
from modelexport.graph.index import MAIN
from modelexport.record.hierarchy import ModuleCall

_ENDS = (Kind.INPUT, Kind.OUTPUT)


def depth_of(drawing: Drawing) -> int:
    """How deep modules are nested; what is directly in the model is one deep."""
    return max(map(len, drawing.stacks.values()), default=0)


def overview(drawing: Drawing, depth: int) -> Drawing:
    """Modules down to a depth, each a box with everything inside of it; constants are left out.

    A module that has other boxes inside gets one more, for the nodes of its own.
    """
    return _Overview(drawing, depth).drawing()


def without_constants(drawing: Drawing) -> Drawing:
    """Every node, input and output: weights would be more than half of what is drawn."""
    kept = [box for box in drawing.boxes if box.kind is not Kind.CONSTANT]
    names = {box.id for box in kept}
    wires = tuple(wire for wire in drawing.wires if wire.source in names)
    return replace(drawing, boxes=tuple(kept), wires=wires)


class _Overview:
    def __init__(self, drawing: Drawing, depth: int) -> None:
        self._drawing = drawing
        self._depth = depth
        self._counts: dict[ModuleCall | None, int] = {}
        for box in drawing.boxes:
            if box.kind is Kind.OPERATOR:
                call = self._shown(box)
                self._counts[call] = self._counts.get(call, 0) + 1
        stacks = [drawing.stack(call) for call in self._counts]
        self._enclosing = {above for stack in stacks for above in stack[:-1]}

    def drawing(self) -> Drawing:
        whole = self._drawing
        ends = [box for box in whole.by_sheet[MAIN] if box.kind in _ENDS]
        boxes = (*self._of(ends, Kind.INPUT), *self._blocks(), *self._of(ends, Kind.OUTPUT))
        return replace(whole, boxes=tuple(boxes), wires=tuple(self._wires()), sheets=(Sheet(MAIN, whole.name),))

    def _of(self, boxes: list[Box], kind: Kind) -> Iterator[Box]:
        return (replace(box, call=None) for box in boxes if box.kind is kind)

    def _shown(self, box: Box) -> ModuleCall | None:
        """The module call that stands for a box; None is the model itself."""
        stack = self._drawing.stack(box.call)[: self._depth]
        return stack[-1] if stack else None

    def _blocks(self) -> Iterator[Box]:
        for call, count in self._counts.items():
            layer = self._drawing.layers.get(call) if call is not None else None
            whole = call is not None and call not in self._enclosing
            stack = self._drawing.stack(call)
            label = layer.title if layer is not None and whole else "own nodes"
            around = (stack[-2] if len(stack) > 1 else None) if whole else call
            nodes = f"{count} node{'s' * (count != 1)}"
            yield Box(_block(call), Kind.OPERATOR, label, MAIN, around, {"nodes": nodes}, outputs=(Port(""),))

    def _wires(self) -> Iterator[Wire]:
        values: dict[tuple[str, str], dict[str, None]] = {}
        for wire in self._drawing.wires:
            source = self._stand_in(self._drawing.by_id[wire.source])
            target = self._stand_in(self._drawing.by_id[wire.target])
            if source and target and source != target:
                values.setdefault((source, target), {})[wire.value] = None
        for (source, target), names in values.items():
            first, *more = names
            yield Wire(source, 0, target, 0, f"{len(names)} tensors" if more else first)

    def _stand_in(self, box: Box) -> str:
        """The id of what stands for a box; empty for what is left out."""
        if box.kind is Kind.OPERATOR:
            return _block(self._shown(box))
        if box.kind not in _ENDS:
            return ""
        if box.sheet == MAIN:
            return box.id
        owner = self._drawing.by_id.get(self._drawing.sheet_by_id[box.sheet].owner)  # what a body is given and returns
        return "" if owner is None else self._stand_in(owner)


def _block(call: ModuleCall | None) -> str:
    return "\0model" if call is None else f"\0{call.path}\0{call.index}"
