"""Residual adds: a value is added to what was made of it.

A value that is read by an addition and elsewhere leaves a mark on everything made of it, until the last addition that
reads it has run. Few marks are open at a time, so following them costs little. A shortcut may hold one product
(a convolution that changes the shape): then what that product reads is the value.
"""

from __future__ import annotations

from collections.abc import Mapping

from modelexport.graph.index import Node
from modelexport.roles.flow import Flow

RESIDUAL = "residual"
# Nobody keeps more shortcuts open than this; past it, marks are dropped rather than carried along for ever.
_MOST_MARKS = 64


def find_residuals(flow: Flow, known: Mapping[str, str]) -> dict[str, str]:
    last = _last_additions(flow)
    marks: dict[str, frozenset[str]] = {}
    found: dict[str, str] = {}
    for place, node in enumerate(flow.order):
        carried = frozenset[str]().union(*(_marks_of(value, marks, last) for value in node.inputs))
        carried = frozenset(mark for mark in carried if last[mark] > place)
        if len(carried) > _MOST_MARKS:
            carried = frozenset()
        if node.op_type == "Add" and node.key not in known and _is_residual(flow, node, marks, last):
            found[node.key] = RESIDUAL
        if carried:
            marks.update(dict.fromkeys(filter(None, node.outputs), carried))
    return found


def _marks_of(value: str, marks: Mapping[str, frozenset[str]], last: Mapping[str, int]) -> frozenset[str]:
    found = marks.get(value, frozenset())
    return found | {value} if value in last else found


def _last_additions(flow: Flow) -> dict[str, int]:
    """Values that an addition may come back to, with the place of the last one."""
    last: dict[str, int] = {}
    for place, node in enumerate(flow.order):
        if node.op_type == "Add":
            for value in map(flow.uncast, node.inputs):
                for origin in (value, _shortcut(flow, value)):
                    if flow.trace(origin).content:
                        last[origin] = place
    return last


def _shortcut(flow: Flow, value: str) -> str:
    source = flow.source(value)
    return flow.uncast(source.data) if source is not None and source.weight else ""


def _is_residual(flow: Flow, node: Node, marks: Mapping[str, frozenset[str]], last: Mapping[str, int]) -> bool:
    operands = tuple(map(flow.uncast, node.inputs))
    for value, other in (operands, operands[::-1]):
        if value in last and value in marks.get(other, frozenset()):
            # Without a product in between it is a function written as a polynomial.
            return flow.trace(value).sources != flow.trace(other).sources
        origin, end = _shortcut(flow, value), _shortcut(flow, other)
        # Two products of one value are a sum of products; the other branch must be longer than the shortcut.
        if origin in last and origin in marks.get(end, frozenset()):
            return True
    return False
