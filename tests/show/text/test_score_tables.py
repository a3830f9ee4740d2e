from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.support.small_file import SmallFile, credited

from modelexport.inspect.compare import Dispute, Score, Scores
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Claim, Confidence, Evidence, EvidenceKind
from modelexport.show.data.results import to_json
from modelexport.show.text.checks import score_tables
from modelexport.show.text.console import as_text

EVIDENCE = (Evidence(EvidenceKind.TRACE, "hooks", "by order"),)


def claim(strategy: str, *paths: str) -> Claim:
    return Claim(tuple(map(ModuleCall.parse, paths)), Confidence.INFERRED, EVIDENCE, strategy)


@pytest.fixture
def scores() -> Scores:
    found = SmallFile().but(h0=credited("layers.0.fc", "layers.1.fc")).provenance()
    htp = Score("htp", {Confidence.EXACT: 3, Confidence.INFERRED: 1}, 2, 1, 1, 0.12345)
    usage_based = Score("usage_based", {}, 0, 0, 0, 0.0)
    dispute = Dispute(found.nodes["h0"], (claim("htp", "layers.0.fc"), claim("fx_graph", "")))
    return Scores("a.onnx", found, (htp, usage_based), (dispute,), 1.23456, ("a note",))


def test_a_row_for_each_strategy(scores: Scores) -> None:
    lines = as_text(score_tables(scores)).splitlines()
    assert lines[0] == "a.onnx: 6 nodes"
    assert lines[1].split() == [
        *("strategy", "nodes", "share", "exact", "strong", "inferred", "same", "less", "other", "seconds")
    ]
    assert lines[2].split() == ["htp", "4", "66.7", "%", "3", "0", "1", "2", "1", "1", "0.12"]
    assert lines[3].split() == ["usage_based", "0", "0.0", "%", "0", "0", "0", "0", "0", "0", "0.00"]
    assert "recording took 1.2 s" in lines[5]
    assert lines[-1] == "note: a note"


def test_disputes_say_who_claims_what_and_why(scores: Scores) -> None:
    text = as_text(score_tables(scores))
    assert "1 node on which strategies contradict each other" in text
    assert "node_h0 (MatMul): layers.0.fc + layers.1.fc, exact\n" in text
    assert "  htp: layers.0.fc, inferred (trace:hooks (by order))\n" in text
    assert "  fx_graph: (model), inferred (trace:hooks (by order))\n" in text


def test_every_dispute_is_listed(scores: Scores) -> None:
    many = replace(scores, disputes=scores.disputes * 12)
    assert as_text(score_tables(many)).count("node_h0 (MatMul)") == 12


def test_no_dispute(scores: Scores) -> None:
    assert "no strategy contradicts another" in as_text(score_tables(replace(scores, disputes=())))


def test_a_file_without_nodes(scores: Scores) -> None:
    empty = replace(scores, provenance=replace(scores.provenance, nodes={}), scores=scores.scores[1:], disputes=())
    assert "usage_based      0  0.0 %" in as_text(score_tables(empty))


def test_names_from_strangers_reach_no_terminal(scores: Scores) -> None:
    entry = replace(scores.disputes[0].entry, name="[bold]\x1b[2J\u202e")
    evil = replace(scores, path="\x1b[31m.onnx", disputes=(Dispute(entry, (claim("htp", "x\x07"),)),), notes=("\x1b",))
    shown = as_text(score_tables(evil))
    assert all(line.isprintable() for line in shown.split("\n"))
    assert "[bold]" in shown
    assert to_json(evil).isascii()


def test_json(scores: Scores) -> None:
    assert json.loads(to_json(scores)) == {
        "schema": 1,
        "file": "a.onnx",
        "nodes": 6,
        "recording_seconds": 1.235,
        "strategies": [
            {
                "strategy": "htp",
                "attributed": 4,
                "by_confidence": {"exact": 3, "strong": 0, "inferred": 1, "fallback": 0},
                "same": 2,
                "less": 1,
                "other": 1,
                "seconds": 0.123,
            },
            {
                "strategy": "usage_based",
                "attributed": 0,
                "by_confidence": {"exact": 0, "strong": 0, "inferred": 0, "fallback": 0},
                "same": 0,
                "less": 0,
                "other": 0,
                "seconds": 0.0,
            },
        ],
        "disputes": [
            {
                "name": "node_h0",
                "key": "h0",
                "op_type": "MatMul",
                "modules": ["layers.0.fc", "layers.1.fc"],
                "confidence": "exact",
                "claims": [
                    {
                        "strategy": "htp",
                        "modules": ["layers.0.fc"],
                        "confidence": "inferred",
                        "evidence": ["trace:hooks (by order)"],
                    },
                    {
                        "strategy": "fx_graph",
                        "modules": [""],
                        "confidence": "inferred",
                        "evidence": ["trace:hooks (by order)"],
                    },
                ],
            }
        ],
        "notes": ["a note"],
    }
