"""What evidence says of a node's lineage."""

from __future__ import annotations

import pytest

from modelexport.record.hierarchy import ModuleCall
from modelexport.record.lineage import (
    Descent,
    Lineage,
    Link,
    NodeOverlap,
    Relation,
    descent_of,
    is_introduced,
    is_made_by_tool,
)
from modelexport.record.provenance import Attribution, Confidence, Evidence, EvidenceKind, unattributed


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


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("sources", [1, 12])
def test_what_evidence_says_is_read_back(relation: Relation, sources: int) -> None:
    found = descent_of(credited(told(Relation.FUSED, 3), told(relation, sources)))
    assert found == Descent(relation, sources)
    assert str(found) == told(relation, sources).detail


def test_a_node_that_no_tool_changed_is_kept() -> None:
    scope = Evidence(EvidenceKind.SCOPE, "torch", "fc")
    moved = Evidence(EvidenceKind.LINEAGE, "closed early")  # by the exporter, as a strategy says
    for evidence in ((), (scope,), (scope, moved)):
        assert descent_of(credited(*evidence)) == Descent(Relation.KEPT, 1)
    assert descent_of(credited(told(Relation.SPLIT), moved)) == Descent(Relation.SPLIT, 1)


def test_nothing_is_said_of_a_node_that_nobody_knows() -> None:
    assert descent_of(unattributed("no idea")) is None


def test_what_torch_did_while_it_exported_is_no_tool() -> None:
    assert is_made_by_tool(credited(told(Relation.FOLDED)))
    for source in ("torch optimizer", "torchscript folding"):
        assert not is_made_by_tool(credited(Evidence(EvidenceKind.LINEAGE, source, "folded")))
    assert not is_made_by_tool(credited(Evidence(EvidenceKind.SCOPE, "ort:all", "folded")))


@pytest.mark.parametrize(
    "detail", ["fused from many", "fused from -2", "fused from " + "9" * 5000, "melted from 2", ""]
)
def test_a_detail_that_says_something_else_is_no_descent(detail: str) -> None:
    """A record comes from wherever the file does, and Python refuses to read numbers of thousands of digits."""
    odd = Evidence(EvidenceKind.LINEAGE, "some tool", detail)
    assert descent_of(credited(odd)) == Descent(Relation.KEPT)
    assert descent_of(credited(told(Relation.SPLIT), odd)) == Descent(Relation.SPLIT)


def test_the_overlap_by_its_older_name() -> None:
    lineage = Lineage({}, {}, overlap=NodeOverlap())
    assert lineage.kinship is lineage.overlap
