"""A node that makes something else than what it is said to come from is contradicted, and no other."""

from __future__ import annotations

import numpy as np
import pytest
from measure.lineage.value_comparison import Comparer, Comparison
from tests.support.building import graph, node
from tests.support.tool_cases import DENSE, SIZE, random, values

from modelexport.record.lineage import Lineage, Link, Relation

BEFORE = graph(node("Relu", "x", "a"), node("Sin", "a", "b"), node("Cos", "b", "y"))
VALUES = {"x": random(4, 6, seed=0), "a": random(4, 6, seed=1), "b": random(4, 6, seed=2), "y": random(4, 6, seed=3)}
A = VALUES["a"]
NOISE = random(4, 6, seed=9) * np.float32(np.sqrt(np.mean(A**2)))


def compared(
    made: np.ndarray | None,
    *sources: str,
    lossy: bool = False,
    relation: Relation = Relation.REWRITTEN,
    op_type: str = "Elu",
    name: str = "",
) -> Comparison:
    """One node that is said to come from others, and made something."""
    after = graph(node(op_type, "x", "y"))
    lineage = Lineage({"y": Link(sources or ("a",), relation)}, {})
    values = {} if made is None else {"y": made}
    return Comparer((BEFORE, VALUES), (after, values), {"y": name}, lossy=lossy).compare(lineage)


FINE, CONTRADICTED, UNKNOWN = Comparison(1, ()), Comparison(1, ("y",)), Comparison(0, ())


class TestLossless:
    def test_the_same_in_another_order_of_summing(self) -> None:
        assert compared(A) == FINE
        assert compared(A * np.float32(1 + 1e-6)) == FINE

    @pytest.mark.parametrize("noise", [0.01, 0.1])
    def test_nothing_more_is_excused(self, noise: float) -> None:
        """Though no other tensor is nearer."""
        assert compared(A + np.float32(noise) * NOISE) == CONTRADICTED

    def test_another_layout_is_the_same(self) -> None:
        assert compared(np.ascontiguousarray(A.T)) == FINE
        assert compared(A.reshape(2, 3, 4).transpose(2, 0, 1)) == FINE

    def test_another_tensor_of_the_same_shape_is_not(self) -> None:
        assert compared(VALUES["b"]) == CONTRADICTED

    def test_any_of_several_sources_may_be_the_one(self) -> None:
        assert compared(VALUES["b"], "a", "b") == FINE
        assert compared(VALUES["y"], "a", "b") == CONTRADICTED


class TestLossy:
    def test_fewer_bits_are_the_same_tensor(self) -> None:
        assert compared(A + np.float32(0.05) * NOISE, lossy=True) == FINE

    def test_what_drifted_far_is_another_only_if_another_is_near(self) -> None:
        assert compared(A + np.float32(0.5) * NOISE, lossy=True) == FINE
        assert compared(VALUES["b"] + np.float32(0.5) * NOISE, lossy=True) == FINE
        assert compared(VALUES["b"] + np.float32(0.05) * NOISE, lossy=True) == CONTRADICTED

    def test_what_is_between_two_is_neither(self) -> None:
        assert compared((A + 3 * VALUES["b"]) / 4, lossy=True) == FINE
        assert compared((A + 30 * VALUES["b"]) / 31, lossy=True) == CONTRADICTED


class TestDrift:
    """What is less like itself than like another tensor is not to be judged by values."""

    LIKE_B = VALUES["b"] + np.float32(0.05) * NOISE

    def test_of_a_node_that_has_kept_its_name(self) -> None:
        assert compared(self.LIKE_B, lossy=True, op_type="Relu", name="a") == Comparison(0, (), 1)

    def test_whatever_it_is_said_to_be(self) -> None:
        assert compared(self.LIKE_B, "y", lossy=True, op_type="Relu", name="a") == Comparison(0, (), 1)

    def test_a_node_that_is_like_itself_is_judged(self) -> None:
        assert compared(self.LIKE_B, lossy=True, op_type="Sin", name="b") == CONTRADICTED

    def test_a_name_on_another_operator_says_nothing(self) -> None:
        assert compared(self.LIKE_B, lossy=True, op_type="Elu", name="a") == CONTRADICTED

    def test_tools_that_change_no_numbers_have_no_drift(self) -> None:
        assert compared(self.LIKE_B, op_type="Relu", name="a") == CONTRADICTED


class TestWhatIsCompared:
    @pytest.mark.parametrize("relation", [Relation.INTRODUCED, Relation.SPLIT, Relation.FOLDED])
    def test_not_what_need_not_make_the_same(self, relation: Relation) -> None:
        assert compared(VALUES["b"], relation=relation) == UNKNOWN

    @pytest.mark.parametrize(
        "relation", [Relation.KEPT, Relation.RENAMED, Relation.REWRITTEN, Relation.FUSED, Relation.SHARED]
    )
    def test_all_that_must(self, relation: Relation) -> None:
        assert compared(VALUES["b"], relation=relation) == CONTRADICTED

    @pytest.mark.parametrize(
        "made", [None, np.arange(24).reshape(4, 6), np.ones((4, 6), np.float32), random(4, 5, seed=1)]
    )
    def test_not_what_cannot_be_told_from_others(self, made: np.ndarray | None) -> None:
        assert compared(made) == UNKNOWN

    def test_not_what_hands_on_what_it_reads(self) -> None:
        assert compared(VALUES["b"], op_type="QuantizeLinear") == UNKNOWN


class TestSharedWork:
    """Of several nodes that share the work of one, the last makes what that made."""

    def compared(self, first: np.ndarray, last: np.ndarray, *last_from: str) -> Comparison:
        after = graph(node("Mul", "x x", "part"), node("Add", "part x", "y"))
        lineage = Lineage(
            {"part": Link(("a",), Relation.REWRITTEN), "y": Link(last_from or ("a",), Relation.REWRITTEN)}, {}
        )
        return Comparer((BEFORE, VALUES), (after, {"part": first, "y": last}), {}, lossy=False).compare(lineage)

    def test_the_first_may_make_something_else(self) -> None:
        assert self.compared(random(4, 6, seed=7), A) == Comparison(1, ())

    def test_the_last_may_not(self) -> None:
        assert self.compared(A, random(4, 6, seed=7)) == Comparison(1, ("y",))

    def test_each_is_the_last_of_its_own(self) -> None:
        assert self.compared(A, VALUES["b"], "b") == Comparison(2, ())
        assert self.compared(VALUES["b"], A, "b") == Comparison(2, ("part", "y"))

    def test_what_only_leads_to_the_work_of_another_has_no_end_of_its_own(self) -> None:
        """The last one did both; of those, nobody else reads the result of the second."""
        assert self.compared(random(4, 6, seed=7), VALUES["b"], "a", "b") == Comparison(1, ())


def test_all_values_of_a_graph_are_seen_as_the_file_says() -> None:
    found = values(DENSE)
    assert set(found) == {"x", "h1", "a1", "r1", "h2", "y"}
    np.testing.assert_array_equal(found["r1"], np.maximum(found["a1"], 0))
    assert found["h1"].shape == (4, SIZE)
