"""Whose work nodes in bodies are, from runs and graphs made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from tests.support.building import body, graph, node, owners

from modelexport.attribute.matched_values import MatchedRun, claim_bodies_by_value
from modelexport.graph.fingerprint import fingerprint
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Confidence, EvidenceKind
from modelexport.record.signals import GraphValues, Trace, TracedOp


def numbers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((3, 4)).astype(np.float32)


X, P, Q, Y = map(numbers, range(4))
STEP = body(node("Sigmoid", "state", "s"), node("Identity", "go", "again"), inputs="i go state", outputs="again s")
LOOP = graph(node("Loop", "n yes x", "y", body=STEP), inputs="x n yes")


def traced(*ops: tuple[str, np.ndarray, np.ndarray]) -> Trace:
    """A run in which each operator was issued by a call, and made one value of another."""
    arrays = [X]
    made: list[TracedOp] = []
    for call, read, result in ops:
        number = next(place for place, array in enumerate(arrays) if array is read)
        arrays.append(result)
        made.append(TracedOp("op", ModuleCall.parse(call), (number,), (len(arrays) - 1,)))
    return Trace("test", tuple(made), tuple(map(fingerprint, arrays)), {"x": 0}, {}, {})


def claimed(trace: Trace, inside: Mapping[str, Sequence[np.ndarray]]) -> dict[str, tuple[str, ...]]:
    rounds = {name: tuple(map(fingerprint, arrays)) for name, arrays in inside.items()}
    values = GraphValues({"x": fingerprint(X)}, inside=rounds)
    claims = claim_bodies_by_value(MatchedRun(LOOP, trace, values), values, "s")
    assert all(claim.confidence is Confidence.EXACT for claim in claims.values())
    assert all(claim.evidence[0].kind is EvidenceKind.VALUE for claim in claims.values())
    return owners(claims)


def test_each_round_is_a_call_of_the_module_inside() -> None:
    run = traced(("cell.act", X, P), ("cell.act#1", P, Q))
    assert claimed(run, {"y|body|state": [X, P], "y|body|s": [P, Q]}) == {"y|body|s": ("cell.act", "cell.act#1")}


def test_what_hands_on_the_result_does_not_count() -> None:
    """A scan returns the state of its last round, and is issued by the module around the cell."""
    run = traced(("cell.act", X, P), ("cell.act#1", P, Q), ("", Q, Q))
    assert claimed(run, {"y|body|state": [X, P], "y|body|s": [P, Q]}) == {"y|body|s": ("cell.act", "cell.act#1")}


@pytest.mark.parametrize("second", ["other", "cell"])
def test_several_modules_that_made_the_same_tell_nothing(second: str) -> None:
    run = traced(("cell.act", X, P), (second, X, P))
    assert claimed(run, {"y|body|state": [X], "y|body|s": [P]}) == {}


def test_rounds_of_several_modules_tell_nothing() -> None:
    run = traced(("cell.act", X, P), ("other", P, Q))
    assert claimed(run, {"y|body|state": [X, P], "y|body|s": [P, Q]}) == {}


def test_a_node_that_only_hands_on_is_nobodys() -> None:
    run = traced(("cell.act", X, P))
    assert claimed(run, {"y|body|state": [P], "y|body|s": [P]}) == {}


def test_a_value_that_nobody_made_or_that_is_in_many_places_tells_nothing() -> None:
    zeros = np.zeros((3, 4), np.float32)
    assert claimed(traced(("cell.act", X, P)), {"y|body|s": [Y]}) == {}
    assert claimed(traced(("cell.act", X, zeros)), {"y|body|s": [zeros]}) == {}
