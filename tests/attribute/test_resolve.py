from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.building import claim, claims_on, graph, hierarchies, node, tree

from modelexport.attribute.resolve import build_provenance, disagreements, explain_absent_modules, resolve
from modelexport.attribute.strategies import GraphClaims, claims_by_initializer, claims_by_node
from modelexport.record.hierarchy import CallSite, Hierarchy, ModuleCall
from modelexport.record.provenance import Claim, Confidence, Evidence, EvidenceKind, Origin

NET = tree({"": "Net", "a": "Block", "a.p": "Linear", "a.q": "Linear", "b": "Linear"}, "", "a", "a.p", "a.q", "b")


@st.composite
def disputes(draw: st.DrawFn) -> tuple[Hierarchy, list[Claim]]:
    """Claims on one node; some of them say the same in another order."""
    hierarchy = draw(hierarchies())
    claims = draw(st.lists(claims_on(hierarchy), max_size=5))
    again = [replace(item, owners=tuple(reversed(item.owners))) for item in claims if draw(st.booleans())]
    return hierarchy, claims + again


@given(disputes(), st.data())
def test_the_order_of_claims_does_not_matter(dispute: tuple[Hierarchy, list[Claim]], data: st.DataObject) -> None:
    hierarchy, claims = dispute
    shuffled = data.draw(st.permutations(claims))
    assert resolve(shuffled, hierarchy) == resolve(claims, hierarchy)


@given(disputes(), st.sampled_from(Confidence), st.sampled_from(["first", "third"]))
def test_an_agreeing_claim_never_lowers_confidence(
    dispute: tuple[Hierarchy, list[Claim]], confidence: Confidence, strategy: str
) -> None:
    hierarchy, claims = dispute
    answer = resolve(claims, hierarchy)
    agreeing = Claim(answer.owners, confidence, (Evidence(EvidenceKind.VALUE, "v"),), strategy)
    more = resolve([*claims, agreeing], hierarchy)
    assert more.owners == answer.owners
    assert more.confidence >= answer.confidence
    assert more.lost == answer.lost
    # A compromise rests on claims that lost; it does so no longer once somebody is sure of it.
    assert set(answer.evidence) <= {*more.evidence, *(item for lost in more.lost for item in lost.evidence)}


@given(disputes())
def test_an_answer_has_owners_or_a_reason_and_forgets_no_claim(dispute: tuple[Hierarchy, list[Claim]]) -> None:
    hierarchy, claims = dispute
    answer = resolve(claims, hierarchy)
    assert bool(answer.owners) != bool(answer.reason)
    assert answer.ancestor == hierarchy.common_ancestor(answer.owners)
    for item in claims:
        assert not item.owners or item in answer.lost or set(item.owners) == set(answer.owners)


@given(disputes(), st.data())
def test_saying_a_thing_twice_changes_nothing(dispute: tuple[Hierarchy, list[Claim]], data: st.DataObject) -> None:
    hierarchy, claims = dispute
    again = data.draw(st.lists(st.sampled_from(claims), max_size=4)) if claims else []
    assert resolve([*claims, *again], hierarchy) == resolve(claims, hierarchy)


@given(disputes())
def test_an_answer_is_as_sure_as_its_surest_claim_or_a_compromise(dispute: tuple[Hierarchy, list[Claim]]) -> None:
    hierarchy, claims = dispute
    answer = resolve(claims, hierarchy)
    top = max((item.confidence for item in claims if item.owners), default=Confidence.NONE)
    surest = [item for item in claims if item.owners and item.confidence == top]
    if any(set(item.owners) == set(answer.owners) for item in surest) and answer.confidence == top:
        return
    contradicting = disagreements(answer, hierarchy)
    assert not surest or len({frozenset(item.owners) for item in contradicting if item in surest}) > 1
    assert answer.confidence <= top


@given(disputes())
def test_what_lost_without_contradiction_is_said_by_the_answer(dispute: tuple[Hierarchy, list[Claim]]) -> None:
    hierarchy, claims = dispute
    answer = resolve(claims, hierarchy)
    contradicting = disagreements(answer, hierarchy)
    assert set(contradicting) <= set(answer.lost)
    said = {call for owner in answer.owners for call in hierarchy.stack(owner)}
    paths = {owner.path for owner in answer.owners}
    for item in set(answer.lost) - set(contradicting):
        assert said.issuperset(item.owners) or {owner.path for owner in item.owners} == paths


def test_the_surest_claim_wins_and_the_other_is_kept() -> None:
    weak, sure = claim("a.p", confidence=Confidence.INFERRED), claim("b")
    answer = resolve([weak, sure], NET)
    assert answer.module == "b"
    assert answer.confidence is Confidence.EXACT
    assert answer.lost == (weak,)
    assert answer.reason == ""


@pytest.mark.parametrize(
    ("more", "less"),
    [
        (("a.p",), ("a",)),
        (("a.p",), ("",)),
        (("a.p", "b"), ("a", "b")),
        (("a.p", "b"), ("a",)),
        (("a.p", "a.q"), ("a.p",)),
        (("a", "a.p"), ("a.p",)),
        (("a", "a.p"), ("a",)),
        (("a.p#1",), ("a.p", "a.p#1")),
    ],
)
def test_what_says_more_wins_at_the_same_confidence(more: tuple[str, ...], less: tuple[str, ...]) -> None:
    """A deeper module, further modules of a fused node, or one call where the other could not tell them apart."""
    answer = resolve([claim(*less), claim(*more, strategy="other")], NET)
    assert answer.modules == more
    assert answer.confidence is Confidence.EXACT
    assert [item.owners for item in answer.lost] == [claim(*less).owners]
    assert disagreements(answer, NET) == ()


def test_confidence_comes_before_depth() -> None:
    deep = claim("a.p", confidence=Confidence.STRONG)
    answer = resolve([claim("a"), deep], NET)
    assert (answer.module, answer.confidence) == ("a", Confidence.EXACT)
    assert disagreements(answer, NET) == (deep,)


@pytest.mark.parametrize(
    ("one", "other", "around"),
    [
        (("a.p",), ("a.q",), "a"),
        (("a.p",), ("b",), ""),
        (("a.p", "b"), ("a.q", "b"), ""),
        (("a.p",), ("a.p#1",), "a"),
        (("a.p",), ("a", "b"), ""),
    ],
)
def test_equally_sure_claims_that_contradict_meet_one_level_lower(
    one: tuple[str, ...], other: tuple[str, ...], around: str
) -> None:
    net = replace(NET, calls=(*NET.calls, CallSite(ModuleCall("a.p", 1), ModuleCall("a"))))
    claims = [claim(*one, strategy="one"), claim(*other, strategy="other"), claim("b", confidence=Confidence.INFERRED)]
    answer = resolve(claims, net)
    assert (answer.module, answer.confidence) == (around, Confidence.STRONG)
    assert set(claims[:2]) <= set(disagreements(answer, net))
    assert answer.evidence


def test_a_deeper_claim_takes_its_ancestor_out_of_the_dispute() -> None:
    answer = resolve([claim("a.p"), claim("a"), claim("")], NET)
    assert (answer.module, answer.confidence) == ("a.p", Confidence.EXACT)


def test_a_compromise_that_somebody_is_sure_of_is_no_compromise() -> None:
    guesses = [claim(name, confidence=Confidence.INFERRED) for name in ("a.p", "a.q")]
    assert resolve(guesses, NET).confidence is Confidence.FALLBACK
    answer = resolve([*guesses, claim("a")], NET)
    assert (answer.module, answer.confidence, len(answer.lost)) == ("a", Confidence.EXACT, 2)


def test_claims_that_nothing_encloses_leave_no_answer() -> None:
    answer = resolve([claim("a"), claim("#1")], NET)
    assert answer.owners == ()
    assert "contradict" in answer.reason
    assert len(disagreements(answer, NET)) == 2


def test_agreement_adds_evidence_once() -> None:
    other = replace(claim("a.p", strategy="other"), evidence=(Evidence(EvidenceKind.TRACE, "hooks"),))
    answer = resolve([claim("a.p"), claim("a.p", strategy="again"), other], NET)
    assert [str(item) for item in answer.evidence] == ["scope:test", "trace:hooks"]
    assert answer.lost == ()


def test_several_owners_have_a_common_ancestor() -> None:
    answer = resolve([claim("a.q", "a.p", "a.q")], NET)
    assert answer.modules == ("a.p", "a.q")
    assert answer.module == "a"


def test_claims_without_owners_are_no_claims() -> None:
    answer = resolve([claim()], NET, "nobody saw it")
    assert (answer.owners, answer.module, answer.confidence) == ((), None, Confidence.NONE)
    assert answer.reason == "nobody saw it"
    assert resolve([], NET).reason


def test_every_node_and_initializer_has_exactly_one_answer() -> None:
    made = graph(node("MatMul", "x w", "h", "mm"), node("Relu", "h", "y"), weights=["w", "v"])
    found = build_provenance(made, NET, {"h": [claim("a.p")]}, {"w": [claim("a.p")]}, Origin("s", "e"))
    assert list(found.nodes) == ["h", "y"]
    assert list(found.initializers) == ["w", "v"]
    assert found.attribution("mm").module == "a.p"
    assert found.attribution("y").reason == "not connected to any node with a known module"
    assert found.initializers["v"].reason


def test_claims_of_several_strategies_meet_in_one_answer() -> None:
    made = graph(node("MatMul", "x w", "h", "mm"), node("Relu", "h", "y"), weights=["w"])
    one = GraphClaims({"h": claim("a"), "y": claim("b")}, {"w": claim("a.p")})
    two = GraphClaims({"h": claim("a.p", strategy="two")}, {"w": claim("a.p", strategy="two")})
    found = build_provenance(made, NET, claims_by_node(one, two), claims_by_initializer(one, two), Origin("all", "e"))
    assert (found.attribution("h").module, found.attribution("y").module) == ("a.p", "b")
    assert len(found.attribution("h").lost) == 1
    assert found.initializers["w"].lost == ()


def test_a_module_that_owns_nothing_has_a_reason() -> None:
    net = tree({"": "Net", "a": "Block", "a.p": "Linear", "drop": "Dropout", "norm": "LayerNorm", "gone": "Linear"})
    reasons = explain_absent_modules(net, {"a.p"}, {"norm"})
    assert set(reasons) == {"", "a", "drop", "norm", "gone"}
    assert reasons["a"] == reasons[""] == "the modules inside of it issue all of its operators"
    assert reasons["norm"].startswith("the operators that it issues itself were removed by the exporter's optimizer")
    assert "exporter" in reasons["gone"]
    assert "optimizer" not in reasons["gone"]
    assert "issues none when evaluated" in reasons["drop"]
    assert "shared or removed" in explain_absent_modules(net, {"a.p"}, None)["drop"]


def test_a_module_that_did_not_run_is_not_missed() -> None:
    assert explain_absent_modules(tree({"": "Net", "spare": "Linear"}, ""), {""}, None) == {}
