"""NaN and infinity are located where they come up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from tests.building import model, node, provenance, tree

from modelexport.graph.index import index_model
from modelexport.proving.finiteness import INF, NAN, origins, trouble_in
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.verification import NotFinite

NET = tree({"": "Net", "a": "Block", "b": "Block"})
CHAIN = model(
    node("Log", "x", "h"),
    node("Add", "h mask", "s"),
    node("Softmax", "s", "p"),
    node("Sub", "p p", "y"),
    weights=["mask"],
)
TAGS = {"h": ["a"], "s": ["a"], "p": ["b"], "y": ["a", "b"]}


def found(troubled: dict[str, str], expected: frozenset[str] = frozenset()) -> list[tuple[str, str, bool]]:
    items = origins(index_model(CHAIN), provenance(CHAIN, NET, TAGS), troubled, expected)
    return [(item.kind, item.node, item.both) for item in items]


# in an array


@given(npst.arrays(st.sampled_from([np.float16, np.float32, np.float64]), npst.array_shapes(min_side=0)))
def test_nan_before_infinity_before_nothing(array: np.ndarray) -> None:
    values = [float(value) for value in array.reshape(-1)]
    wanted = NAN if any(map(math.isnan, values)) else INF if any(map(math.isinf, values)) else ""
    assert trouble_in(array) == wanted


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_large_numbers_are_finite_though_their_sum_is_not(dtype: type) -> None:
    assert trouble_in(np.full(100, np.finfo(dtype).max, dtype)) == ""


def test_infinities_that_cancel_out_are_infinities() -> None:
    assert trouble_in(np.array([np.inf, 1, -np.inf], np.float32)) == INF


def test_what_cannot_be_infinite_is_not() -> None:
    assert trouble_in(np.arange(3)) == ""
    assert trouble_in(np.array([True])) == ""


# in a graph


def test_where_nothing_is_wrong_nothing_is_found() -> None:
    assert found({}) == []


def test_only_the_first_node_is_named() -> None:
    assert found({"h": NAN, "s": NAN, "p": NAN, "y": NAN}) == [(NAN, "h", False)]
    assert found({"h": INF, "s": INF}) == [(INF, "h", False)]


def test_a_nan_made_from_infinities_is_something_new() -> None:
    assert found({"h": INF, "s": INF, "p": NAN, "y": NAN}) == [(INF, "h", False), (NAN, "p", False)]


def test_an_infinity_made_from_a_nan_is_nothing_new() -> None:
    assert found({"h": NAN, "s": INF}) == [(NAN, "h", False)]


def test_what_a_mask_brings_is_nothing_new() -> None:
    assert found({"mask": INF, "s": INF, "p": NAN}) == [(NAN, "p", False)]


def test_it_may_come_up_again_after_it_was_gone() -> None:
    assert found({"h": INF, "y": INF}) == [(INF, "h", False), (INF, "y", False)]


def test_what_the_inputs_bring_is_nothing_new() -> None:
    assert found({"x": NAN, "h": NAN}) == []
    assert found({"x": INF, "h": NAN}) == [(NAN, "h", False)]


def test_what_is_in_both_runs_is_said_to_be() -> None:
    assert found({"s": INF, "p": NAN}, frozenset({"s"})) == [(INF, "s", True), (NAN, "p", False)]


def test_all_owners_are_named() -> None:
    items = list(origins(index_model(CHAIN), provenance(CHAIN, NET, TAGS), {"y": NAN}, ()))
    assert items == [NotFinite(NAN, "y", (ModuleCall("a"), ModuleCall("b")), both=False)]


def test_a_constant_makes_nothing() -> None:
    proto = model(node("Neg", "w", "c"), node("Add", "x c", "y"), weights=["w"])
    record = provenance(proto, NET, {})
    assert list(origins(index_model(proto), record, {"c": INF, "y": INF}, ())) == []


def test_each_output_of_a_node_is_looked_at() -> None:
    proto = model(node("Split", "x", "a b", num_outputs=2), node("Add", "a b", "y"))
    graph, record = index_model(proto), provenance(proto, NET, {})
    both = {(item.kind, item.node, item.both) for item in origins(graph, record, {"a": INF, "b": NAN}, {"a"})}
    assert both == {(INF, "a", True), (NAN, "a", False)}
    (one,) = origins(graph, record, {"a": INF, "b": INF}, {"a"})
    assert not one.both
