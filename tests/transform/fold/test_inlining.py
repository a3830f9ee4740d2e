"""Functions put in the place of their calls: the file computes the same, names are free, every node has its modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.reference
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tests.support.building import provenance, tree

from modelexport.graph.functions import inline_graph
from modelexport.graph.index import index_model
from modelexport.graph.soundness import ensure_sound
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Origin, Provenance
from modelexport.transform.fold.inlining import InliningResult, inline_functions

OPSETS = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
FED = np.linspace(-2, 2, 4, dtype=np.float32)


def function(
    name: str, nodes: Sequence[onnx.NodeProto], inputs: str = "a", outputs: str = "c", attributes: Sequence[str] = ()
) -> onnx.FunctionProto:
    return helper.make_function("local", name, inputs.split(), outputs.split(), nodes, OPSETS, list(attributes))


def call(name: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(
        name, inputs.split(), outputs.split(), name=f"{outputs.split(maxsplit=1)[0]}_call", domain="local", **attributes
    )


def model(
    nodes: Sequence[onnx.NodeProto],
    made: Sequence[onnx.FunctionProto],
    outputs: str = "y",
    weights: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", *outputs.split())]
    graph = helper.make_graph(nodes, "main", ends[:1], ends[1:], weights)
    proto = helper.make_model(graph, opset_imports=OPSETS, functions=made, ir_version=10)
    onnx.checker.check_model(proto)
    return proto


def results(proto: onnx.ModelProto) -> list[np.ndarray]:
    """By ONNX Runtime, which inlines functions in its own way."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, {"x": FED})
    return found


def assert_inlined(proto: onnx.ModelProto, kept: Sequence[str] = ()) -> onnx.ModelProto:
    """The model without functions: valid, sound, with the same results; the one before is left as it was."""
    before = proto.SerializeToString()
    found = inline_functions(proto, None)
    assert proto.SerializeToString() == before
    assert list(found.kept) == list(kept)
    onnx.checker.check_model(found.model, full_check=True)
    ensure_sound(found.model, index_model(found.model), "it")
    for one, other in zip(results(proto), results(found.model), strict=True):
        np.testing.assert_array_equal(one, other)
    return found.model


def scaled() -> onnx.FunctionProto:
    """`LeakyRelu(Exp(a))`, with a slope that the call gives."""
    relu = helper.make_node("LeakyRelu", ["b"], ["c"], name="relu")
    relu.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    return function("Scaled", [helper.make_node("Neg", ["a"], ["b"], name="neg"), relu], attributes=["slope"])


def test_nodes_of_each_call_are_called_after_it() -> None:
    proto = model([call("Scaled", "x", "m", slope=0.5), call("Scaled", "m", "y", slope=0.25)], [scaled()])
    flat = assert_inlined(proto)
    assert [node.name for node in flat.graph.node] == ["m_call/neg", "m_call/relu", "y_call/neg", "y_call/relu"]
    assert [node.output[0] for node in flat.graph.node] == ["m_call/b", "m", "y_call/b", "y"]
    assert [node.attribute[0].f for node in flat.graph.node if node.attribute] == [0.5, 0.25]
    assert not flat.functions
    assert [entry.domain for entry in flat.opset_import] == [""]


def test_a_taken_name_gets_a_number() -> None:
    """A value of the main graph is called as one inside of the call would be."""
    nodes = [
        helper.make_node("Abs", ["x"], ["y_call/b"], name="y_call/neg"),
        call("Scaled", "y_call/b", "y", slope=0.5),
    ]
    flat = assert_inlined(model(nodes, [scaled()]))
    assert [node.output[0] for node in flat.graph.node] == ["y_call/b", "y_call/b_2", "y"]
    assert [node.name for node in flat.graph.node] == ["y_call/neg", "y_call/neg_2", "y_call/relu"]


def test_functions_in_functions() -> None:
    outer = function("Outer", [call("Scaled", "a", "b", slope=0.5), call("Scaled", "b", "c", slope=2.0)])
    flat = assert_inlined(model([call("Outer", "x", "m"), call("Outer", "m", "y")], [scaled(), outer]))
    assert flat.graph.node[0].name == "m_call/b_call/neg"
    assert len(flat.graph.node) == 8


def test_an_attribute_is_handed_on_from_call_to_call() -> None:
    inner = call("Scaled", "a", "c")
    inner.attribute.add(name="slope", ref_attr_name="steepness", type=onnx.AttributeProto.FLOAT)
    outer = function("Outer", [inner], attributes=["steepness"])
    flat = assert_inlined(model([call("Outer", "x", "y", steepness=0.75)], [scaled(), outer]))
    assert flat.graph.node[-1].attribute[0].f == 0.75
    assert flat.graph.node[-1].attribute[0].name == "alpha"


@pytest.mark.parametrize("outputs", ["a", "c a"])
def test_what_a_function_returns_as_it_was_given_passes_through_an_identity(outputs: str) -> None:
    """ONNX Runtime does not load such a function, but the checker and ONNX's own evaluator take it."""
    names = "y z" if len(outputs.split()) > 1 else "y"
    body = [helper.make_node("Exp", ["a"], ["c"])]
    proto = model([call("Passing", "x", names)], [function("Passing", body, outputs=outputs)], names)
    flat = inline_functions(proto, None).model
    assert [node.op_type for node in flat.graph.node].count("Identity") == 1
    assert flat.graph.node[-1].name == "y_call/Identity"
    wanted = onnx.reference.ReferenceEvaluator(proto).run(None, {"x": FED})
    for one, other in zip(wanted, results(flat), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_inputs_and_outputs_that_a_call_leaves_out() -> None:
    body = [
        helper.make_node("Clip", ["a", "low", "high"], ["b"]),
        helper.make_node("Exp", ["b"], ["c"]),
        helper.make_node("Abs", ["c"], ["d"]),
    ]
    proto = model(
        [helper.make_node("F", ["x", "", "top"], ["", "y"], name="f", domain="local")],
        [function("F", body, "a low high", "c d")],
        weights=[numpy_helper.from_array(np.array(0.5, np.float32), "top")],
    )
    flat = assert_inlined(proto)
    assert list(flat.graph.node[0].input) == ["x", "", "top"]
    assert flat.graph.node[1].output[0] == "f/c"


def branching(reads: str = "b") -> onnx.FunctionProto:
    """A function with an If whose subgraphs read a value from outside, and hold a weight and a call."""

    def branch(op: str, name: str) -> onnx.GraphProto:
        nodes = [
            helper.make_node(op, [reads, f"{name}_w"], [f"{name}_m"], name=f"{name}_op"),
            call("Scaled", f"{name}_m", f"{name}_end", slope=0.5),
        ]
        weight = numpy_helper.from_array(np.full(4, 3, np.float32), f"{name}_w")
        end = helper.make_tensor_value_info(f"{name}_end", TensorProto.FLOAT, [4])
        return helper.make_graph(nodes, name, [], [end], [weight])

    nodes = [
        helper.make_node("Exp", ["a"], ["b"], name="exp"),
        helper.make_node("ReduceMax", ["a"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["flag"], to=TensorProto.BOOL),
        helper.make_node(
            "If", ["flag"], ["c"], name="if", then_branch=branch("Add", "t"), else_branch=branch("Mul", "e")
        ),
    ]
    return function("Branching", nodes)


@pytest.mark.parametrize("reads", ["a", "b"])
def test_subgraphs_of_functions_get_names_of_their_own(reads: str) -> None:
    """Twice the same subgraph in one file: names inside must differ, and what it reads from outside is the call's."""
    proto = model([call("Branching", "x", "m"), call("Branching", "m", "y")], [scaled(), branching(reads)])
    flat = assert_inlined(proto)
    chosen = [node for node in flat.graph.node if node.op_type == "If"]
    inner = [
        {name for node in attribute.g.node for name in node.output}
        | {tensor.name for tensor in attribute.g.initializer}
        for node in chosen
        for attribute in node.attribute
    ]
    assert sum(map(len, inner)) == len(set.union(*inner)) == 16
    first = chosen[0].attribute[0].g.node[0]
    assert first.input[0] == ("x" if reads == "a" else "m_call/b")


def test_a_call_in_a_subgraph_of_the_main_graph() -> None:
    end = helper.make_tensor_value_info("inner", TensorProto.FLOAT, [4])
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["flag"], to=TensorProto.BOOL),
        helper.make_node(
            "If",
            ["flag"],
            ["y"],
            then_branch=helper.make_graph([call("Scaled", "x", "inner", slope=0.5)], "then", [], [end]),
            else_branch=helper.make_graph([helper.make_node("Abs", ["x"], ["inner"])], "else", [], [end]),
        ),
    ]
    flat = assert_inlined(model(nodes, [scaled()]))
    branch = flat.graph.node[-1].attribute[0].g
    assert [node.op_type for node in branch.node] == ["Neg", "LeakyRelu"] or branch.node[0].op_type == "Abs"


def record_of(proto: onnx.ModelProto, owners: dict[str, list[str]], classes: dict[str, str]) -> Provenance:
    found = provenance(proto, tree(classes), owners)
    return replace(found, origin=Origin("hand", "hand", index_model(proto).fingerprint))


def test_a_node_belongs_to_the_module_that_its_call_is_for() -> None:
    """In the file a node of the function belongs to both layers; after inlining, each copy to one of them."""
    proto = model([call("Scaled", "x", "m", slope=0.5), call("Scaled", "m", "y", slope=0.25)], [scaled()])
    inside = ["local::Scaled|b", "local::Scaled|c"]
    owners = {"m": ["layers.0"], "y": ["layers.1"], **{key: ["layers.0", "layers.1"] for key in inside}}
    record = record_of(proto, owners, {"": "Net", "layers": "ModuleList", "layers.0": "Layer", "layers.1": "Layer"})
    found: InliningResult = inline_functions(proto, record)
    calls = {key: attribution.owners for key, attribution in found.attributions.items()}
    assert calls == {
        "m_call/b": (ModuleCall("layers.0"),),
        "m": (ModuleCall("layers.0"),),
        "y_call/b": (ModuleCall("layers.1"),),
        "y": (ModuleCall("layers.1"),),
    }
    assert set(calls) == {node.key for node in index_model(found.model).nodes}


@st.composite
def models_with_functions(draw: st.DrawFn) -> onnx.ModelProto:
    """Functions of one or two inputs that call each other, and a main graph of calls and nodes."""
    made: list[onnx.FunctionProto] = []
    arity: dict[str, int] = {}
    for number in range(draw(st.integers(1, 3))):
        inputs = ["p", "q"][: draw(st.integers(1, 2))]
        nodes, values = draw(bodies(inputs, dict(arity), f"f{number}_"))
        name = f"F{number}"
        made.append(function(name, nodes, " ".join(inputs), values[-1]))
        arity[name] = len(inputs)
    nodes, values = draw(bodies(["x"], arity, ""))
    nodes.append(helper.make_node("Identity", [values[-1]], ["y"]))
    return model(nodes, made)


@st.composite
def bodies(
    draw: st.DrawFn, inputs: list[str], arity: dict[str, int], prefix: str
) -> tuple[list[onnx.NodeProto], list[str]]:
    nodes, values = [], list(inputs)
    for number in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["Neg", "Add", "Max", *arity]))
        count = arity.get(kind, 1 if kind == "Neg" else 2)
        read = [draw(st.sampled_from(values)) for _ in range(count)]
        made = f"{prefix}v{number}"
        nodes.append(helper.make_node(kind, read, [made], domain="local" if kind in arity else ""))
        values.append(made)
    return nodes, values


@settings(deadline=None, max_examples=40)
@given(proto=models_with_functions())
def test_generated_models_compute_the_same(proto: onnx.ModelProto) -> None:
    flat = assert_inlined(proto)
    # The graph that is compared and counted is that of the file, under other names.
    inlined = inline_graph(index_model(proto)).graph
    assert [node.op_type for node in inlined.nodes] == [node.op_type for node in flat.graph.node]


KEPT: list[tuple[str, Callable[[], onnx.FunctionProto]]] = [
    (
        "local::Old",
        lambda: helper.make_function("local", "Old", ["a"], ["c"], old_nodes(), [helper.make_opsetid("", 13)]),
    )
]


def old_nodes() -> list[onnx.NodeProto]:
    return [helper.make_node("Exp", ["a"], ["c"])]


@pytest.mark.parametrize(("name", "make"), KEPT)
def test_a_function_of_another_opset_stays_and_is_called(name: str, make: Callable[[], onnx.FunctionProto]) -> None:
    nodes = [call("Scaled", "x", "m", slope=0.5), call("Old", "m", "y")]
    found = inline_functions(model(nodes, [scaled(), make()]), None)
    assert list(found.kept) == [name]
    assert found.inlined == ("local::Scaled",)
    assert [node.op_type for node in found.model.graph.node] == ["Neg", "LeakyRelu", "Old"]
    assert {entry.domain for entry in found.model.opset_import} == {"", "local"}
