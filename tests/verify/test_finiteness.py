"""NaN and infinity are located where they come up."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx
from tests.support.building import model, node, provenance, tree

from modelexport.graph.index import index_model
from modelexport.graph.sample import INF, NAN, sample
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.results.verification import NotFinite
from modelexport.verify.divergence import find_nonfinite_origins

NET = tree({"": "Net", "a": "Block", "b": "Block"})
CHAIN = model(
    node("Log", "x", "h"),
    node("Add", "h mask", "s"),
    node("Softmax", "s", "p"),
    node("Sub", "p p", "y"),
    weights=["mask"],
)
TAGS = {"h": ["a"], "s": ["a"], "p": ["b"], "y": ["a", "b"]}


def array(trouble: str) -> np.ndarray:
    held = np.ones(4, np.float32)
    held[:2] = {NAN: [np.nan, np.inf], INF: [-np.inf, 1]}.get(trouble, 1)
    return held


def located(
    proto: onnx.ModelProto,
    troubled: Mapping[str, str],
    expected: Collection[tuple[str, str]] = (),
    tags: Mapping[str, Sequence[str]] | None = None,
) -> list[NotFinite]:
    """What is found; every value is finite that is not `troubled`. `expected` are values with what they should hold."""
    graph = index_model(proto)
    seen = {
        name: sample(array(troubled.get(name, ""))) for name in (*graph.inputs, *graph.initializers, *graph.producers)
    }
    return list(find_nonfinite_origins(graph, provenance(proto, NET, tags or {}), seen, lambda *one: one in expected))


def found(troubled: dict[str, str], *expected: tuple[str, str]) -> list[tuple[str, str, bool]]:
    return [(item.kind, item.node, item.both) for item in located(CHAIN, troubled, expected, TAGS)]


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
    assert found({"s": INF, "p": NAN}, ("s", INF)) == [(INF, "s", True), (NAN, "p", False)]
    assert found({"s": INF}, ("s", NAN), ("p", INF)) == [(INF, "s", False)]


def test_all_owners_are_named() -> None:
    items = located(CHAIN, {"y": NAN}, (), TAGS)
    assert items == [NotFinite(NAN, "y", (ModuleCall("a"), ModuleCall("b")), both=False)]


def test_a_constant_that_is_infinite_is_a_mask_and_one_that_is_no_number_is_not() -> None:
    proto = model(node("Neg", "w", "c"), node("Add", "x c", "y"), weights=["w"])
    assert located(proto, {"c": INF, "y": INF}) == []
    assert [item.node for item in located(proto, {"c": NAN, "y": NAN})] == ["c"]


def test_each_output_of_a_node_is_looked_at() -> None:
    proto = model(node("Split", "x", "a b", num_outputs=2), node("Add", "a b", "y"))
    both = located(proto, {"a": INF, "b": NAN}, [("a", INF)])
    assert {(item.kind, item.node, item.both) for item in both} == {(INF, "a", True), (NAN, "a", False)}
    (one,) = located(proto, {"a": INF, "b": INF}, [("a", INF)])
    assert not one.both


def test_what_nobody_saw_is_not_known_to_be_finite() -> None:
    graph = index_model(CHAIN)
    seen = {"s": sample(array(INF))}
    assert [
        item.node for item in find_nonfinite_origins(graph, provenance(CHAIN, NET, TAGS), seen, lambda *_: True)
    ] == ["s"]
