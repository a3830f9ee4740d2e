from __future__ import annotations

from tests.support.building import claim, graph, node, owners, tree

from modelexport.attribute.scopes import mend_lost_scopes
from modelexport.attribute.strategies import enhanced_semantic
from modelexport.record.provenance import Confidence
from modelexport.record.signals import Signals

# What re-entrant checkpointing leaves of `head(block(x))`: everything is credited to the root.
NET = tree({"": "Net", "block": "Block", "block.p": "Linear", "block.q": "Linear", "head": "Linear"})
CHECKPOINTED = graph(
    node("MatMul", "x block.p.weight", "p", scope=["", "linear"]),
    node("Relu", "p", "r", scope=["", "relu"]),
    node("MatMul", "r block.q.weight", "q", scope=["", "linear_1"]),
    node("MatMul", "q head.weight", "h", scope=["", "head", "linear_2"]),
    node("Neg", "h", "y", scope=["", "neg"]),
    weights=["block.p.weight", "block.q.weight", "head.weight"],
)
CREDITED = {key: claim("") for key in ("p", "r", "q", "y")} | {"h": claim("head")}


def test_readers_of_parameters_go_back_to_their_modules() -> None:
    found = mend_lost_scopes(CHECKPOINTED, NET, CREDITED, "s")
    assert owners(found)["p"] == ("block.p",)
    assert owners(found)["q"] == ("block.q",)
    assert found["p"].confidence is Confidence.STRONG
    assert "h" not in found


def test_what_lies_between_goes_to_the_enclosing_call() -> None:
    found = mend_lost_scopes(CHECKPOINTED, NET, CREDITED, "s")
    assert owners(found)["r"] == ("block",)
    assert found["r"].confidence is Confidence.INFERRED
    assert [str(item) for item in found["r"].evidence] == ["dataflow:between", "scope:closed early (root)"]


def test_what_follows_a_module_with_a_scope_stays_where_it_was() -> None:
    assert "y" not in mend_lost_scopes(CHECKPOINTED, NET, CREDITED, "s")


def test_a_sound_export_is_left_alone() -> None:
    sound = CREDITED | {"p": claim("block.p"), "r": claim("block"), "q": claim("block.q")}
    assert mend_lost_scopes(CHECKPOINTED, NET, sound, "s") == {}


def test_a_parameter_read_elsewhere_is_no_lost_scope() -> None:
    tied = graph(
        node("Gather", "block.p.weight x", "e", scope=["", "head", "embedding"]),
        weights=["block.p.weight"],
    )
    credited = {"e": claim("head")}
    assert mend_lost_scopes(tied, NET, credited, "s") == {}


def test_a_module_that_did_not_run_lost_nothing() -> None:
    silent = tree({"": "Net", "table": "Embedding"}, "")
    made = graph(node("MatMul", "x table.weight", "y"), weights=["table.weight"])
    assert mend_lost_scopes(made, silent, {"y": claim("")}, "s") == {}


def test_the_default_strategy_mends_a_checkpointed_export() -> None:
    found = enhanced_semantic(CHECKPOINTED, NET, Signals()).nodes
    assert owners(found) == {"p": ("block.p",), "r": ("block",), "q": ("block.q",), "h": ("head",), "y": ("",)}


def test_the_default_strategy_answers_for_every_node_and_initializer() -> None:
    made = graph(
        node("Identity", "block.p.weight", "block.q.weight", "Identity_0"),
        node("Constant", "", "c", "Constant_1", value_float=1.0),
        node("MatMul", "x block.p.weight", "p", "/block/p/MatMul"),
        node("Add", "p c", "r", "/block/Add"),
        node("MatMul", "r block.q.weight", "q", "/block/q/MatMul"),
        node("MatMul", "q onnx::MatMul_9", "y", "/head/MatMul"),
        weights=["block.p.weight", "onnx::MatMul_9"],
    )
    found = enhanced_semantic(made, NET, Signals())
    assert owners(found.nodes) == {
        "block.q.weight": ("block.q",),
        "c": ("block",),
        "p": ("block.p",),
        "r": ("block",),
        "q": ("block.q",),
        "y": ("head",),
    }
    assert owners(found.initializers) == {"block.p.weight": ("block.p",), "onnx::MatMul_9": ("head",)}


def test_a_dynamo_scope_goes_before_a_name_that_looks_like_one() -> None:
    made = graph(node("Relu", "x", "y", "/block/Relu", scope=["", "head", "relu"]))
    assert owners(enhanced_semantic(made, NET, Signals()).nodes) == {"y": ("head",)}
