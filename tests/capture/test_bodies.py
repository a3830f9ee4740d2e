"""Bodies of If, Loop, Scan and functions, run on their own: what is seen inside is what the node makes outside."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from modelexport.capture.onnxruntime import bodies
from modelexport.capture.onnxruntime.bodies import BodyRuns
from modelexport.capture.onnxruntime.piecewise import PiecewiseRun
from modelexport.graph.file.reading import parse_model

X = np.array([1, 2, 3], np.float32)
_HEAD = '<ir_version: 8, opset_import: ["": 18, "local": 1]>\n'


def seen_inside(text: str, **feed: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, list[list[float]]]]:
    """The values of the main graph, and those of bodies by id, round after round."""
    file = parse_model(onnx.parser.parse_model(_HEAD + text).SerializeToString())
    outside: dict[str, np.ndarray] = {}
    inside: dict[str, list[list[float]]] = {}

    def see_inside(name: str, number: int, array: np.ndarray) -> None:
        rounds = inside.setdefault(name, [])
        assert number == len(rounds)
        rounds.append(array.astype(float).ravel().tolist())

    def see(name: str, array: np.ndarray) -> None:
        outside[name] = array.copy()

    PiecewiseRun(file).run(feed, see, BodyRuns(file, see_inside).visit)
    return outside, inside


IF = """g (float[3] x, bool c) => (float[3] y) {
  k = Neg(x)
  y = If(c) <then_branch = t () => (a) { s = Add(x, k)  a = Sub(s, x) }, else_branch = e () => (b) { b = Abs(k) }>
}"""


@pytest.mark.parametrize(
    ("taken", "values"),
    [
        (True, {"y|then_branch|s": [[0, 0, 0]], "y|then_branch|a": [[-1, -2, -3]]}),
        (False, {"y|else_branch|b": [[1, 2, 3]]}),
    ],
)
def test_of_an_if_the_branch_that_was_taken(taken: bool, values: dict[str, list[list[float]]]) -> None:
    outside, inside = seen_inside(IF, x=X, c=np.array(taken))
    assert inside == values
    assert outside["y"].tolist() == list(values.values())[-1][0]


LOOP = """g (float[3] x, int64 n, bool c) => (float[3] y, float[k, 3] all) {
  y, all = Loop(n, c, x) <body = b (int64 i, bool going, float[3] state) => (bool again, float[3] next, float[3] out) {
    h = Add(state, x)  next = Identity(h)  out = Neg(h)  again = Identity(going)
  }>
}"""


def test_of_a_loop_every_iteration_with_the_state_it_was_given() -> None:
    outside, inside = seen_inside(LOOP, x=X, n=np.array(3), c=np.array(True))
    assert inside["y|body|h"] == [[2, 4, 6], [3, 6, 9], [4, 8, 12]]
    assert inside["y|body|i"] == [[0], [1], [2]]
    assert outside["y"].tolist() == inside["y|body|next"][-1]
    assert outside["all"].tolist() == inside["y|body|out"]


def test_of_a_loop_that_never_runs_nothing_is_seen() -> None:
    assert seen_inside(LOOP, x=X, n=np.array(0), c=np.array(True))[1] == {}
    assert seen_inside(LOOP, x=X, n=np.array(3), c=np.array(False))[1] == {}


def test_of_many_iterations_the_first_and_the_last_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_MOST_SHOWN", 2)
    outside, inside = seen_inside(LOOP, x=X, n=np.array(7), c=np.array(True))
    assert inside["y|body|i"] == [[0], [1], [6]]
    assert inside["y|body|next"][-1] == outside["y"].tolist()


UNTIL = """g (float x) => (float y) {
  y = Loop(, , x) <body = b (int64 i, bool going, float state) => (bool again, float next) {
    k = Constant <value = float {10.0}> ()  next = Add(state, state)  again = Less(next, k)
  }>
}"""


def test_a_loop_ends_when_its_condition_says_so() -> None:
    outside, inside = seen_inside(UNTIL, x=np.array(1.0, np.float32))
    assert inside["y|body|next"] == [[2], [4], [8], [16]]
    assert outside["y"] == 16


SCAN = """g (float[2] s, float[2, 3] x) => (float[2] y, float[2, 3] all) {
  y, all = Scan(s, x) <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [%d], scan_output_axes = [1],
    body = b (float[2] state, float[2] item) => (float[2] next, float[2] out) {
      next = Add(state, item)  out = Neg(next)
    }>
}"""


@pytest.mark.parametrize("direction", [0, 1])
def test_of_a_scan_every_element(direction: int) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    outside, inside = seen_inside(SCAN % direction, s=np.zeros(2, np.float32), x=x)
    columns = x.T[::-1] if direction else x.T
    assert inside["y|body|item"] == columns.tolist()
    assert inside["y|body|next"] == np.cumsum(columns, axis=0).tolist()
    assert outside["y"].tolist() == inside["y|body|next"][-1]


NESTED = """g (float[3] x, int64 n, bool c) => (float[3] y) {
  y = Loop(n, c, x) <body = b (int64 i, bool going, float[3] state) => (bool again, float[3] next) {
    again = Identity(going)
    two = Constant <value = int64 {2}> ()  rest = Mod(i, two)  odd = Cast <to = 9> (rest)
    next = If(odd) <then_branch = t () => (a) { a = Neg(state) }, else_branch = e () => (b) { b = Add(state, x) }>
  }>
}"""


def test_bodies_inside_of_bodies_are_run_where_they_ran() -> None:
    outside, inside = seen_inside(NESTED, x=X, n=np.array(3), c=np.array(True))
    assert inside["y|body|next|else_branch|b"] == [[2, 4, 6], [-1, -2, -3]]
    assert inside["y|body|next|then_branch|a"] == [[-2, -4, -6]]
    assert outside["y"].tolist() == inside["y|body|next"][-1]


FUNCTION = """g (float[3] x) => (float[3] y) { h = local.Scale <by = 2.0> (x)  y = local.Scale <by = 3.0> (h) }
<domain: "local", opset_import: ["": 18]>
Scale <by> (a) => (b) { k = Constant <value_float: float = @by> ()  b = Mul(a, k) }"""


def test_of_a_function_every_call_with_its_attributes() -> None:
    outside, inside = seen_inside(FUNCTION, x=X)
    assert inside["local::Scale|k"] == [[2], [3]]
    assert inside["local::Scale|b"] == [[2, 4, 6], [6, 12, 18]]
    assert outside["y"].tolist() == [6, 12, 18]


def test_a_body_that_cannot_be_run_alone_is_not_seen() -> None:
    """A sequence of tensors cannot be handed over; the main graph is run all the same."""
    text = """g (float[3] x, bool c) => (float[3] y) {
      s = SequenceConstruct(x)  i = Constant <value = int64 {0}> ()
      y = If(c) <then_branch = t () => (a) { a = SequenceAt(s, i) }, else_branch = e () => (b) { b = Neg(x) }>
    }"""
    outside, inside = seen_inside(text, x=X, c=np.array(True))
    assert outside["y"].tolist() == X.tolist()
    assert inside == {}
