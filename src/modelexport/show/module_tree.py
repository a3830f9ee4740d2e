"""Module tree as rows: the one walk of the module tree that all tables and the page use.

Modules without interest are left out, and what is inside of them moves up to the nearest module that is kept:

    encoder            Encoder      encoder
    encoder.layer      ModuleList     (left out: a container without work of its own)
    encoder.layer.0    Layer          layer.0

Siblings that repeat and are counted on become one row, if everything that is shown of them is equal: "[0-5] ×6 each 45"
is true of each.

    layer.0, layer.1, layer.2   (equal)     [0-2] ×3 each
    layer.3                     (another)   3

Several paths of one pattern are written as one: `encoder.layer.{0..11}.attention`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from modelexport.errors import some_of
from modelexport.record.hierarchy import ModuleCall, parent_path

_NUMBER = re.compile(r"(?<![^.#])(\d{1,9})(?![^.#])")  # a step of a path that is a number: `layer.3.fc1` has one, 3
_INDEX = re.compile(r"\d{1,9}")  # the place of a module in a ModuleList
_LISTED_PATHS = 8  # of those that have no common pattern


class HasPath(Protocol):
    """What is said of a module, with its path; None for what belongs to no module."""

    @property
    def path(self) -> str | None: ...


Item = TypeVar("Item", bound=HasPath)


@dataclass(frozen=True)
class TreeRow(Generic[Item]):
    """A module in the tree.

    name    what its path adds to that of the row around it
    parent  the number of that row; None at the top
    depth   how many rows are around it
    """

    item: Item
    name: str
    parent: int | None
    depth: int


def tree_rows(
    items: Iterable[Item], is_kept: Callable[[Item], bool] = lambda _: True, depth: int | None = None
) -> list[TreeRow[Item]]:
    """Items in the order of the tree, each after the one around it. What belongs to no module comes last.

    is_kept  whether an item has a row of its own; what is inside of it can have one all the same
    depth    the deepest rows that are wanted; None for all
    """
    kept = [item for item in items if item.path is None or is_kept(item)]
    listed = {item.path for item in kept if item.path is not None}
    inside: dict[str | None, list[Item]] = {}
    for item in kept:
        inside.setdefault(None if item.path is None else enclosing_path(item.path, listed), []).append(item)
    rows: list[TreeRow[Item]] = []
    # Without recursion, because nobody says how deep modules may be nested.
    waiting: list[tuple[Item, int | None]] = [(item, None) for item in reversed(inside.get(None, []))]
    waiting.sort(key=lambda pair: pair[0].path is not None)
    while waiting:
        item, parent = waiting.pop()
        level = 0 if parent is None else rows[parent].depth + 1
        if depth is not None and level > depth:
            continue
        around = None if parent is None else rows[parent].item.path
        rows.append(TreeRow(item, relative_path(item.path or "", around), parent, level))
        if item.path is not None:
            waiting += [(child, len(rows) - 1) for child in reversed(inside.get(item.path, []))]
    return rows


def enclosing_path(path: str, listed: Collection[str]) -> str | None:
    while path:
        path = parent_path(path)
        if path in listed:
            return path
    return None


def relative_path(path: str, around: str | None) -> str:
    return path.removeprefix(f"{around}.") if around else path


@dataclass(frozen=True)
class Branch(Generic[Item]):
    """A module and what is inside of it, for rows that stand for several modules.

    names   of all the modules beside each other that it stands for
    shape   equal for branches of which all rows say the same
    hidden  how many modules are inside of one of them
    """

    item: Item
    names: tuple[str, ...]
    shape: int
    hidden: int
    inside: tuple[Branch[Item], ...]

    @property
    def label(self) -> str:
        """`[0-5]` for modules that are one row: their names are numbers, and neighbours."""
        return self.names[0] if len(self.names) == 1 else f"[{self.names[0]}-{self.names[-1]}]"


@dataclass(frozen=True)
class GroupedRow(Generic[Item]):
    """One line of a grouped tree. `count`: how many modules it stands for. `hidden`: those inside that have no row."""

    guide: str
    label: str
    item: Item
    count: int
    hidden: int


def grouped_rows(items: Sequence[Item], shown: Callable[[Item], Hashable], most: int) -> list[GroupedRow[Item]]:
    """About `most` rows, or all if it is 0; modules are grouped if `shown`, what their rows say, is equal."""
    branches = _grow(items, shown, is_grouped=0 < most < len(items))
    row_counts = _count_rows(branches)
    # Two levels at least: the model and its parts, however many these are.
    while most and len(row_counts) > 2 and sum(row_counts) > most:
        row_counts.pop()
    return list(_rows(branches, len(row_counts)))


def _grow(items: Sequence[Item], shown: Callable[[Item], Hashable], *, is_grouped: bool) -> Sequence[Branch[Item]]:
    """From the last row to the first, so that what is inside of a branch is there before it."""
    rows = tree_rows(items)
    inside: dict[int | None, list[Branch[Item]]] = {}
    shapes: dict[Hashable, int] = {}
    for number in reversed(range(len(rows))):  # what is inside of a row comes after it
        row = rows[number]
        children = _siblings(inside.get(number, []), is_grouped)
        says = shown(row.item), tuple((branch.names, branch.shape) for branch in children)
        hidden = sum(len(branch.names) * (1 + branch.hidden) for branch in children)
        branch = Branch(row.item, (row.name,), shapes.setdefault(says, len(shapes)), hidden, children)
        inside.setdefault(row.parent, []).append(branch)
    return _siblings(inside.get(None, []), is_grouped)


def _siblings(last_first: Sequence[Branch[Item]], is_grouped: bool) -> tuple[Branch[Item], ...]:
    """In the order of the tree, and made one where they may be."""
    groups: list[list[Branch[Item]]] = []
    for branch in reversed(last_first):
        if is_grouped and groups and _continues(groups[-1][-1], branch):
            groups[-1].append(branch)
        else:
            groups.append([branch])
    # Names at last, and not branch by branch: a model may have 100,000 layers.
    return tuple(
        replace(group[0], names=tuple(name for branch in group for name in branch.names))
        if len(group) > 1
        else group[0]
        for group in groups
    )


def _continues(group: Branch[Item], branch: Branch[Item]) -> bool:
    """All rows say the same, and the names count on: `[0-2]` must not mean a module 1 that is not there."""
    names = group.names[-1], branch.names[0]
    return group.shape == branch.shape and all(map(_INDEX.fullmatch, names)) and int(names[0]) + 1 == int(names[1])


def _count_rows(branches: Sequence[Branch[Item]]) -> list[int]:
    """How many rows there are at each depth."""
    counts = []
    while branches:
        counts.append(len(branches))
        branches = [inner for branch in branches for inner in branch.inside]
    return counts


def _rows(branches: Sequence[Branch[Item]], depth: int) -> Iterator[GroupedRow[Item]]:
    """Guides are drawn from what is after a row: a line goes on below it only if a sibling follows."""
    waiting = [(branch, "", "", depth) for branch in reversed(branches)]
    while waiting:
        branch, mark, around, levels = waiting.pop()
        hidden = branch.hidden if levels == 1 else 0
        yield GroupedRow(around + mark, branch.label, branch.item, len(branch.names), hidden)
        below = around + {"": "", "└ ": "  ", "├ ": "│ "}[mark]
        mark = "└ "  # the last one is put down first, and taken up last
        for inner in reversed(branch.inside if levels > 1 else ()):
            waiting.append((inner, mark, below, levels - 1))
            mark = "├ "


def path_pattern(path: str) -> str:
    """`encoder.layer.*.attention`: numbers are what repeated modules differ in; so is the number of a call."""
    return _NUMBER.sub("*", ModuleCall.parse(path).path)


def path_numbers(path: str) -> tuple[int, ...]:
    """What the pattern leaves out; the number of the call is the last."""
    call = ModuleCall.parse(path)
    return (*map(int, _NUMBER.findall(call.path)), call.index)


def join_paths(paths: Sequence[str]) -> str:
    """Several paths of one pattern as one; all of them one by one if that would mean others as well."""
    if len(paths) == 1:
        return paths[0] or "(model)"
    columns = list(zip(*map(path_numbers, paths), strict=True))
    # `{0,1}.{2,3}` means four paths: if there are only three, the pattern would name one that is not meant.
    if math.prod(len(set(column)) for column in columns) != len(set(paths)):
        return some_of(paths, _LISTED_PATHS)
    texts = [_range(sorted(set(column))) for column in columns]
    parts = path_pattern(paths[0]).split("*")
    name = "".join(part + text for part, text in zip(parts, [*texts[:-1], ""], strict=True))
    return name if texts[-1] == "0" else f"{name}#{texts[-1]}"


def _range(numbers: Sequence[int]) -> str:
    """`{0..11}` for a run of at least three, `{0,2}` for others."""
    if len(numbers) == 1:
        return str(numbers[0])
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{{{numbers[0]}..{numbers[-1]}}}"
    return f"{{{','.join(map(str, numbers))}}}"
