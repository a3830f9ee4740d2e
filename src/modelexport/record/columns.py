"""Columns: JSON of lists that repeat, written so that a general compressor finds what repeats. And back.

Layers of a model differ in a number: `linear_6` and `linear_12` are the results of the same step in two of them.
Written as what they add to the number before, all layers are the same bytes:

    ["linear_6", "linear_12", "linear_18", …]   {"texts": [[["linear_", ""]], [0, 0, 0, …], [6, 6, 6, …]]}
    [8, 4, 12, 8, 16, 12, …]                    {"steps": [8, -4, 8, -4, 8, -4, …]}
    [[1, "a"], [2, "b"], [3, "c"], …]           {"columns": [[1, 2, 3, …], ["a", "b", "c", …]]}

Every object that is written has one of these names, or `plain` for one that was an object before. What is read back may
come from a stranger: it unfolds to `limits.RECORD_BYTES` at most.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, islice
from typing import Any, ClassVar

from modelexport.record import limits

# Shorter lists are written as they are.
_SHORTEST = 4
# Numbers that are written again as they were: no zeros before them, and no more digits than a number of a node has.
_NUMBER = re.compile(r"(?<![0-9])(0|[1-9][0-9]{0,8})(?![0-9])")
_LARGEST = 10**9


def fold_columns(value: Any) -> Any:
    if isinstance(value, dict):
        return {"plain": {key: fold_columns(inner) for key, inner in value.items()}}
    if not isinstance(value, (list, tuple)):
        return value
    if len(value) < _SHORTEST:
        return [fold_columns(item) for item in value]
    if all(type(item) is int for item in value):
        return _fold_integers(value)
    if all(isinstance(item, (list, tuple)) for item in value):
        return _fold_rows(value)
    return _fold_texts(value) if all(isinstance(item, str) for item in value) else _fold_table(value)


def unfold_columns(coded: Any) -> Any:
    """Raises ValueError, or what else `document.DAMAGE` has, for what `fold_columns` did not write."""
    return _ColumnReader().unfold(coded)


def _fold_integers(numbers: Sequence[int]) -> Any:
    """In the way that has the fewest distinct numbers; as they are where none has half as many."""
    if len(set(numbers)) == 1:
        return {"same": [numbers[0], len(numbers)]}
    ways: dict[str, list[int]] = {
        "steps": [number - before for number, before in zip(numbers, (0, *numbers), strict=False)],
        "back": [index - number for index, number in enumerate(numbers)],
        "first": [unused - number for number, unused in zip(numbers, _next_unused(numbers), strict=False)],
    }
    depths = _find_depths(numbers)
    if depths is not None:
        ways["depths"] = depths
    name = min(ways, key=lambda way: len(set(ways[way])))
    return {name: ways[name]} if 2 * len(set(ways[name])) <= len(set(numbers)) else list(numbers)


def _find_depths(parents: Sequence[int]) -> list[int] | None:
    """Of a tree that is listed from the root down, branch by branch: how deep each is; None for any other column."""
    around: list[int] = []
    depths = []
    for index, parent in enumerate(parents):
        while around and around[-1] != parent:
            around.pop()
        if not around and parent != -1:
            return None
        depths.append(len(around))
        around.append(index)
    return depths


def _next_unused(numbers: Iterable[int]) -> Iterable[int]:
    """Of a column that counts up what it names: the number that a value would have that was not there before."""
    return accumulate(numbers, lambda unused, number: max(unused, number + 1), initial=0)


def _fold_rows(rows: Sequence[Sequence[Any]]) -> Any:
    lengths = [len(row) for row in rows]
    if len(set(lengths)) == 1 and lengths[0]:
        return {"columns": [fold_columns(column) for column in zip(*rows, strict=True)]}
    return {"lengths": [fold_columns(lengths), fold_columns([item for row in rows for item in row])]}


def _fold_texts(texts: Sequence[str]) -> Any:
    """Texts that differ in numbers as what they have in common, and the steps from one number to the next."""
    if len(set(texts)) == 1:
        return {"same": [texts[0], len(texts)]}
    numbers: dict[tuple[str, ...], int] = {}
    last: dict[int, list[int]] = {}
    which, steps = [], []
    for text in texts:
        parts = _NUMBER.split(text)
        found = list(map(int, parts[1::2]))
        template = numbers.setdefault(tuple(parts[::2]), len(numbers))
        which.append(template)
        steps += [number - before for number, before in zip(found, last.get(template, [0] * len(found)), strict=True)]
        last[template] = found
    # Digests have numbers in them as well, and nothing in common.
    if 4 * len(numbers) > 3 * len(set(texts)):
        return _fold_table(texts)
    return {"texts": [[*map(list, numbers)], fold_columns(which), steps]}


def _fold_table(items: Sequence[Any]) -> Any:
    """What repeats is written once."""
    numbers: dict[str, int] = {}
    which = [numbers.setdefault(json.dumps(item), len(numbers)) for item in items]
    if 2 * len(numbers) > len(items):
        return [fold_columns(item) for item in items]
    return {"table": [fold_columns([*map(json.loads, numbers)]), fold_columns(which)]}


class _ColumnReader:
    def __init__(self) -> None:
        self._left = limits.RECORD_BYTES

    def unfold(self, coded: Any) -> Any:
        if isinstance(coded, list):
            return [self.unfold(item) for item in coded] if _has_inner(coded) else coded
        if not isinstance(coded, dict):
            return coded
        ((name, content),) = coded.items()
        return self._ways[name](self, content)

    def _plain(self, content: dict[str, Any]) -> dict[str, Any]:
        return {key: self.unfold(inner) for key, inner in content.items()}

    def _same(self, content: list[Any]) -> list[Any]:
        value, count = content
        if type(count) is not int or count < 0 or not isinstance(value, (int, str)):
            raise ValueError(f"{count!r} stands where a number of items should")
        self._spend(count * (2 + (len(value) if isinstance(value, str) else 0)))
        return [value] * count

    def _steps(self, steps: list[int]) -> list[int]:
        return list(accumulate(steps))

    def _back(self, distances: list[int]) -> list[int]:
        return [index - distance for index, distance in enumerate(distances)]

    def _first(self, distances: list[int]) -> list[int]:
        unused, numbers = 0, []
        for distance in distances:
            numbers.append(unused - distance)
            unused = max(unused, numbers[-1] + 1)
        return numbers

    def _depths(self, depths: list[int]) -> list[int]:
        around: list[int] = []
        parents = []
        for index, depth in enumerate(depths):
            if not 0 <= depth <= len(around):
                raise ValueError(f"{index} is {depth} deep")
            del around[depth:]
            parents.append(around[-1] if around else -1)
            around.append(index)
        return parents

    def _columns(self, columns: list[Any]) -> list[list[Any]]:
        return [list(row) for row in zip(*map(self.unfold, columns), strict=True)]

    def _lengths(self, content: list[Any]) -> list[list[Any]]:
        lengths, items = map(self.unfold, content)
        if min(lengths, default=0) < 0 or sum(lengths) != len(items):
            raise ValueError(f"rows of {sum(lengths)} items, and {len(items)} are there")
        waiting = iter(items)
        return [list(islice(waiting, length)) for length in lengths]

    def _table(self, content: list[Any]) -> list[Any]:
        values, which = map(self.unfold, content)
        if min(which, default=0) < 0:
            raise IndexError(f"there is no value {min(which)}")
        # A reference takes two bytes, and what it refers to may be large.
        sizes = [len(json.dumps(value)) for value in values]
        self._spend(sum(sizes[number] for number in which))
        return [values[number] for number in which]

    def _texts(self, content: list[Any]) -> list[str]:
        templates, which, steps = content
        which = self.unfold(which)
        if min(which, default=0) < 0:
            raise IndexError(f"there is no text {min(which)}")
        last = [[0] * (len(parts) - 1) for parts in templates]
        sizes = [sum(map(len, parts)) for parts in templates]
        self._spend(sum(sizes[template] for template in which))
        if sum(len(last[template]) for template in which) != len(steps):
            raise ValueError(f"{len(steps)} numbers are not those of its texts")
        waiting = iter(steps)
        texts = []
        for template in which:
            parts, numbers = templates[template], last[template]
            text = parts[0]
            for slot, before in enumerate(numbers):
                numbers[slot] = number = before + next(waiting)
                if not 0 <= number < _LARGEST:
                    raise ValueError(f"{number} stands where the number of a name should")
                text += f"{number}{parts[slot + 1]}"
            texts.append(text)
        return texts

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ValueError(f"it unfolds to more than {limits.RECORD_BYTES} bytes")

    _ways: ClassVar[dict[str, Callable[[_ColumnReader, Any], Any]]] = {
        "plain": _plain,
        "same": _same,
        "steps": _steps,
        "back": _back,
        "first": _first,
        "depths": _depths,
        "columns": _columns,
        "lengths": _lengths,
        "table": _table,
        "texts": _texts,
    }


def _has_inner(items: list[Any]) -> bool:
    return any(isinstance(item, (list, dict)) for item in items)
