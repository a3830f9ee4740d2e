"""What Model Explorer selects in one model when a node or a layer is selected in another that is shown beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from modelexport.converting.drawing import Box, Drawing, Kind
from modelexport.converting.model_explorer import ENDS, GROUP, namespace, node_id
from modelexport.errors import RecordMismatch
from modelexport.record.hierarchy import ModuleCall

Pair = tuple[str, str]
Sides = tuple[set[str], set[str]]


def sync_navigation(left: Drawing, right: Drawing, sources: Mapping[str, Iterable[str]] | None) -> str:
    """`sources` has the ids of the boxes on the left that each box on the right was made from.

    Without it, nodes are matched that the same module call has the same number of. Layers are those of the same call;
    weights, inputs and outputs those of the same name. Model Explorer takes only the last entry that an id occurs in,
    so that whatever has one side in common is one entry.
    """
    entries = _Entries()
    nodes = _by_module(left, right) if sources is None else _by_lineage(left, right, sources)
    for one, other in chain(_by_name(left, right), nodes):
        entries.join((0, node_id(one)), (1, node_id(other)))
    mapped = [*_layers(left, right), *entries.found()]
    if not mapped:
        raise RecordMismatch(
            f"{left.name} and {right.name} have no module, node or weight in common", "Give two files of one model."
        )
    document = {
        "type": "sync_navigation",
        "mappingEntries": [{"leftNodeIds": sorted(a), "rightNodeIds": sorted(b)} for a, b in mapped],
        "disableMappingFallback": True,
        "showDiffHighlights": sources is not None,
    }
    return json.dumps(document, indent=1) + "\n"


def _layers(left: Drawing, right: Drawing) -> Iterator[Sides]:
    common = [(namespace(call, left), namespace(call, right)) for call in left.layers if call in right.layers]
    if common:  # in models that have nothing else in common, that both have inputs says nothing
        common += [(name, name) for name in ENDS.values()]
    return (({f"{one}{GROUP}"}, {f"{other}{GROUP}"}) for one, other in common)


def _by_lineage(left: Drawing, right: Drawing, sources: Mapping[str, Iterable[str]]) -> Iterator[Pair]:
    for made, before in sources.items():
        if made in right.by_id:
            yield from ((one, made) for one in before if one in left.by_id)


def _by_name(left: Drawing, right: Drawing) -> Iterator[Pair]:
    """Weights, inputs and outputs. A weight whose name says nothing may belong to another module there."""
    others = {_place(box): box for box in right.boxes if box.kind is not Kind.OPERATOR}
    for box in left.boxes:
        other = others.get(_place(box))
        if other is not None and (box.call == other.call or None in (box.call, other.call)):
            yield box.id, other.id


def _place(box: Box) -> tuple[Kind, str, str]:
    return box.kind, box.sheet, box.label


_Side = tuple[int, str]


class _Entries:
    """Ids of both sides that belong together, directly or by others."""

    def __init__(self) -> None:
        self._above: dict[_Side, _Side] = {}

    def join(self, one: _Side, other: _Side) -> None:
        self._above[self._top(one)] = self._top(other)

    def found(self) -> Iterator[Sides]:
        together: dict[_Side, Sides] = {}
        for side in self._above:
            together.setdefault(self._top(side), (set(), set()))[side[0]].add(side[1])
        return iter(together.values())

    def _top(self, side: _Side) -> _Side:
        top = self._above.setdefault(side, side)
        while self._above[top] != top:
            top = self._above[top]
        while side != top:  # so that the way is short the next time
            self._above[side], side = top, self._above[side]
        return top


def _by_module(left: Drawing, right: Drawing) -> Iterator[Pair]:
    others = _groups(right)
    for place, nodes in _groups(left).items():
        if len(others.get(place, ())) == len(nodes):
            yield from ((one.id, other.id) for one, other in zip(nodes, others[place], strict=True))


def _groups(drawing: Drawing) -> dict[tuple[ModuleCall, str], list[Box]]:
    found: dict[tuple[ModuleCall, str], list[Box]] = {}
    for box in drawing.boxes:
        if box.kind is Kind.OPERATOR and box.call is not None:
            found.setdefault((box.call, box.label), []).append(box)
    return found
