"""Where numbers go wrong first, and what each call's numbers say."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.building import model, node
from tests.support.proof_stories import Comparison, numbers
from tests.support.verification import numbers as figures

from modelexport.record.hierarchy import Hierarchy
from modelexport.record.results.verification import CallNumbers, Divergence, Status, Tolerance
from modelexport.verify.divergence import compare_calls, find_first_divergence, merge_runs, summarize_calls

X, H, G, Y = (numbers(seed) for seed in range(4))
BELIEVED = {"x": X, "h": H, "g": G, "y": Y}
CALLS = {"a": "x > h", "b": "h > g", "c": "g > y", "": "x > y"}
CHAIN = model(node("Sin", "x", "h"), node("Cos", "h", "g"), node("Tan", "g", "y"))
TAGS = {"h": "a", "g": "b", "y": "c"}


def off(array: np.ndarray, noise: float = 0.1) -> np.ndarray:
    """The array with as much noise."""
    return array + numbers(50) * np.float32(noise)


def chain(**seen: np.ndarray) -> Comparison:
    return Comparison(CHAIN, TAGS, CALLS, BELIEVED).see(**{"x": X, "h": H, "g": G, "y": Y, **seen})


def found(compared: Comparison) -> Divergence | None:
    return find_first_divergence(
        compare_calls(compared.calls, compared.numbers),
        compared.numbers,
        compared.graph,
        compared.crossings,
        compared.record,
    )


def first(compared: Comparison) -> str:
    """The node and the calls that are named; the root is `.`"""
    one = found(compared)
    return "" if one is None else f"{one.node}: " + " ".join(str(call) or "." for call in one.calls)


def statuses(compared: Comparison) -> dict[str, str]:
    rows = summarize_calls(compare_calls(compared.calls, compared.numbers).values(), compared.record)
    return {str(row.call) or ".": str(row.status) for row in rows}


# the culprit


def test_where_all_agrees_nothing_diverges() -> None:
    assert first(chain()) == ""
    assert first(chain(h=off(H, 1e-6), g=off(G, 1e-6), y=off(Y, 1e-6))) == ""


@pytest.mark.parametrize(
    ("wrong", "culprit"), [("h g y", "h: a"), ("g y", "g: b"), ("y", "y: c"), ("h", "h: a"), ("h y", "h: a")]
)
def test_the_first_module_that_is_wrong_is_named_and_not_its_victims(wrong: str, culprit: str) -> None:
    assert first(chain(**{name: off(BELIEVED[name]) for name in wrong.split()})) == culprit


def test_a_module_that_was_left_out_is_the_culprit() -> None:
    proto = model(node("Sin", "x", "h"), node("Tan", "h", "y"))
    compared = Comparison(proto, {"h": "a", "y": "c"}, CALLS, BELIEVED).see(x=X, h=H, y=off(Y))
    assert first(compared) == "h: b"


def test_a_module_that_does_nothing_is_the_culprit() -> None:
    assert first(chain(g=H, y=off(Y))) == "g: b"


def test_what_is_said_of_the_culprit() -> None:
    one = found(chain(g=off(G), y=off(Y)))
    assert one is not None
    assert one.class_names == ("Block",)
    assert one.inputs is not None
    assert one.inputs.equal
    assert one.outputs.sqnr == pytest.approx(20, abs=3)
    assert not one.outputs.agrees


def test_the_innermost_module_is_named() -> None:
    proto = model(node("Sin", "x", "h"), node("Cos", "h", "y"))
    calls = {"a.fc": "x > h", "a.act": "h > y", "a": "x > y", "": "x > y"}
    for wrong, culprit in (({"h": off(H), "y": off(Y)}, "h: a.fc"), ({"y": off(Y)}, "y: a.act")):
        compared = Comparison(proto, {"h": "a.fc", "y": "a.act"}, calls, BELIEVED)
        assert first(compared.see(**{"x": X, "h": H, "y": Y, **wrong})) == culprit


def test_what_a_module_does_between_its_children_is_its_own() -> None:
    """The root makes g from a's result and hands it to c."""
    compared = Comparison(CHAIN, {"h": "a", "g": "", "y": "c"}, {**CALLS, "b": "x > x"}, BELIEVED)
    assert first(compared.see(x=X, h=H, g=off(G), y=off(Y))) == "g: ."


def test_a_call_that_the_run_does_not_have_may_be_the_culprit() -> None:
    calls = {call: text for call, text in CALLS.items() if call not in ("", "b")}
    compared = Comparison(CHAIN, {"h": "a", "g": "", "y": "c"}, calls, BELIEVED)
    one = found(compared.see(x=X, h=H, g=off(G), y=off(Y)))
    assert one is not None
    assert [str(call) for call in one.calls] == [""]
    assert one.inputs is None


def test_a_wrong_result_that_the_next_module_makes_good_again_is_found() -> None:
    assert first(chain(h=off(H))) == "h: a"


def test_a_result_that_is_spoiled_before_anybody_reads_it_is_found() -> None:
    proto = model(node("Sin", "x", "h"), node("Round", "h", "q"), node("Cos", "q", "g"), node("Tan", "g", "y"))
    compared = Comparison(proto, TAGS, CALLS, BELIEVED).see(x=X, h=H, q=off(H), g=off(G), y=off(Y))
    assert first(compared) == "q: a"


def test_a_fault_below_the_tolerance_is_found_where_it_begins() -> None:
    """a is off by what is allowed, and the others make more of it."""
    assert first(chain(h=off(H, 3e-5), g=off(G, 3e-4), y=off(Y))) == "h: a"


def test_a_fault_below_the_tolerance_is_none_if_nothing_comes_of_it() -> None:
    assert first(chain(h=off(H, 3e-5), g=off(G, 3e-5), y=off(Y, 3e-5))) == ""


def test_rounding_is_not_where_a_fault_begins() -> None:
    assert first(chain(h=off(H, 1e-6), g=off(G, 3e-6), y=off(Y))) == "y: c"


def test_numbers_of_few_bits_are_not_sudden() -> None:
    """The same fault below the tolerance, in a run that goes through half precision somewhere."""
    coarse = {"h": off(H, 3e-5), "g": G.astype(np.float16), "y": off(Y)}
    assert first(chain(**coarse)) == "y: c"


def test_what_is_lost_little_by_little_is_no_fault() -> None:
    """b loses what every module loses; only then something goes wrong."""
    lost = {"x": off(X, 1e-6), "h": off(H, 4e-6), "g": off(G, 1.5e-5)}
    assert 90 < chain(**lost).returned("b")["g"].sqnr < 100
    assert first(chain(**lost, y=off(Y))) == "y: c"


def test_all_modules_of_a_fused_node_are_named() -> None:
    proto = model(node("FusedConv", "x", "g"), node("Tan", "g", "y"))
    compared = Comparison(proto, {"g": "a b", "y": "c"}, CALLS, BELIEVED).see(x=X, g=off(G), y=off(Y))
    assert first(compared) == "g: b a"
    one = found(compared)
    assert one is not None
    assert one.class_names == ("Block", "Block")


def test_modules_that_were_not_compared_are_not_named() -> None:
    """Of two modules in one, only what comes out of the whole is known."""
    proto = model(node("FusedConv", "x", "g"), outputs="g")
    calls = {"a.fc": "x >", "a.act": "x >", "a": "x > g"}
    compared = Comparison(proto, {"g": "a.fc a.act"}, calls, BELIEVED).see(x=X, g=off(G))
    assert first(compared) == "g: a"


def test_the_later_call_of_a_module_is_told_from_the_first() -> None:
    calls = {"a": "x > h", "a#1": "h > g", "": "x > g"}
    proto = model(node("Sin", "x", "h"), node("Cos", "h", "g"), outputs="g")
    compared = Comparison(proto, {"h": "a", "g": "a#1"}, calls, BELIEVED).see(x=X, h=H, g=off(G))
    assert first(compared) == "g: a#1"


def test_a_wrong_value_among_several_inputs() -> None:
    proto = model(node("Sin", "x", "h"), node("Cos", "x", "g"), node("Add", "h g", "y"))
    calls = {"a": "x > h", "b": "x > g", "c": "h g > y", "": "x > y"}
    compared = Comparison(proto, TAGS, calls, BELIEVED).see(x=X, h=H, g=off(G), y=off(Y))
    assert first(compared) == "g: b"
    assert statuses(compared) == {"a": "ok", "b": "diverges", "c": "follows", ".": "diverges"}


def test_an_input_that_a_module_hands_on_is_no_culprit() -> None:
    """It was given in another width, so it is not quite the same."""
    calls = {"a": "x > h", "": "x > h x"}
    proto = model(node("Sin", "x", "h"), outputs="h x")
    exact = Tolerance(atol=0, rtol=0)
    compared = Comparison(proto, {"h": "a"}, calls, BELIEVED, exact).see(x=off(X, 1e-6), h=off(H))
    assert first(compared) == "h: a"


# what each call's numbers say


def test_the_culprit_diverges_and_its_victims_follow() -> None:
    assert statuses(chain(g=off(G), y=off(Y))) == {"a": "ok", "b": "diverges", "c": "follows", ".": "diverges"}
    assert set(statuses(chain()).values()) == {"ok"}


def test_who_was_given_nothing_that_is_known_diverges() -> None:
    compared = Comparison(CHAIN, TAGS, {**CALLS, "b": "> g"}, BELIEVED).see(x=X, h=H, g=off(G), y=off(Y))
    assert statuses(compared)["b"] == "diverges"
    one = found(compared)
    assert one is not None
    assert one.inputs is None


def test_a_module_that_the_record_does_not_have_is_of_no_class() -> None:
    compared = chain(g=off(G))
    nobody = replace(compared.record, hierarchy=Hierarchy.of([]))
    rows = summarize_calls(compare_calls(compared.calls, compared.numbers).values(), nobody)
    assert {row.class_name for row in rows} == {""}


def test_rows_are_in_the_order_in_which_calls_end_and_have_figures() -> None:
    compared = chain(g=off(G))
    rows = summarize_calls(compare_calls(compared.calls, compared.numbers).values(), compared.record)
    assert [str(row.call) for row in rows] == ["a", "b", "c", ""]
    assert [row.class_name for row in rows] == ["Block"] * 4
    assert rows[1].inputs is not None
    assert rows[1].inputs.equal
    assert rows[1].outputs == compared.returned("b")["g"]
    assert rows[2].inputs == rows[1].outputs


def test_what_was_not_compared_says_why() -> None:
    calls = {**CALLS, "silent": "x >"}
    compared = Comparison(CHAIN, TAGS, calls, BELIEVED).see(x=X, h=H, y=Y)
    rows = {
        str(row.call): row
        for row in summarize_calls(compare_calls(compared.calls, compared.numbers).values(), compared.record)
    }
    assert (rows["b"].status, rows["b"].outputs) == (Status.NOT_COMPARED, None)
    assert rows["b"].reason == "what it returned is not in the graph"
    assert rows["silent"].reason == "it returned no tensor that can be looked at"
    assert rows["a"].reason == ""


def test_what_was_fused_says_with_whom() -> None:
    """`a` and `b` are one node; `idle` hands on what `a` returned; `c` shares a constant with the others, no work."""
    proto = model(node("Fused", "x", "g"), node("Const", "", "k"), node("Cos", "g k", "y"))
    tags = {"g": "b a", "k": "a c", "y": "c"}
    calls = {"a": "x > h", "idle": "h > h", "b": "h > g", "c": "g > y", "": "x > y"}
    compared = Comparison(proto, tags, calls, BELIEVED).see(x=X, g=G, y=Y)
    rows = summarize_calls(compare_calls(compared.calls, compared.numbers).values(), compared.record)
    fused = {str(row.call) or ".": [str(call) for call in row.fused_with] for row in rows}
    assert fused == {"a": ["b"], "idle": ["b"], "b": [], "c": [], ".": []}
    assert {str(row.call): row.reason for row in rows if row.reason} == dict.fromkeys(
        ["a", "idle"], "fused with other modules"
    )


def test_what_goes_into_a_fused_node_goes_into_all_of_its_modules() -> None:
    """`b` and `c` are one node: what passes between is not seen, and `c` is not to blame for what `b` was given."""
    proto = model(node("Sin", "x", "h"), node("Fused", "h", "y"))
    compared = Comparison(proto, {"h": "a", "y": "b c"}, CALLS, BELIEVED).see(x=X, h=off(H), y=off(Y, 0.11))
    assert statuses(compared) == {"a": "diverges", "b": "not compared", "c": "follows", ".": "diverges"}
    rows = summarize_calls(compare_calls(compared.calls, compared.numbers).values(), compared.record)
    by_call = {str(row.call): row for row in rows}
    assert by_call["c"].inputs == by_call["a"].outputs
    assert (by_call["c"].lost or 0) < 3 < (by_call["a"].lost or 0)


def test_the_worst_of_several_results_counts() -> None:
    proto = model(node("Split", "x", "h g", num_outputs=2), node("Add", "h g", "y"))
    calls = {"a": "x > h g", "c": "h g > y", "": "x > y"}
    compared = Comparison(proto, {"h": "a", "y": "c"}, calls, BELIEVED).see(x=X, h=H, g=off(G), y=Y)
    assert statuses(compared) == {"a": "diverges", "c": "ok", ".": "ok"}
    assert first(compared) == "g: a"


# several samples


ROWS = st.builds(figures, st.sampled_from(["a", "b"]), st.none() | st.floats(0, 150), st.none() | st.floats(0, 150))


def how_bad(rows: tuple[CallNumbers, ...]) -> dict[str, tuple[Status, float | None]]:
    return {str(row.call): (row.status, None if row.outputs is None else row.outputs.sqnr) for row in rows}


@given(st.lists(st.lists(ROWS, max_size=2, unique_by=lambda row: row.call), max_size=4), st.data())
def test_the_order_of_samples_makes_no_difference(samples: list[list[CallNumbers]], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(samples))
    assert how_bad(merge_runs(shuffled)) == how_bad(merge_runs(samples))


@given(st.lists(ROWS, max_size=2, unique_by=lambda row: row.call))
def test_one_sample_says_what_it_says(rows: list[CallNumbers]) -> None:
    assert merge_runs([rows]) == merge_runs([rows, rows]) == tuple(rows)


def test_the_sample_in_which_a_call_did_worst_counts_as_a_whole() -> None:
    good, follows, bad, worse = (figures("a", *pair) for pair in ((130, 130), (30, 5), (120, 20), (125, 10)))
    assert merge_runs([[good], [follows], [worse], [bad]]) == (worse,)
    assert merge_runs([[good], [follows]]) == (follows,)


def test_the_worst_status_counts_whatever_the_order() -> None:
    ranked = {
        Status.DIVERGES: figures("a", 130, 20),
        Status.FOLLOWS: figures("a", 20, 20),
        Status.OK: figures("a", 130, 130),
        Status.NOT_COMPARED: figures("a", None, None),
    }
    assert [row.status for row in ranked.values()] == list(ranked)
    for (worse, one), (_, other) in combinations(ranked.items(), 2):
        assert merge_runs([[one], [other]])[0].status is merge_runs([[other], [one]])[0].status is worse


def test_one_sample_that_could_be_compared_is_enough() -> None:
    nothing = figures("a", None, None, reason="what it returned is not in the graph")
    (row,) = merge_runs([[nothing], [figures("a", 130, 130)]])
    assert (row.status, row.reason) == (Status.OK, "")


def test_calls_of_all_samples_are_listed_in_order() -> None:
    rows = merge_runs([[figures("a"), figures("b")], [figures("a"), figures("c")]])
    assert [str(row.call) for row in rows] == ["a", "b", "c"]
