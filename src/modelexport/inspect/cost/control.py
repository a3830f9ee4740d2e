"""Nodes with bodies. Of an If, the branch counts that takes more; a Loop's or Scan's body, as often as it is run.

What comes after an If reads what the branch makes that counts. Sizes that change from one round to the next are open.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import onnx

from modelexport.graph.index import Graph, Node
from modelexport.inspect.cost.known import Known
from modelexport.inspect.cost.rules import Piece, Work
from modelexport.inspect.cost.values import UNDEFINED, Value, settled
from modelexport.record.polynomial import Polynomial, sizes_sum
from modelexport.record.results.cost import ZERO

# More rounds of a Loop than this are no number of rounds, but no limit.
_NO_LIMIT = 2**31 - 1
# What an open axis is taken to be where two branches are compared.
_USUAL = 64


class Walk(Protocol):
    """Who runs bodies."""

    graph: Graph
    known: Known

    def run(self, graph_id: str, times: Polynomial) -> list[Piece]: ...
    def attributes(self, node: Node) -> dict[str, Any]: ...


def controlled(walk: Walk, node: Node, held: Sequence[str], times: Polynomial) -> list[Piece]:
    """The work of the bodies of a node; what it makes is known afterwards."""
    return {"If": _if, "Loop": _loop, "Scan": _scan}.get(node.op_type, _other)(walk, node, held, times)


def _if(walk: Walk, node: Node, held: Sequence[str], times: Polynomial) -> list[Piece]:
    branches = [walk.run(body, times) for body in held]
    results = [walk.known.all(walk.graph.yields[body]) for body in held]
    decided = _decided(walk, node, held)
    ranks = [sum(len(value.shape or ()) for value in one) for one in results]
    more = max(range(len(held)), key=lambda place: (*_extent(branches[place]), ranks[place], -place))
    chosen = more if decided is None else decided
    for name, value in zip(node.outputs, results[chosen], strict=False):
        walk.known[name] = value if decided is not None else _shape_alone(value)
    why = "its condition is always the same" if decided is not None else "it takes more"
    note = f"the other branch of {node.name or node.key} counts: {why}"
    return [
        piece if place == chosen else _idle(piece, note) for place, branch in enumerate(branches) for piece in branch
    ]


def _decided(walk: Walk, node: Node, held: Sequence[str]) -> int | None:
    """The branch that is always taken, if there is one."""
    condition = walk.known[node.inputs[0]].content if node.inputs else None
    if condition is None or condition.size != 1 or isinstance(condition.reshape(-1)[0], Polynomial):
        return None
    wanted = "then_branch" if condition.reshape(-1)[0] else "else_branch"
    return next((place for place, body in enumerate(held) if body.endswith(f"|{wanted}")), None)


def _loop(walk: Walk, node: Node, held: Sequence[str], times: Polynomial) -> list[Piece]:
    body, rounds = held[0], _limit(walk, node)
    counter, going, *carried = walk.graph.takes[body]
    walk.known[counter] = Value(onnx.TensorProto.INT64, ())
    walk.known[going] = Value(onnx.TensorProto.BOOL, ())
    pieces = _repeated(walk, body, carried, walk.known.all(node.inputs[2:]), 1, times * rounds)
    results = walk.known.all(walk.graph.yields[body][1:])
    for place, (name, value) in enumerate(zip(node.outputs, results, strict=False)):
        walk.known[name] = _shape_alone(value) if place < len(carried) else _stacked(value, rounds, 0)
    return pieces


def _limit(walk: Walk, node: Node) -> Polynomial:
    """How often a Loop runs, at most."""
    given = walk.known[node.inputs[0]].content if node.inputs and node.inputs[0] else None
    found = None if given is None or given.size != 1 else given.reshape(-1)[0]
    if isinstance(found, Polynomial) or (isinstance(found, int) and 0 <= found < _NO_LIMIT):
        return Polynomial.of(found)
    return _open_rounds(walk, node)


def _open_rounds(walk: Walk, node: Node) -> Polynomial:
    name = node.name or node.key
    source = f"how often the body of {node.op_type} {name} runs, which depends on what the model is fed"
    return Polynomial.of(walk.known.axes.fresh(f"rounds of {name}", source))


def _scan(walk: Walk, node: Node, held: Sequence[str], times: Polynomial) -> list[Piece]:
    attributes, body = walk.attributes(node), held[0]
    count = attributes.get("num_scan_inputs", 0)
    states = len(node.inputs) - count
    takes, yields = walk.graph.takes[body], walk.graph.yields[body]
    rounds: Polynomial | None = None
    axes = attributes.get("scan_input_axes") or [0] * count
    for name, inner, axis in zip(node.inputs[states:], takes[states:], axes, strict=False):
        value = walk.known[name]
        walk.known[inner] = _without_axis(value, axis)
        if rounds is None and value.shape:
            rounds = Polynomial.of(value.shape[axis])
    rounds = _open_rounds(walk, node) if rounds is None else rounds
    pieces = _repeated(walk, body, takes[:states], walk.known.all(node.inputs[:states]), 0, times * rounds)
    to = attributes.get("scan_output_axes") or [0] * len(node.outputs)
    for place, (name, value) in enumerate(zip(node.outputs, walk.known.all(yields), strict=False)):
        walk.known[name] = _shape_alone(value) if place < states else _stacked(value, rounds, to[place - states])
    return pieces


def _repeated(
    walk: Walk, body: str, names: Sequence[str], start: Sequence[Value], skipped: int, times: Polynomial
) -> list[Piece]:
    """Run a body that reads in the next round what it returned in this one, behind the first `skipped` values."""
    before = [_shape_alone(value) for value in start]
    pieces = _given(walk, body, names, before, times)
    after = walk.known.all(walk.graph.yields[body][skipped:])
    merged = [
        old if old.shape == new.shape else walk.known.either([old, new], name)
        for old, new, name in zip(before, after, names, strict=False)
    ]
    changed = any(one is not old for one, old in zip(merged, before, strict=False))
    return _given(walk, body, names, merged, times) if changed else pieces


def _given(walk: Walk, body: str, names: Sequence[str], values: Sequence[Value], times: Polynomial) -> list[Piece]:
    for name, value in zip(names, values, strict=False):
        walk.known[name] = value
    return walk.run(body, times)


def _other(walk: Walk, node: Node, held: Sequence[str], times: Polynomial) -> list[Piece]:
    """An operator with bodies that is none of these: how often they run is open, and so is what it makes."""
    rounds = _open_rounds(walk, node)
    for name in node.outputs:
        walk.known[name] = Value(*walk.known.shaped(name, None, UNDEFINED))
    return [piece for body in held for piece in walk.run(body, times * rounds)]


def _shape_alone(value: Value) -> Value:
    return Value(value.dtype, value.shape)


def _without_axis(value: Value, axis: int) -> Value:
    if not value.shape:
        return Value(value.dtype)
    place = axis % len(value.shape)
    return Value(value.dtype, value.shape[:place] + value.shape[place + 1 :])


def _stacked(value: Value, rounds: Polynomial, axis: int) -> Value:
    if value.shape is None:
        return Value(value.dtype)
    place = axis % (len(value.shape) + 1)
    return Value(value.dtype, (*value.shape[:place], settled(rounds), *value.shape[place:]))


def _idle(piece: Piece, why: str) -> Piece:
    return replace(piece, work=Work(piece.work.kind, ZERO, ZERO, why), times=ZERO, makes=ZERO)


def _extent(pieces: Sequence[Piece]) -> tuple[int, int]:
    """How much it is, to compare it: products first, then everything else."""
    return (
        _usual(piece.work.flops * piece.times for piece in pieces if piece.work.flops is not None),
        _usual(piece.work.other * piece.times for piece in pieces if piece.work.other is not None),
    )


def _usual(sizes: Iterable[Polynomial]) -> int:
    total = sizes_sum(sizes)
    return total.at(dict.fromkeys(total.axes, _USUAL)).value or 0
