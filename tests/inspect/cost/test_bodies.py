"""What branches, loops and functions cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import onnx
import pytest
from onnx import TensorProto, helper
from tests.support.cost_files import OPSETS, cost_of, file_of, header, numbers, value

from modelexport.record.polynomial import Polynomial
from modelexport.record.results.cost import Kind

WEIGHTS = [header("wide", (8, 8)), header("narrow", (8, 2)), header("back", (2, 8))]
X = value("x", ("batch", 8))


def body(
    nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], inputs: Sequence[onnx.ValueInfoProto] = ()
) -> onnx.GraphProto:
    made = [onnx.ValueInfoProto(name=name) for name in outputs]
    return helper.make_graph(list(nodes), "body", list(inputs), made)


def multiply(x: str, weight: str, made: str) -> onnx.NodeProto:
    return helper.make_node("MatMul", [x, weight], [made])


def branching(condition: onnx.TensorProto | None = None) -> onnx.ModelProto:
    yes = body([multiply("x", "narrow", "t"), multiply("t", "back", "a")], ["a"])
    no = body([multiply("x", "wide", "b")], ["b"])
    nodes = [
        helper.make_node("If", ["c"], ["z"], name="choice", then_branch=yes, else_branch=no),
        helper.make_node("Relu", ["z"], ["y"]),
    ]
    inputs = [X] if condition is not None else [X, value("c", (), TensorProto.BOOL)]
    return file_of(nodes, inputs, [*WEIGHTS, *([] if condition is None else [condition])])


def test_of_an_if_the_branch_counts_that_takes_more() -> None:
    found = cost_of(branching())
    assert found.total.flops.expression == "128*batch"
    idle = found.by_key["z|then_branch|t"]
    assert idle.flops == 0
    assert idle.times == 0
    assert idle.reason == "the other branch of choice counts: it takes more"
    assert found.by_key["z"].kind is Kind.CONTROL
    assert found.by_key["y"].other == 8 * Polynomial.axis("batch")
    assert found.total.parameters == 64 + 16 + 16


@pytest.mark.parametrize(("taken", "flops"), [(True, 64), (False, 128)])
def test_of_an_if_that_is_decided_the_branch_counts_that_is_taken(taken: bool, flops: int) -> None:
    condition = helper.make_tensor("c", TensorProto.BOOL, [], [taken])
    assert cost_of(branching(condition), {"batch": 1}).total.flops == flops


def looping(rounds: onnx.TensorProto | onnx.ValueInfoProto) -> onnx.ModelProto:
    inputs = [value("i", (), TensorProto.INT64), value("go", (), TensorProto.BOOL), onnx.ValueInfoProto(name="state")]
    inner = body(
        [helper.make_node("Identity", ["go"], ["on"]), multiply("state", "wide", "next"),
         helper.make_node("Relu", ["next"], ["seen"])],
        ["on", "next", "seen"],
        inputs,
    )  # fmt: skip
    nodes = [
        helper.make_node("Loop", ["m", "", "x"], ["last", "all"], name="steps", body=inner),
        helper.make_node("Relu", ["all"], ["y"]),
    ]
    if isinstance(rounds, onnx.TensorProto):
        return file_of(nodes, [X], [*WEIGHTS, rounds])
    return file_of(nodes, [X, rounds], WEIGHTS)


def test_the_body_of_a_loop_counts_as_often_as_it_runs() -> None:
    found = cost_of(looping(numbers("m", 7)), {"batch": 3})
    assert found.total.flops == 7 * 2 * 3 * 8 * 8
    assert found.by_key["last|body|next"].times == 7
    assert found.by_key["y"].other == 7 * 3 * 8


def test_rounds_that_are_not_known_are_an_axis() -> None:
    model = looping(value("m", (), TensorProto.INT64))
    found = cost_of(model)
    assert str(found.total.flops) == "128·batch·rounds of steps"
    assert [(axis.name, axis.given) for axis in found.axes] == [("batch", True), ("rounds of steps", False)]
    assert cost_of(model, {"batch": 1, "rounds of steps": 5}).total.flops == 640


def test_a_state_that_grows_is_open() -> None:
    inputs = [value("i", (), TensorProto.INT64), value("go", (), TensorProto.BOOL), onnx.ValueInfoProto(name="state")]
    inner = body(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Concat", ["state", "x"], ["next"], axis=0),
         multiply("state", "wide", "unused")],
        ["on", "next"],
        inputs,
    )  # fmt: skip
    loop = helper.make_node("Loop", ["m", "", "x"], ["last"], body=inner)
    found = cost_of(file_of([loop], [X], [*WEIGHTS, numbers("m", 7)]))
    assert str(found.total.flops) == "896·last|body|state[0]"


def test_a_scan_runs_once_for_each_slice() -> None:
    inner = body(
        [multiply("slice", "wide", "made"), helper.make_node("Add", ["state", "made"], ["next"])],
        ["next", "made"],
        [onnx.ValueInfoProto(name="state"), onnx.ValueInfoProto(name="slice")],
    )
    scan = helper.make_node(
        "Scan", ["s", "x"], ["last", "all"], body=inner, num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[1]
    )
    relu = helper.make_node("Relu", ["all"], ["y"])
    found = cost_of(file_of([scan, relu], [value("s", ("batch", 8)), value("x", ("batch", "steps", 8))], WEIGHTS))
    assert str(found.total.flops) == "128·batch·steps"
    assert str(found.by_key["y"].other) == "8·batch·steps"
    del scan.attribute[-1].ints[:]  # fewer axes than there are values
    scan.attribute[-2].ints[0] = 7  # an axis that nothing has
    assert "rounds of" in str(
        cost_of(
            file_of([scan, relu], [value("s", ("batch", 8)), value("x", ("batch", "steps", 8))], WEIGHTS)
        ).total.flops
    )


def called(times: int) -> onnx.ModelProto:
    inner = helper.make_node("Gemm", ["a", "w"], ["b"])
    turned = inner.attribute.add()
    turned.name, turned.ref_attr_name, turned.type = "transB", "turned", onnx.AttributeProto.INT
    steps = [inner, helper.make_node("Relu", ["b"], ["c"])]
    function = helper.make_function("local", "Twice", ["a", "w"], ["c"], steps, OPSETS[:1], ["turned"])
    names = ["x", *(f"y{place}" for place in range(times))]
    calls = [
        helper.make_node("Twice", [before, "wide"], [after], domain="local", turned=1)
        for before, after in pairwise(names)
    ]
    return file_of(calls, [X], WEIGHTS[:1], [function])


def test_a_function_counts_for_each_call() -> None:
    found = cost_of(called(3), {"batch": 1})
    assert found.total.flops == 3 * 128
    assert found.total.parameters == 64
    inside = found.by_key["local::Twice|b"]
    assert inside.flops == 3 * 128
    assert inside.times == 3
    assert inside.parameters == 64
    assert found.by_key["y0"].reason == "its function is counted node by node"
    assert not found.unknown


def test_a_function_that_nothing_calls_costs_nothing_and_says_so() -> None:
    model = called(1)
    model.graph.node[0].CopyFrom(helper.make_node("Relu", ["x"], ["y0"]))
    found = cost_of(model)
    assert found.total.flops == 0
    assert found.by_key["local::Twice|b"].reason == "nothing calls the function that it is in"


def test_the_attribute_of_a_call_reaches_the_function() -> None:
    model = called(1)
    model.graph.initializer[0].dims[:] = [5, 8]
    found = cost_of(model, {"batch": 1})
    assert found.total.flops == 2 * 5 * 8
    assert found.by_key["local::Twice|c"].other == 5


@pytest.mark.parametrize("stated", [-1, 2**40])
def test_a_scan_that_states_an_impossible_number_of_inputs_takes_no_memory(stated: int) -> None:
    inner = helper.make_graph(
        [helper.make_node("Identity", ["t"], ["slice"])],
        "body",
        [onnx.ValueInfoProto(name="t")],
        [onnx.ValueInfoProto(name="slice")],
    )
    scan = helper.make_node("Scan", ["x"], ["y"], body=inner, num_scan_inputs=stated)
    assert cost_of(file_of([scan], [value("x", ("steps", 8))])).total.flops == Polynomial.of(0)


def test_a_body_of_an_operator_of_somebody_else_takes_what_it_likes() -> None:
    inner = body([helper.make_node("Neg", ["x"], ["t"])], ["t"])
    loop = helper.make_node("Loop", ["x"], ["y"], domain="com.example", body=inner)
    assert cost_of(file_of([loop], [value("x", ("n", 8))])).by_key
