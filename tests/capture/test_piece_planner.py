"""Pieces of a graph, by what they make."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from modelexport.capture.onnxruntime.piecewise import PiecePlanner

SIZES = st.lists(st.lists(st.integers(0, 50), max_size=3), min_size=1, max_size=40)


def pieces(cutting: PiecePlanner, nodes: int, largest: int = 0) -> list[int]:
    """Lengths; `largest` is what each piece that is run makes."""
    found, start = [], 0
    while start < nodes:
        end = cutting.end(start)
        found.append(end - start)
        cutting.ran(largest)
        start = end
    return found


@given(SIZES, st.integers(1, 60), st.integers(1, 20), st.integers(1, 20))
def test_every_node_is_in_one_piece_that_has_room(sizes: list[list[int]], room: int, first: int, longest: int) -> None:
    wanted = [[f"{place}.{output}" for output in range(len(made))] for place, made in enumerate(sizes)]
    known = {
        name: size for names, made in zip(wanted, sizes, strict=True) for name, size in zip(names, made, strict=True)
    }
    lengths = pieces(PiecePlanner(wanted, known, room=room, first=first, longest=longest), len(sizes))
    assert sum(lengths) == len(sizes)
    start = 0
    for length in lengths:
        made = sum(map(sum, sizes[start : start + length]))
        assert 0 < length <= longest
        assert length == 1 or made <= room
        start += length
        # No shorter than it must be.
        if start < len(sizes):
            assert length == longest or made + sum(sizes[start]) > room


def test_what_is_unknown_is_as_large_as_the_largest_so_far() -> None:
    wanted = [[f"v{place}"] for place in range(100)]
    cutting = PiecePlanner(wanted, {"v0": 2}, room=20, first=4, longest=50)
    assert cutting.end(0) == 4
    cutting.ran(1)
    assert cutting.end(4) == 12
    cutting.ran(5)
    assert cutting.end(12) == 16
    cutting.ran(100)
    assert cutting.end(16) == 17


def test_pieces_grow_where_nothing_is_known() -> None:
    wanted = [["v"]] * 100
    assert pieces(PiecePlanner(wanted, {}, room=10, first=4, longest=50), 100) == [4, 8, 16, 32, 40]
    assert pieces(PiecePlanner(wanted, {"v": 0}, room=10, first=4, longest=50), 100) == [50, 50]


def test_a_piece_that_fails_is_halved() -> None:
    cutting = PiecePlanner([[]] * 100, {}, room=10, first=4, longest=50)
    assert cutting.end(0) == 50
    cutting.failed(50)
    assert cutting.end(0) == 25
    cutting.ran(0)
    assert cutting.end(25) == 75
