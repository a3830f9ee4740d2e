"""The modules of a file as a tree in which every module comes after the one around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from modelexport.record.evidence import Attribution
from modelexport.record.hierarchy import ROOT, Hierarchy, Module, parent_path


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
        """Of the module that something is charged to: its owner, or the innermost module around all owners.

        What several calls of a module share is inside of that module, though no call is around them all.
        """
        if attribution.ancestor is None:
            return self.nobody
        if len(attribution.owners) < 2:
            return self.place_at(attribution.ancestor.path)
        common = self.hierarchy.common_module(attribution.owners)
        return self.place_at(attribution.ancestor.path if common is None else common)

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
