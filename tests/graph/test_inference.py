"""ONNX's checker and shape inference: bounded before they run, and run apart where they may take long."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.support.building import model, node
from tests.support.hostile_files import doubling

from modelexport.errors import FileUnreadable
from modelexport.graph import inference
from modelexport.graph.inference import check_model, count_propagated, ensure_inferable, infer_shapes
from modelexport.record import limits


def growing(steps: int, *, inside: bool = False) -> onnx.ModelProto:
    """A shape that is put behind itself again and again; `inside` of functions that call each other."""
    concat = [node("Concat", f"s{step} s{step}", f"s{step + 1}", axis=0) for step in range(steps)]
    if not inside:
        return model(node("Shape", "x", "s0"), *concat, node("Reshape", f"x s{steps}", "y"))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    functions = [helper.make_function("local", "F0", ["a"], ["b"], [node("Concat", "a a", "b", axis=0)], opsets)]
    for step in range(1, steps):
        called = node(f"F{step - 1}", "a", "b", domain="local")
        again = node("Concat", "b b", "c", axis=0)
        functions.append(helper.make_function("local", f"F{step}", ["a"], ["c"], [called, again], opsets))
    last = node(f"F{steps - 1}", "s0", "s", domain="local")
    return model(node("Shape", "x", "s0"), last, node("Reshape", "x s", "y"), functions=functions)


@pytest.mark.parametrize("inside", [False, True], ids=["main graph", "functions"])
def test_shapes_without_end_are_not_begun(inside: bool) -> None:
    proto = growing(40, inside=inside)
    said = check_model(proto)
    assert said is not None
    assert "shapes of more than" in said
    assert infer_shapes(proto) is None
    with pytest.raises(FileUnreadable, match="cannot be run"):
        ensure_inferable(proto, "a.onnx")


def test_shapes_as_models_have_them_are_few() -> None:
    proto = growing(4)
    ensure_inferable(proto, "a.onnx")
    assert count_propagated(proto) <= 64 * 2**6


def test_growing_activations_are_no_shapes() -> None:
    """Each block reads all blocks before it, as in a DenseNet."""
    nodes = [node("Concat", f"v{step} v{step}", f"v{step + 1}", axis=1) for step in range(100)]
    assert count_propagated(model(*nodes, inputs="v0", outputs="v100")) == 0


def test_activations_in_shapes_that_were_put_together_are_no_shapes() -> None:
    """Reshape reads a shape, and makes a tensor of any size; so does what is computed with whole numbers."""
    first = [node("Shape", "x", "s"), node("Reshape", "x s", "r"), node("Add", "r k", "v0")]
    nodes = [node("Concat", f"v{step} v{step}", f"v{step + 1}", axis=1) for step in range(100)]
    proto = model(*first, *nodes, outputs="v100", weights=[onnx.numpy_helper.from_array(np.array(3), "k")])
    assert count_propagated(proto) == inference._MOST_AXES


def test_what_may_take_long_runs_apart_and_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    proto, wrong = growing(2), growing(2)
    wrong.graph.node[0].op_type = "Shapes"
    here = [check_model(proto), check_model(wrong)]
    types = infer_shapes(proto)
    monkeypatch.setattr(inference, "_is_heavy", lambda *_: True)
    monkeypatch.setattr(inference, "_check_here", pytest.fail)
    monkeypatch.setattr(inference, "_infer_here", pytest.fail)
    assert [check_model(proto), check_model(wrong)] == here
    assert infer_shapes(proto) == types


def test_a_process_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "_is_heavy", lambda *_: True)
    monkeypatch.setattr(limits, "CHECK_SECONDS", 0.01)
    said = check_model(growing(2))
    assert said is not None
    assert "takes more than" in said
    assert infer_shapes(growing(2)) is None


def test_many_calls_are_heavy() -> None:
    proto = doubling(17)
    assert inference._is_heavy(proto, 0)
    assert not inference._is_heavy(doubling(8), 0)
