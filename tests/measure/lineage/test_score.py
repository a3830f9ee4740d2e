"""Figures add up, and come back from JSON as they were."""

from __future__ import annotations

import json
from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st
from measure.lineage.score import Outcome, Result, Score, summed
from tests.support.tool_cases import result

counts = st.integers(0, 1000)
scores = st.builds(Score, *[counts] * len(fields(Score)))
results = st.builds(
    Result,
    st.text(),
    st.sampled_from(["dynamo", "torchscript"]),
    st.text(),
    st.sampled_from(Outcome),
    st.text(),
    st.dictionaries(st.sampled_from([0.0, 0.5, 0.9]), scores),
    st.booleans(),
    st.tuples(counts, counts),
    st.lists(st.text()).map(tuple),
)


@given(scores, scores)
def test_every_figure_is_added_to_itself(one: Score, other: Score) -> None:
    total = one + other
    for item in fields(Score):
        assert getattr(total, item.name) == getattr(one, item.name) + getattr(other, item.name)
    assert total == other + one
    assert one + Score() == one


@given(results)
def test_a_result_comes_back_from_json(one: Result) -> None:
    assert Result.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_sums_are_of_one_share_and_skip_what_has_no_scores() -> None:
    half = Result("net", "dynamo", "int8", Outcome.OK, scores={0.0: Score(nodes=1), 0.5: Score(nodes=10)})
    failed = Result("net", "dynamo", "int4", Outcome.FAILED, "no")
    assert summed([half, failed, result(nodes=100)], 0.5) == Score(nodes=110)
    assert summed([half, failed], 0.9) == summed([], 0.0) == Score()
