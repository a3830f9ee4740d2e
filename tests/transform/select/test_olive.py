"""Splits as Olive reads them: by the longest beginning of a name, and never before what a node reads."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from tests.support.building import model

from modelexport.errors import SelectionInexpressible
from modelexport.graph.index import Graph, index_model
from modelexport.transform.select import splits as olive
from modelexport.transform.select.catalogue import DIALECTS
from modelexport.transform.select.dialect import Selection, Settings, check


def graph_of(*nodes: tuple[str, str, str]) -> Graph:
    """Each a name, the values that it reads, and the one that it makes."""
    protos = [helper.make_node("Sum", reads.split(), [makes], name=name) for name, reads, makes in nodes]
    return index_model(model(*protos, outputs=nodes[-1][2]))


def written(graph: Graph, *groups: list[str]) -> dict[str, int]:
    selection = Selection(graph, tuple(tuple(graph.by_key[key] for key in group) for group in groups))
    check(selection, DIALECTS["olive-split"])
    return json.loads(olive.write_olive(selection, Settings()).text)["split_assignments"]


def asked(name: str, assignments: dict[str, int]) -> int | None:
    parts = name.replace("/", ".").lstrip(".").split(".")
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in assignments:
            return assignments[".".join(parts[:length])]
    return None


def split(graph: Graph, assignments: dict[str, int]) -> dict[str, int]:
    """Where each node goes: at least as late as what it reads; before the first split, with what reads it."""
    found: dict[str, int] = {}
    for node in graph.nodes:
        own = asked(node.name, assignments)
        known = [found[one.key] for one in graph.predecessors(node) if one.key in found]
        if own is not None or known:
            found[node.key] = max(known + ([] if own is None else [own]))
    for node in reversed(graph.nodes):
        if node.key not in found:
            after = [found[one.key] for one in graph.successors(node) if one.key in found]
            found[node.key] = min(after, default=0)
    return found


def test_as_few_names_as_will_do() -> None:
    graph = graph_of(
        ("/emb/Gather", "x", "e"),
        ("/layer.0/fc/MatMul", "e w", "a"),
        ("/layer.0/act/Relu", "a", "b"),
        ("/layer.1/fc/MatMul", "b w", "c"),
        ("/head/Gemm", "c", "y"),
    )
    assert written(graph, ["a", "b"], ["c"]) == {"layer.0": 0, "layer.1": 1}
    assert written(graph, ["a", "b"]) == {"layer.0": 0, "layer.1": 1, "head": 1}  # what follows is the second split
    assert written(graph, ["e", "a"], ["b", "c", "y"]) == {
        "emb": 0,
        "layer.0.fc": 0,
        "layer.0.act": 1,
        "layer.1": 1,
        "head": 1,
    }


def test_a_name_that_begins_another() -> None:
    graph = graph_of(("fc", "x", "a"), ("fc.0", "a", "b"), ("fc.1", "b", "c"))
    assignments = written(graph, ["a"], ["b", "c"])
    assert split(graph, assignments) == {"a": 0, "b": 1, "c": 1}


def test_names_that_olive_reads_alike() -> None:
    graph = graph_of(("/fc/0", "x", "a"), ("fc.0", "a", "b"))
    with pytest.raises(SelectionInexpressible, match="tell nodes apart"):
        written(graph, ["a"], ["b"])


def test_a_selection_that_olive_would_change() -> None:
    graph = graph_of(("one", "x", "a"), ("two", "a", "b"), ("three", "b", "c"))
    with pytest.raises(SelectionInexpressible, match=r"'three' \(of split 0, reads from split 1\)"):
        written(graph, ["a", "c"], ["b"])


def test_one_query_takes_along_what_it_needs() -> None:
    graph = graph_of(("one", "x", "a"), ("two", "a", "b"), ("three", "b", "c"), ("four", "c", "d"))
    assert split(graph, written(graph, ["a", "c"])) == {"a": 0, "b": 0, "c": 0, "d": 1}
    with pytest.raises(SelectionInexpressible, match="second split"):
        written(graph, ["d"])


def test_nothing_for_a_second_split() -> None:
    graph = graph_of(("one", "x", "a"), ("two", "a", "b"))
    with pytest.raises(SelectionInexpressible, match="second split"):
        written(graph, ["a", "b"])


def test_a_split_of_constants_is_none() -> None:
    constant = helper.make_node("Constant", [], ["k"], name="k", value_float=1.0)
    graph = index_model(model(constant, helper.make_node("Add", ["x", "k"], ["y"], name="add"), outputs="y"))
    with pytest.raises(SelectionInexpressible, match="nothing in split 0"):
        written(graph, ["k"], ["y"])


NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)


@st.composite
def cut_graphs(draw: st.DrawFn) -> tuple[Graph, list[list[str]]]:
    """Nodes that read earlier ones, under names that begin each other, cut into stretches of which some is selected."""
    names = draw(st.lists(NAMES, min_size=2, max_size=8, unique=True))
    values, nodes = ["x"], []
    for place, name in enumerate(names):
        reads = draw(st.lists(st.sampled_from(values), min_size=1, max_size=2))
        nodes.append((name, " ".join(reads), f"v{place}"))
        values.append(f"v{place}")
    cut = draw(st.integers(1, len(names) - 1))
    stretches = values[1 : cut + 1], values[cut + 1 :]
    return graph_of(*nodes), [draw(st.lists(st.sampled_from(part), min_size=1, unique=True)) for part in stretches]


@given(cut_graphs())
def test_olive_puts_every_selected_node_where_it_is_wanted(cut: tuple[Graph, list[list[str]]]) -> None:
    graph, groups = cut
    found = split(graph, written(graph, *groups))
    for number, group in enumerate(groups):
        assert {found[key] for key in group} == {number}
