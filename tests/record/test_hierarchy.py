from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.building import hierarchies, module, run, tree

from modelexport.record.hierarchy import CallSite, Hierarchy, ModuleCall, common_prefix, lineage_of


def call(text: str) -> ModuleCall:
    return ModuleCall.parse(text)


TWICE = tree(
    {"": "Net", "enc": "Encoder", "enc.fc": "Linear", "enc.act": "ReLU", "head": "Linear"},
    *("", "enc", "enc.fc", "enc.act", "enc", "enc.fc", "enc.act", "head"),
)


def test_a_call_is_written_with_its_number_from_the_second_on() -> None:
    assert str(ModuleCall("enc.fc")) == "enc.fc"
    assert str(ModuleCall("enc.fc", 2)) == "enc.fc#2"
    assert str(ModuleCall("")) == ""
    assert str(ModuleCall("", 1)) == "#1"


@given(st.text("ab.#1²", max_size=6), st.integers(0, 12))
def test_a_written_call_reads_back(path: str, index: int) -> None:
    assert ModuleCall.parse(str(ModuleCall(path, index))) == ModuleCall(path, index)


def test_the_ancestor_of_one_call_is_itself() -> None:
    assert TWICE.common_ancestor([call("enc.fc#1")]) == call("enc.fc#1")
    assert TWICE.common_ancestor([call("enc.fc#1"), call("enc.fc#1")]) == call("enc.fc#1")
    assert TWICE.common_ancestor([]) is None


def test_the_ancestor_is_the_innermost_call_around_all() -> None:
    assert TWICE.common_ancestor([call("enc.fc#1"), call("enc.act#1")]) == call("enc#1")
    assert TWICE.common_ancestor([call("enc.fc"), call("enc.act#1")]) == call("")
    assert TWICE.common_ancestor([call("enc.fc"), call("enc")]) == call("enc")
    assert TWICE.common_ancestor([call("enc.fc"), call("enc.act"), call("head")]) == call("")


def test_the_ancestor_is_where_a_module_ran_not_where_it_is_defined() -> None:
    modules = [module("", "Net"), module("a", "Block"), module("b", "Block"), module("a.shared", "Linear")]
    sites = [
        CallSite(call(""), None),
        CallSite(call("b"), call("")),
        CallSite(call("a.shared"), call("b")),
    ]
    hierarchy = Hierarchy.of(modules, sites)
    assert hierarchy.common_ancestor([call("a.shared"), call("b")]) == call("b")


def test_an_unrecorded_call_is_stacked_by_its_path() -> None:
    assert TWICE.stack(call("enc.fc#1")) == (call(""), call("enc#1"), call("enc.fc#1"))
    assert TWICE.stack(call("enc.fc#7")) == (call(""), call("enc"), call("enc.fc#7"))
    assert TWICE.stack(call("other.one")) == (call(""), call("other"), call("other.one"))
    assert Hierarchy.of([]).stack(call("")) == (call(""),)


def test_recorded_and_unrecorded_calls_share_an_ancestor() -> None:
    assert TWICE.common_ancestor([call("enc.fc"), call("enc.other")]) == call("enc")
    assert TWICE.common_ancestor([call("head.a"), call("enc.other")]) == call("")


def test_aliases_lead_to_the_module_itself() -> None:
    hierarchy = Hierarchy.of([module("", "Net"), module("a", "Linear", aliases=("b", "c.d"))])
    assert hierarchy.canonical == {"": "", "a": "a", "b": "a", "c.d": "a"}


def test_a_tensor_is_owned_under_every_name_of_its_module() -> None:
    hierarchy = Hierarchy.of([module("", "Linear"), module("a", "Linear", aliases=("c.d",))])
    assert hierarchy.tensor_owners["weight"] == ("",)
    assert hierarchy.tensor_owners["a.weight"] == hierarchy.tensor_owners["c.d.weight"] == ("a",)


def test_calls_are_counted_by_module() -> None:
    assert TWICE.calls_of("enc.fc") == (call("enc.fc"), call("enc.fc#1"))
    assert TWICE.calls_of("nowhere") == ()
    assert TWICE.children("enc") == ("enc.fc", "enc.act")
    assert TWICE.children("") == ("enc", "head")


@given(hierarchies(), st.data())
def test_an_ancestor_encloses_every_call_and_no_inner_call_does(hierarchy: Hierarchy, data: st.DataObject) -> None:
    recorded = st.sampled_from([site.call for site in hierarchy.calls])
    calls = data.draw(st.lists(recorded, min_size=2, max_size=4))
    ancestor = hierarchy.common_ancestor(calls)
    assert ancestor == hierarchy.common_ancestor(reversed(calls))
    shared = set.intersection(*(set(hierarchy.stack(item)) for item in calls))
    assert ancestor in shared
    assert all(other in hierarchy.stack(ancestor) for other in shared)


def test_a_path_lists_what_lies_above_it() -> None:
    assert list(lineage_of("a.0.b")) == ["", "a", "a.0", "a.0.b"]
    assert list(lineage_of("")) == [""]


def test_the_builder_of_these_tests_nests_calls() -> None:
    parents = {str(site.call): str(site.parent) for site in run("", "a", "a.b.c", "a", "a.b.c")}
    assert parents == {"": "None", "a": "", "a.b.c": "a", "a#1": "", "a.b.c#1": "a#1"}


@given(st.lists(st.lists(st.sampled_from("ab"), max_size=4), min_size=1, max_size=4))
def test_the_common_prefix_is_the_longest_that_all_stacks_begin_with(stacks: list[list[str]]) -> None:
    prefix = list(common_prefix(stacks))
    assert all(stack[: len(prefix)] == prefix for stack in stacks)
    longer = [stack[: len(prefix) + 1] for stack in stacks]
    assert any(stack == prefix for stack in longer) or any(stack != longer[0] for stack in longer)


def test_no_stacks_have_no_common_prefix() -> None:
    assert common_prefix([]) == ()


@given(hierarchies())
def test_calls_are_in_the_order_in_which_they_began(hierarchy: Hierarchy) -> None:
    assert sorted(hierarchy.call_order, key=hierarchy.call_order.__getitem__) == [site.call for site in hierarchy.calls]
    for site in hierarchy.calls:
        assert site.parent is None or hierarchy.call_order[site.parent] < hierarchy.call_order[site.call]
