"""What `verify` answers with, and what follows from it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import building  # noqa: F401 - loads the profile
from tests.support.verification import difference, node, numbers, verification, wrong_in

from modelexport.record.hierarchy import ModuleCall
from modelexport.record.results.verification import (
    AttributionProof,
    Difference,
    NotFinite,
    ParameterCheck,
    ParameterDifference,
    Verdict,
)

_REAL = st.floats(allow_nan=False)
DIFFERENCES = st.builds(Difference, _REAL, _REAL, _REAL, _REAL, st.integers(0, 9), st.booleans())


# the worst of several


@given(st.lists(DIFFERENCES, min_size=1, max_size=5), st.data())
def test_the_worst_does_not_depend_on_the_order(found: list[Difference], data: st.DataObject) -> None:
    assert Difference.worst(data.draw(st.permutations(found))) == Difference.worst(found)


@given(st.lists(DIFFERENCES, min_size=1, max_size=5), st.integers(0, 5))
def test_the_worst_of_parts_is_the_worst_of_all(found: list[Difference], cut: int) -> None:
    parts = [Difference.worst(found[:cut]), Difference.worst(found[cut:])]
    assert Difference.worst(part for part in parts if part is not None) == Difference.worst(found)


@given(DIFFERENCES)
def test_the_worst_of_one_is_itself(one: Difference) -> None:
    assert Difference.worst([one]) == one


def test_what_could_not_be_measured_is_the_worst() -> None:
    unknown = Difference(math.nan, math.nan, -math.inf, math.nan, 4, agrees=False)
    fine = Difference(1.0, 1.0, 30.0, 0.5, 0, agrees=True)
    for order in ([unknown, fine], [fine, unknown]):
        worst = Difference.worst(order)
        assert worst is not None
        assert all(map(math.isnan, (worst.max_abs, worst.max_rel, worst.cosine)))


def test_nothing_has_no_worst() -> None:
    assert Difference.worst([]) is None


def test_every_figure_is_the_worst_one() -> None:
    one = Difference(1.0, 0.1, 30.0, 0.9, 2, agrees=True)
    other = Difference(0.5, 0.2, 20.0, 0.99, 1, agrees=False)
    assert Difference.worst([one, other]) == Difference(1.0, 0.2, 20.0, 0.9, 3, agrees=False)


# decibels lost


@pytest.mark.parametrize(
    ("given_db", "returned_db", "lost"),
    [
        (120.0, 20.0, 100.0),
        (20.0, 20.0, 0.0),
        (20.0, 60.0, 0.0),
        (math.inf, math.inf, 0.0),
        (math.inf, 130.0, 10.0),
    ],
)
def test_decibels_lost(given_db: float, returned_db: float, lost: float) -> None:
    assert numbers("fc", given_db, returned_db).lost == pytest.approx(lost)


@pytest.mark.parametrize(("given_db", "returned_db"), [(None, 100.0), (100.0, None), (None, None)])
def test_of_what_was_not_compared_no_loss_is_known(given_db: float | None, returned_db: float | None) -> None:
    assert numbers("fc", given_db, returned_db).lost is None


def test_calls_are_ranked_by_what_they_lose() -> None:
    calls = numbers("a", 100, 90), numbers("b", 100, 30), numbers("c", None, None), numbers("d", 30, 30)
    assert [item.call.path for item in verification(*calls).ranked()] == ["b", "a", "d", "c"]


# whether all is well


def test_all_is_well() -> None:
    proof = AttributionProof((node("h", Verdict.PROVED), node("y", Verdict.UNATTRIBUTED)))
    fine = replace(verification(numbers("a")), proof=proof, parameters=ParameterCheck(3))
    assert fine.ok
    assert fine.numbers_agree
    both = NotFinite("Inf", "h", (ModuleCall("a"),), both=True)
    assert replace(fine, not_finite=(both,)).ok
    # What goes no further than the module that it comes up in makes nothing wrong.
    assert replace(fine, not_finite=(NotFinite("NaN", "h", (), both=False),)).ok


def test_anything_that_is_wrong_is_not_ok() -> None:
    fine = verification(numbers("a"))
    assert not wrong_in("fc").ok
    assert not verification(output=difference(20)).ok
    assert not replace(fine, proof=AttributionProof((node("h", Verdict.CONTRADICTED),))).ok
    differing = ParameterDifference("a.weight", "a.weight", 0.1)
    assert not replace(fine, parameters=ParameterCheck(3, (differing,))).ok


def test_wrong_tags_do_not_make_numbers_wrong() -> None:
    proof = AttributionProof((node("h", Verdict.CONTRADICTED),))
    assert replace(verification(), proof=proof).numbers_agree
    assert not wrong_in("fc").numbers_agree


# verdicts


@given(st.lists(st.tuples(st.sampled_from(Verdict), st.sampled_from(["", "one", "two"]), st.booleans()), max_size=9))
def test_verdicts_are_counted(rows: list[tuple[Verdict, str, bool]]) -> None:
    nodes = [node(str(place), verdict, reason=why, compute=yes) for place, (verdict, why, yes) in enumerate(rows)]
    proof = AttributionProof(tuple(nodes))
    assert set(proof.counts) == set(Verdict)
    assert +Counter(proof.counts) == Counter(verdict for verdict, _, _ in rows)
    assert sum(proof.reasons.values()) == proof.counts[Verdict.NOT_PROVABLE]
    assert list(proof.reasons.values()) == sorted(proof.reasons.values(), reverse=True)
    assert len(proof.contradicted) == proof.counts[Verdict.CONTRADICTED]
    assert proof.compute == sum(yes for _, _, yes in rows)
    shown = (Verdict.PROVED, Verdict.ENCLOSED)
    assert proof.compute_shown == sum(yes for verdict, _, yes in rows if verdict in shown)
