"""What flows where: for every module call, the boxes inside of it and the values that pass between them.

A value that one node makes and another reads is seen by every call around either of them. In the innermost call around
both it is an edge; it leaves the calls that are around the first alone, and enters those around the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from modelexport.record.edges import Edges
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Provenance


@dataclass(frozen=True, slots=True)
class Inner:
    """A call made inside of the one that is shown."""

    call: ModuleCall


@dataclass(frozen=True, slots=True)
class Own:
    """A node of the call itself, by key."""

    key: str


@dataclass(frozen=True, slots=True)
class Entering:
    """A value that was made elsewhere."""

    value: str


@dataclass(frozen=True, slots=True)
class Leaving:
    """A value that is read elsewhere."""

    value: str


Box = Inner | Own | Entering | Leaving


@dataclass
class CallFlow:
    """Boxes in the order in which their first nodes stand in the file; edges with the values that they carry."""

    boxes: dict[Box, None] = field(default_factory=dict)
    edges: dict[tuple[Box, Box], list[str]] = field(default_factory=dict)

    def connect(self, source: Box, target: Box, value: str) -> None:
        if source != target:
            carried = self.edges.setdefault((source, target), [])
            if value not in carried[-1:]:
                carried.append(value)

    @property
    def enters(self) -> list[str]:
        return list(dict.fromkeys(box.value for box, _ in self.edges if isinstance(box, Entering)))

    @property
    def leaves(self) -> list[str]:
        return list(dict.fromkeys(box.value for _, box in self.edges if isinstance(box, Leaving)))


Flows = Mapping[ModuleCall, CallFlow]


def flows_of(provenance: Provenance, edges: Edges) -> Flows:
    """One for each call that has a node inside of it."""
    return _Flows(provenance, edges).found


class _Flows:
    def __init__(self, provenance: Provenance, edges: Edges) -> None:
        self._provenance = provenance
        self._stacks: dict[ModuleCall, tuple[_Seen, ...]] = {}
        self._seen: dict[str, tuple[_Seen, ...]] = {}
        self.found: dict[ModuleCall, CallFlow] = {}
        for key in provenance.nodes:
            for call, box in self._boxes(key):
                self.found.setdefault(call, CallFlow()).boxes[box] = None
        returned = frozenset(edges.outputs)
        for value in edges.values:
            if value not in edges.initializers:
                self._add(value, edges, value in returned)

    def _add(self, value: str, edges: Edges, is_output: bool) -> None:
        makers = edges.producers.get(value, ())
        readers = edges.consumers.get(value, ())
        for maker in makers:
            for reader in readers:
                self._pass(value, maker, reader)
            if is_output:
                self._leave(value, self._boxes(maker))
        if not makers:
            for reader in readers:
                self._enter(value, self._boxes(reader))

    def _pass(self, value: str, maker: str, reader: str) -> None:
        before, after = self._boxes(maker), self._boxes(reader)
        shared = 0
        while shared < min(len(before), len(after)) and before[shared].call == after[shared].call:
            shared += 1
        if shared:
            # Up to here both lie in the same calls: the innermost of these sees two boxes, the others one.
            call = before[shared - 1].call
            self.found[call].connect(before[shared - 1].box, after[shared - 1].box, value)
        self._leave(value, before[shared:])
        self._enter(value, after[shared:])

    def _leave(self, value: str, seen: Sequence[_Seen]) -> None:
        for call, box in seen:
            self.found[call].connect(box, Leaving(value), value)

    def _enter(self, value: str, seen: Sequence[_Seen]) -> None:
        for call, box in seen:
            self.found[call].connect(Entering(value), box, value)

    def _boxes(self, key: str) -> tuple[_Seen, ...]:
        """The calls around a node, outermost first, and what each of them sees of it."""
        if key not in self._seen:
            ancestor = self._provenance.nodes[key].attribution.ancestor
            self._seen[key] = () if ancestor is None else (*self._around(ancestor), _Seen(ancestor, Own(key)))
        return self._seen[key]

    def _around(self, call: ModuleCall) -> tuple[_Seen, ...]:
        """What the calls around one see of it."""
        if call not in self._stacks:
            pairs = pairwise(self._provenance.hierarchy.stack(call))
            self._stacks[call] = tuple(_Seen(outer, Inner(inner)) for outer, inner in pairs)
        return self._stacks[call]


class _Seen(NamedTuple):
    call: ModuleCall
    box: Box
