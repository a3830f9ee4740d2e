"""What modules were given and returned finds its counterpart in a graph."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.building import model, node
from tests.support.proof_stories import Comparison, numbers

from modelexport.graph.sample import INF, NAN
from modelexport.record.results.verification import Difference, Tolerance

X, H, Y = (numbers(seed) for seed in range(3))
WRONG = H + numbers(7) * np.float32(0.1)
BELIEVED = {"x": X, "h": H, "y": Y}
CALLS = {"a": "x > h", "b": "h > y", "": "x > y"}
CHAIN = model(node("Sin", "x", "h"), node("Cos", "h", "y"))
TAGS = {"h": "a", "y": "b"}


def chain(**seen: np.ndarray) -> Comparison:
    return Comparison(CHAIN, TAGS, CALLS, BELIEVED).see(**seen)


def agree(found: dict[str, Difference]) -> dict[str, bool]:
    return {value: difference.agrees for value, difference in found.items()}


# what is right


def test_right_values_are_found_for_every_call() -> None:
    found = chain(x=X, h=H, y=Y)
    assert agree(found.given("a")) == agree(found.given("")) == {"x": True}
    assert agree(found.returned("a")) == agree(found.given("b")) == {"h": True}
    assert agree(found.returned("b")) == agree(found.returned("")) == {"y": True}


def test_noise_is_measured() -> None:
    found = chain(x=X, h=H * np.float32(1 + 1e-6), y=Y)
    assert found.returned("a")["h"].sqnr == pytest.approx(120, abs=1)
    assert found.returned("b")["y"].equal


def test_a_right_value_is_found_under_another_name_and_in_another_shape() -> None:
    proto = model(node("Sin", "x", "p"), node("Reshape", "p", "q"), node("Cos", "q", "y"))
    found = Comparison(proto, {"p": "a", "q": "b", "y": "b"}, CALLS, BELIEVED).see(x=X, p=H.reshape(-1), y=Y)
    assert agree(found.returned("a")) == agree(found.given("b")) == {"p": True}


def test_of_several_that_hold_the_same_the_closest_is_taken() -> None:
    proto = model(node("Sin", "x", "h"), node("Cast", "h", "q"), node("Cos", "q", "y"))
    for first, second, closest in ((1 + 1e-5, 1 + 1e-6, "q"), (1 + 1e-6, 1 + 1e-5, "h")):
        found = Comparison(proto, {"h": "a", "q": "a", "y": "b"}, CALLS, BELIEVED)
        found.see(h=H * np.float32(first), q=H * np.float32(second))
        assert list(found.returned("a")) == [closest]


def test_what_is_not_there_is_not_compared() -> None:
    found = chain(x=X, y=Y)
    assert found.returned("a") == found.given("b") == {}
    assert found.returned("b").keys() == {"y"}


def test_what_stays_inside_a_module_is_known_and_not_measured() -> None:
    inner = numbers(5)
    proto = model(node("Sin", "x", "p"), node("Neg", "p", "h"), node("Cos", "h", "y"))
    found = Comparison(proto, {**TAGS, "p": "a"}, CALLS, {**BELIEVED, "inner": inner}).see(x=X, p=inner, h=H, y=Y)
    assert set(found.numbers.known) == {"x", "p", "h", "y"}
    assert found.numbers.right.keys() == {0, 1, 2}
    assert agree(found.returned("a")) == {"h": True}


def test_the_tolerance_decides() -> None:
    for tolerance, agrees in (
        (Tolerance(), True),
        (Tolerance(atol=0, rtol=0), False),
        (Tolerance(min_sqnr=140), False),
    ):
        found = Comparison(CHAIN, TAGS, CALLS, BELIEVED, tolerance).see(h=H * np.float32(1 + 1e-6))
        assert agree(found.returned("a")) == {"h": agrees}


def test_few_bits_on_either_side_allow_more() -> None:
    half = H.astype(np.float16)
    assert agree(chain(h=half).returned("a")) == {"h": True}
    assert chain(h=half).returned("a")["h"].sqnr < 90
    believed = {**BELIEVED, "h": half}
    assert agree(Comparison(CHAIN, TAGS, CALLS, believed).see(h=H).returned("a")) == {"h": True}
    exact = Comparison(CHAIN, TAGS, CALLS, BELIEVED, Tolerance(rtol=0)).see(h=half)
    assert agree(exact.returned("a")) == {"h": False}


def test_whether_anything_has_few_bits() -> None:
    assert not chain(x=X, h=H, y=Y).numbers.is_coarse
    assert chain(x=X, h=H.astype(np.float16), y=Y).numbers.is_coarse
    assert Comparison(CHAIN, TAGS, CALLS, {**BELIEVED, "h": H.astype(np.float16)}).see(x=X).numbers.is_coarse


def test_whether_the_other_run_is_not_finite_either() -> None:
    infinite, number = H.copy(), Y.copy()
    infinite[0, 0], number[0, 0] = -np.inf, np.nan
    found = Comparison(CHAIN, TAGS, CALLS, {"x": X, "h": infinite, "y": number}).see(x=X, h=infinite, y=number)
    troubles = [
        (value, trouble) for value in "xhyz" for trouble in (INF, NAN) if found.numbers.has_trouble(value, trouble)
    ]
    assert troubles == [("h", INF), ("y", NAN)]


# what is wrong


def test_a_wrong_result_is_held_against_what_the_call_returned_and_the_next_was_given() -> None:
    found = chain(x=X, h=WRONG, y=Y)
    assert agree(found.returned("a")) == agree(found.given("b")) == {"h": False}
    assert agree(found.given("a")) == {"x": True}
    assert agree(found.returned("b")) == {"y": True}
    assert found.returned("a")["h"].sqnr == pytest.approx(20, abs=3)


def test_a_result_that_has_nothing_to_do_with_the_right_one_is_wrong_too() -> None:
    assert agree(chain(h=numbers(9)).returned("a")) == {"h": False}
    assert agree(chain(h=np.zeros_like(H)).returned("a")) == {"h": False}


def test_of_several_results_a_wrong_one_is_held_against_the_nearest() -> None:
    proto = model(node("Split", "x", "p q", num_outputs=2), node("Add", "p q", "y"))
    second = numbers(4)
    believed = {**BELIEVED, "second": second}
    for p, q in ((WRONG, second), (second, WRONG)):
        found = Comparison(proto, {"p": "a", "y": "b"}, {**CALLS, "a": "x > h second"}, believed).see(p=p, q=q)
        assert agree(found.returned("a")) == {"p": p is second, "q": q is second}


def test_a_right_value_counts_more_than_a_wrong_one_beside_it() -> None:
    proto = model(node("Sin", "x", "h"), node("Neg", "x", "p"), node("Add", "h p", "y"))
    for order in (("h", "p"), ("p", "h")):
        values = {"h": H, "p": WRONG}
        found = Comparison(proto, {"h": "a", "p": "a", "y": "b"}, CALLS, BELIEVED)
        found.see(x=X, **{name: values[name] for name in order})
        assert agree(found.returned("a")) == agree(found.given("b")) == {"h": True}


def test_a_wrong_value_in_another_shape_counts_if_it_looks_like_the_result() -> None:
    assert agree(chain(h=WRONG.reshape(-1)).returned("a")) == {"h": False}
    assert chain(h=numbers(9).reshape(-1)).returned("a") == {}


def test_what_cannot_be_the_result_is_not_compared() -> None:
    assert chain(h=numbers(9, 5)).returned("a") == {}
    assert chain(h=np.arange(24).reshape(2, 12)).returned("a") == {}


def test_a_value_that_stays_inside_is_nobodys_wrong_result() -> None:
    proto = model(node("Sin", "x", "p"), node("Neg", "p", "h"), node("Cos", "h", "y"))
    found = Comparison(proto, {"p": "a", "h": "a", "y": "b"}, CALLS, BELIEVED).see(p=numbers(9))
    assert found.returned("a") == {}


# what belongs elsewhere

THREE = {"x": X, "h": H, "g": numbers(3), "y": Y}
CALLS_OF_THREE = {"a": "x > h", "b": "h > g", "c": "g > y", "": "x > y"}
TAGS_OF_THREE = {"h": "a", "g": "b", "y": "c"}


def wired(read: str) -> Comparison:
    """Three modules in a row; the last one reads something else than it should."""
    proto = model(node("Sin", "x", "h"), node("Cos", "h", "g"), node("Sum", read, "y"))
    return Comparison(proto, TAGS_OF_THREE, CALLS_OF_THREE, THREE).see(x=X, h=H, g=THREE["g"], y=numbers(9))


def test_what_a_module_is_given_in_the_place_of_something_else_is_wrong() -> None:
    assert agree(wired("g").given("c")) == {"g": True}
    assert agree(wired("h").given("c")) == {"h": False}
    assert agree(wired("h").returned("a")) == agree(wired("h").given("b")) == {"h": True}
    assert agree(wired("h").returned("b")) == {"g": True}


def test_what_is_in_the_wrong_place_is_a_wrong_tag_where_the_model_returns_what_it_should() -> None:
    found = wired("h")
    found.numbers.finish(outputs_differ=False)
    assert agree(found.given("c")) == {"g": True}
    spoiled = between(x=X, h=H, q=WRONG)
    spoiled.numbers.finish(outputs_differ=False)
    assert agree(spoiled.given("b")) == {"q": False}


def test_what_a_module_is_given_besides_is_not() -> None:
    assert agree(wired("h g").given("c")) == agree(wired("g h").given("c")) == {"g": True}


def test_what_belongs_here_may_be_there_twice() -> None:
    proto = model(node("Sin", "x", "h"), node("Cos", "h", "g"), node("Identity", "g", "i"), node("Add", "h g", "y"))
    found = Comparison(proto, {**TAGS_OF_THREE, "i": "b"}, CALLS_OF_THREE, THREE)
    found.see(x=X, h=H, g=THREE["g"], i=THREE["g"])
    assert agree(found.given("c")) == {"g": True}


def test_what_is_surely_something_else_is_not_in_its_place() -> None:
    """In another shape, or of another size."""
    proto = model(node("Sin", "x", "h"), node("Reshape", "h", "r"), node("Cos", "h", "g"), node("Sum", "r s", "y"))
    small = numbers(8, 3)
    found = Comparison(proto, {**TAGS_OF_THREE, "r": "a"}, CALLS_OF_THREE, {**THREE, "s": small})
    found.see(x=X, s=small, h=H, r=H.reshape(-1), g=THREE["g"])
    assert agree(found.given("c")) == {"g": True}


def test_somebody_elses_result_is_not_the_right_one() -> None:
    """b does nothing: what it was given comes out of it."""
    proto = model(node("Sin", "x", "h"), node("Identity", "h", "g"), node("Tan", "g", "y"))
    found = Comparison(proto, TAGS_OF_THREE, CALLS_OF_THREE, THREE).see(x=X, h=H, g=H, y=numbers(9))
    assert agree(found.returned("b")) == agree(found.given("c")) == {"g": False}
    assert agree(found.returned("a")) == {"h": True}


def test_a_result_that_is_spoiled_beyond_recognition_inside_its_module_is_wrong() -> None:
    proto = model(node("Sin", "x", "p"), node("Neg", "p", "h"), node("Cos", "h", "y"))
    found = Comparison(proto, {**TAGS, "p": "a"}, CALLS, BELIEVED).see(x=X, p=H, h=numbers(9))
    assert agree(found.returned("a")) == agree(found.given("b")) == {"h": False}
    found.numbers.finish(outputs_differ=False)
    assert agree(found.returned("a")) == agree(found.given("b")) == {"p": True}


# what a tool put in between


TOOL = model(node("Sin", "x", "h"), node("Round", "h", "q"), node("Cos", "q", "y"))


def between(**seen: np.ndarray) -> Comparison:
    return Comparison(TOOL, TAGS, CALLS, BELIEVED).see(**seen)


def test_a_right_result_that_is_spoiled_before_anybody_reads_it_counts_as_wrong() -> None:
    found = between(x=X, h=H, q=WRONG, y=Y)
    assert agree(found.given("b")) == {"q": False}
    assert agree(found.returned("a")) == {"q": False}
    assert agree(found.given("a")) == {"x": True}


def test_a_result_that_is_not_spoiled_is_right() -> None:
    found = between(x=X, h=H, q=H, y=Y)
    assert agree(found.returned("a")) == agree(found.given("b")) == {"h": True}


def test_what_a_tool_makes_of_a_result_need_not_look_like_it() -> None:
    found = between(x=X, h=H, q=numbers(9), y=Y)
    assert agree(found.returned("a")) == agree(found.given("b")) == {"h": True}


def test_what_a_tool_makes_of_something_unknown_is_not_taken_for_a_result() -> None:
    assert between(x=X, q=numbers(9)).returned("a") == {}
    assert agree(between(x=X, q=WRONG).returned("a")) == {"q": False}


def test_what_a_module_makes_of_its_own_result_need_not_look_like_it() -> None:
    proto = model(node("Sin", "x", "h"), node("Neg", "h", "n"), node("Add", "h n", "y"))
    found = Comparison(proto, {**TAGS, "n": "a"}, CALLS, BELIEVED).see(x=X, h=H, n=numbers(9))
    assert agree(found.returned("a")) == agree(found.given("b")) == {"h": True}


def test_it_may_be_spoiled_in_several_steps() -> None:
    proto = model(node("Sin", "x", "h"), node("Div", "h w", "p"), node("Mul", "p w", "q"), node("Cos", "q", "y"))
    found = Comparison(proto, TAGS, CALLS, BELIEVED).see(x=X, h=H, p=numbers(9), q=WRONG)
    assert agree(found.returned("a")) == agree(found.given("b")) == {"q": False}


def test_what_was_made_from_something_else_altogether_did_not_spoil_it() -> None:
    proto = model(node("Sin", "x", "h"), node("Neg", "z", "q"), node("Add", "h q", "y"), inputs="x z")
    found = Comparison(proto, {**TAGS, "q": "a"}, CALLS, BELIEVED).see(x=X, h=H, q=WRONG)
    assert agree(found.returned("a")) == agree(found.given("b")) == {"h": True}


def test_what_is_made_from_another_known_value_did_not_spoil_this_one() -> None:
    """a's result goes on unharmed; something else that b reads is wrong and happens to look like it."""
    proto = model(
        node("Sin", "x", "h"), node("Neg", "h", "n"), node("Abs", "n", "q"), node("Add", "h q", "y"), outputs="y"
    )
    negated = numbers(6)
    found = Comparison(proto, {**TAGS, "n": "a", "q": "a"}, CALLS, {**BELIEVED, "n": negated})
    found.see(x=X, h=H, n=negated, q=WRONG)
    assert agree(found.given("b")) == {"h": True}
    assert agree(found.returned("a")) == {"h": True}
