"""What an optimizer does to onnx-ir objects is written down: rewrites, duplicates, constants, and what is kept."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from onnxscript import optimizer

from modelexport.capture.recorded_lineage import RewriteRecorder
from modelexport.graph.index import index_model
from modelexport.record.lineage import Lineage, Link, Relation

_HEAD = '<ir_version: 8, opset_import: ["" : 18]>'


def record(text: str, change: Callable[[ir.Model], object] = optimizer.optimize_ir) -> Lineage:
    model = ir.from_onnx_text(f"{_HEAD} {text}")
    before = index_model(ir.to_proto(model))
    recorder = RewriteRecorder(model)
    with recorder.recording():
        change(model)
    return recorder.lineage(before, index_model(ir.to_proto(model)))


def test_a_node_that_is_still_there_is_kept() -> None:
    found = record("agraph (float[2] x) => (float[2] y) { a = Relu(x)  y = Tanh(a) }")
    assert dict(found.nodes) == {"a": Link(("a",), Relation.KEPT), "y": Link(("y",), Relation.KEPT)}


def test_equal_nodes_become_one_that_stands_for_those_alone() -> None:
    found = record(
        "agraph (float[2] x, float[2] z) => (float[2] y) {"
        " a = Tanh(x)  b = Tanh(x)  c = Tanh(z)  d = Add(a, b)  y = Mul(d, c) }"
    )
    assert found.nodes["a"] == Link(("a", "b"), Relation.SHARED)
    assert found.nodes["c"] == Link(("c",), Relation.KEPT)


def test_what_a_rewrite_puts_in_comes_from_what_it_takes_out() -> None:
    found = record(
        "agraph (float[2,3,4] x) => (float[4,2,3] y) {"
        " a = Transpose <perm = [0, 2, 1]> (x)  y = Transpose <perm = [1, 0, 2]> (a) }"
    )
    assert found.nodes["y"] == Link(("a", "y"), Relation.FUSED)


def test_folded_constants_name_the_nodes_that_computed_them() -> None:
    found = record(
        "agraph (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { s = Tanh(w)  t = Neg(s)  y = Mul(x, t) }"
    )
    (link,) = found.initializers.values()
    assert link.sources == ("s", "t")
    assert link.relation is Relation.FOLDED
    assert found.nodes["y"] == Link(("y",), Relation.KEPT)


def test_an_initializer_stands_for_its_duplicates_and_their_readers_stay_apart() -> None:
    found = record(
        "agraph (float[2] x) => (float[2] y) <float[2] v = {1.0, 2.0}, float[2] w = {1.0, 2.0}>"
        " { a = Add(x, v)  b = Tanh(a)  y = Add(b, w) }"
    )
    assert set(found.stands_for) == {"v"}
    assert set(found.stands_for["v"]) == {"v", "w"}
    assert found.nodes["a"] == Link(("a",), Relation.KEPT)
    assert found.nodes["y"] == Link(("y",), Relation.KEPT)


def test_who_hands_on_what_it_reads_is_nobodys_duplicate() -> None:
    found = record("agraph (float[2] x) => (float[2] y) { a = Tanh(x)  b = Identity(a)  y = Relu(b) }")
    assert found.nodes["a"] == Link(("a",), Relation.KEPT)


def test_a_branch_that_is_always_taken_keeps_its_nodes() -> None:
    found = record(
        "agraph (float[2] x) => (float[2] y) <bool c = {1}> {"
        " y = If (c) <then_branch = one () => (float[2] t) { t = Tanh(x) },"
        " else_branch = two () => (float[2] e) { e = Neg(x) }> }"
    )
    (link,) = found.nodes.values()
    assert link.sources == ("y|then_branch|t",)


def test_onnx_ir_is_as_it_was_afterwards() -> None:
    replaced = ir.convenience.replace_nodes_and_values, ir.Value.replace_all_uses_with
    record("agraph (float[2] x) => (float[2] y) { y = Relu(x) }", lambda _: None)
    assert replaced == (ir.convenience.replace_nodes_and_values, ir.Value.replace_all_uses_with)
