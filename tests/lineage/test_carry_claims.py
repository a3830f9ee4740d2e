from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.building import claim, claims_on, hierarchies, owners

from modelexport.lineage.inherit import carry_claims
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.lineage import Link, Relation
from modelexport.record.provenance import Claim, Confidence, Evidence, EvidenceKind


def test_a_kept_node_keeps_its_claim() -> None:
    before = {"a": claim("p")}
    assert carry_claims(before, {"a": Link(("a",), Relation.KEPT)}, "tool") == before


def test_a_fused_node_belongs_to_all_of_its_sources() -> None:
    before = {"c": claim("conv"), "n": claim("bn", confidence=Confidence.STRONG), "m": claim("conv")}
    (found,) = carry_claims(before, {"n": Link(("c", "n", "m"), Relation.FUSED)}, "tool").values()
    assert owners({"n": found}) == {"n": ("conv", "bn")}
    assert found.confidence is Confidence.STRONG
    assert Evidence(EvidenceKind.LINEAGE, "tool", "fused from 3") in found.evidence
    assert Evidence(EvidenceKind.SCOPE, "test") in found.evidence
    assert len(found.evidence) == 2


def test_a_node_whose_sources_nobody_knows_stays_unknown() -> None:
    links = {"a": Link(("gone",), Relation.KEPT), "b": Link((), Relation.INTRODUCED)}
    assert carry_claims({"other": claim("p")}, links, "tool") == {}


@st.composite
def lineages(draw: st.DrawFn) -> tuple[dict[str, Claim], dict[str, Link]]:
    hierarchy: Hierarchy = draw(hierarchies())
    said = st.dictionaries(st.sampled_from("abcd"), claims_on(hierarchy), min_size=1)
    sources = st.lists(st.sampled_from("abcd"), max_size=4, unique=True).map(tuple)
    several = st.builds(Link, sources, st.sampled_from([item for item in Relation if item is not Relation.KEPT]))
    kept = st.builds(Link, st.tuples(st.sampled_from("abcd")), st.just(Relation.KEPT))
    return draw(said), draw(st.dictionaries(st.sampled_from("wxyz"), several | kept))


@given(lineages())
def test_lineage_never_raises_confidence(value: tuple[dict[str, Claim], dict[str, Link]]) -> None:
    before, links = value
    for key, found in carry_claims(before, links, "tool").items():
        known = [before[source] for source in links[key].sources if source in before]
        assert all(found.confidence <= source.confidence for source in known)
        assert {call for source in known for call in source.owners} == set(found.owners)


@given(lineages())
def test_carrying_twice_over_kept_nodes_is_carrying_once(value: tuple[dict[str, Claim], dict[str, Link]]) -> None:
    before, links = value
    once = carry_claims(before, links, "tool")
    assert carry_claims(once, {key: Link((key,), Relation.KEPT) for key in links}, "another") == once
