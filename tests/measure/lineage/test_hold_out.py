"""Hold-out: what is hidden is gone, and nothing else has changed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from measure.lineage.hold_out import hide
from onnx import TensorProto, helper
from tests.support import building
from tests.support.building import node
from tests.support.tool_cases import SIZE, model, random, square, tensor, values

INSIDE = ("twice", "inner_weight", "chosen", "thrice", "other")
NAMES = frozenset({"w", "product", "positive", "is_positive", "sum", *INSIDE})


def network() -> onnx.ModelProto:
    """With names and notes wherever ONNX has room for them, and bodies that read from outside."""
    yes = building.body(
        node("Add", "product product", "twice", name="yes/add"),
        node("Mul", "twice inner_weight", "chosen", name="yes/mul"),
        outputs="chosen",
        weights=[tensor("inner_weight", random(SIZE, seed=5))],
    )
    no = building.body(
        node("Mul", "product positive", "thrice", name="no/mul"), node("Identity", "thrice", "other"), outputs="other"
    )
    proto = model(
        node("MatMul", "x w", "product", name="block/fc/MatMul", scope=("block", "block.fc")),
        node("Relu", "product", "positive", name="block/act/Relu"),
        node("ReduceMax", "positive", "sum", keepdims=0),
        node("Cast", "sum", "is_positive", to=TensorProto.BOOL),
        node("If", "is_positive", "y", name="choice", then_branch=yes, else_branch=no),
        weights=[square("w", 1)],
    )
    proto.graph.value_info.append(helper.make_tensor_value_info("product", TensorProto.FLOAT, [4, SIZE]))
    proto.graph.node[0].doc_string = "block.fc"
    for holder in (proto, proto.graph, proto.graph.initializer[0], proto.graph.input[0]):
        building.set_metadata(holder, {"note": "block.fc"})
    return proto


def texts(message: object) -> set[str]:
    """Every word in a model, wherever it stands."""
    return {word.strip('"') for word in str(message).replace("\n", " ").split(" ") if word.startswith('"')}


def test_with_all_names_hidden_none_is_left() -> None:
    hidden = hide(network(), 1.0)
    assert hidden.names == NAMES
    left = texts(hidden.model)
    assert not left & NAMES
    assert not [text for text in left if "block" in text or "choice" in text or "yes" in text or "note" in text]


def test_with_nothing_hidden_values_keep_their_names_and_nodes_do_not() -> None:
    hidden = hide(network(), 0.0)
    assert hidden.names == frozenset()
    assert texts(hidden.model) >= NAMES
    assert not [text for text in texts(hidden.model) if "block" in text or "choice" in text or "yes/" in text]


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 1.0])
def test_inputs_and_outputs_stay_and_as_many_names_go_as_was_said(share: float) -> None:
    hidden = hide(network(), share)
    assert [value.name for value in hidden.model.graph.input] == ["x"]
    assert [value.name for value in hidden.model.graph.output] == ["y"]
    assert len(hidden.names) == int(len(NAMES) * share)
    assert texts(hidden.model) & NAMES == NAMES - hidden.names


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_it_computes_the_same(share: float, sign: float) -> None:
    """Both branches are run: a body with a wrong name in it would not."""
    network_before = network()
    network_before.graph.initializer[0].CopyFrom(tensor("w", sign * np.abs(random(SIZE, SIZE, seed=1))))
    feed = {"x": np.abs(random(4, SIZE, seed=2))}
    before, after = values(network_before, feed), values(hide(network_before, share).model, feed)
    np.testing.assert_array_equal(before["y"], after["y"])


def test_the_model_itself_is_left_alone_and_hiding_is_repeatable() -> None:
    proto = network()
    one, other = hide(proto, 0.5), hide(proto, 0.5)
    assert proto == network()
    assert one == other


def test_a_number_says_nothing_about_the_place() -> None:
    chain = [node("Relu", f"v{place}", f"v{place + 1}") for place in range(20)]
    hidden = hide(model(*chain, inputs="v0", outputs="v20"), 1.0)
    numbers = [int(one.output[0].removeprefix("hidden_")) for one in hidden.model.graph.node[:-1]]
    assert sorted(numbers) == list(range(19))
    assert numbers != sorted(numbers)
    assert numbers != sorted(numbers, reverse=True)


def test_a_left_out_input_stays_left_out() -> None:
    proto = model(
        node("Relu", "x", "h"), node("Clip", "h _ most", "y"), weights=[tensor("most", np.array(0.5, np.float32))]
    )
    hidden = hide(proto, 1.0).model
    assert [bool(name) for name in hidden.graph.node[1].input] == [True, False, True]
    np.testing.assert_array_equal(values(proto)["y"], values(hidden)["y"])


def test_what_a_body_is_given_is_hidden_too() -> None:
    step = building.body(
        node("Add", "sum_before row", "sum_after"), node("Identity", "sum_after", "seen"),
        inputs="sum_before row", outputs="sum_after seen",
    )  # fmt: skip
    for value in (*step.input, *step.output):  # ONNX Runtime wants to know
        value.type.tensor_type.shape.dim.add(dim_value=SIZE)
    proto = model(
        node("Scan", "start x", "last y", body=step, num_scan_inputs=1),
        weights=[tensor("start", np.zeros(SIZE, np.float32))],
    )
    hidden = hide(proto, 1.0)
    assert hidden.names == {"start", "last", "sum_before", "row", "sum_after", "seen"}
    assert not texts(hidden.model) & hidden.names
    np.testing.assert_array_equal(values(proto)["y"], values(hidden.model)["y"])
