"""A record on the graph after: modules of all sources, and never surer than the sources or the link."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.building import graph, model, node, provenance, tree

from modelexport.lineage.inherit import inherit_record
from modelexport.record.lineage import Lineage, Link, Relation
from modelexport.record.provenance import Attribution, Confidence, Provenance

HIERARCHY = tree({"": "Net", "a": "Block", "a.fc": "Linear", "a.act": "ReLU"})
BEFORE = model(node("Neg", "x", "h"), node("Abs", "h", "y"))
RECORD = provenance(BEFORE, HIERARCHY, {"h": ["a.fc"], "y": ["a.act"]})
AFTER = graph(node("Fused", "x", "y"))


def judged(*sources: str, relation: Relation, confidence: Confidence, record: Provenance = RECORD) -> Attribution:
    lineage = Lineage({"y": Link(sources, relation, confidence)}, {})
    return inherit_record(record, lineage, AFTER, "test").nodes["y"].attribution


def doubting(key: str, confidence: Confidence) -> Provenance:
    entry = RECORD.nodes[key]
    less = replace(entry, attribution=replace(entry.attribution, confidence=confidence))
    return replace(RECORD, nodes={**RECORD.nodes, key: less})


@pytest.mark.parametrize("confidence", [Confidence.EXACT, Confidence.STRONG, Confidence.INFERRED])
def test_an_answer_is_no_surer_than_its_link(confidence: Confidence) -> None:
    found = judged("h", "y", relation=Relation.FUSED, confidence=confidence)
    assert found.modules == ("a.fc", "a.act")
    assert found.module == "a"
    assert found.confidence is confidence
    assert judged("h", relation=Relation.REWRITTEN, confidence=confidence).confidence is confidence


@pytest.mark.parametrize("confidence", [Confidence.STRONG, Confidence.INFERRED, Confidence.FALLBACK])
def test_nor_than_any_of_its_sources(confidence: Confidence) -> None:
    record = doubting("y", confidence)
    found = judged("h", "y", relation=Relation.FUSED, confidence=Confidence.EXACT, record=record)
    assert found.confidence is confidence


def test_a_node_that_was_only_renamed_is_what_it_was() -> None:
    found = judged("h", relation=Relation.RENAMED, confidence=Confidence.EXACT)
    assert found == RECORD.nodes["h"].attribution


def test_a_node_without_a_source_says_why_it_has_no_module() -> None:
    found = judged(relation=Relation.INTRODUCED, confidence=Confidence.NONE)
    assert not found.owners
    assert found.reason
