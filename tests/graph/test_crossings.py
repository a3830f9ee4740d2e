"""What goes into module calls and comes out of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.building import attribution, model, module, node, provenance, run, tree
from tests.support.proof_stories import dags

from modelexport.graph.crossings import Crossings, calls_by_end, find_crossings, last_owner
from modelexport.graph.index import index_model
from modelexport.record.hierarchy import CallSite, Hierarchy, ModuleCall

NET = tree(
    {"": "Net", "enc": "Encoder", "enc.fc": "Linear", "enc.act": "ReLU", "head": "Linear"},
    *("", "enc", "enc.fc", "enc.act", "enc", "enc.fc", "enc.act", "head"),
)
CHAIN = model(
    node("MatMul", "x w", "m"),
    node("Add", "m b", "h"),
    node("Relu", "h", "r"),
    node("MatMul", "r v", "y"),
    weights=["w", "b", "v"],
)
TAGS = {"m": "enc.fc", "h": "enc.fc", "r": "enc.act", "y": "head"}


def crossings(
    proto: onnx.ModelProto, tags: Mapping[str, str], weights: Mapping[str, str] | None = None, net: Hierarchy = NET
) -> Crossings:
    record = provenance(proto, net, {key: text.split(" ") for key, text in tags.items()})
    initializers = {name: attribution(net, owner) for name, owner in (weights or {}).items()}
    return find_crossings(index_model(proto), replace(record, initializers=initializers))


def written(found: Mapping[str, tuple[ModuleCall, ...]]) -> dict[str, list[str]]:
    """Values that cross something, with the calls; the root is `.`"""
    return {value: [str(call) or "." for call in calls] for value, calls in found.items() if calls}


# a chain of modules


def test_values_that_stay_inside_cross_nothing() -> None:
    found = crossings(CHAIN, TAGS)
    assert written(found.leaves) == {
        "h": ["enc.fc"],
        "r": ["enc", "enc.act"],
        "y": [".", "head"],
    }
    assert written(found.enters) == {
        "x": [".", "enc", "enc.fc"],
        "h": ["enc.act"],
        "r": ["head"],
    }
    assert found.guessed == frozenset()


def test_what_was_open_when_a_value_was_made() -> None:
    found = crossings(CHAIN, TAGS)
    assert written(found.made) == {
        "m": [".", "enc", "enc.fc"],
        "h": [".", "enc", "enc.fc"],
        "r": [".", "enc", "enc.act"],
        "y": [".", "head"],
    }
    assert found.made["x"] == ()


def test_a_value_read_inside_and_outside_comes_out() -> None:
    proto = model(node("Sin", "x", "a"), node("Cos", "a", "b"), node("Add", "a b", "y"))
    found = crossings(proto, {"a": "enc.fc", "b": "enc.fc", "y": "head"})
    assert written(found.leaves)["a"] == ["enc", "enc.fc"]
    assert written(found.enters)["a"] == ["head"]


def test_what_nobody_reads_does_not_come_out() -> None:
    proto = model(node("Split", "x", "a b", num_outputs=2), node("Sin", "a", "y"))
    found = crossings(proto, {"a": "enc.fc", "y": "enc.act"})
    assert "b" not in written(found.leaves)
    assert written(found.leaves)["a"] == ["enc.fc"]


def test_another_call_of_the_same_module_is_outside() -> None:
    proto = model(node("Sin", "x", "a"), node("Cos", "a", "y"))
    found = crossings(proto, {"a": "enc.act", "y": "enc.fc#1"})
    assert written(found.leaves)["a"] == ["enc", "enc.act"]
    assert written(found.enters)["a"] == ["enc#1", "enc.fc#1"]


def test_a_module_may_go_on_after_its_children() -> None:
    proto = model(node("Sin", "x", "a"), node("Add", "a x", "b"), node("Cos", "b", "y"))
    found = crossings(proto, {"a": "enc.fc", "b": "enc", "y": "head"})
    assert written(found.leaves) == {"a": ["enc.fc"], "b": ["enc"], "y": [".", "head"]}
    assert written(found.enters) == {"x": [".", "enc", "enc.fc"], "b": ["head"]}


@given(dags(), st.data())
def test_crossings_are_those_of_every_value_by_itself(proto: onnx.ModelProto, data: st.DataObject) -> None:
    found_graph = index_model(proto)
    owner = st.sampled_from(["", "enc", "enc.fc", "enc.act", "enc#1", "enc.fc#1", "head"])
    tags = {one.key: data.draw(owner) for one in found_graph.nodes}
    found = crossings(proto, tags)
    stacks = {key: NET.stack(ModuleCall.parse(text)) for key, text in tags.items()}
    for value in ("x", *tags):
        inside = set(stacks.get(value, ()))
        readers = [set(stacks[one.key]) for one in found_graph.consumers.get(value, ())]
        left = inside if value in found_graph.outputs else {call for one in readers for call in inside - one}
        assert set(found.leaves[value]) == left
        assert set(found.enters[value]) == {call for one in readers for call in one - inside}


# nodes that are credited to nobody


def test_a_node_of_nobodys_continues_what_it_reads() -> None:
    proto = model(node("Sin", "x", "a"), node("Cast", "a", "q"), node("Cos", "q", "y"))
    found = crossings(proto, {"a": "enc.fc", "y": "head"})
    assert found.guessed == {"q"}
    assert written(found.leaves) == {"a": ["enc", "enc.fc"], "q": ["enc", "enc.fc"], "y": [".", "head"]}
    assert written(found.enters) == {"x": [".", "enc", "enc.fc"], "a": ["head"], "q": ["head"]}


def test_a_node_of_nobodys_before_all_modules_reads_for_those_behind_it() -> None:
    proto = model(node("Cast", "x", "q"), node("Cast", "q", "p"), node("Cos", "p", "y"))
    found = crossings(proto, {"y": "enc.fc"})
    assert found.made["p"] == ()
    assert written(found.enters) == {name: [".", "enc", "enc.fc"] for name in ("x", "q", "p")}
    assert found.guessed == {"q", "p"}


def test_a_node_of_nobodys_that_joins_modules_is_in_what_they_share() -> None:
    proto = model(node("Sin", "x", "a"), node("Cos", "x", "b"), node("Add", "a b", "q"), node("Neg", "q", "y"))
    found = crossings(proto, {"a": "enc.fc", "b": "enc.act", "y": "head"})
    assert written(found.made)["q"] == [".", "enc"]
    assert written(found.leaves)["q"] == ["enc"]


def test_a_node_of_nobodys_that_joins_a_module_and_its_caller_is_the_callers() -> None:
    proto = model(node("Sin", "x", "a"), node("Cos", "x", "b"), node("Add", "a b", "q"), node("Neg", "q", "y"))
    found = crossings(proto, {"a": "enc.fc", "b": "enc", "y": "head"})
    assert written(found.made)["q"] == [".", "enc"]


def test_a_node_of_nobodys_that_reads_an_input_too_continues_the_module() -> None:
    proto = model(node("Cast", "x", "p"), node("Sin", "p", "a"), node("Add", "a p", "q"), node("Neg", "q", "y"))
    found = crossings(proto, {"a": "enc.fc", "y": "head"})
    assert written(found.made)["q"] == [".", "enc", "enc.fc"]


def test_a_node_of_nobodys_works_for_the_module_whose_weights_it_reads() -> None:
    proto = model(node("Sin", "x", "a"), node("MatMul", "a v", "q"), node("Neg", "q", "y"), weights=["v"])
    found = crossings(proto, {"a": "enc.fc", "y": ""}, {"v": "head"})
    assert written(found.made)["q"] == [".", "head"]
    assert written(found.leaves)["q"] == ["head"]


def test_what_nobody_made_at_the_end_of_the_graph_comes_out() -> None:
    proto = model(node("Sin", "x", "a"), node("Cast", "a", "y"))
    assert written(crossings(proto, {"a": "enc.fc"}).leaves)["y"] == [".", "enc", "enc.fc"]


# several owners


def test_a_fused_node_holds_the_result_of_its_last_module() -> None:
    proto = model(node("FusedConv", "x", "a"), node("Neg", "a", "y"))
    found = crossings(proto, {"a": "enc.act enc.fc", "y": "head"})
    assert written(found.made)["a"] == [".", "enc", "enc.act"]
    assert written(found.leaves)["a"] == ["enc", "enc.act"]


def test_a_fused_node_reads_for_its_first_module() -> None:
    proto = model(node("Neg", "x", "n"), node("FusedConv", "n", "a"), node("Sin", "a", "y"))
    found = crossings(proto, {"n": "", "a": "enc.act enc.fc", "y": "head"})
    assert written(found.enters)["n"] == ["enc", "enc.fc"]


def test_what_a_fused_node_goes_on_with_is_no_result_yet() -> None:
    """A linear layer whose bias is added together with what comes next."""
    proto = model(node("MatMul", "x w", "m"), node("BiasGelu", "m b", "y"), weights=["w", "b"])
    found = crossings(proto, {"m": "enc.fc", "y": "enc.fc enc.act"})
    assert "m" not in written(found.leaves)
    assert "m" not in written(found.enters)
    # Beside a node that has nothing of the layer, it is.
    other = model(node("MatMul", "x w", "m"), node("Gelu", "m", "y"), weights=["w"])
    assert written(crossings(other, {"m": "enc.fc", "y": "enc.act"}).leaves)["m"] == ["enc.fc"]


def test_a_fused_node_that_became_several_hands_nothing_to_its_own_modules() -> None:
    """A quantizer writes one node as a chain of them: all of them do the work of both modules."""
    proto = model(node("ConvInteger", "x w", "i"), node("Mul", "i s", "m"), node("Add", "m b", "y"), weights="wsb")
    found = crossings(proto, dict.fromkeys(["i", "m", "y"], "enc.act enc.fc"))
    assert written(found.leaves) == {"y": [".", "enc", "enc.act"]}
    assert written(found.enters) == {"x": [".", "enc", "enc.fc"]}


@pytest.mark.parametrize(
    ("owners", "last"),
    [
        ("enc.fc", "enc.fc"),
        ("enc.act enc.fc", "enc.act"),
        ("enc.fc#1 enc.act", "enc.fc#1"),
        ("enc enc.act", "enc"),
        ("enc.act#1 head", "head"),
        ("enc#1 head", "head"),
        ("enc.fc elsewhere", "enc.fc"),
    ],
)
def test_the_last_of_several_modules_or_one_around_it(owners: str, last: str) -> None:
    for calls in (owners.split(), owners.split()[::-1]):
        assert str(last_owner(map(ModuleCall.parse, calls), NET)) == last


def test_what_modules_share_that_are_far_apart_is_nobodys_result() -> None:
    """Others ran in between: it is no chain of work, but something that they all need."""
    for owners, shared in (("enc.fc enc.fc#1", ""), ("enc.fc head", ""), ("enc.act enc.act#1 head", "")):
        assert str(last_owner(map(ModuleCall.parse, owners.split()), NET)) == shared


# the order in which calls end


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[CallSite], list[ModuleCall]]:
    """What happens when modules call one another: calls as they begin, and calls as they end."""
    began: list[CallSite] = []
    ended: list[ModuleCall] = []
    room = draw(st.integers(1, 9))

    def call(parent: ModuleCall | None) -> None:
        path = draw(st.sampled_from("abc"))
        one = ModuleCall(path, sum(site.call.path == path for site in began))
        began.append(CallSite(one, parent))
        while len(began) < room and draw(st.booleans()):
            call(one)
        ended.append(one)

    while len(began) < room:
        call(None)
    return began, ended


@given(runs())
def test_calls_in_the_order_in_which_they_end(story: tuple[list[CallSite], list[ModuleCall]]) -> None:
    began, ended = story
    assert calls_by_end(Hierarchy.of([module(path, "Block") for path in "abc"], began)) == tuple(ended)


def test_a_module_ends_after_those_that_it_calls() -> None:
    sites = run("", "enc", "enc.fc", "enc.act", "enc", "enc.fc", "head")
    ended = calls_by_end(Hierarchy.of(NET.modules.values(), sites))
    assert [str(call) for call in ended] == ["enc.fc", "enc.act", "enc", "enc.fc#1", "enc#1", "head", ""]
    assert calls_by_end(Hierarchy.of([])) == ()
