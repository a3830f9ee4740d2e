"""Who issued what."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from tests.support.proof_stories import Story, numbers

from modelexport.graph.sample import sample
from modelexport.verify.witness import find_first_difference

X, H, G, Y = (numbers(seed) for seed in range(4))
# a makes h from x, b turns it around, c makes g from that, the root makes y from g and a weight
STORY = (
    Story(x=X)
    .holds(w=numbers(9))
    .op("a", "x w", h=H)
    .view("b", "h", flat=H.reshape(-1))
    .op("c", "flat", g=G)
    .op("", "g w", y=Y)
)


def issued(story: Story, array: np.ndarray) -> list[tuple[str, bool]]:
    return [(str(issue.op.call) or ".", issue.new) for issue in story.sources.issued_like(sample(array))]


def worked(story: Story, array: np.ndarray, known: str = "") -> Iterable[str]:
    """The calls that worked on a value since what is known."""
    sources = story.sources
    (issue,) = [one for one in sources.issued_like(sample(array)) if one.new]
    numbers_known = {story.number(name) for name in known.split()}
    return sorted({str(op.call) or "." for op in sources.operators_behind(issue, numbers_known)})


def test_a_value_is_issued_by_the_call_whose_operator_made_it() -> None:
    assert issued(STORY, G) == [("c", True)]
    assert issued(STORY, Y) == [(".", True)]


def test_a_view_passes_on_what_it_reads() -> None:
    assert issued(STORY, H) == [("a", True), ("b", False)]


def test_a_cast_passes_on_too() -> None:
    story = Story(x=X).op("a", "x", h=H).op("b", "h", half=H.astype(np.float16))
    assert issued(story, H.astype(np.float16)) == [("b", False)]


def test_what_adds_nothing_to_one_of_its_inputs_passes_that_on() -> None:
    story = Story(x=X).holds(w=numbers(9)).op("a", "x", h=H).op("b", "h w", same=H)
    assert issued(story, H) == [("a", True), ("b", False)]


def test_a_transposition_is_something_new() -> None:
    story = Story(x=X).op("a", "x", h=H).op("b", "h", turned=np.ascontiguousarray(H.T))
    assert issued(story, np.ascontiguousarray(H.T)) == [("b", True)]


def test_all_that_issued_the_same_are_found() -> None:
    story = Story(x=X).op("a", "x", h=H).op("b", "x", again=H)
    assert issued(story, H) == [("a", True), ("b", True)]


def test_what_was_not_computed_was_not_issued() -> None:
    story = Story(x=X).holds(w=numbers(9)).op("a", "w", turned=numbers(8)).op("a", "x turned", h=H)
    assert issued(story, numbers(9)) == []
    assert issued(story, numbers(8)) == []
    assert issued(story, X) == []
    assert issued(story, H) == [("a", True)]


def test_the_shape_of_an_issue() -> None:
    sources = STORY.sources
    assert [sources.shape(issue) for issue in sources.issued_like(sample(H))] == [H.shape, (H.size,)]


def test_numbers_of_what_holds_the_same() -> None:
    sources = STORY.sources
    assert sources.numbers_like(sample(H.T.reshape(-1))) == ()
    assert set(sources.numbers_like(sample(H.reshape(4, 6)))) == {STORY.number("h"), STORY.number("flat")}


def test_an_input_is_one_in_any_shape() -> None:
    sources = Story(x=X, ids=np.arange(9)).op("a", "x", h=H).sources
    assert sources.is_input(sample(X))
    assert sources.is_input(sample(X.reshape(-1)))
    assert sources.is_input(sample(np.arange(9).reshape(3, 3)))
    assert not sources.is_input(sample(H))


def test_what_looks_at_an_input_is_one() -> None:
    turned = np.ascontiguousarray(X.T)
    sources = (
        Story(x=X).view("a", "x", part=X[:, :8]).view("b", "part", less=X[:1, :8]).op("c", "x", turned=turned).sources
    )
    assert sources.is_input(sample(X[:, :8]))
    assert sources.is_input(sample(X[0, :8]))
    assert not sources.is_input(sample(turned))


def test_who_has_hooks() -> None:
    assert Story(x=X).hooks("a").sources.hooked == {"a"}


# who did the work


def test_a_value_made_from_what_is_known_is_the_work_of_its_issuer() -> None:
    assert worked(STORY, Y, known="g") == ["."]
    assert worked(STORY, G, known="flat") == ["c"]


def test_work_goes_back_to_what_is_known() -> None:
    assert worked(STORY, Y, known="h flat") == [".", "c"]
    assert worked(STORY, Y) == [".", "a", "c"]


def test_who_only_passes_on_did_no_work() -> None:
    assert "b" not in worked(STORY, Y)
    story = Story(x=X).op("a", "x", h=H).op("b", "h", copy=H).op("c", "copy", y=Y)
    assert worked(story, Y) == ["a", "c"]


def test_who_looks_at_a_part_did_no_work() -> None:
    story = Story(x=X).op("a", "x", h=H).view("b", "h", part=H[:1]).op("c", "part", y=Y)
    assert worked(story, Y) == ["a", "c"]
    assert worked(story, H[:1]) == ["a", "b"]


def test_work_on_weights_does_not_count() -> None:
    story = Story(x=X).holds(w=numbers(9)).op("a", "w", turned=numbers(8)).op("b", "x turned", h=H)
    assert worked(story, H) == ["b"]


def test_every_way_back_is_gone() -> None:
    story = (
        Story(x=X)
        .op("a", "x", left=numbers(5))
        .op("b", "x", right=numbers(6))
        .op("c", "left right left", h=H)
        .op("d", "h left", y=Y)
    )
    assert worked(story, Y) == ["a", "b", "c", "d"]
    assert worked(story, Y, known="left") == ["b", "c", "d"]
    assert worked(story, Y, known="left right") == ["c", "d"]


# two runs


def told(story: Story, **instead: np.ndarray) -> str:
    other = Story()
    other.arrays = {**story.arrays, **instead}
    return find_first_difference(story.run, story.samples, other.samples)


def test_runs_that_are_alike_differ_nowhere() -> None:
    assert told(STORY) == ""
    assert told(STORY, h=H * np.float32(1 + 1e-7)) == ""


@pytest.mark.parametrize(("name", "call"), [("h", "a"), ("g", "c"), ("y", "the model itself")])
def test_the_first_call_that_differs_is_named(name: str, call: str) -> None:
    assert told(STORY, **{name: numbers(20), "y": numbers(21)}) == call


def test_one_of_several_results_is_enough() -> None:
    story = Story(x=X).op("a", "x", h=H, g=G).op("b", "h", y=Y)
    assert told(story, g=numbers(20)) == told(story, h=numbers(20)) == "a"


def test_later_calls_have_their_number() -> None:
    story = Story(x=X).op("a", "x", h=H).op("a#1", "h", y=Y)
    assert told(story, y=G) == "a#1"


def test_a_run_that_ends_early_differs_where_it_ends() -> None:
    assert find_first_difference(STORY.run, STORY.samples, STORY.samples[:3]) == "b"
