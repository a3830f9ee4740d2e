"""Layers in rows of tokens: repeats, groups that resemble them, groups that are cut out of a stretch."""

from __future__ import annotations

import pytest

from modelexport.attribute.sources.chains import find_cuts
from modelexport.attribute.sources.runs import are_alike, find_repeats, group_layers


@pytest.mark.parametrize(
    ("text", "repeats"),
    [
        ("ABABAB", [(0, 2, 3)]),
        ("xABAB", [(1, 2, 2)]),
        ("AAMAAM", [(0, 3, 2)]),
        ("AAAA", [(0, 1, 4)]),
        ("xMAAMAAM", [(2, 3, 2)]),  # complete at its end, where the row ends
        ("ABABxCDCD", [(0, 2, 2), (5, 2, 2)]),
        ("ABC", []),
        ("", []),
    ],
)
def test_tandem_repeats(text: str, repeats: list[tuple[int, int, int]]) -> None:
    assert [(repeat.start, repeat.period, repeat.count) for repeat in find_repeats(text)] == repeats


def _sizes(*rows: str) -> list[list[tuple[int, int]]]:
    residual = [[token.isupper() for token in row] for row in rows]
    kinds = group_layers(rows, [find_repeats(row) for row in rows], residual)
    return [[(span.row, span.start) for span in spans] for spans in kinds]


def test_parts_of_a_repeat_that_resemble_each_other_are_layers() -> None:
    assert _sizes("RMRMAMRMRMAM") == [[(0, start) for start in range(0, 12, 2)]]
    assert _sizes("AMCAMCAMC") == [[(0, 0), (0, 3), (0, 6)]]


def test_a_group_beside_layers_that_resembles_them_is_one_too() -> None:
    assert _sizes("ADAEAEAE") == [[(0, 0), (0, 2), (0, 4), (0, 6)]]
    assert _sizes("sEAEAEAE") == [[(0, 2), (0, 4), (0, 6)]]


def test_a_row_of_one_layer_belongs_to_rows_of_several() -> None:
    assert _sizes("AM", "AMAM", "AM") == [[(0, 0), (1, 0), (1, 2), (2, 0)]]
    assert _sizes("AM", "AM") == [[(0, 0), (1, 0)]]


def test_tokens_are_alike_if_one_lacks_little() -> None:
    assert are_alike((2, "a", "b", "c", "d"), (2, "a", "c", "d"))
    assert not are_alike((2, "a", "b", "c", "d"), (0, "a", "c", "d"))
    assert not are_alike((0, "a", "b"), (0, "a"))
    assert not are_alike((0, "a", "b", "c"), (0, "c", "b", "a"))


@pytest.mark.parametrize(
    ("products", "groups", "cuts"),
    [
        ("aaTbaa", ["aa"], [2, 4]),
        ("aaaaaa", ["aa"], [2, 4]),
        ("abcab", ["abc", "ab"], [2, 3]),  # the shortest counts
        ("xaay", ["aa"], []),  # neither at the beginning nor at the end
        ("aa", ["aa"], []),  # a stretch that is a group stays as it is
        ("ab", ["b"], []),  # a single product is no layer
    ],
)
def test_groups_are_cut_off_at_both_ends(products: str, groups: list[str], cuts: list[int]) -> None:
    assert find_cuts(tuple(products), set(map(tuple, groups))) == cuts
