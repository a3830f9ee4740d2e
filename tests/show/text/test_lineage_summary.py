"""What is said of a relinked file."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from tests.support.building import attribution, tree
from tests.support.profiles import lineages

from modelexport.record.lineage import Consistency, Lineage, Link, Relation
from modelexport.record.provenance import Confidence, NodeEntry, Origin, Provenance
from modelexport.record.results.files import RelinkResult
from modelexport.show.data.results import to_json
from modelexport.show.text.console import as_text
from modelexport.show.text.written_files import lineage_lines

HIERARCHY = tree({"": "Net", "fc": "Linear"})
LINKS = {
    "a": Link(("a",), Relation.KEPT),
    "b": Link(("c", "d", "e"), Relation.FUSED, Confidence.STRONG),
    "f": Link(("e", "g"), Relation.FUSED, Confidence.STRONG),
}


def summary(found: Consistency = Consistency()) -> RelinkResult:  # noqa: B008 - frozen
    nodes = {key: NodeEntry(key, "", "Gemm", attribution(HIERARCHY, "fc")) for key in LINKS}
    record = Provenance(HIERARCHY, nodes, {}, Origin("test", "test"))
    return RelinkResult(None, (), "a.onnx", record, Lineage(LINKS, {}, consistency=found), True, after="b.onnx")


def text(found: RelinkResult, *, verbose: bool = False) -> str:
    """Without the breaks that a narrow terminal puts in."""
    return " ".join(as_text(lineage_lines(found, verbose=verbose)).split())


def test_how_many_nodes_the_fused_ones_come_from() -> None:
    assert "3 nodes from a.onnx: kept 1, fused 2 (from 4)" in text(summary())


def test_what_nodes_were_fused_into_is_listed() -> None:
    assert "fused into 2 Gemm" in text(summary())


def test_every_node_that_is_not_what_it_was() -> None:
    assert "c, d, e" not in text(summary())
    said = text(summary(), verbose=True)
    assert (
        "node operator relation sources link b Gemm fused from 3 c, d, e strong f Gemm fused from 2 e, g strong" in said
    )


def test_what_nobody_explains() -> None:
    found = Consistency(9, ("k",), ("i",), ("m", "n"))
    said = text(summary(found))
    assert "of 9 nodes before that work on the inputs, 5 live on, 1 became constants" in said
    assert "1 was removed (i), 2 are unexplained" in said
    assert "note: no node after does the work of m, n, and nothing shows that it could be left out." in said
    assert "unexplained" not in text(summary(Consistency(9)))
    document = json.loads(to_json(summary(found)))["consistency"]
    assert (document["covered"], document["unexplained"], document["removed"]) == (5, ["m", "n"], ["i"])
    assert json.loads(to_json(summary()))["consistency"]["unexplained"] == []


@pytest.mark.parametrize("edges", [(("m", "r"),), (("m", "r"), ("r", "s"))])
def test_what_is_in_another_order(edges: tuple[tuple[str, str], ...]) -> None:
    said = text(summary(Consistency(9, disorder=edges)))
    assert f"in another order than before: {', '.join(f'{reader} reads {maker}' for maker, reader in edges)}." in said
    assert "modelexport verify" in said
    document = json.loads(to_json(summary(Consistency(9, disorder=edges))))["consistency"]
    assert document["disorder"] == len(edges)
    assert document["disordered"] == [{"maker": maker, "reader": reader} for maker, reader in edges]


def test_weights_that_were_read_elsewhere() -> None:
    said = text(summary(Consistency(9, strayed=("m",))))
    assert "weights that were read elsewhere before are read by m: none of the nodes" in said
    assert "modelexport verify" in said


def test_a_tool_that_changed_nothing() -> None:
    assert "onnxslim changed nothing" in text(replace(summary(), idle=("onnxslim",)))


@given(lineages())
def test_whatever_was_found_can_be_shown(found: RelinkResult) -> None:
    shown = as_text(lineage_lines(replace(found, files=()), verbose=True))
    assert all(line.isprintable() for line in shown.split("\n"))
