from __future__ import annotations

import pytest
from tests.support.building import claim, owners

from modelexport.lineage.inherit import claim_folded_modules
from modelexport.record.lineage import Link, Relation
from modelexport.record.provenance import Confidence, EvidenceKind

FUSED = {"c": Link(("c", "n"), Relation.FUSED), "y": Link(("y",), Relation.KEPT)}
BEFORE = {"c": claim("conv"), "n": claim("bn"), "y": claim("act")}
NOW = {"c": claim("conv"), "y": claim("act")}


def test_an_orphan_becomes_an_owner_of_what_it_became_part_of() -> None:
    found = claim_folded_modules(NOW, FUSED, BEFORE, {"bn"}, "folding")
    assert owners(found) == {"c": ("conv", "bn")}
    assert found["c"].confidence is Confidence.STRONG
    assert [item.kind for item in found["c"].evidence] == [EvidenceKind.SCOPE, EvidenceKind.LINEAGE]
    assert str(found["c"].evidence[-1]) == "lineage:folding (fused)"


def test_without_orphans_nothing_changes() -> None:
    assert claim_folded_modules(NOW, FUSED, BEFORE, set(), "folding") == {}
    assert claim_folded_modules(NOW, FUSED, BEFORE, {"elsewhere"}, "folding") == {}


def test_every_call_of_an_orphan_counts_once() -> None:
    before = BEFORE | {"n": claim("bn", "bn#1"), "c": claim("conv", "bn")}
    assert owners(claim_folded_modules(NOW, FUSED, before, {"bn"}, "folding")) == {"c": ("conv", "bn", "bn#1")}


def test_what_dataflow_guessed_gives_way_to_what_a_constant_was_computed_by() -> None:
    guess = claim("reader", confidence=Confidence.INFERRED)
    links = {"table": Link(("n",), Relation.FOLDED)}
    assert owners(claim_folded_modules({"table": guess}, links, BEFORE, {"bn"}, "folding")) == {"table": ("bn",)}
    assert owners(claim_folded_modules({}, links, BEFORE, {"bn"}, "folding")) == {"table": ("bn",)}


@pytest.mark.parametrize("before", [Confidence.INFERRED, Confidence.FALLBACK, Confidence.STRONG])
def test_an_adoption_is_never_surer_than_what_it_rests_on(before: Confidence) -> None:
    unsure = BEFORE | {"n": claim("bn", confidence=before)}
    assert claim_folded_modules(NOW, FUSED, unsure, {"bn"}, "folding")["c"].confidence is before
    assert (
        claim_folded_modules({"c": claim("conv", confidence=Confidence.FALLBACK)}, FUSED, BEFORE, {"bn"}, "folding")[
            "c"
        ].confidence
        is Confidence.FALLBACK
    )
