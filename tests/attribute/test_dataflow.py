from __future__ import annotations

import onnx
from hypothesis import given
from hypothesis import strategies as st
from tests.support.building import body, claim, graph, node, owners, tree

from modelexport.attribute.dataflow import claim_by_dataflow, claim_initializers_by_dataflow
from modelexport.graph.index import Graph, index_model
from modelexport.record.provenance import Claim, Confidence

NET = tree({"": "Net", "a": "Block", "a.p": "Linear", "a.q": "Linear", "b": "Linear"}, "", "a", "a.p", "a.q", "b")


def inferred(found: Graph, known: dict[str, Claim]) -> dict[str, tuple[str, ...]]:
    return owners(claim_by_dataflow(found, NET, known, "s"))


def test_a_constant_belongs_to_what_reads_it() -> None:
    made = graph(node("Constant", "", "c", value_float=1.0), node("Add", "x c", "y"))
    found = claim_by_dataflow(made, NET, {"y": claim("a.p")}, "s")
    assert owners(found) == {"c": ("a.p",)}
    assert found["c"].confidence is Confidence.INFERRED
    assert str(found["c"].evidence[0]) == "dataflow:made for"


def test_a_constant_of_several_readers_belongs_to_what_encloses_them() -> None:
    made = graph(node("Constant", "", "c", value_float=1.0), node("Add", "x c", "h"), node("Add", "h c", "y"))
    assert inferred(made, {"h": claim("a.p"), "y": claim("a.q")}) == {"c": ("a",)}


def test_arithmetic_on_shapes_belongs_to_what_it_is_for() -> None:
    made = graph(
        node("Relu", "x", "h"),
        node("Shape", "h", "s"),
        node("Gather", "s i", "g"),
        node("Reshape", "h g", "y"),
    )
    assert inferred(made, {"h": claim("b"), "y": claim("a.p")}) == {"s": ("a.p",), "g": ("a.p",)}


def test_data_lies_between_what_it_reads_and_what_reads_it() -> None:
    made = graph(node("Relu", "x", "h"), node("Neg", "h", "m"), node("Abs", "m", "n"), node("Relu", "n", "y"))
    found = claim_by_dataflow(made, NET, {"h": claim("a.p"), "y": claim("a.q")}, "s")
    assert owners(found) == {"m": ("a",), "n": ("a",)}
    assert str(found["m"].evidence[0]) == "dataflow:between"
    assert inferred(made, {"h": claim("a.p"), "y": claim("a.p")}) == {"m": ("a.p",), "n": ("a.p",)}
    assert inferred(made, {"h": claim("a.p"), "y": claim("b")}) == {"m": ("",), "n": ("",)}


def test_what_nothing_claimed_reads_belongs_to_what_it_was_made_from() -> None:
    made = graph(node("Relu", "x", "h"), node("Neg", "h", "m"), node("Abs", "m", "y"))
    found = claim_by_dataflow(made, NET, {"h": claim("a.p")}, "s")
    assert owners(found) == {"m": ("a.p",), "y": ("a.p",)}
    assert str(found["y"].evidence[0]) == "dataflow:made from"


def test_a_constant_that_others_share_does_not_say_who_reads_it() -> None:
    made = graph(
        node("Constant", "", "i", value_int=-1),
        node("Gather", "x i", "h"),
        node("Relu", "h", "m"),
        node("Gather", "m i", "y"),
    )
    assert inferred(made, {"i": claim("b"), "h": claim("b"), "m": claim("a.p")}) == {"y": ("a.p",)}


def test_the_other_branches_of_a_reader_count_too() -> None:
    made = graph(node("Relu", "x", "h"), node("Constant", "", "c", value_float=1.0), node("Add", "h c", "y"))
    assert inferred(made, {"h": claim("a.p")}) == {"c": ("a.p",), "y": ("a.p",)}


def test_a_claim_of_several_owners_counts_as_what_encloses_them() -> None:
    made = graph(node("Relu", "x", "h"), node("Neg", "h", "y"))
    assert inferred(made, {"h": claim("a.p", "a.q")}) == {"y": ("a",)}


def conditional(then_branch: onnx.GraphProto) -> onnx.NodeProto:
    return node("If", "c", "y", then_branch=then_branch)


def test_what_only_decides_which_body_runs_belongs_to_who_runs_it() -> None:
    bodies = {name: body(node("Identity", "h", name), outputs=name) for name in ("then_branch", "else_branch")}
    asked = (node("Relu", "x", "h"), node("ReduceSum", "h", "s"), node("Greater", "s z", "c"))
    branching = node("If", "c", "y", then_branch=bodies["then_branch"], else_branch=bodies["else_branch"])
    made = graph(*asked, branching, inputs="x z")
    found = claim_by_dataflow(made, NET, {"h": claim("b"), "y": claim("a.p")}, "s")
    assert {key: owners(found)[key] for key in ("s", "c")} == {"s": ("a.p",), "c": ("a.p",)}
    assert str(found["s"].evidence[0]) == "dataflow:made for"


def test_what_is_also_read_as_data_lies_between() -> None:
    branch = body(node("Identity", "s", "t"), outputs="t")
    asked = (node("Relu", "x", "h"), node("ReduceSum", "h", "s"), node("Greater", "s z", "c"))
    made = graph(*asked, node("If", "c", "y", then_branch=branch), inputs="x z")
    assert inferred(made, {"h": claim("b"), "y": claim("a.p")})["s"] == ("",)


def test_a_body_that_nothing_names_belongs_to_the_node_that_holds_it() -> None:
    inside = body(
        node("Constant", "", "t", value_float=1.0), node("Constant", "", "unused", value_float=1.0), outputs="t"
    )
    made = graph(conditional(inside), inputs="c")
    found = claim_by_dataflow(made, NET, {"y": claim("a.p")}, "s")
    assert owners(found) == {"y|then_branch|t": ("a.p",), "y|then_branch|unused": ("a.p",)}
    assert str(found["y|then_branch|unused"].evidence[0]) == "dataflow:inside the body of"


def test_a_body_ran_while_the_call_of_its_holder_did_whatever_it_reads_from_outside() -> None:
    inside = body(node("Neg", "h", "t"), outputs="t")
    made = graph(node("Relu", "x", "h"), conditional(inside), inputs="x c")
    assert inferred(made, {"h": claim("b"), "y": claim("a")}) == {"y|then_branch|t": ("a",)}
    assert inferred(made, {"h": claim("a.p"), "y": claim("a.q")}) == {"y|then_branch|t": ("a.q",)}


def test_a_body_may_be_the_work_of_a_call_inside_of_its_holders() -> None:
    inside = body(node("Neg", "h", "t"), node("Abs", "t", "u"), node("Sign", "u", "v"), outputs="v")
    made = graph(node("Relu", "x", "h"), conditional(inside), inputs="x c")
    known = {"h": claim("b"), "y": claim("a"), "y|then_branch|t": claim("a.p"), "y|then_branch|v": claim("a.p")}
    assert inferred(made, known) == {"y|then_branch|u": ("a.p",)}


def test_the_body_of_a_node_that_is_inferred_itself() -> None:
    inside = body(node("Constant", "", "t", value_float=1.0), outputs="t")
    made = graph(node("Relu", "x", "c"), conditional(inside))
    assert inferred(made, {"c": claim("a.p")}) == {"y": ("a.p",), "y|then_branch|t": ("a.p",)}


def test_what_is_not_connected_gets_no_claim() -> None:
    made = graph(node("Relu", "x", "h"), node("Constant", "", "c", value_float=1.0), node("Neg", "c", "y"), outputs="h")
    assert inferred(made, {"h": claim("a.p")}) == {}


def test_a_constant_that_the_model_returns_belongs_to_the_root() -> None:
    made = graph(node("Relu", "x", "h"), node("Constant", "", "y", value_float=1.0))
    found = claim_by_dataflow(made, NET, {"h": claim("a.p")}, "s")
    assert owners(found) == {"y": ("",)}
    assert str(found["y"].evidence[0]) == "dataflow:returned by"


def test_what_is_claimed_is_left_alone() -> None:
    made = graph(node("Relu", "x", "h"), node("Neg", "h", "y"))
    assert inferred(made, {"h": claim("a.p"), "y": claim("b")}) == {}


@given(st.data())
def test_every_node_of_a_connected_graph_is_inferred_from_one(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 8))
    nodes, values = [], ["x"]
    for place in range(count):
        reads = data.draw(st.lists(st.sampled_from(values), max_size=2))
        nodes.append(node("Op", " ".join(reads), f"v{place}"))
        values.append(f"v{place}")
    nodes.append(node("Join", " ".join(values[1:]), "y"))
    made = graph(*nodes)
    seed = data.draw(st.sampled_from(made.nodes)).key
    known = {seed: claim("a.p")}
    found = claim_by_dataflow(made, NET, known, "s")
    assert set(found) == {item.key for item in made.nodes} - {seed}
    assert set(owners(found).values()) <= {("a.p",)}


def test_initializers_belong_to_what_reads_them() -> None:
    made = graph(
        node("MatMul", "x w", "h"),
        node("Add", "h s", "m"),
        node("Add", "m s", "y"),
        weights=["w", "s", "unused", "known"],
    )
    nodes = {"h": claim("b"), "m": claim("a.p"), "y": claim("a.q")}
    found = claim_initializers_by_dataflow(made, NET, nodes, {"known": claim("b")}, "s")
    assert owners(found) == {"w": ("b",), "s": ("a",)}
    assert {item.confidence for item in found.values()} == {Confidence.INFERRED}


def test_an_initializer_that_several_calls_read_belongs_to_their_module() -> None:
    twice = tree({"": "Net", "a": "Linear"}, "", "a", "a")
    made = graph(node("MatMul", "x w", "h"), node("MatMul", "h w", "y"), weights=["w"])
    found = claim_initializers_by_dataflow(made, twice, {"h": claim("a"), "y": claim("a#1")}, {}, "s")
    assert owners(found) == {"w": ("a",)}


def test_what_is_in_a_function_belongs_to_all_that_call_it() -> None:
    inside = [onnx.helper.make_node("Relu", ["v"], ["w"]), onnx.helper.make_node("Neg", ["w"], ["u"])]
    opsets = [onnx.helper.make_opsetid("", 18)]
    function = onnx.helper.make_function("own", "Twice", ["v"], ["u"], inside, opsets)
    calls = [
        onnx.helper.make_node("Twice", ["x"], ["h"], domain="own"),
        onnx.helper.make_node("Twice", ["h"], ["y"], domain="own"),
    ]
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(calls, "g", values[:1], values[1:]), functions=[function], opset_imports=opsets
    )
    found = inferred(index_model(model), {"h": claim("a.p"), "y": claim("b")})
    assert found == {"own::Twice|w": ("a.p", "b"), "own::Twice|u": ("a.p", "b")}
