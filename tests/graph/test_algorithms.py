"""The algorithms that the rooms share, held against what they are by definition."""

from __future__ import annotations

import random

import onnx
from hypothesis import given
from hypothesis import strategies as st

from modelexport.graph.algorithms import UnionFind, ValueNumbers, backward_slice, topological_order
from modelexport.graph.index import index_model

_EDGES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=40)


def _closure(starts: set[int], edges: list[tuple[int, int]]) -> set[int]:
    reached = set(starts)
    while more := {source for source, target in edges if target in reached} - reached:
        reached |= more
    return reached


class TestBackwardSlice:
    @given(st.sets(st.integers(0, 12)), _EDGES)
    def test_is_what_leads_to_the_starts(self, starts: set[int], edges: list[tuple[int, int]]) -> None:
        found = backward_slice(starts, lambda item: [source for source, target in edges if target == item])
        assert set(found) == _closure(starts, edges)
        assert len(found) == len(set(found))

    def test_each_item_is_asked_once(self) -> None:
        asked: list[int] = []

        def makers(item: int) -> list[int]:
            asked.append(item)
            return list(range(item))  # every earlier item, so that each can be reached in many ways

        backward_slice([60], makers)
        assert sorted(asked) == list(range(61))

    def test_gives_up_at_the_limit(self) -> None:
        assert len(backward_slice([100], lambda item: [item - 1], limit=7)) == 7


class TestValueNumbers:
    def test_operands_of_a_commutative_operator_may_change_places(self) -> None:
        numbers = ValueNumbers()
        assert numbers.number_operation("Max", (1, 2, 3), commutative=True) == numbers.number_operation(
            "Max", (3, 1, 2), commutative=True
        )
        assert numbers.number_operation("Sub", (1, 2), commutative=False) != numbers.number_operation(
            "Sub", (2, 1), commutative=False
        )

    def test_outputs_of_one_operation_differ(self) -> None:
        numbers = ValueNumbers()
        split = numbers.number_operation("Split", (1,), commutative=False)
        assert numbers.number_output(split, 0) != numbers.number_output(split, 1)

    def test_equal_computations_have_equal_numbers_however_deep(self) -> None:
        numbers = ValueNumbers()

        def compute(leaf: int) -> int:
            for _ in range(50):
                leaf = numbers.number_operation("Add", (leaf, leaf), commutative=True)
            return leaf

        assert compute(1) == compute(1)
        assert compute(1) != compute(2)


class TestUnionFind:
    @given(_EDGES)
    def test_groups_are_the_connected_components(self, edges: list[tuple[int, int]]) -> None:
        sets = UnionFind(range(13))
        for item, other in edges:
            sets.join(item, other)
        both_ways = [*edges, *((other, item) for item, other in edges)]
        groups = sets.groups()
        assert all(set(group) == _closure({group[0]}, both_ways) for group in groups)
        assert [group[0] for group in groups] == sorted(group[0] for group in groups)
        assert {item: number for number, group in enumerate(groups) for item in group} == sets.numbers()

    def test_join_tells_what_stands_for_both(self) -> None:
        sets = UnionFind("abc")
        joined = sets.join("a", "b")
        assert joined is not None
        assert set(joined) == {"a", "b"}
        assert sets.find("a") == sets.find("b") == joined[0]
        assert sets.join("b", "a") is None

    def test_a_long_chain_stays_flat(self) -> None:
        sets = UnionFind(range(2000))
        for item in range(1999):
            sets.join(item, item + 1)
        steps = 0
        for start in range(2000):
            item = start
            while sets._parents[item] != item:
                item, steps = sets._parents[item], steps + 1
        assert steps < 2 * 2000


class TestTopologicalOrder:
    @given(_EDGES)
    def test_each_comes_after_what_it_needs(self, edges: list[tuple[int, int]]) -> None:
        needs = {item: {low for low, high in edges if high == item and low < item} for item in range(13)}
        shuffled = dict(random.Random(0).sample(list(needs.items()), len(needs)))
        order = list(topological_order(shuffled, rank=int))
        assert sorted(order) == list(range(13))
        assert all(order.index(needed) < order.index(item) for item, others in needs.items() for needed in others)

    def test_the_lowest_rank_comes_first(self) -> None:
        assert list(topological_order({"a": {"z"}, "m": set(), "z": set()}, rank=ord)) == ["m", "z", "a"]

    def test_what_is_not_there_is_not_waited_for(self) -> None:
        assert list(topological_order({1: {99}}, rank=int)) == [1]

    def test_the_first_of_a_cycle_opens_it(self) -> None:
        assert list(topological_order({3: {1}, 1: {2}, 2: {3}, 0: {2}}, rank=int)) == [3, 2, 0, 1]


def test_nodes_of_a_body_run_before_the_node_that_holds_it() -> None:
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["": 17]>
        main (bool c, float[2] x) => (float[2] y) {
            z = Neg(x)
            y = If (c) <
                then_branch = yes () => (float[2] a) { a = Relu(z) },
                else_branch = no () => (float[2] b) { t = Abs(z) b = Exp(t) }
            >
        }
        """
    )
    graph = index_model(model)
    assert [node.op_type for node in graph.nodes] == ["Neg", "If", "Relu", "Abs", "Exp"]
    assert [node.op_type for node in graph.running_order] == ["Neg", "Relu", "Abs", "Exp", "If"]
