"""Whose an initializer is, by what it holds."""

from __future__ import annotations

import numpy as np
from tests.support.building import graph, node, owners, tree

from modelexport.attribute.dataflow import claim_weights_by_content
from modelexport.graph.fingerprint import fingerprint
from modelexport.record.hierarchy import Hierarchy, Module, ModuleCall, TensorInfo
from modelexport.record.provenance import Confidence
from modelexport.record.signals import GraphValues, Trace, TracedOp

TREE = tree({"": "Net", "a": "Linear", "b": "Linear"})


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape or (3, 4)).astype(np.float32)


def said(
    held: np.ndarray,
    tensors: dict[str, np.ndarray],
    *ops: tuple[str, list[str], np.ndarray],
    hierarchy: Hierarchy = TREE,
) -> tuple[str, ...]:
    """Owners of an initializer; `ops` are (call, names of tensors read, what is made)."""
    number = {name: place for place, name in enumerate(tensors)}
    made = [array for _, _, array in ops]
    traced = tuple(
        TracedOp("op", ModuleCall.parse(call), tuple(number[name] for name in read), (len(number) + place,))
        for place, (call, read, _) in enumerate(ops)
    )
    prints = tuple(map(fingerprint, [*tensors.values(), *made]))
    trace = Trace("test", traced, prints, {}, number)
    found = claim_weights_by_content(
        graph(node("Sin", "x", "y"), weights=["held"]),
        hierarchy,
        trace,
        GraphValues({"held": fingerprint(held)}),
        "test",
    )
    copied = held.dtype != np.float16
    assert all(claim.confidence is (Confidence.EXACT if copied else Confidence.STRONG) for claim in found.values())
    return owners(found).get("held", ())


def test_a_weight_belongs_to_the_module_that_holds_it() -> None:
    tensors = {"a.weight": numbers(0), "b.weight": numbers(1)}
    assert said(numbers(1), tensors) == ("b",)
    assert said(numbers(1).astype(np.float16), tensors) == ("b",)
    assert said(numbers(2), tensors) == ()


def test_a_rearranged_weight_belongs_to_the_module_that_did_it() -> None:
    turned = numbers(0).T.copy()
    assert said(turned, {"a.weight": numbers(0)}, ("a", ["a.weight"], turned)) == ("a",)
    assert said(turned, {"a.weight": numbers(0)}, ("b#1", ["a.weight"], turned)) == ("b",)


def test_a_weight_that_several_hold_alike_is_nobodys() -> None:
    assert said(numbers(0), {"a.weight": numbers(0), "b.weight": numbers(0)}) == ()


def test_a_constant_tells_nothing() -> None:
    assert said(np.ones((3, 4), np.float32), {"a.weight": np.ones((3, 4), np.float32)}) == ()


def test_a_tied_weight_belongs_to_all_that_hold_it() -> None:
    tied = Hierarchy.of(
        [
            Module("", "Net", "net"),
            Module("a", "Embedding", "net", (TensorInfo("weight", (3, 4), "float32", 48, ("b.weight",)),)),
            Module("b", "Linear", "net", (TensorInfo("weight", (3, 4), "float32", 48, ("a.weight",)),)),
        ]
    )
    turned = numbers(0).T.copy()
    tensors = {"a.weight": numbers(0)}
    assert said(numbers(0), tensors, hierarchy=tied) == ("a", "b")
    assert said(turned, tensors, ("b", ["a.weight"], turned), hierarchy=tied) == ("b",)


def test_what_is_made_of_data_is_no_weight() -> None:
    """A value that depends on anything but weights is not looked up among them."""
    number = {"a.weight": 0}
    op = TracedOp("op", ModuleCall("a"), (0, 1), (2,))
    prints = tuple(map(fingerprint, (numbers(0), numbers(1), numbers(2))))
    trace = Trace("test", (op,), prints, {"x": 1}, number)
    values = GraphValues({"held": fingerprint(numbers(2))})
    assert claim_weights_by_content(graph(node("Sin", "x", "y"), weights=["held"]), TREE, trace, values, "test") == {}


def test_a_constant_that_holds_the_same_leaves_it_open() -> None:
    assert said(numbers(0), {"a.weight": numbers(0)}, ("b", [], numbers(0))) == ()
    assert said(numbers(0), {"a.weight": numbers(0)}, ("b", [], numbers(1))) == ("a",)
