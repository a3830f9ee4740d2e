"""What verify found becomes a result: nothing is lost, and a wrong tag is never an expected one."""

from __future__ import annotations

import pytest
from measure.corpus.rows import Outcome
from measure.corpus.verify_row import count_verdicts, judge_unrunnable, judge_verification
from measure.results import first_line

import modelexport as mx
from modelexport.errors import RuntimeFailed
from modelexport.record.results.verification import (
    AttributionProof,
    Difference,
    Divergence,
    NodeProof,
    Tolerance,
    Verdict,
    Verification,
)
from modelexport.record.signals import OutputCheck

A, B = mx.ModuleCall("a"), mx.ModuleCall("b", 1)
FAR = Difference(1.0, 1.0, 3.0, 0.5, 0, agrees=False)
NEAR = Difference(0.0, 0.0, 150.0, 1.0, 0, agrees=True)


def node(verdict: Verdict, reason: str = "", *, compute: bool = True) -> NodeProof:
    return NodeProof("x", "name", "Add", (A,), verdict, reason, (B,), compute)


def found(*nodes: NodeProof, diverges_at: tuple[mx.ModuleCall, ...] = (), output: Difference = NEAR) -> Verification:
    divergence = Divergence(diverges_at, ("Linear",), "x", NEAR, FAR) if diverges_at else None
    proof = AttributionProof(nodes)
    return Verification("f", "m", 1, Tolerance(), (), {"y": output}, divergence=divergence, proof=proof)


PROVED = node(Verdict.PROVED)


def test_nothing_wrong_is_ok() -> None:
    result = judge_verification("row", "dynamo", found(PROVED, node(Verdict.NOT_PROVABLE, "an integer", compute=False)))
    assert (result.outcome, result.reason, result.defects) == (Outcome.OK, "", ())


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (found(PROVED, diverges_at=(A, B), output=FAR), "a, b#1"),
        (found(PROVED, diverges_at=(mx.ModuleCall(""),)), "(model)"),
        (found(PROVED, output=FAR), "output y"),
    ],
)
def test_wrong_numbers_are_placed(found: Verification, reason: str) -> None:
    result = judge_verification("row", "dynamo", found)
    assert (result.outcome, result.reason) == (Outcome.DIVERGES, reason)
    assert result.proof is not None


@pytest.mark.parametrize("verdict", [Verdict.CONTRADICTED, Verdict.UNATTRIBUTED])
def test_a_wrong_tag_is_a_defect_whatever_the_numbers(verdict: Verdict) -> None:
    bad = node(verdict, "another made it")
    result = judge_verification("row", "dynamo", found(PROVED, bad, bad, diverges_at=(A,)))
    assert result.outcome is Outcome.DEFECT
    assert result.defects == ("Add x is credited to a; values say b#1: another made it",) * 2


def test_verdicts_are_counted() -> None:
    enclosed, hidden = node(Verdict.ENCLOSED), node(Verdict.NOT_PROVABLE, "few numbers")
    shape = node(Verdict.NOT_PROVABLE, "an integer", compute=False)
    proof = count_verdicts(
        AttributionProof((PROVED, PROVED, enclosed, hidden, hidden, shape, node(Verdict.CONTRADICTED, "no")))
    )
    assert (proof.nodes, proof.proved, proof.enclosed, proof.not_provable) == (7, 2, 1, 3)
    assert (proof.contradicted, proof.unattributed) == (1, 0)
    assert (proof.compute, proof.compute_shown) == (6, 3)
    assert proof.open == {"few numbers": 2, "no": 1}
    assert proof.open_rest == {"an integer": 1}


@pytest.mark.parametrize(
    ("check", "outcome"),
    [
        (OutputCheck(True, 0.0, 0.0), Outcome.DEFECT),
        (OutputCheck(False, 1.0, 1.0, "it cannot run"), Outcome.UNRUNNABLE),
        (None, Outcome.UNRUNNABLE),
    ],
)
def test_a_file_that_ran_once_can_be_run(check: OutputCheck | None, outcome: Outcome) -> None:
    result = judge_unrunnable("row", "dynamo", check, RuntimeFailed("no such kernel\nlook here", "hint"))
    assert (result.outcome, result.reason) == (outcome, "no such kernel")


def test_the_first_line_that_says_something() -> None:
    assert first_line("\n  one\ntwo") == "one"
