from __future__ import annotations

import pytest
from tests.building import body, graph, node

from modelexport.errors import UserError
from modelexport.profiling.joining import join_events
from modelexport.profiling.timing import spread
from modelexport.record.profile import RawEvent, Span

SPANS = (Span(100, 50), Span(200, 50))


def event(name: str, op_type: str, start: float) -> RawEvent:
    return RawEvent(name, op_type, "CPUExecutionProvider", start, 2.0)


def test_events_by_the_name_of_their_node() -> None:
    made = graph(node("Relu", "x", "h", "first"), node("Neg", "h", "y", "second"))
    events = [event("second", "Neg", 120), event("first", "Relu", 110), event("first", "Relu", 210)]
    found, providers = join_events(events, SPANS, made)
    assert [(one.key, one.run, one.start, one.duration) for one in found] == [
        ("h", 0, 10, 2.0),
        ("y", 0, 20, 2.0),
        ("h", 1, 110, 2.0),
    ]
    assert providers == dict.fromkeys("hy", "CPUExecutionProvider")


def test_what_ran_before_after_and_between_the_runs_does_not_count() -> None:
    made = graph(node("Relu", "x", "y", "first"))
    found, _ = join_events([event("first", "Relu", start) for start in (90, 110, 160, 260)], SPANS, made)
    assert [(one.run, one.start) for one in found] == [(0, 10)]


def test_nodes_of_one_name_are_told_apart_by_their_order() -> None:
    made = graph(node("Relu", "x", "a", "same"), node("Relu", "a", "b", "same"), node("Neg", "b", "y", "same"))
    events = [event("same", "Relu", 110), event("same", "Relu", 120), event("same", "Neg", 130)]
    events += [event("same", "Relu", 210), event("same", "Relu", 220)]
    found, _ = join_events(events, SPANS, made)
    assert [(one.key, one.run) for one in found] == [("a", 0), ("b", 0), ("y", 0), ("a", 1), ("b", 1)]


def test_a_node_of_a_loop_runs_several_times() -> None:
    loop = body(node("Neg", "s", "t", "inner"), inputs="i k s", outputs="k t")
    made = graph(node("Loop", "_ _ x", "y", "outer", body=loop))
    events = [event("outer", "Loop", 101), *(event("inner", "Neg", 110 + place) for place in range(3))]
    found, _ = join_events(events, SPANS, made)
    assert [one.key for one in found] == ["y", *["y|body|t"] * 3]


def test_what_runs_inside_of_a_node_is_not_counted_twice() -> None:
    inner = body(node("Neg", "x", "t", "neg"), node("Exp", "t", "u", "exp"), outputs="u")
    outer = body(node("If", "x", "v", "inner", then_branch=inner), outputs="v")
    made = graph(node("If", "x", "y", "outer", then_branch=outer), node("Relu", "y", "z", "relu"))
    raw = [("outer", "If", 110, 30), ("inner", "If", 112, 20), ("neg", "Neg", 114, 5), ("exp", "Exp", 120, 6)]
    raw += [("relu", "Relu", 141, 4), ("outer", "If", 210, 9)]
    events = [RawEvent(name, op_type, "CPU", start, duration) for name, op_type, start, duration in raw]
    found, _ = join_events(events, SPANS, made)
    assert [(one.key.rpartition("|")[2], one.run, one.duration, one.own) for one in found] == [
        ("y", 0, 30, 10),
        ("v", 0, 20, 9),
        ("t", 0, 5, 5),
        ("u", 0, 6, 6),
        ("z", 0, 4, 4),
        ("y", 1, 9, 9),
    ]


class TestNamelessNodes:
    """Their events are called by their operator and a number."""

    MADE = graph(
        node("Relu", "x", "a"), node("Relu", "x", "b"), node("Neg", "a", "c", "named"), node("Add", "b c", "y")
    )

    def test_in_the_order_of_the_file_if_that_is_how_they_ran(self) -> None:
        events = [
            *(event("Relu_7", "Relu", 110), event("Relu_2", "Relu", 120), event("named", "Neg", 130)),
            *(event("Add_3", "Add", 140), event("Relu_2", "Relu", 210), event("Relu_7", "Relu", 220)),
        ]
        found, _ = join_events(events, SPANS, self.MADE)
        assert [one.key for one in found] == ["a", "b", "c", "y", "b", "a"]

    def test_else_in_the_order_of_their_numbers(self) -> None:
        events = [
            *(event("Relu_7", "Relu", 110), event("named", "Neg", 120), event("Relu_2", "Relu", 130)),
            event("Add_3", "Add", 140),
        ]
        found, _ = join_events(events, SPANS, self.MADE)
        assert [one.key for one in found] == ["b", "c", "a", "y"]

    def test_a_name_that_looks_like_a_number_is_a_name(self) -> None:
        made = graph(node("Relu", "x", "a", "Relu_1"), node("Relu", "a", "y"))
        found, _ = join_events([event("Relu_1", "Relu", 110), event("Relu_5", "Relu", 120)], SPANS, made)
        assert [one.key for one in found] == ["a", "y"]


@pytest.mark.parametrize(
    ("name", "op_type"), [("other", "Relu"), ("first", "Neg"), ("Relu_1", "Relu"), ("Relu_", "Relu")]
)
def test_the_profile_of_another_file(name: str, op_type: str) -> None:
    made = graph(node("Relu", "x", "y", "first"))
    with pytest.raises(UserError, match=f"another file: it has a {op_type} '{name}'") as caught:
        join_events([event(name, op_type, 110)], SPANS, made)
    assert caught.value.hint


def test_nothing_ran() -> None:
    assert join_events([], (), graph(node("Relu", "x", "y"))) == ([], {})


def test_how_far_runs_are_apart() -> None:
    assert spread([5.0]) == 0
    assert spread([0.0, 0.0]) == 0
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    assert spread([7.0] * 9) == 0
