"""The work of linking grows with the graphs, whatever they look like."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.support.building import graph, node
from tests.support.growing_graphs import blocks, calls_made

from modelexport.graph.index import Graph
from modelexport.lineage.descent import trace_lineage

Pair = tuple[Graph, Graph]


def masked(count: int, optimized: bool) -> Graph:
    """A long computation that all layers read; an optimizer replaces it by a value that was there before."""
    chain = [node("Neg", f"m{place}", f"m{place + 1}") for place in range(count)]
    mask = "m0" if optimized else f"m{count}"
    layers = [node("Add", f"v{place} {mask}", f"v{place + 1}") for place in range(count)]
    return graph(*([] if optimized else chain), *layers, inputs="v0 m0", outputs=f"v{count}")


def identities(count: int, name: str) -> Graph:
    values = ["x", *(f"{name}{place}" for place in range(count))]
    chain = [node("Identity", one, other) for one, other in pairwise(values)]
    return graph(*chain, node("Relu", values[-1], "y"))


def literals(count: int, name: str) -> Graph:
    """Every layer has a constant of its own, and all of them hold the same."""
    tensor = numpy_helper.from_array(np.array([1.5], np.float32))
    nodes, value = list[onnx.NodeProto](), "x"
    for place in range(count):
        nodes.append(node("Constant", "", f"{name}c{place}", value=tensor))
        nodes.append(node("Pow", f"{value} {name}c{place}", f"{name}{place}"))
        value = f"{name}{place}"
    return graph(*nodes, node("Relu", value, "y"))


def casts(count: int, name: str) -> Graph:
    """Every layer casts the same value for itself."""
    nodes, value = list[onnx.NodeProto](), "x"
    for place in range(count):
        nodes.append(node("Cast", "x", f"{name}c{place}", to=1))
        nodes.append(node("Pow", f"{value} {name}c{place}", f"{name}{place}"))
        value = f"{name}{place}"
    return graph(*nodes, node("Relu", value, "y"))


def renamed(build: Callable[[int, str], Graph]) -> Callable[[int], Pair]:
    return lambda count: (build(count, "v"), build(count, "h"))


def zigzag(count: int) -> Pair:
    """Unknown nodes of which only the first touches anything that is known."""
    before = graph(node("Relu", "x", "r"), node("Relu", "r", "y"))
    made = [node("Foo", "x", f"a{place}") for place in range(1, count)]
    read = [node("Bar", f"{f'a{place}' if place else 'r'} a{place + 1}", f"b{place}") for place in range(count - 1)]
    outputs = " ".join(["y", *(f"b{place}" for place in range(count - 1))])
    return before, graph(node("Relu", "x", "r"), *made, *read, node("Relu", "r", "y"), outputs=outputs)


@pytest.mark.parametrize(
    "build",
    [
        lambda count: (blocks(count, fused=False), blocks(count, fused=True)),
        lambda count: (masked(count, optimized=False), masked(count, optimized=True)),
        renamed(identities),
        renamed(literals),
        renamed(casts),
        zigzag,
    ],
    ids=["blocks", "masked", "identities", "literals", "casts", "zigzag"],
)
def test_the_work_grows_with_the_graph_not_with_its_square(build: Callable[[int], Pair]) -> None:
    small, large = build(100), build(800)
    once = calls_made(lambda: trace_lineage(*small))
    again = calls_made(lambda: trace_lineage(*large))
    assert again < 12 * once
