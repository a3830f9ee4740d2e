"""Groups inside of groups, and what is left if a picture shows modules instead of nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.drawings import chain, constant, drawing, drawings, end, operator

from modelexport.graph.index import MAIN
from modelexport.record.hierarchy import ModuleCall
from modelexport.show.formats.drawing import (
    Box,
    BoxKind,
    Closed,
    Drawing,
    Opened,
    Sheet,
    Wire,
    depth_of,
    nested,
    overview,
    without_constants,
)

SMALL = drawing(
    end("x", BoxKind.INPUT),
    operator("a", "enc.0"),
    operator("b", "enc.0.fc"),
    operator("c", "enc.1"),
    operator("d", ""),
    constant("w", "enc.0.fc"),
    end("y", BoxKind.OUTPUT),
    wires=[*chain("xabcdy"), Wire("w", 0, "b", 1, "w"), Wire("a", 0, "c", 1, "from a")],
)


def groups_around(picture: Drawing) -> Iterator[tuple[Box, tuple[str, ...]]]:
    """Each box, and the titles of the groups that are open where it is drawn."""
    open_titles: list[str] = []
    for item in nested(picture):
        if isinstance(item, Opened):
            open_titles.append(item.title)
        elif isinstance(item, Closed):
            open_titles.pop()
        else:
            yield item, tuple(open_titles)
    assert open_titles == []


@given(drawings())
def test_every_box_is_drawn_once_inside_of_its_modules(picture: Drawing) -> None:
    drawn = list(groups_around(picture))
    assert Counter(box.id for box, _ in drawn) == Counter(box.id for box in picture.boxes)
    for box, titles in drawn:
        assert titles == tuple(picture.layers[call].title for call in picture.stack(box.call))


@given(drawings())
def test_every_group_is_opened_once_and_numbered(picture: Drawing) -> None:
    opened = [item for item in nested(picture) if isinstance(item, Opened)]
    assert [item.number for item in opened] == list(range(len(opened)))
    used = {above for box in picture.boxes for above in picture.stack(box.call)}
    assert len(opened) == len(used)


def test_modules_may_be_nested_deeper_than_functions() -> None:
    deep = drawing(operator("a", ".".join("m" * 3000)))
    assert sum(isinstance(item, Opened) for item in nested(deep)) == 3000
    assert depth_of(deep) == 3000
    assert len(overview(deep, 3000).boxes) == 1


def test_a_body_is_inside_of_the_module_of_its_node_and_a_function_is_not() -> None:
    picture = drawing(
        operator("loop", "enc.0", "Loop"),
        operator("inner", "enc.0.fc", sheet="loop|body"),
        operator("plain", None, sheet="loop|body"),
        operator("called", None, sheet="own::F"),
        sheets=[Sheet("loop|body", "body", "loop"), Sheet("own::F", "F")],
    )
    around = {box.id: titles for box, titles in groups_around(picture)}
    assert around["loop"] == ("enc (Block)", "enc.0 (Block)")
    assert around["plain"] == ("enc (Block)", "enc.0 (Block)", "loop|body")
    assert around["called"] == ("own::F",)
    kinds = {item.title: item.facts["kind"] for item in nested(picture) if isinstance(item, Opened)}
    assert (kinds["loop|body"], kinds["own::F"], kinds["enc (Block)"]) == ("body", "function", "module")


def test_a_layer_without_a_class_has_its_label_alone() -> None:
    (opened, _, _) = nested(drawing(operator("a", "enc"), classes={"enc": ""}))
    assert isinstance(opened, Opened)
    assert opened.title == "enc"


@given(drawings())
def test_without_constants_nothing_else_is_missing(picture: Drawing) -> None:
    kept = without_constants(picture)
    assert kept.boxes == tuple(box for box in picture.boxes if box.kind is not BoxKind.CONSTANT)
    ids = {box.id for box in kept.boxes}
    assert kept.wires == tuple(wire for wire in picture.wires if {wire.source, wire.target} <= ids)


def node_count(box: Box) -> int:
    return int(str(box.facts["nodes"]).split()[0])


@given(drawings(), st.integers(0, 5))
def test_an_overview_counts_every_node_once(picture: Drawing, depth: int) -> None:
    shown = overview(picture, depth)
    blocks = [box for box in shown.boxes if box.kind is BoxKind.OPERATOR]
    assert sum(map(node_count, blocks)) == sum(box.kind is BoxKind.OPERATOR for box in picture.boxes)
    assert len({box.id for box in shown.boxes}) == len(shown.boxes)
    assert all(len(shown.stack(box.call)) <= depth for box in blocks)


@given(drawings(), st.integers(0, 5))
def test_an_overview_has_one_wire_for_each_pair_and_none_in_a_circle(picture: Drawing, depth: int) -> None:
    shown = overview(picture, depth)
    pairs = [(wire.source, wire.target) for wire in shown.wires]
    assert len(pairs) == len(set(pairs))
    assert not [pair for pair in pairs if pair[0] == pair[1]]
    assert {name for pair in pairs for name in pair} <= {box.id for box in shown.boxes}


@given(drawings())
def test_a_deeper_overview_than_the_model_shows_nothing_more(picture: Drawing) -> None:
    deepest = overview(picture, depth_of(picture))
    assert overview(picture, depth_of(picture) + 3) == deepest


@pytest.mark.parametrize(
    ("depth", "labels"),
    [
        (0, ["own nodes"]),
        (1, ["enc (Block)", "own nodes"]),
        (2, ["enc.0 (Block)", "enc.1 (Block)", "own nodes"]),
        (3, ["own nodes", "enc.0.fc (Block)", "enc.1 (Block)", "own nodes"]),
    ],
)
def test_modules_down_to_a_depth(depth: int, labels: list[str]) -> None:
    blocks = [box for box in overview(SMALL, depth).boxes if box.kind is BoxKind.OPERATOR]
    assert [box.label for box in blocks] == labels


def test_one_tensor_is_named_and_several_are_counted() -> None:
    wires = {wire.value for wire in overview(SMALL, 2).wires}
    assert "2 tensors" in wires  # what enc.0 and its part hand to enc.1
    assert {"from x", "from c", "from d"} <= wires


def test_what_a_body_is_given_comes_from_what_its_node_reads() -> None:
    picture = drawing(
        operator("before", "a"),
        operator("loop", "b", "Loop"),
        end("given", BoxKind.INPUT, "loop|body"),
        operator("inside", "c", sheet="loop|body"),
        sheets=[Sheet("loop|body", "body", "loop")],
        wires=[Wire("before", 0, "loop", 0, "v"), Wire("given", 0, "inside", 0, "g")],
    )
    shown = overview(picture, 1)
    names = {box.id: box.label for box in shown.boxes}
    assert [(names[wire.source], names[wire.target]) for wire in shown.wires] == [
        ("a (Block)", "b (Block)"),
        ("b (Block)", "c (Block)"),
    ]
    assert shown.sheets == (Sheet(MAIN, "net"),)


def test_the_model_itself_is_no_frame() -> None:
    assert SMALL.stack(ModuleCall("")) == SMALL.stack(None) == ()
    assert {box.id: titles for box, titles in groups_around(SMALL)}["d"] == ()
