from __future__ import annotations

import pytest
from tests.support.building import claim, graph, node, owners

from modelexport.lineage.descent import trace_lineage
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


NORM = tuple(f"bn.{name}" for name in ("weight", "bias", "mean", "variance"))
UNFOLDED = (node("Conv", "x conv.weight", "h"), node("BatchNormalization", f"h {' '.join(NORM)}", "8"))


@pytest.mark.parametrize("output", ["9", "h"])
def test_what_two_exports_of_one_model_return_is_the_same(output: str) -> None:
    """Torch gives outputs the number of a value, so that a name may be new, or have been that of an inner value."""
    before = graph(*UNFOLDED, node("Relu", "x", "r"), outputs="8 r", weights=("conv.weight", *NORM))
    folded = (node("Conv", "x onnx::Conv_10 onnx::Conv_11", output), node("Relu", "x", "r"))
    after = graph(*folded, outputs=f"{output} r", weights=("onnx::Conv_10", "onnx::Conv_11"))
    lineage = trace_lineage(before, after, same_outputs=True)
    assert lineage.nodes[output].relation is Relation.FUSED
    assert set(lineage.nodes[output].sources) == {"h", "8"}
    assert set(lineage.stands_for["onnx::Conv_10"]) == {"conv.weight", *NORM}
    assert lineage.nodes["r"].relation is Relation.KEPT
