"""Graphs of any size, and how much work something is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

from tests.support.building import graph, node

from modelexport.graph.index import Graph


def blocks(count: int, fused: bool) -> Graph:
    """A deep network of convolutions, normalizations, twins and constants, before or after an optimizer."""
    nodes = []
    for place in range(count):
        here, there = f"v{place}", f"v{place + 1}"
        if fused:
            nodes += [node("Conv", f"{here} w{place} b{place}", f"n{place}"), node("Sin", f"n{place}", f"s{place}")]
            nodes.append(node("Add", f"s{place} s{place}", there))
        else:
            nodes += [node("Conv", f"{here} u{place}", f"c{place}")]
            nodes.append(node("BatchNormalization", f"c{place} p{place} q{place} r{place} t{place}", f"n{place}"))
            nodes += [node("Sin", f"n{place}", f"s{place}"), node("Sin", f"n{place}", f"z{place}")]
            nodes.append(node("Add", f"s{place} z{place}", there))
    names = "wb" if fused else "upqrt"
    weights = [f"{name}{place}" for name in names for place in range(count)]
    return graph(*nodes, inputs="v0", outputs=f"v{count}", weights=weights)


def calls_made(action: Callable[[], object]) -> int:
    """How many functions, of Python and of C, an action calls: time that does not depend on the machine."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    previous = sys.getprofile()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(previous)
    return count
