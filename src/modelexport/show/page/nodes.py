"""Nodes and values as columns of the page: one list for each field, and every text once.

    rows      {"op": "Add", "module": 4}, {"op": "Add", "module": 5}
    columns   {"op": [7, 7], "module": [4, 5]}, texts[7] = "Add"

A script reads a column without making an object for each node.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.index import Node
from modelexport.graph.protos import ONNX_DOMAINS
from modelexport.graph.types import Dims, type_name
from modelexport.record.hierarchy import ROOT, Hierarchy, Module, parent_path
from modelexport.record.provenance import Attribution, NodeEntry
from modelexport.show.module_tree import TreeRow, tree_rows

Json = dict[str, Any]

_Value = TypeVar("_Value", bound=Hashable)


class Distinct(Generic[_Value]):
    """Distinct values in the order of first use, and the number of each."""

    def __init__(self, values: Iterable[_Value] = ()) -> None:
        self._numbers: dict[_Value, int] = {}
        for value in values:
            self.number(value)

    def number(self, value: _Value) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def numbers_of(self, values: Iterable[_Value]) -> list[int]:
        return [self.number(value) for value in values]

    @property
    def values(self) -> list[_Value]:
        return list(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


Texts = Distinct[str]


@dataclass(frozen=True)
class ModuleTree:
    """Modules in the order in which they are shown. What is in no module has the number after the last one."""

    rows: tuple[TreeRow[Module], ...]
    hierarchy: Hierarchy

    @classmethod
    def of(cls, hierarchy: Hierarchy) -> ModuleTree:
        """A record without modules still has a root, which everything is shown in."""
        modules = dict(hierarchy.modules)
        modules.setdefault(ROOT, Module(ROOT, "", ""))
        return cls(tuple(tree_rows(modules.values())), hierarchy)

    @cached_property
    def by_path(self) -> Mapping[str, int]:
        return {row.item.path: number for number, row in enumerate(self.rows)}

    @property
    def no_module(self) -> int:
        return len(self.rows)

    def number_of(self, attribution: Attribution) -> int:
        """Of the module that something belongs to: its owner, or the innermost module around all owners."""
        path = self.hierarchy.common_module(attribution.owners)
        return self.no_module if path is None else self.number_at(path)

    def number_at(self, path: str) -> int:
        """Of a module; of the nearest one around it that is in the tree where it is not."""
        while path not in self.by_path:
            path = parent_path(path)
        return self.by_path[path]


_NONE = -1  # where a column of numbers has nothing to say


class NodeColumns:
    """`numbers` has the number of each node in them, `values` that of each value that nodes make or read."""

    def __init__(self, file: TaggedFile, tree: ModuleTree, texts: Texts) -> None:
        self._file, self._tree, self._texts = file, tree, texts
        self._answers: dict[Attribution, int] = {}
        self._owners = Distinct[tuple[tuple[int, int], ...]]()
        self._evidence = Distinct[tuple[str, ...]]()
        self._rows: list[list[int]] = []
        self.values = Distinct[str]()
        self.numbers = {key: number for number, key in enumerate(file.provenance.nodes)}

    def nodes(self) -> Json:
        """Called first: it gives the numbers that `answers`, `owners` and `evidence` then list."""
        entries = list(self._file.provenance.nodes.values())
        nodes = [self._file.graph.by_key.get(entry.key) for entry in entries]
        text_number, numbers_of = self._texts.number, self.values.numbers_of
        return {
            "name": [text_number(entry.name) for entry in entries],
            "key": [text_number(entry.key) for entry in entries],
            "op": [text_number(_operator(entry, node)) for entry, node in zip(entries, nodes, strict=True)],
            "answer": [self._answer(entry.attribution) for entry in entries],
            # An optional input that is left out has an empty name, which is no value.
            "inputs": [numbers_of(filter(None, node.inputs)) if node else [] for node in nodes],
            "outputs": [numbers_of(filter(None, node.outputs)) if node else [] for node in nodes],
        }

    def answers(self) -> Json:
        """What nodes have in common with others: where they belong, and how that is known.

        `module` is what they are charged to; `around` and `call` are the call that has them in its flow.
        """
        names = ("module", "around", "call", "owners", "confidence", "evidence", "reason", "role", "layer")
        return {name: [row[column] for row in self._rows] for column, name in enumerate(names)}

    def owners(self) -> list[list[list[int]]]:
        return [[list(owner) for owner in owners] for owners in self._owners.values]

    def evidence(self) -> list[list[int]]:
        return [self._texts.numbers_of(reasons) for reasons in self._evidence.values]

    def value_columns(self) -> Json:
        types, text_number = self._file.types, self._texts.number
        known = [(name, types.dtype(name)) for name in self.values.values]
        return {
            "name": [text_number(name) for name, _ in known],
            "dtype": [text_number(type_name(dtype)) if dtype else _NONE for _, dtype in known],
            "shape": [text_number(shape_text(types.dims(name))) if dtype else _NONE for name, dtype in known],
        }

    def _answer(self, attribution: Attribution) -> int:
        number = self._answers.get(attribution)
        if number is None:
            number = self._answers[attribution] = len(self._rows)
            self._rows.append(self._row(attribution))
        return number

    def _row(self, attribution: Attribution) -> list[int]:
        """One row for each distinct attribution: nodes of one module mostly share theirs."""
        tree, layer = self._tree, attribution.layer_id
        owners = tuple((tree.number_at(owner.path), owner.index) for owner in attribution.owners)
        return [
            tree.number_of(attribution),
            tree.number_at(attribution.ancestor.path) if attribution.ancestor else tree.no_module,
            attribution.ancestor.index if attribution.ancestor else 0,
            self._owners.number(owners),
            attribution.confidence.value,
            self._evidence.number(tuple(map(str, attribution.evidence))),
            self._texts.number(attribution.reason),
            self._texts.number(attribution.role),
            _NONE if layer is None else layer,
        ]


def _operator(entry: NodeEntry, node: Node | None) -> str:
    """With the domain, where it is not ONNX's own: `com.microsoft::Gelu`."""
    if node is None or node.domain in ONNX_DOMAINS:
        return entry.op_type
    return f"{node.domain}::{entry.op_type}"


def shape_text(dims: Dims | None) -> str:
    """`batch × 16 × ?`; a number for a tensor without axes."""
    if dims is None:
        return "?"
    return " × ".join(str(dim) if dim != "" else "?" for dim in dims) or "scalar"
