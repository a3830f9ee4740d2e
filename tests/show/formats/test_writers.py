"""Every writer on random drawings: read back by the rules of its format, and the same every time."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Iterator
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from tests.support.drawings import chain, constant, drawing, drawings, operator

from modelexport.errors import RecordMismatch, RecordMissing, UnknownName, UserError, cell, printable
from modelexport.show.formats import catalogue
from modelexport.show.formats.catalogue import FORMATS, NETRON, WITH_DEPTH, WRITERS, picture
from modelexport.show.formats.dot_mermaid_graphml_csv import COLUMNS, dot, graphml, mermaid, table
from modelexport.show.formats.drawing import Box, BoxKind, Drawing, Opened, nested, without_constants
from modelexport.show.formats.model_explorer import GROUP, model_explorer, namespace, node_id, sync_navigation

XML = "{http://graphml.graphdrawing.org/xmlns}"
DOT_TEXT = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"', re.DOTALL)
LINE_OF_NODE = re.compile(r"n(\d+) \[")
MERMAID_LABEL = re.compile(r'(?:subgraph g\d+|n\d+)\(?\["([^"]*)"\]\)?')


@pytest.mark.parametrize("to", WRITERS)
@given(drawings())
def test_the_same_drawing_gives_the_same_text(to: str, given_drawing: Drawing) -> None:
    first, again = ("".join(WRITERS[to](given_drawing)) for _ in range(2))
    assert first == again
    assert first.endswith("\n")


@pytest.mark.parametrize("to", WRITERS)
@given(drawings())
def test_a_terminal_obeys_nothing_that_is_written(to: str, given_drawing: Drawing) -> None:
    text = "".join(WRITERS[to](given_drawing))
    assert not [character for character in text if not character.isprintable() and character not in "\n\t"]


def dot_texts(line: str) -> dict[str, str]:
    """Attributes of a line as Graphviz takes them: escapes undone, then entities."""
    return {name: html.unescape(re.sub(r"\\(.)", r"\1", text)) for name, text in DOT_TEXT.findall(line)}


@given(drawings())
def test_labels_of_dot_are_what_was_drawn(given_drawing: Drawing) -> None:
    lines = "".join(dot(given_drawing)).split("\n")
    shown = [dot_texts(line)["label"] for line in lines if LINE_OF_NODE.match(line)]
    assert sorted(shown) == sorted(printable(box.label) for box in given_drawing.boxes)
    clusters = [dot_texts(line)["label"] for line in lines if line.startswith("label=")]
    used = {call for box in given_drawing.boxes for call in given_drawing.stack(box.call)}
    assert sorted(clusters) == sorted(printable(given_drawing.layers[call].title) for call in used)
    assert sum(" -> " in line.partition("[")[0] for line in lines) == len(given_drawing.wires)


@given(drawings())
def test_labels_of_mermaid_are_what_was_drawn(given_drawing: Drawing) -> None:
    shown = MERMAID_LABEL.findall("".join(mermaid(given_drawing)))
    found = [re.sub(r"#(\d+);", lambda match: chr(int(match[1])), text) for text in shown]
    assert found == [printable(title) or " " for title in drawn_titles(given_drawing)]


def drawn_titles(given_drawing: Drawing) -> Iterator[str]:
    for item in nested(given_drawing):
        if isinstance(item, Box):
            yield item.label
        elif isinstance(item, Opened):
            yield item.title


@given(drawings())
def test_graphml_is_xml_with_every_box_and_wire(given_drawing: Drawing) -> None:
    root = ET.fromstring("".join(graphml(given_drawing)).encode())
    declared = {key.get("id") for key in root.iter(f"{XML}key")}
    assert {data.get("key") for data in root.iter(f"{XML}data")} <= declared
    ids = [element.get("id") for element in root.iter(f"{XML}node")]
    assert len(ids) == len(set(ids))
    assert sum(str(name).startswith("n") for name in ids) == len(given_drawing.boxes)
    edges = list(root.iter(f"{XML}edge"))
    assert len(edges) == len(given_drawing.wires)
    assert {edge.get(side) for edge in edges for side in ("source", "target")} <= set(ids)


@given(drawings())
def test_a_table_has_a_row_for_each_operator_whatever_is_in_its_name(given_drawing: Drawing) -> None:
    header, *rows = csv.reader(io.StringIO("".join(table(given_drawing)), newline=""))
    assert tuple(header) == COLUMNS
    operators = [box for box in given_drawing.boxes if box.kind is BoxKind.OPERATOR]
    assert [row[COLUMNS.index("key")] for row in rows] == [cell(box.id) for box in operators]
    assert {len(row) for row in rows} == {len(COLUMNS)}


@given(drawings())
def test_edges_of_model_explorer_lead_to_nodes_that_there_are(given_drawing: Drawing) -> None:
    document = json.loads("".join(model_explorer(given_drawing)))
    (graph,) = document["graphs"]
    nodes = {found["id"]: found for found in graph["nodes"]}
    assert nodes.keys() == {node_id(box.id) for box in given_drawing.boxes}
    edges = [(edge["sourceNodeId"], name) for name, found in nodes.items() for edge in found.get("incomingEdges", ())]
    assert sorted(edges) == sorted((node_id(wire.source), node_id(wire.target)) for wire in given_drawing.wires)


@given(drawings())
def test_no_two_modules_have_one_namespace(given_drawing: Drawing) -> None:
    names = {namespace(call, given_drawing) for call in given_drawing.layers}
    assert len(names) == len(given_drawing.layers)
    for call, stack in given_drawing.stacks.items():
        assert namespace(call, given_drawing).count("/") == len(stack) - 1


@given(drawings(), drawings())
def test_no_id_is_in_two_entries_of_a_side(left: Drawing, right: Drawing) -> None:
    """Model Explorer would take the last one alone."""
    try:
        entries = json.loads(sync_navigation(left, right, None))["mappingEntries"]
    except RecordMismatch:
        return
    for side in ("leftNodeIds", "rightNodeIds"):
        ids = [name for entry in entries for name in entry[side]]
        assert len(ids) == len(set(ids))


@given(drawings())
def test_a_drawing_is_followed_to_itself(given_drawing: Drawing) -> None:
    entries = json.loads(sync_navigation(given_drawing, given_drawing, None))["mappingEntries"]
    assert all(entry["leftNodeIds"] == entry["rightNodeIds"] for entry in entries)
    followed = {name for entry in entries for name in entry["leftNodeIds"]}
    owned = {node_id(box.id) for box in given_drawing.boxes if box.kind is not BoxKind.OPERATOR or box.call is not None}
    assert owned <= followed


def test_lineage_joins_everything_that_has_a_side_in_common() -> None:
    left = drawing(*(operator(name, "m") for name in "abcd"))
    right = drawing(*(operator(name, "m") for name in "xyz"))
    document = json.loads(sync_navigation(left, right, {"x": ["a", "b"], "y": ["b"], "z": ["c", "gone"], "no": ["d"]}))
    nodes = [entry for entry in document["mappingEntries"] if GROUP not in entry["leftNodeIds"][0]]
    assert nodes == [
        {"leftNodeIds": ["a", "b"], "rightNodeIds": ["x", "y"]},
        {"leftNodeIds": ["c"], "rightNodeIds": ["z"]},
    ]
    assert document["showDiffHighlights"] is True


def test_as_many_operators_of_a_module_are_followed_in_order() -> None:
    left = drawing(operator("a", "m", "Add"), operator("b", "m", "Add"), operator("c", "m", "Mul"))
    right = drawing(operator("p", "m", "Add"), operator("q", "m", "Add"), *(operator(k, "m", "Mul") for k in "rs"))
    entries = json.loads(sync_navigation(left, right, None))["mappingEntries"]
    pairs = [(*entry["leftNodeIds"], *entry["rightNodeIds"]) for entry in entries]
    assert ("a", "p") in pairs
    assert ("b", "q") in pairs
    assert not [pair for pair in pairs if "c" in pair]


def towers(count: int, modules: int) -> Drawing:
    boxes = [operator(f"n{place}", f"m{place % modules}") for place in range(count)]
    return drawing(*boxes, constant("w"), wires=chain(box.id for box in boxes))


def test_a_small_graph_is_drawn_node_by_node_without_constants() -> None:
    small = towers(6, 2)
    drawn = picture(small, "dot")
    assert "".join(drawn.parts) == "".join(dot(without_constants(small)))
    assert drawn.notes == ()


def test_a_large_graph_is_drawn_as_modules_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "_MOST_DOT_NODES", 10)
    drawn = picture(towers(11, 3), "dot")
    assert sum(LINE_OF_NODE.match(line) is not None for line in "".join(drawn.parts).split("\n")) == 3
    (note,) = drawn.notes
    assert "11 nodes" in note
    assert "1 level deep" in note
    untagged = drawing(*(operator(f"n{place}") for place in range(11)))
    assert picture(untagged, "dot").notes == ("11 nodes take graphviz very long to draw",)


def test_mermaid_says_how_deep_it_drew_and_if_it_is_less_than_asked() -> None:
    assert picture(towers(6, 3), "mermaid").notes == ("modules are drawn, 1 level deep",)
    assert picture(towers(6, 3), "mermaid", 9).notes == ()
    # Between 600 modules there are more edges than Mermaid draws.
    (note,) = picture(towers(600, 600), "mermaid", 1).notes
    assert note.endswith("modules are drawn as one box instead")
    with pytest.raises(RecordMissing, match="500 edges"):
        picture(drawing(*(operator(f"n{n}") for n in range(600)), wires=chain(f"n{n}" for n in range(600))), "mermaid")


def test_formats_that_show_nodes_have_no_depth() -> None:
    for to in set(WRITERS) - set(WITH_DEPTH):
        with pytest.raises(UserError, match="every node"):
            picture(towers(2, 1), to, 1)
    with pytest.raises(UnknownName):
        picture(towers(2, 1), "svg")
    assert NETRON in FORMATS
    assert NETRON not in WRITERS
