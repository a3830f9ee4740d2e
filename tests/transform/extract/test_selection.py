"""What is meant by the names that are asked for: whole calls, without those inside of others, under one root."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.building import hierarchies, model, node, provenance, tree

from modelexport.errors import UnknownName, UserError
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.transform.extract.selection import outermost_calls, select_calls, select_modules, select_nodes

NET = tree(
    {"": "Net", "list": "ModuleList", "list.0": "Block", "list.0.fc": "Linear", "list.1": "Block", "idle": "Dropout"},
    "",
    "list.0",
    "list.0.fc",
    "list.1",
    "list.1",
)
RECORD = provenance(
    model(node("Relu", "x", "a"), node("Relu", "a", "b"), node("Relu", "b", "y")),
    NET,
    {"a": ["list.0.fc"], "b": ["list.1"], "y": []},
)


def calls(*names: str) -> tuple[ModuleCall, ...]:
    return tuple(map(ModuleCall.parse, names))


@st.composite
def chosen_calls(draw: st.DrawFn) -> tuple[Hierarchy, tuple[ModuleCall, ...]]:
    hierarchy = draw(hierarchies())
    recorded = [site.call for site in hierarchy.calls]
    return hierarchy, tuple(draw(st.lists(st.sampled_from(recorded), min_size=1, max_size=5)))


@given(chosen_calls())
def test_outermost_calls_cover_all_that_were_chosen_and_nothing_twice(
    given_calls: tuple[Hierarchy, tuple[ModuleCall, ...]],
) -> None:
    hierarchy, chosen = given_calls
    outer = outermost_calls(chosen, hierarchy)
    selection = select_calls(hierarchy, chosen)
    assert all(selection.covers(call) for call in chosen)
    assert set(outer) <= set(chosen)
    for call in outer:
        assert not set(hierarchy.stack(call)[:-1]) & set(outer)
    assert outermost_calls(outer, hierarchy) == outer
    assert outermost_calls(reversed(chosen), hierarchy) == outer


@given(chosen_calls())
def test_the_root_is_around_everything_that_was_chosen(
    given_calls: tuple[Hierarchy, tuple[ModuleCall, ...]],
) -> None:
    hierarchy, chosen = given_calls
    selection = select_calls(hierarchy, chosen)
    for call in selection.calls:
        assert selection.root in hierarchy.stack(call) or selection.root == ModuleCall("")
        assert selection.encloses(call)
        assert all(selection.encloses(above) for above in hierarchy.stack(call))


def test_what_is_inside_of_another_adds_nothing() -> None:
    selection = select_modules(RECORD, ["list.0.fc", "list.0"])
    assert (selection.calls, selection.root) == (calls("list.0"), ModuleCall("list.0"))
    assert selection.is_one_call
    assert selection.covers(ModuleCall("list.0.fc"))
    assert not selection.covers(ModuleCall(""))


def test_a_container_means_all_calls_in_it() -> None:
    selection = select_modules(RECORD, ["list"])
    assert selection.calls == calls("list.0", "list.1", "list.1#1")
    assert selection.root == ModuleCall("list")
    assert not selection.is_one_call


def test_a_module_that_ran_twice_is_its_first_call_and_a_note_says_so() -> None:
    selection = select_modules(RECORD, ["list.1"])
    assert selection.calls == calls("list.1")
    assert selection.notes == ("list.1 was called 2 times; this is the first call, list.1#1 is the last",)
    assert select_modules(RECORD, ["list.1#1"]).calls == calls("list.1#1")
    assert select_modules(RECORD, ["list.1#1"]).notes == ()


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("list.1#2", "was called 2 times", "list.1 to list.1#1"),
        ("list.0#1", "was called 1 times", "Give 'list.0'"),
        ("idle", "never called", "analyze"),
    ],
)
def test_what_never_ran_is_refused_with_what_did(name: str, message: str, hint: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        select_modules(RECORD, [name])
    assert hint in caught.value.hint


@pytest.mark.parametrize("name", ["lisst.0", "lisst.0#1", "list.0.", "list#x"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(UnknownName):
        select_modules(RECORD, [name])


def test_nodes_are_under_the_innermost_call_around_their_owners() -> None:
    entries = [RECORD.nodes["a"], RECORD.nodes["b"]]
    selection = select_nodes(RECORD, "op=Relu", entries)
    assert (selection.root, selection.nodes) == (ModuleCall(""), frozenset("ab"))
    assert select_nodes(RECORD, "q", entries[:1]).root == ModuleCall("list.0.fc")
    assert not select_nodes(RECORD, "q", entries[:1]).is_one_call
    with pytest.raises(UserError, match="belongs to a module"):
        select_nodes(RECORD, "q", [RECORD.nodes["y"]])
