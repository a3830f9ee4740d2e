"""What Model Explorer selects in one model when a node or a layer is selected in another that is shown beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from modelexport.converting.drawing import Box, Drawing, Kind
from modelexport.converting.model_explorer import GROUP, namespace, node_id
from modelexport.record.hierarchy import ModuleCall

Sides = tuple[set[str], set[str]]


def sync_navigation(left: Drawing, right: Drawing, sources: Mapping[str, Iterable[str]] | None) -> str:
    """`sources` has the keys of the nodes on the left that each node on the right was made from.

    Without it, nodes are matched that the same module call has the same number of. Layers are those of the same call.
    """
    nodes = _by_module(left, right) if sources is None else _by_lineage(left, right, sources)
    entries = [*_layers(left, right), *nodes]
    document = {
        "type": "sync_navigation",
        "mappingEntries": [{"leftNodeIds": sorted(a), "rightNodeIds": sorted(b)} for a, b in entries],
        "disableMappingFallback": True,
        "showDiffHighlights": sources is not None,
    }
    return json.dumps(document, indent=1) + "\n"


def _layers(left: Drawing, right: Drawing) -> Iterator[Sides]:
    for call in left.layers:
        if call in right.layers:
            yield {f"{namespace(call, left)}{GROUP}"}, {f"{namespace(call, right)}{GROUP}"}


def _by_lineage(left: Drawing, right: Drawing, sources: Mapping[str, Iterable[str]]) -> Iterator[Sides]:
    """Nodes that share a source are one entry: Model Explorer takes only the last one that an id occurs in."""
    entries = _Entries()
    for key, before in sources.items():
        for name in before:
            if key in right.by_id and name in left.by_id:
                entries.join((0, node_id(name)), (1, node_id(key)))
    return entries.found()


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


def _by_module(left: Drawing, right: Drawing) -> Iterator[Sides]:
    others = _groups(right)
    for place, nodes in _groups(left).items():
        if len(others.get(place, ())) == len(nodes):
            for one, other in zip(nodes, others[place], strict=True):
                yield {node_id(one.id)}, {node_id(other.id)}


def _groups(drawing: Drawing) -> dict[tuple[ModuleCall, str], list[Box]]:
    found: dict[tuple[ModuleCall, str], list[Box]] = {}
    for box in drawing.boxes:
        if box.kind is Kind.OPERATOR and box.call is not None:
            found.setdefault((box.call, box.label), []).append(box)
    return found
