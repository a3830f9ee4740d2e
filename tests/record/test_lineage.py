"""What evidence says of a node's lineage."""

from __future__ import annotations

import pytest

from modelexport.record.evidence import Attribution, Confidence, Evidence, EvidenceKind
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.lineage import Link, Relation, is_introduced


def credited(*evidence: Evidence) -> Attribution:
    call = ModuleCall("fc")
    return Attribution((call,), call, Confidence.EXACT, evidence)


def told(relation: Relation, sources: int = 1) -> Evidence:
    link = Link(tuple(f"n{place}" for place in range(sources)), relation)
    return Evidence(EvidenceKind.LINEAGE, "some tool", str(link))


@pytest.mark.parametrize("relation", Relation)
def test_only_what_a_tool_brought_along_is_introduced(relation: Relation) -> None:
    for sources in (1, 3):
        assert is_introduced(credited(told(relation, sources))) == (relation is Relation.INTRODUCED)


def test_the_last_tool_has_the_last_word() -> None:
    scope = Evidence(EvidenceKind.SCOPE, "torch", "fc")
    assert is_introduced(credited(scope, told(Relation.FUSED), told(Relation.INTRODUCED)))
    assert not is_introduced(credited(scope, told(Relation.INTRODUCED), told(Relation.FUSED, 2)))
    assert not is_introduced(credited(scope))
    assert not is_introduced(credited())
