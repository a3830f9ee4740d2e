"""Faults to plant in a record: one attribution, or those of two modules, made wrong.

widened       layer.0.query            ─► layer.0.query + classifier
too shallow   layer.0.query            ─► layer.0
sibling       layer.0.query            ─► layer.0.key
other layer   layer.0.query            ─► layer.1.query
exchanged     query, key               ─► key, query, of all nodes of both
owner left out  conv + norm            ─► conv
in a body     a node inside of an If, Loop or Scan ─► a module elsewhere
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from modelexport.graph.index import MAIN, Graph
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Provenance

Owners = tuple[ModuleCall, ...]

WIDENED, SHALLOW, SIBLING, LAYER = (
    "widened by a module",
    "moved to the module around",
    "moved to a sibling",
    "other layer",
)
EXCHANGED, LEFT_OUT, IN_BODY = "siblings exchanged", "owner left out", "moved, inside of a body"
# How many of each kind are planted in a file, if there are as many; widened sets make up for those that there are not.
_QUOTA = {WIDENED: 10, SHALLOW: 5, SIBLING: 5, LAYER: 4, EXCHANGED: 2, LEFT_OUT: 3, IN_BODY: 6}
KINDS = tuple(_QUOTA)


@dataclass(frozen=True)
class PlantedFault:
    """Wrong owners of some nodes, by key."""

    kind: str
    owners: Mapping[str, Owners]

    def plant(self, record: Provenance) -> Provenance:
        nodes = dict(record.nodes)
        for key, owners in self.owners.items():
            ancestor = record.hierarchy.common_ancestor(owners)
            attribution = replace(nodes[key].attribution, owners=owners, ancestor=ancestor)
            nodes[key] = replace(nodes[key], attribution=attribution)
        return replace(record, nodes=nodes)


class FaultPlanter:
    """Draws faults for one file.

    keys  of the nodes that may be made wrong
    """

    def __init__(self, graph: Graph, record: Provenance, keys: Collection[str], seed: str) -> None:
        self._graph, self._record, self._hierarchy = graph, record, record.hierarchy
        self._chance = random.Random(seed)
        self._keys = self._chance.sample(sorted(keys), len(keys))
        self._calls = [site.call for site in record.hierarchy.calls]
        self._parents = {site.call: site.parent for site in record.hierarchy.calls}

    def draw(self) -> list[PlantedFault]:
        count = sum(_QUOTA.values())
        draws: dict[str, Iterator[PlantedFault]] = {
            SHALLOW: self._each(SHALLOW, self._around),
            SIBLING: self._each(SIBLING, self._beside),
            LAYER: self._each(LAYER, self._in_other_layer),
            EXCHANGED: self._exchanged(),
            LEFT_OUT: self._each(LEFT_OUT, self._without_one),
            IN_BODY: self._each(IN_BODY, self._elsewhere, inside=True),
        }
        faults = [fault for kind, drawn in draws.items() for fault, _ in zip(drawn, range(_QUOTA[kind]), strict=False)]
        widened = zip(self._each(WIDENED, self._with_another), range(count - len(faults)), strict=False)
        return faults + [fault for fault, _ in widened]

    def _each(
        self, kind: str, change: Callable[[str, Owners], Owners | None], *, inside: bool = False
    ) -> Iterator[PlantedFault]:
        """Nodes in the order that was drawn, as far as the change is one."""
        for key in self._keys:
            owners = self._owners(key)
            if inside and self._graph.by_key[key].graph == MAIN:
                continue
            changed = change(key, owners)
            if changed and set(changed) != set(owners):
                yield PlantedFault(kind, {key: changed})

    def _owners(self, key: str) -> Owners:
        return self._record.nodes[key].attribution.owners

    def _pick(self, calls: Sequence[ModuleCall]) -> ModuleCall | None:
        return self._chance.choice(calls) if calls else None

    def _with_another(self, key: str, owners: Owners) -> Owners | None:
        """One more: any module, or one that works beside the node; half of each."""
        node = self._graph.by_key[key]
        near = {
            call
            for other in (*self._graph.successors(node), *self._graph.predecessors(node))
            for call in self._owners(other.key)
        }
        pool = sorted(near) if self._chance.random() < 0.5 else self._calls
        another = self._pick([call for call in pool if call not in owners])
        return None if another is None else (*owners, another)

    def _around(self, _: str, owners: Owners) -> Owners | None:
        parent = self._parents.get(owners[0]) if len(owners) == 1 else None
        return None if parent is None else (parent,)

    def _beside(self, _: str, owners: Owners) -> Owners | None:
        parent = self._parents.get(owners[0]) if len(owners) == 1 else None
        sibling = self._pick([call for call in self._calls if self._parents[call] == parent and call not in owners])
        return None if parent is None or sibling is None else (sibling,)

    def _in_other_layer(self, _: str, owners: Owners) -> Owners | None:
        if len(owners) != 1:
            return None
        kind = re.sub(r"\d+", "*", owners[0].path)
        alike = [call for call in self._calls if "*" in kind and re.sub(r"\d+", "*", call.path) == kind]
        other = self._pick([call for call in alike if call not in owners])
        return None if other is None else (other,)

    def _without_one(self, _: str, owners: Owners) -> Owners | None:
        if len(owners) < 2:
            return None
        dropped = self._chance.choice(owners)
        return tuple(call for call in owners if call != dropped)

    def _elsewhere(self, _: str, owners: Owners) -> Owners | None:
        other = self._pick([call for call in self._calls if call not in owners])
        return None if other is None else (other,)

    def _exchanged(self) -> Iterator[PlantedFault]:
        nodes: dict[ModuleCall, list[str]] = {}
        for key in self._keys:
            if len(owners := self._owners(key)) == 1:
                nodes.setdefault(owners[0], []).append(key)
        calls = self._chance.sample(sorted(nodes), len(nodes))
        for call in calls:
            siblings = [
                other for other in calls if self._parents.get(other) == self._parents.get(call) and other != call
            ]
            if self._parents.get(call) is not None and siblings:
                other = self._chance.choice(siblings)
                yield PlantedFault(
                    EXCHANGED, dict.fromkeys(nodes[call], (other,)) | dict.fromkeys(nodes[other], (call,))
                )
