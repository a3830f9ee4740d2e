"""Events of made-up profiles, joined with graphs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.building import body, graph, node

from modelexport.errors import UserError
from modelexport.graph.index import Graph
from modelexport.inspect.kernel_events import join_events
from modelexport.record.results.profile import RawEvent, RawRun


def event(
    name: str, op_type: str, index: int = 0, *bodies: tuple[RawEvent, ...], start: float = 0, duration: float = 2
) -> RawEvent:
    return RawEvent(name, op_type, index, "CPUExecutionProvider", start, duration, bodies)


def nameless(op_type: str, index: int, *bodies: tuple[RawEvent, ...]) -> RawEvent:
    return event(f"{op_type}_{index}", op_type, index, *bodies)


def run(*events: RawEvent, start: float = 0) -> RawRun:
    return RawRun(start, 50, 0, events)


def joined(made: Graph, *events: RawEvent) -> list[tuple[str, ...]]:
    """The last names of the keys that events of one run may be about."""
    found = join_events([run(*events)], made)
    return [tuple(key.rpartition("|")[2] for key in one.keys) for one in found]


def test_events_by_the_name_of_their_node() -> None:
    made = graph(node("Relu", "x", "h", "first"), node("Neg", "h", "y", "second"))
    first = run(event("first", "Relu", start=110), event("second", "Neg", 1, start=120), start=100)
    second = run(event("first", "Relu", start=210), event("second", "Neg", 1, start=220), start=200)
    found = join_events([first, second], made)
    assert [(one.keys, one.run, one.start, one.duration, one.provider) for one in found] == [
        (("h",), 0, 10, 2.0, "CPUExecutionProvider"),
        (("y",), 0, 20, 2.0, "CPUExecutionProvider"),
        (("h",), 1, 110, 2.0, "CPUExecutionProvider"),
        (("y",), 1, 120, 2.0, "CPUExecutionProvider"),
    ]


class TestOneName:
    MADE = graph(node("Relu", "x", "a", "same"), node("Relu", "x", "b", "same"), node("Add", "a b", "y", "same"))

    def test_in_the_order_of_the_file_if_that_is_how_they_ran(self) -> None:
        numbers = [event("same", "Relu", 2), event("same", "Relu", 3), event("same", "Add", 9)]
        assert joined(self.MADE, *numbers) == [("a",), ("b",), ("y",)]

    def test_not_charged_to_one_of_them_if_they_ran_in_another_order_than_they_are_numbered(self) -> None:
        """Either the file was written as it runs, or as it is numbered: the names fit both."""
        numbers = [event("same", "Relu", 3), event("same", "Relu", 2), event("same", "Add", 9)]
        assert joined(self.MADE, *numbers) == [("a", "b"), ("b", "a"), ("y",)]

    def test_other_names_tell_that_the_file_is_as_it_is_numbered(self) -> None:
        made = graph(
            *(node("Relu", "x", "a", "same"), node("Relu", "x", "b", "same")),
            *(node("Neg", "x", "c", "neg"), node("Sum", "a b c", "y", "sum")),
        )
        ran = [event("neg", "Neg", 2), event("same", "Relu", 1), event("same", "Relu", 0), event("sum", "Sum", 3)]
        assert joined(made, *ran) == [("c",), ("b",), ("a",), ("y",)]

    def test_each_of_them_if_there_is_no_order_at_all(self) -> None:
        made = graph(*self.MADE_NODES)
        ran = [event("sum", "Add", 0), event("same", "Relu", 1), event("neg", "Neg", 2), event("same", "Relu", 3)]
        assert joined(made, *ran) == [("y",), ("a", "b"), ("c",), ("a", "b")]

    MADE_NODES = (
        *(node("Relu", "x", "a", "same"), node("Relu", "x", "b", "same")),
        *(node("Neg", "b", "c", "neg"), node("Add", "a c", "y", "sum")),
    )


class TestNamelessNodes:
    """Their events are called by their operator and a number."""

    MADE = graph(
        node("Relu", "x", "a"), node("Relu", "x", "b"), node("Neg", "a", "c", "named"), node("Add", "b c", "y")
    )

    def test_in_the_order_of_the_file_if_that_is_how_they_ran(self) -> None:
        ran = [nameless("Relu", 2), nameless("Relu", 7), event("named", "Neg", 1), nameless("Add", 3)]
        assert joined(self.MADE, *ran) == [("a",), ("b",), ("c",), ("y",)]

    def test_else_in_the_order_of_their_numbers(self) -> None:
        ran = [nameless("Relu", 1), event("named", "Neg", 2), nameless("Relu", 0), nameless("Add", 3)]
        assert joined(self.MADE, *ran) == [("b",), ("c",), ("a",), ("y",)]

    def test_a_name_that_looks_like_a_number_is_a_name(self) -> None:
        made = graph(node("Relu", "x", "a", "Relu_1"), node("Relu", "a", "y"))
        assert joined(made, event("Relu_1", "Relu", 0), nameless("Relu", 1)) == [("a",), ("y",)]


class TestBodies:
    def test_a_node_of_a_loop_runs_several_times(self) -> None:
        loop = body(node("Neg", "s", "t", "inner"), inputs="i k s", outputs="k t")
        made = graph(node("Loop", "_ _ x", "y", "outer", body=loop))
        once = (event("inner", "Neg"),)
        found = join_events([run(event("outer", "Loop", 0, once, once, once, duration=9))], made)
        assert [one.keys for one in found] == [("y",), *[("y|body|t",)] * 3]
        assert [(one.depth, one.repeated) for one in found] == [(0, False), *[(1, True)] * 3]
        assert [one.own for one in found] == [3, 2, 2, 2]

    def test_what_runs_inside_of_a_node_is_not_counted_twice(self) -> None:
        inner = body(node("Neg", "x", "t", "neg"), node("Exp", "t", "u", "exp"), outputs="u")
        outer = body(node("If", "x", "v", "inner", then_branch=inner), outputs="v")
        made = graph(node("If", "x", "y", "outer", then_branch=outer), node("Relu", "y", "z", "relu"))
        deepest = (event("neg", "Neg", 0, duration=5), event("exp", "Exp", 1, duration=6))
        middle = (event("inner", "If", 0, deepest, duration=20),)
        found = join_events([run(event("outer", "If", 0, middle, duration=30), event("relu", "Relu", 1))], made)
        assert [(one.depth, one.repeated) for one in found] == [(depth, False) for depth in (0, 1, 2, 2, 0)]
        assert [(one.keys[0].rpartition("|")[2], one.duration, one.own) for one in found] == [
            *(("y", 30, 10), ("v", 20, 9), ("t", 5, 5), ("u", 6, 6)),
            ("z", 2, 2),
        ]

    @staticmethod
    def deciding(yes: tuple[str, str], no: tuple[str, str], name: str = "") -> Graph:
        """An If whose branches have two nodes each."""
        branches: dict[str, Any] = {
            branch: body(
                *(node(op, "x", f"{branch}_{place}", name) for place, op in enumerate(ops)), outputs=f"{branch}_1"
            )
            for branch, ops in (("then_branch", yes), ("else_branch", no))
        }
        return graph(node("If", "x", "y", **branches))

    @pytest.mark.parametrize("name", ["", "same"])
    def test_a_branch_is_known_by_all_that_ran_in_it(self, name: str) -> None:
        made = self.deciding(("Sin", "Cos"), ("Sin", "Exp"), name)
        for branch, last in (("then_branch", "Cos"), ("else_branch", "Exp")):
            ran = tuple(event(name or f"{op}_{place}", op, place) for place, op in enumerate(("Sin", last)))
            assert joined(made, nameless("If", 0, ran)) == [("y",), (f"{branch}_0",), (f"{branch}_1",)]

    @pytest.mark.parametrize("name", ["", "same"])
    def test_branches_that_look_alike_are_not_told_apart(self, name: str) -> None:
        made = self.deciding(("Sin", "Cos"), ("Sin", "Cos"), name)
        ran = tuple(event(name or f"{op}_{place}", op, place) for place, op in enumerate(("Sin", "Cos")))
        found = joined(made, nameless("If", 0, ran))
        assert found[0] == ("y",)
        assert [set(keys) for keys in found[1:]] == [
            {"then_branch_0", "else_branch_0"},
            {"then_branch_1", "else_branch_1"},
        ]

    @pytest.mark.parametrize("nested", [False, True])
    def test_a_branch_with_nodes_left_over_is_not_the_one_that_ran(self, nested: bool) -> None:
        """One Sin is also a part of the other branch; but a branch runs as a whole."""
        short = body(node("Sin", "x", "p"), outputs="p")
        long = body(node("Sin", "x", "q"), node("Sin", "q", "r"), outputs="r")
        ran = (nameless("Sin", 0),)
        if nested:
            short = body(node("If", "x", "m", then_branch=short), outputs="m")
            long = body(node("If", "x", "n", then_branch=long), outputs="n")
            ran = (nameless("If", 0, ran),)
        made = graph(node("If", "x", "y", then_branch=long, else_branch=short))
        assert joined(made, nameless("If", 0, ran)) == [("y",), *([("m",)] if nested else []), ("p",)]

    def test_what_is_nested_deeper_tells_what_is_around_it(self) -> None:
        def nesting(op: str, tag: str) -> object:
            inside = body(node(op, "x", f"{tag}_in"), outputs=f"{tag}_in")
            return body(node("If", "x", f"{tag}_out", then_branch=inside), outputs=f"{tag}_out")

        made = graph(node("If", "x", "y", then_branch=nesting("Sin", "yes"), else_branch=nesting("Cos", "no")))
        ran = nameless("If", 0, (nameless("If", 0, (nameless("Cos", 0),)),))
        assert joined(made, ran) == [("y",), ("no_out",), ("no_in",)]

    def test_two_ifs_of_one_name_are_told_apart_by_what_ran_inside(self) -> None:
        first = body(node("Sin", "x", "p"), outputs="p")
        second = body(node("Cos", "x", "q"), outputs="q")
        made = graph(node("If", "x", "a", then_branch=first), node("If", "x", "b", then_branch=second))
        ran = [nameless("If", 1, (nameless("Cos", 0),)), nameless("If", 0, (nameless("Sin", 0),))]
        assert joined(made, *ran) == [("b",), ("q",), ("a",), ("p",)]


class TestAnotherFile:
    @pytest.mark.parametrize(
        ("name", "op_type"), [("other", "Relu"), ("first", "Neg"), ("Relu_1", "Relu"), ("Relu_", "Relu")]
    )
    def test_a_kernel_that_the_graph_does_not_have(self, name: str, op_type: str) -> None:
        made = graph(node("Relu", "x", "y", "first"))
        with pytest.raises(UserError, match=f"another file: it has a {op_type} '{name}'") as caught:
            join_events([run(event(name, op_type, 1))], made)
        assert caught.value.hint

    def test_kernels_that_ran_elsewhere(self) -> None:
        branch = body(node("Sin", "x", "t", "sin"), outputs="t")
        made = graph(node("If", "x", "y", "if", then_branch=branch))
        with pytest.raises(UserError, match="another file: its kernels are not those of the graph"):
            join_events([run(event("if", "If"), event("sin", "Sin", 1))], made)


def test_nothing_ran() -> None:
    assert join_events([], graph(node("Relu", "x", "y"))) == []
