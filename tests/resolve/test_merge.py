from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.building import claim, claims_on, graph, hierarchies, node, tree

from modelexport.record.evidence import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.provenance import Origin
from modelexport.resolve.merge import resolve
from modelexport.resolve.provenance import absent_modules, build_provenance

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
    assert set(answer.evidence) <= set(more.evidence)
    assert more.lost == answer.lost


@given(disputes())
def test_an_answer_has_owners_or_a_reason_and_forgets_no_claim(dispute: tuple[Hierarchy, list[Claim]]) -> None:
    hierarchy, claims = dispute
    answer = resolve(claims, hierarchy)
    assert bool(answer.owners) != bool(answer.reason)
    assert answer.ancestor == hierarchy.common_ancestor(answer.owners)
    for item in claims:
        assert not item.owners or item in answer.lost or set(item.owners) == set(answer.owners)


def test_the_surest_claim_wins_and_the_other_is_kept() -> None:
    weak, sure = claim("a.p", confidence=Confidence.INFERRED), claim("b")
    answer = resolve([weak, sure], NET)
    assert answer.module == "b"
    assert answer.confidence is Confidence.EXACT
    assert answer.lost == (weak,)
    assert answer.reason == ""


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
    found = build_provenance(made, NET, {"h": claim("a.p")}, {"w": claim("a.p")}, Origin("s", "e"))
    assert list(found.nodes) == ["h", "y"]
    assert list(found.initializers) == ["w", "v"]
    assert found.attribution("mm").module == "a.p"
    assert found.attribution("y").reason == "not connected to any node with a known module"
    assert found.initializers["v"].reason


def test_a_module_that_owns_nothing_has_a_reason() -> None:
    net = tree({"": "Net", "a": "Block", "a.p": "Linear", "drop": "Dropout", "norm": "LayerNorm", "gone": "Linear"})
    reasons = absent_modules(net, {"a.p"}, {"norm"})
    assert set(reasons) == {"", "a", "drop", "norm", "gone"}
    assert reasons["a"] == reasons[""] == "the modules inside of it issue all of its operators"
    assert "exporter's optimizer" in reasons["norm"]
    assert "exporter" in reasons["gone"]
    assert "optimizer" not in reasons["gone"]
    assert "issues none when evaluated" in reasons["drop"]
    assert "shared or removed" in absent_modules(net, {"a.p"}, None)["drop"]


def test_a_module_that_did_not_run_is_not_missed() -> None:
    assert absent_modules(tree({"": "Net", "spare": "Linear"}, ""), {""}, None) == {}
