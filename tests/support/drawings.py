"""Drawings made by hand and at random, for the writers of `show/formats`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from hypothesis import strategies as st

from modelexport.graph.index import MAIN
from modelexport.record.hierarchy import ModuleCall, join, lineage_of
from modelexport.show.formats.drawing import Box, BoxKind, Drawing, Layer, Port, Sheet, Wire

HOSTILE = st.text('ab"\\&<>;#[]{}|`$%/\n\r\t\x01\x9bé＂_x0041', max_size=5)


def operator(key: str, module: str | None = None, op_type: str = "Relu", sheet: str = MAIN, **facts: str) -> Box:
    """`module` is a call as it is written; None if nothing is known of the node."""
    call = None if module is None else ModuleCall.parse(module)
    known = {} if module is None else {"module": module}
    return Box(key, BoxKind.OPERATOR, op_type, sheet, call, {"name": key, **known, **facts}, (), (Port(key),))


def constant(name: str, module: str | None = None) -> Box:
    call = None if module is None else ModuleCall.parse(module)
    return Box(name, BoxKind.CONSTANT, name, MAIN, call, {}, (), (Port(name, "float", "[2]"),))


def end(name: str, kind: BoxKind, sheet: str = MAIN) -> Box:
    ports = (Port(name, "float", "[n]"),)
    is_input = kind is BoxKind.INPUT
    return Box(name, kind, name, sheet, None, {}, () if is_input else ports, ports if is_input else ())


def chain(ids: Iterable[str]) -> tuple[Wire, ...]:
    return tuple(Wire(left, 0, right, 0, f"from {left}") for left, right in pairwise(ids))


def drawing(
    *boxes: Box,
    wires: Iterable[Wire] = (),
    sheets: Iterable[Sheet] = (),
    classes: Mapping[str, str] | None = None,
    name: str = "net",
) -> Drawing:
    """With a layer for each call that has a box and for those around it, by path."""
    calls = {box.call for box in boxes if box.call is not None and box.call.path}
    stacks: dict[ModuleCall, tuple[ModuleCall, ...]] = {}
    for call in sorted(calls):
        around = [ModuleCall(path) for path in lineage_of(call.path) if path not in ("", call.path)]
        stack = (*around, call)
        stacks |= {inner: stack[: depth + 1] for depth, inner in enumerate(stack)}
    known = classes or {}
    layers = {call: Layer(call, str(call), known.get(call.path, "Block"), {"module": str(call)}) for call in stacks}
    return Drawing(name, boxes, tuple(wires), (Sheet(MAIN, name), *sheets), layers, stacks)


@st.composite
def drawings(draw: st.DrawFn) -> Drawing:
    """One graph: operators of random modules, constants and ends, and wires between any of them."""
    paths = [""]
    for number in range(draw(st.integers(0, 6))):
        paths.append(join(draw(st.sampled_from(paths)), draw(HOSTILE).replace(".", "") + str(number)))
    modules = st.sampled_from([None, *(str(ModuleCall(path)) for path in paths if "#" not in path)])
    texts = draw(st.lists(HOSTILE, min_size=1, max_size=8))
    operators = [operator(f"{text}{place}", draw(modules), text) for place, text in enumerate(texts)]
    constants = [constant(f"weight {place}{draw(HOSTILE)}", draw(modules)) for place in range(draw(st.integers(0, 3)))]
    ends = [end("in", BoxKind.INPUT), end("out", BoxKind.OUTPUT)]
    sources = st.sampled_from([*operators, *constants, ends[0]])
    targets = st.sampled_from([*operators, ends[1]])
    pairs = draw(st.lists(st.tuples(sources, targets), max_size=12))
    wires = [Wire(source.id, 0, target.id, place, draw(HOSTILE)) for place, (source, target) in enumerate(pairs)]
    return drawing(ends[0], *operators, *constants, ends[1], wires=wires, name=draw(HOSTILE))
