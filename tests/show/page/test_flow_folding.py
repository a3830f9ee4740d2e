"""Flows with too many boxes, put together until they can be read."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelexport.record.hierarchy import ModuleCall
from modelexport.show.page.flow import MOST_BOXES, Box, CallFlow, DrawnFlow, Entering, Inner, Leaving, Own, draw_flow
from modelexport.show.page.layout import laid_out


def flow_of(*boxes: Box, edges: list[tuple[Box, Box]]) -> CallFlow:
    found = CallFlow()
    for box in boxes:
        found.boxes[box] = None
    for number, (source, target) in enumerate(edges):
        found.connect(source, target, f"v{number}")
    return found


def chain(*boxes: Box) -> CallFlow:
    ends: list[Box] = [Entering("x"), *boxes, Leaving("y")]
    return flow_of(*boxes, edges=list(itertools.pairwise(ends)))


def layers(count: int) -> list[Box]:
    return [Inner(ModuleCall(f"layers.{number}")) for number in range(count)]


def drawn(drawing: DrawnFlow) -> set[Box]:
    return {box for group in drawing.groups for box in group}


def test_what_is_small_is_drawn_as_it_is() -> None:
    drawing = draw_flow(chain(*layers(3)), set())
    assert [len(group) for group in drawing.groups] == [1] * 5
    assert not drawing.folded


def test_nodes_and_values_that_nothing_flows_through_are_not_drawn() -> None:
    a, c = Own("a"), Own("c")
    edges: list[tuple[Box, Box]] = [
        (c, a),
        (Entering("x"), a),
        (Entering("s"), a),
        (c, Leaving("c")),
        (a, Leaving("a")),
    ]
    drawing = draw_flow(flow_of(a, c, edges=edges), {"c", "s"})
    assert drawn(drawing) == {Entering("x"), a, Leaving("a")}
    assert drawing.hidden == 1


def test_a_module_of_constants_alone_is_drawn_all_the_same() -> None:
    drawing = draw_flow(chain(Own("a"), Own("b")), {"a", "b"})
    assert {Own("a"), Own("b")} <= drawn(drawing)


def test_of_a_long_row_the_ends_are_drawn() -> None:
    row = layers(500)
    drawing = draw_flow(chain(*row), set())
    assert len(drawing.groups) <= MOST_BOXES
    assert drawing.folded
    assert drawn(drawing) >= set(row)
    assert (row[0],) in drawing.groups
    assert (row[-1],) in drawing.groups


def test_many_nodes_between_modules_become_one_box_for_each_gap() -> None:
    parts: list[Box] = []
    for number, layer in enumerate(layers(4)):
        parts += [*(Own(f"{number}.{place}") for place in range(40)), layer]
    drawing = draw_flow(chain(*parts), set())
    assert [len(group) for group in drawing.groups] == [1, 40, 1, 40, 1, 40, 1, 40, 1, 1]


def test_many_nodes_of_a_module_alone_are_drawn_in_steps() -> None:
    own = [Own(str(number)) for number in range(600)]
    skips = [(own[number], own[number + 7]) for number in range(0, 590, 5)]
    drawing = draw_flow(flow_of(*own, edges=[*itertools.pairwise(own), *skips]), set())
    assert 20 <= len(drawing.groups) <= MOST_BOXES
    assert max(map(len, drawing.groups)) <= 40
    assert all(edge.source < edge.target for edge in drawing.edges)  # one after the other, and no way back


def test_without_nodes_those_of_the_module_itself_share_boxes() -> None:
    drawing = draw_flow(chain(Own("a"), Own("b"), *layers(2), Own("c")), set(), own_nodes=False)
    assert (Own("a"), Own("b")) in drawing.groups
    assert len(drawing.groups) == 6


def test_lines_of_what_everything_reads_are_drawn_to_what_is_near() -> None:
    mask, row = Own("mask"), layers(20)
    ends: list[tuple[Box, Box]] = [(Entering("x"), row[0]), (Entering("m"), mask), (row[-1], Leaving("y"))]
    edges = [*ends, *itertools.pairwise(row), *((mask, layer) for layer in row)]
    drawing = draw_flow(flow_of(mask, *row, edges=edges), set())
    known = {box: number for number, (box,) in enumerate(drawing.groups)}
    drawn_to = [edge.target for edge in drawing.edges if edge.source == known[mask]]
    assert drawn_to == [known[layer] for layer in row[:3]]
    assert [(edge.source, edge.target) for edge in drawing.cut] == [(known[mask], known[layer]) for layer in row[3:]]
    assert {(known[one], known[other]) for one, other in itertools.pairwise(row)} <= {
        (edge.source, edge.target) for edge in drawing.edges
    }


def test_what_is_near_follows_from_what_is_read_and_not_from_the_file() -> None:
    """Constants of a layer may stand before all others."""
    mask, row = Own("mask"), layers(20)
    edges = [(Entering("m"), mask), *itertools.pairwise(row), *((mask, layer) for layer in row)]
    drawing = draw_flow(flow_of(*reversed(row), mask, edges=edges), set())
    known = {box: number for number, (box,) in enumerate(drawing.groups)}
    assert {edge.target for edge in drawing.edges if edge.source == known[mask]} == {known[box] for box in row[:3]}
    long = draw_flow(chain(*layers(200)), set())
    turned = CallFlow(dict.fromkeys(reversed(layers(200))), chain(*layers(200)).edges)
    assert {frozenset(group) for group in draw_flow(turned, set()).groups} == {frozenset(one) for one in long.groups}


def test_the_only_line_to_a_box_is_always_drawn() -> None:
    row = layers(20)
    drawing = draw_flow(flow_of(*row, edges=[(Entering("x"), layer) for layer in row]), set())
    assert len(drawing.edges) == 20
    assert not drawing.cut


BOXES = st.integers(0, 1).flatmap(
    lambda kind: st.integers(0, 150).map(lambda number: Own(str(number)) if kind else Inner(ModuleCall(str(number))))
)


@settings(deadline=None)
@given(st.lists(st.tuples(BOXES, BOXES), min_size=1, max_size=400))
def test_no_flow_is_too_large_and_none_loses_a_box(pairs: list[tuple[Box, Box]]) -> None:
    flow = flow_of(*dict.fromkeys(box for pair in pairs for box in pair), edges=pairs)
    drawing = draw_flow(flow, set())
    assert len(drawing.groups) <= MOST_BOXES
    assert drawn(drawing) == set(flow.boxes)
    assert all(edge.source != edge.target for edge in drawing.edges)
    reached = {edge.target for edge in (*drawing.edges, *drawing.cut)}
    assert reached == {edge.target for edge in drawing.edges}


EDGES = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)).filter(lambda pair: pair[0] != pair[1]), max_size=30)


@settings(deadline=None)
@given(EDGES.map(lambda edges: tuple(dict.fromkeys(edges))))
def test_boxes_of_one_row_stand_apart_and_bends_lie_between_rows(edges: tuple[tuple[int, int], ...]) -> None:
    layout = laid_out(12, edges)
    rows: dict[int, list[int]] = {}
    for column, row in layout.boxes:
        rows.setdefault(row, []).append(column)
    for columns in rows.values():
        ordered = sorted(columns)
        assert all(right - left >= 19 for left, right in itertools.pairwise(ordered))
    for (source, target), bends in zip(edges, layout.bends, strict=True):
        passed = [layout.boxes[source][1], *(row for _, row in bends), layout.boxes[target][1]]
        steps = {after - before for before, after in itertools.pairwise(passed)}
        assert steps in ({1}, {-1})


def test_what_reads_nothing_stands_right_above_what_reads_it() -> None:
    layout = laid_out(5, ((0, 1), (1, 2), (2, 3), (4, 3)))
    assert [row for _, row in layout.boxes] == [0, 1, 2, 3, 2]


def test_missing_igraph_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from modelexport.errors import ExtraMissing

    monkeypatch.setitem(sys.modules, "igraph", None)
    laid_out.cache_clear()
    with pytest.raises(ExtraMissing, match=r"modelexport\[view\]"):
        laid_out(2, ((0, 1),))
