"""Whether a result is what its row says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure.corpus.outcome import Expected, Outcome, Result, change, settled

expectations = st.builds(Expected, st.sampled_from(Outcome), st.text(max_size=4))
results = st.builds(Result, st.just("a"), st.just("dynamo"), st.sampled_from(Outcome), st.text(max_size=6))

REFUSED = Expected(Outcome.REFUSED, "RuntimeError: no")


@pytest.mark.parametrize(
    ("expected", "outcome", "reason", "told"),
    [
        (Expected(Outcome.OK), Outcome.OK, "", ""),
        (REFUSED, Outcome.REFUSED, "RuntimeError: no, at 0x7f", ""),
        (REFUSED, Outcome.OK, "", "expected refused (RuntimeError: no), found ok"),
        (REFUSED, Outcome.REFUSED, "ValueError: no", "refused for another reason"),
        (REFUSED, Outcome.UNRUNNABLE, "RuntimeError: no", "found unrunnable (RuntimeError: no)"),
        (Expected(Outcome.OK), Outcome.DEFECT, "Add x", "expected ok, found defect (Add x)"),
        (Expected(Outcome.OK), Outcome.TIMED_OUT, "after 1 s", "found timed out (after 1 s)"),
    ],
)
def test_a_change_is_told(expected: Expected, outcome: Outcome, reason: str, told: str) -> None:
    found = change(expected, Result("a", "dynamo", outcome, reason))
    assert told in found
    assert bool(found) == bool(told)


@given(expectations, results)
def test_settling_hides_no_change_and_only_cuts_the_reason(expected: Expected, result: Result) -> None:
    cut = settled(expected, result)
    assert change(expected, cut) == change(expected, result)
    assert settled(expected, cut) == cut
    assert result.reason.startswith(cut.reason)
    assert cut.outcome is result.outcome
