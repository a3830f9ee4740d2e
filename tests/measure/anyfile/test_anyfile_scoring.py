"""An answer is right inside of the true owners, and nothing else is."""

from __future__ import annotations

import pytest
from measure.anyfile.scoring import Score, Verdict, has_true_class, judge_answer, score_record
from tests.support.building import module

from modelexport.record.hierarchy import CallSite, Hierarchy, ModuleCall
from modelexport.record.provenance import Attribution, Confidence, NodeEntry, Origin, Provenance, unattributed

PATHS = ("", "block", "block.conv", "block.norm", "other", "other.conv")
HIERARCHY = Hierarchy.of(
    [
        module("", "Net"),
        module("block", "Block"),
        module("block.conv", "Conv2d", aliases=["twin.conv"]),
        module("block.norm", "BatchNorm2d"),
        module("other", "Block"),
        module("other.conv", "Conv2d"),
    ],
    [CallSite(ModuleCall(path), ModuleCall(path.rpartition(".")[0]) if path else None) for path in PATHS],
)


def attribution(*paths: str, confidence: Confidence = Confidence.STRONG) -> Attribution:
    calls = tuple(map(ModuleCall.parse, paths))
    return Attribution(calls, HIERARCHY.common_ancestor(calls), confidence)


class TestVerdict:
    @pytest.mark.parametrize(
        ("truth", "answer", "verdict"),
        [
            ("block.conv", "block.conv", Verdict.RIGHT),
            ("block.conv", "block", Verdict.SHALLOW),
            ("block.conv", "", Verdict.SHALLOW),
            ("block.conv", "block.norm", Verdict.WRONG),
            ("block.conv", "other.conv", Verdict.WRONG),
            ("block.conv", "block.conv block.norm", Verdict.WRONG),
            ("block", "block.conv", Verdict.WRONG),
            ("block.conv block.norm", "block.conv", Verdict.RIGHT),
            ("block.conv block.norm", "block.norm block.conv", Verdict.RIGHT),
            ("block.conv block.norm", "block", Verdict.RIGHT),
            ("block.conv block.norm", "", Verdict.SHALLOW),
            ("block.conv block.norm", "block.conv other", Verdict.WRONG),
            ("block.conv other.conv", "", Verdict.RIGHT),
            ("block.conv other.conv", "block", Verdict.WRONG),
            # Calls and names of one module are not told apart.
            ("block.conv#2", "block.conv", Verdict.RIGHT),
            ("block.conv", "twin.conv", Verdict.RIGHT),
        ],
    )
    def test_modules(self, truth: str, answer: str, verdict: Verdict) -> None:
        true, given = (attribution(*(paths.split(" ") if paths else [""])) for paths in (truth, answer))
        assert judge_answer(given, true, HIERARCHY) is verdict

    def test_the_root_may_be_the_truth(self) -> None:
        assert judge_answer(attribution(""), attribution(""), HIERARCHY) is Verdict.RIGHT
        assert judge_answer(attribution("block"), attribution(""), HIERARCHY) is Verdict.WRONG

    def test_a_default_is_no_answer_even_if_it_is_true(self) -> None:
        default = attribution("", confidence=Confidence.FALLBACK)
        assert judge_answer(default, attribution(""), HIERARCHY) is Verdict.FALLBACK
        assert judge_answer(unattributed("nothing"), attribution("block"), HIERARCHY) is Verdict.FALLBACK


def test_a_class_is_that_of_an_owner_or_of_the_module_around_them() -> None:
    fused = attribution("block.conv", "block.norm")
    assert [
        name for name in ("Conv2d", "BatchNorm2d", "Block", "Net", "") if has_true_class(name, fused, HIERARCHY)
    ] == [
        "Conv2d",
        "BatchNorm2d",
        "Block",
    ]


def record(**owners: Attribution) -> Provenance:
    nodes = {key: NodeEntry(key, "", "Conv", owner) for key, owner in owners.items()}
    return Provenance(HIERARCHY, nodes, {}, Origin("test", "test"))


def test_scores_count_every_node_once() -> None:
    weak = Confidence.INFERRED
    truth = record(
        a=attribution("block.conv"),
        b=attribution("block.conv"),
        c=attribution("block.conv"),
        d=attribution("block.conv"),
        e=unattributed("made by a tool"),
    )
    answers = record(
        p=attribution("block.conv"),
        q=attribution("other.conv", confidence=weak),
        r=attribution("block"),
        s=attribution("", confidence=Confidence.FALLBACK),
        t=attribution("block"),
    )
    score, misses = score_record(answers, truth, dict(zip("pqrst", "abcde", strict=True)))
    assert score == Score(
        nodes=4, right=1, shallow=1, wrong=1, fallback=1, unknown=1, wrong_strong=1, class_right=2, class_known=3
    )
    assert [str(miss) for miss in misses] == [
        "wrong: Conv q is block.conv, not other.conv (inferred; )",
        "too shallow: Conv r is block.conv, not block (strong; )",
        "fallback: Conv s is block.conv, not (model) (fallback; )",
    ]
