"""Many rows of the same fields, as the page holds them: one list for each field, and every text once.

The modules of a file as a tree in which every module comes after the one around it.

Nodes and values as columns: everything that the page can say about one of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from modelexport.graph.index import Graph, Node
from modelexport.graph.protos import ONNX_DOMAINS
from modelexport.graph.types import Dims, ValueTypes, type_name
from modelexport.record.hierarchy import ROOT, Hierarchy, Module, parent_path
from modelexport.record.provenance import Attribution, NodeEntry, Provenance

Json = dict[str, Any]

_Value = TypeVar("_Value", bound=Hashable)


class Distinct(Generic[_Value]):
    """Distinct values in the order of first use, and the place of each."""

    def __init__(self, values: Iterable[_Value] = ()) -> None:
        self._places: dict[_Value, int] = {}
        for value in values:
            self.place(value)

    def place(self, value: _Value) -> int:
        return self._places.setdefault(value, len(self._places))

    def places(self, values: Iterable[_Value]) -> list[int]:
        return [self.place(value) for value in values]

    @property
    def values(self) -> list[_Value]:
        return list(self._places)

    def __len__(self) -> int:
        return len(self._places)


Texts = Distinct[str]


@dataclass(frozen=True)
class Place:
    """A module in the tree.

    parent  the place of the module around it; None for the root
    name    what its path adds to that of the module around it
    """

    module: Module
    parent: int | None
    name: str


@dataclass(frozen=True)
class ModuleTree:
    """Modules in the order in which they are shown. What is in no module has the place after the last one."""

    places: tuple[Place, ...]
    hierarchy: Hierarchy

    @classmethod
    def of(cls, hierarchy: Hierarchy) -> ModuleTree:
        modules = dict(hierarchy.modules)
        modules.setdefault(ROOT, Module(ROOT, "", ""))
        inside: dict[str, list[str]] = {}
        for path in modules:
            if path != ROOT:
                inside.setdefault(_around(path, modules), []).append(path)
        return cls(tuple(_placed(modules, inside)), hierarchy)

    @cached_property
    def by_path(self) -> Mapping[str, int]:
        return {place.module.path: number for number, place in enumerate(self.places)}

    @property
    def nobody(self) -> int:
        return len(self.places)

    def place_of(self, attribution: Attribution) -> int:
        """Of the module that something belongs to: its owner, or the innermost module around all owners."""
        path = self.hierarchy.common_module(attribution.owners)
        return self.nobody if path is None else self.place_at(path)

    def place_at(self, path: str) -> int:
        """Of a module; of the nearest one around it that is in the tree where it is not."""
        while path not in self.by_path:
            path = parent_path(path)
        return self.by_path[path]


def _around(path: str, modules: Mapping[str, Module]) -> str:
    above = parent_path(path)
    while above not in modules:
        above = parent_path(above)
    return above


def _placed(modules: Mapping[str, Module], inside: Mapping[str, list[str]]) -> Iterator[Place]:
    """Depth first; without recursion, because nobody says how deep modules may be nested."""
    waiting: list[tuple[str, int | None]] = [(ROOT, None)]
    number = 0
    while waiting:
        path, parent = waiting.pop()
        above = "" if parent is None else parent_path(path)
        while parent is not None and above not in modules:
            above = parent_path(above)
        yield Place(modules[path], parent, path[len(above) + 1 :] if above else path)
        waiting += [(child, number) for child in reversed(inside.get(path, []))]
        number += 1


_NONE = -1


@dataclass(frozen=True)
class Content:
    """A file as it is shown.

    types  of values, where they are known
    """

    provenance: Provenance
    graph: Graph
    types: ValueTypes

    @cached_property
    def tree(self) -> ModuleTree:
        return ModuleTree.of(self.provenance.hierarchy)


class NodeColumns:
    """`numbers` is the place of each node in them, `values` that of each value that nodes make or read."""

    def __init__(self, content: Content, texts: Texts) -> None:
        self._content = content
        self._texts = texts
        self._answers: dict[Attribution, int] = {}
        self._owners = Distinct[tuple[tuple[int, int], ...]]()
        self._evidence = Distinct[tuple[str, ...]]()
        self._rows: list[list[int]] = []
        self.values = Distinct[str]()
        self.numbers = {key: number for number, key in enumerate(content.provenance.nodes)}

    def nodes(self) -> Json:
        entries = list(self._content.provenance.nodes.values())
        known = self._content.graph.by_key
        place = self._texts.place
        return {
            "name": [place(entry.name) for entry in entries],
            "key": [place(entry.key) for entry in entries],
            "op": [place(_operator(entry, known.get(entry.key))) for entry in entries],
            "answer": [self._answer(entry.attribution) for entry in entries],
            "inputs": [self._read(known.get(entry.key)) for entry in entries],
            "outputs": [self._made(known.get(entry.key)) for entry in entries],
        }

    def answers(self) -> Json:
        """What nodes have in common with others: where they belong, and how that is known.

        `module` is what they are charged to; `around` and `call` are the call that has them in its flow.
        """
        names = ("module", "around", "call", "owners", "confidence", "evidence", "reason", "role", "layer")
        return {name: [row[place] for row in self._rows] for place, name in enumerate(names)}

    def owners(self) -> list[list[list[int]]]:
        return [[list(owner) for owner in owners] for owners in self._owners.values]

    def evidence(self) -> list[list[int]]:
        return [self._texts.places(reasons) for reasons in self._evidence.values]

    def value_columns(self) -> Json:
        types, place = self._content.types, self._texts.place
        known = [(name, types.dtype(name)) for name in self.values.values]
        return {
            "name": [place(name) for name, _ in known],
            "dtype": [place(type_name(dtype)) if dtype else _NONE for _, dtype in known],
            "shape": [place(shape_text(types.dims(name))) if dtype else _NONE for name, dtype in known],
        }

    def _answer(self, attribution: Attribution) -> int:
        found = self._answers.get(attribution)
        if found is None:
            found = self._answers[attribution] = len(self._rows)
            self._rows.append(self._row(attribution))
        return found

    def _row(self, attribution: Attribution) -> list[int]:
        tree = self._content.tree
        owners = tuple((tree.place_at(owner.path), owner.index) for owner in attribution.owners)
        layer = attribution.layer_id
        return [
            tree.place_of(attribution),
            tree.place_at(attribution.ancestor.path) if attribution.ancestor else tree.nobody,
            attribution.ancestor.index if attribution.ancestor else 0,
            self._owners.place(owners),
            attribution.confidence.value,
            self._evidence.place(tuple(map(str, attribution.evidence))),
            self._texts.place(attribution.reason),
            self._texts.place(attribution.role),
            _NONE if layer is None else layer,
        ]

    def _read(self, node: Node | None) -> list[int]:
        return self.values.places(filter(None, node.inputs)) if node else []

    def _made(self, node: Node | None) -> list[int]:
        return self.values.places(filter(None, node.outputs)) if node else []


def _operator(entry: NodeEntry, node: Node | None) -> str:
    if node is None or node.domain in ONNX_DOMAINS:
        return entry.op_type
    return f"{node.domain}::{entry.op_type}"


def shape_text(dims: Dims | None) -> str:
    """`batch × 16 × ?`; a number for a tensor without axes."""
    if dims is None:
        return "?"
    return " × ".join(str(dim) if dim != "" else "?" for dim in dims) or "scalar"
