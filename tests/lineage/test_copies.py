"""A file that holds the graph before more than once: every copy is matched by itself."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.support.building import graph, node

from modelexport.graph.index import Graph
from modelexport.lineage.copies import split_copies
from modelexport.lineage.descent import trace_lineage

LAYERS = 3
WEIGHTS = [
    numpy_helper.from_array(np.random.default_rng(place).standard_normal((8, 8)).astype(np.float32), f"w{place}")
    for place in range(LAYERS)
] + [numpy_helper.from_array(np.array(0), "first"), numpy_helper.from_array(np.array([8]), "wide")]


def layers(prefix: str = "", ends: tuple[str, str] = ("x", "y"), *, slim: bool = False) -> list[onnx.NodeProto]:
    """Layers that ask for the size of what they read, and put their product and its activation into that shape.

    slim  the activation reads a size that the product has asked for
    """
    nodes, read = [], ends[0]
    for place in range(LAYERS):
        made = {name: f"{prefix}{name}{place}" for name in ("s", "g", "c", "t", "h", "d", "m", "r", "a", "y")}
        last = ends[1] if place == LAYERS - 1 else made["y"]
        second = made["s"] if slim else made["t"]
        nodes += [
            node("Shape", read, made["s"]),
            node("Gather", f"{made['s']} first", made["g"]),
            *([] if slim else [node("Shape", read, made["t"])]),
            node("Gather", f"{second} first", made["h"]),
            node("MatMul", f"{read} w{place}", made["m"]),
            node("Concat", f"{made['g']} wide", made["c"]),
            node("Concat", f"{made['h']} wide", made["d"]),
            node("Reshape", f"{made['m']} {made['c']}", made["r"]),
            node("Tanh", made["r"], made["a"]),
            node("Reshape", f"{made['a']} {made['d']}", last),
        ]
        read = last
    return nodes


def merged(prefixes: tuple[str, str], *, ends: bool = True) -> Graph:
    """Two copies, each under a prefix of its own; their inputs and outputs, or all but those."""
    called = [(f"{prefix}x", f"{prefix}y") if ends else (f"in{n}", f"out{n}") for n, prefix in enumerate(prefixes)]
    nodes = [each for prefix, pair in zip(prefixes, called, strict=True) for each in layers(prefix, pair)]
    (first, second), (y, z) = zip(*called, strict=True)
    return graph(*nodes, inputs=f"{first} {second}", outputs=f"{y} {z}", weights=WEIGHTS)


def before() -> Graph:
    return graph(*layers(), inputs="x", outputs="y", weights=WEIGHTS)


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("prefixes", [("one_", "two_"), ("", "copy_")])
def test_copies_are_split(prefixes: tuple[str, str], ends: bool) -> None:
    after = merged(prefixes, ends=ends)
    copies = split_copies(before(), after)
    half = len(after.nodes) // 2
    assert [copy.nodes for copy in copies] == [after.nodes[:half], after.nodes[half:]]
    assert [(copy.inputs, copy.outputs) for copy in copies] == [
        ((value,), (result,)) for value, result in zip(after.inputs, after.outputs, strict=True)
    ]


def test_work_on_constants_belongs_to_both_copies() -> None:
    shared = node("Transpose", "w0", "t")
    pair = [node("MatMul", f"{copy}x t", f"{copy}y") for copy in ("one_", "two_")]
    origin = graph(shared, node("MatMul", "x t", "y"), inputs="x", outputs="y", weights=WEIGHTS)
    after = graph(shared, *pair, inputs="one_x two_x", outputs="one_y two_y", weights=WEIGHTS)
    assert [[each.key for each in copy.nodes] for copy in split_copies(origin, after)] == [
        ["t", "one_y"],
        ["t", "two_y"],
    ]
    lineage = trace_lineage(origin, after)
    assert {key: link.sources for key, link in lineage.nodes.items()} == {"t": ("t",), "one_y": ("y",), "two_y": ("y",)}
    assert (lineage.overlap.after, lineage.overlap.before) == (1.0, 1.0)


@pytest.mark.parametrize("ends", [("one_y", "two_y"), ("y", "copy_y"), ("p", "q")])
def test_copies_that_read_one_input_are_told_apart_by_what_they_return(ends: tuple[str, str]) -> None:
    nodes = [each for number, end in enumerate(ends) for each in layers(f"{number}_", ("x", end))]
    after = graph(*nodes, inputs="x", outputs=" ".join(ends), weights=WEIGHTS)
    copies = split_copies(before(), after)
    half = len(after.nodes) // 2
    assert [copy.nodes for copy in copies] == [after.nodes[:half], after.nodes[half:]]
    assert [(copy.inputs, copy.outputs) for copy in copies] == [(("x",), (end,)) for end in ends]


def test_they_may_share_work() -> None:
    """What a tool has merged is the same in each of them, and what it has not belongs to the copy that reads it."""
    first, *one = layers("1_", ("x", "1_y"))
    two = [each for each in layers("2_", ("x", "2_y")) if each.output[0] != "2_s0"]
    next(each for each in two if each.output[0] == "2_g0").input[0] = first.output[0]
    after = graph(first, *one, *two, inputs="x", outputs="1_y 2_y", weights=WEIGHTS)
    assert [first.output[0] in {each.key for each in copy.nodes} for copy in split_copies(before(), after)] == [
        True
    ] * 2
    links = trace_lineage(before(), after).nodes
    assert {key: links[key].sources for key in links} == {key: (key.partition("_")[2],) for key in links}


@pytest.mark.parametrize("name", ["middle", "copy_y"])
def test_what_is_returned_from_the_middle_is_no_copy(name: str) -> None:
    nodes = [*layers(), node("Identity", "a1", name)]
    after = graph(*nodes, inputs="x", outputs=f"y {name}", weights=WEIGHTS)
    assert split_copies(before(), after) == [after]


def test_another_model_beside_is_no_copy() -> None:
    other = [node("Exp", "v", "e"), node("Log", "e", "z")]
    after = graph(*layers("p_", ("p_x", "p_y")), *other, inputs="p_x v", outputs="p_y z", weights=WEIGHTS)
    assert split_copies(before(), after) == [after]
    # Beside two copies it goes with the first.
    nodes = [*layers("p_", ("p_x", "p_y")), *layers("q_", ("q_x", "q_y")), *other]
    after = graph(*nodes, inputs="p_x q_x v", outputs="p_y q_y z", weights=WEIGHTS)
    first, second = split_copies(before(), after)
    assert {each.key for each in second.nodes} == {each.output[0] for each in layers("q_", ("q_x", "q_y"))}
    assert len(first.nodes) + len(second.nodes) == len(after.nodes)
    assert first.inputs == ("p_x", "v")


def test_parts_of_one_graph_are_no_copies() -> None:
    """Two towers with inputs and outputs of their own."""
    towers = graph(*layers("a_", ("a_x", "a_y")), *layers("b_", ("b_x", "b_y")), outputs="a_y b_y", weights=WEIGHTS)
    assert split_copies(towers, towers) == [towers]


def test_what_one_copy_lost_is_not_said_to_live_on() -> None:
    """A tool that spoils one copy is not hidden by the other one."""
    origin = graph(
        node("MatMul", "x w0", "m"),
        node("Tanh", "m", "t"),
        node("MatMul", "t w1", "y"),
        inputs="x",
        outputs="y",
        weights=WEIGHTS,
    )
    whole = [node("MatMul", "p_x w0", "p_m"), node("Tanh", "p_m", "p_t"), node("MatMul", "p_t w1", "p_y")]
    spoiled = [node("MatMul", "q_x w0", "q_m"), node("MatMul", "q_m w1", "q_y")]
    after = graph(*whole, *spoiled, inputs="p_x q_x", outputs="p_y q_y", weights=WEIGHTS)
    assert trace_lineage(origin, after).consistency.unexplained == ("t",)


def test_one_copy_does_not_answer_for_the_other() -> None:
    """What one of them has in four nodes as before, the other has in one: it does the work of all four."""
    norm = [("Abs", "{0}x", "a"), ("Sqrt", "{0}a", "s"), ("Exp", "{0}s", "e"), ("Tanh", "{0}e", "y")]
    origin, copy = ([node(kind, read.format(p), f"{p}{made}") for kind, read, made in norm] for p in ("", "p_"))
    after = graph(*copy, node("Normed", "q_x", "q_y"), inputs="p_x q_x", outputs="p_y q_y")
    lineage = trace_lineage(graph(*origin, inputs="x", outputs="y"), after)
    assert lineage.nodes["q_y"].sources == ("a", "s", "e", "y")
    assert [lineage.nodes[f"p_{made}"].sources for made in "asey"] == [("a",), ("s",), ("e",), ("y",)]
