"""The module tree as rows, made short enough to read: repeated siblings become one row, depth is cut.

Twelve layers that are alike tell the reader one thing, not twelve.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from modelexport.analysis.facts import ModuleFacts

FEW = 40


@dataclass(frozen=True)
class Branch:
    """A module and what is inside of it. `names`: of all the modules beside each other that it stands for."""

    module: ModuleFacts
    names: tuple[str, ...]
    inside: tuple[Branch, ...]

    @cached_property
    def shape(self) -> tuple[object, ...]:
        """Equal for branches that differ in nothing but their place."""
        own = self.module.own
        facts = (
            self.module.class_name,
            self.module.calls,
            own.nodes,
            own.parameters,
            tuple(own.op_types.items()),
        )
        return facts, tuple((branch.names, branch.shape) for branch in self.inside)

    @cached_property
    def size(self) -> int:
        return len(self.names) * (1 + sum(branch.size for branch in self.inside))


@dataclass(frozen=True)
class Row:
    """One line of the tree. `count`: how many it stands for. `hidden`: modules inside that are not shown."""

    guide: str
    label: str
    module: ModuleFacts
    count: int
    hidden: int


def module_rows(modules: Sequence[ModuleFacts], most: int = FEW) -> list[Row]:
    """Rows for a tree of any size; about `most` of them, unless `most` is 0."""
    roots = _grow(modules)
    if most and len(modules) > most:
        roots = tuple(_grouped(roots))
    depth = _deepest(roots)
    while most and depth > 2 and _row_count(roots, depth) > most:
        depth -= 1
    return list(_rows(roots, depth))


def _grow(modules: Sequence[ModuleFacts]) -> tuple[Branch, ...]:
    listed = {module.path for module in modules}
    inside: dict[str | None, list[ModuleFacts]] = {}
    for module in modules:
        inside.setdefault(_listed_parent(module.path, listed), []).append(module)

    def branch(module: ModuleFacts, parent: str | None) -> Branch:
        children = tuple(branch(child, module.path) for child in inside.get(module.path, ()))
        return Branch(module, (_name(module.path, parent),), children)

    return tuple(branch(module, None) for module in inside.get(None, ()))


def _listed_parent(path: str, listed: set[str]) -> str | None:
    while path:
        path = path.rpartition(".")[0]
        if path in listed:
            return path
    return None


def _name(path: str, parent: str | None) -> str:
    return path[len(parent) + 1 :] if parent else path


def _grouped(branches: Sequence[Branch]) -> Iterator[Branch]:
    """Neighbours with a number for a name and the same shape, made one."""
    shorter = [Branch(branch.module, branch.names, tuple(_grouped(branch.inside))) for branch in branches]
    for (_, numbered), group in groupby(shorter, lambda branch: (branch.shape, branch.names[0].isdecimal())):
        same = list(group)
        if numbered:
            yield Branch(same[0].module, tuple(branch.names[0] for branch in same), same[0].inside)
        else:
            yield from same


def _deepest(branches: Sequence[Branch]) -> int:
    return max((1 + _deepest(branch.inside) for branch in branches), default=0)


def _row_count(branches: Sequence[Branch], depth: int) -> int:
    return sum(1 + _row_count(branch.inside, depth - 1) for branch in branches) if depth else 0


def _rows(branches: Sequence[Branch], depth: int, guide: str = "", top: bool = True) -> Iterator[Row]:
    for place, branch in enumerate(branches):
        last = place == len(branches) - 1
        mark, below = ("", "") if top else ("└ ", "  ") if last else ("├ ", "│ ")
        hidden = sum(inner.size for inner in branch.inside) if depth == 1 else 0
        yield Row(guide + mark, _label(branch.names), branch.module, len(branch.names), hidden)
        if depth > 1:
            yield from _rows(branch.inside, depth - 1, guide + below, False)


def _label(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"[{names[0]}-{names[-1]}]"
