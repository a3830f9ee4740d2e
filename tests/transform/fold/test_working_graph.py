"""The graph while it is folded: order and edges stay true through any contraction, and only convex regions are one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from tests.support.foldable_graphs import parse_nodes

from modelexport.record.hierarchy import ModuleCall
from modelexport.transform.fold.plan import find_convex_part, is_convex
from modelexport.transform.fold.working_graph import (
    FreeNames,
    WorkingGraph,
    function_identifier,
    list_fold_nodes,
    relative_name,
)


def working(text: str, kept: Sequence[str] = ()) -> WorkingGraph:
    return WorkingGraph(list_fold_nodes(parse_nodes(text)), kept)


def numbers(graph: WorkingGraph, *names: str) -> list[int]:
    return [item for name in names if (item := graph.maker(name)) is not None]


def contract(graph: WorkingGraph, *names: str) -> int:
    members = numbers(graph, *names)
    inside = set(members)
    reads = dict.fromkeys(value for item in members for value in graph.reads[item] if graph.maker(value) not in inside)
    return graph.contract(members, tuple(reads))


def assert_runnable(graph: WorkingGraph) -> None:
    """Every item comes after all that it reads from, and every node is in exactly one of them."""
    order = graph.items()
    position = {item: place for place, item in enumerate(order)}
    for item in order:
        assert all(position[before] < position[item] for before in graph.before(item))
    assert {graph.find_item(number) for number in range(len(graph.fold_nodes))} == set(order)
    assert sum(graph.weight[item] for item in order) == len(graph.fold_nodes)


def test_a_contracted_region_is_one_item() -> None:
    graph = working("a=Exp(x) b=Neg(a) c=Abs(b) d=Relu(c)")
    made = contract(graph, "b", "c")
    assert graph.items() == [*numbers(graph, "a"), made, *numbers(graph, "d")]
    assert graph.maker("c") == made
    assert graph.before(made) == set(numbers(graph, "a"))
    assert graph.weight[made] == 2
    assert_runnable(graph)


def test_what_lies_between_is_moved_to_where_it_can_run() -> None:
    """`c` is needed by the region and `d` needs it; the file lists both between its nodes."""
    graph = working("a=Exp(x) c=Sin(x) d=Cos(a) b=Add(a,c) e=Sub(d,b)")
    contract(graph, "a", "b")
    assert_runnable(graph)


def test_regions_in_regions() -> None:
    graph = working("a=Exp(x) b=Neg(a) c=Exp(b) d=Neg(c)")
    first, second = contract(graph, "a", "b"), contract(graph, "c", "d")
    outer = graph.contract([first, second], ("x",))
    assert graph.items() == [outer]
    assert graph.weight[outer] == 4
    assert graph.find_item(0) == outer


def test_values_that_are_read_outside() -> None:
    graph = working("a=Exp(x) b=Neg(a) c=Abs(b)", kept=["c"])
    inside = set(numbers(graph, "a", "b"))
    assert not graph.is_read_outside("a", inside)
    assert graph.is_read_outside("b", inside)
    assert graph.is_read_outside("c", {*inside, *numbers(graph, "c")})


def test_a_path_that_leaves_and_comes_back_divides_a_region() -> None:
    """`a → out → b`: with `a` and `b` in one call, the call would have to run before and after `out`."""
    graph = working("a=Exp(x) out=Neg(a) b=Add(a,out) c=Abs(b)")
    members = numbers(graph, "a", "b", "c")
    assert not is_convex(graph, members)
    assert find_convex_part(graph, members) == numbers(graph, "b", "c")
    assert is_convex(graph, numbers(graph, "a", "out", "b"))


def test_a_region_with_strangers_in_between_is_convex() -> None:
    graph = working("a=Exp(x) other=Neg(x) b=Abs(a) c=Add(other,b)")
    assert is_convex(graph, numbers(graph, "a", "b"))


@st.composite
def graphs(draw: st.DrawFn) -> str:
    names, parts = ["x"], []
    for number in range(draw(st.integers(2, 12))):
        read = [draw(st.sampled_from(names[-5:])) for _ in range(draw(st.integers(1, 2)))]
        names.append(f"v{number}")
        parts.append(f"v{number}={'Add' if len(read) > 1 else 'Exp'}({','.join(read)})")
    return " ".join(parts)


def reaches_back(graph: WorkingGraph, part: Iterable[int]) -> bool:
    """Whether a path leads from the part out of it and back: by search, not by counting."""
    inside = set(part)
    outside_after = set[int]()
    for item in graph.items():
        before = graph.before(item)
        if item not in inside and (before & inside or before & outside_after):
            outside_after.add(item)
    return any(graph.before(item) & outside_after for item in inside)


@given(text=graphs(), data=st.data())
def test_convex_parts_of_generated_graphs(text: str, data: st.DataObject) -> None:
    graph = working(text)
    members = data.draw(st.sets(st.sampled_from(range(len(graph.fold_nodes))), min_size=1))
    part = find_convex_part(graph, members)
    assert set(part) <= members
    assert not reaches_back(graph, part)
    assert is_convex(graph, members) == (not reaches_back(graph, members))


@given(text=graphs(), data=st.data())
def test_contractions_of_generated_graphs(text: str, data: st.DataObject) -> None:
    graph = working(text)
    for _ in range(3):
        members = data.draw(st.sets(st.sampled_from(graph.items()), min_size=1))
        part = find_convex_part(graph, members)
        inside = set(part)
        reads = dict.fromkeys(name for item in part for name in graph.reads[item] if graph.maker(name) not in inside)
        graph.contract(part, tuple(reads))
        assert_runnable(graph)


def test_nodes_that_do_the_same_are_of_one_kind() -> None:
    nodes = parse_nodes("a=Exp(x) b=Exp(a) c=Neg(b)")
    nodes[1].name, nodes[1].doc_string = "other", "says something else"
    nodes.append(helper.make_node("Softmax", ["c"], ["d"], axis=0))
    nodes.append(helper.make_node("Softmax", ["c"], ["e"], axis=1))
    kinds = [node.kind for node in list_fold_nodes(nodes)]
    assert kinds[0] == kinds[1]
    assert len(set(kinds)) == 4


def test_constants_are_of_one_kind_and_differ_by_content() -> None:
    def constant(output: str, value: float, name: str) -> onnx.NodeProto:
        tensor = numpy_helper.from_array(np.array([value], np.float32), name)
        return helper.make_node("Constant", [], [output], value=tensor)

    nodes = list_fold_nodes([constant("a", 1, "one"), constant("b", 1, "another"), constant("c", 2, "one")])
    assert len({node.kind for node in nodes}) == 1
    assert nodes[0].content == nodes[1].content != nodes[2].content


def test_free_names() -> None:
    names = FreeNames(["a", "a_2"])
    assert [names.free(name) for name in ("a", "b", "b", "a")] == ["a_3", "b", "b_2", "a_4"]


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("encoder.layer.0.query.weight", "query.weight"),
        ("/encoder/layer.0/query/MatMul", "query/MatMul"),
        ("model.encoder.layer.0.bias", "bias"),
        ("encoder.layer.01.query", "encoder.layer.01.query"),
        ("anencoder.layer.0.query", "anencoder.layer.0.query"),
        ("encoder.layer.0.", "encoder.layer.0."),
    ],
)
def test_names_inside_of_a_module(name: str, inside: str) -> None:
    assert relative_name(name, ModuleCall("encoder.layer.0")) == inside


@pytest.mark.parametrize(
    ("name", "found"), [("Layer", "Layer"), ("1x1 Conv", "_1x1_Conv"), ("<lambda>", "lambda"), ("…", "Module")]
)
def test_class_names_as_identifiers(name: str, found: str) -> None:
    assert function_identifier(name) == found
