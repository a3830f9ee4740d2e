from __future__ import annotations

import onnx
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from tests.support.building import body, graph, model, node, weight

from modelexport.graph.index import edges_of, index_model
from modelexport.record.provenance import Edges


def edges(proto: onnx.ModelProto) -> Edges:
    return edges_of(index_model(proto))


def branching() -> Edges:
    """One branch computes from outside, the other hands an outer value through."""
    then = body(node("Mul", "h w", "t"), outputs="t", weights=[weight("w", 1, 2)])
    other = body(outputs="h")
    return edges(
        model(
            node("Relu", "x", "h"),
            node("If", "c", "y", then_branch=then, else_branch=other),
            inputs="x c",
        )
    )


def test_values_of_the_main_graph() -> None:
    made = edges_of(
        graph(node("MatMul", "x w", "h"), node("Add", "h h", "a b"), node("Mul", "a w", "y"), weights=["w"])
    )
    assert made.producers == {"h": ("h",), "a": ("a",), "b": ("a",), "y": ("y",)}
    assert made.consumers == {"x": ("h",), "w": ("h", "y"), "h": ("a",), "a": ("y",)}
    assert (made.inputs, made.outputs, made.initializers) == (("x",), ("y",), {"w": 4096})
    assert set(made.values) == {"x", "w", "h", "a", "b", "y"}
    assert "b" in made
    assert "z" not in made


def test_a_body_reads_outer_values_and_gives_its_own_to_its_node() -> None:
    made = branching()
    assert made.consumers["h"] == ("y", "y|then_branch|t")
    assert made.consumers["y|then_branch|t"] == ("y",)
    assert made.producers["y|then_branch|t"] == ("y|then_branch|t",)
    assert made.initializers == {"y|then_branch|w": 2}
    assert "y|then_branch|w" not in made.producers


def test_what_a_loop_gives_its_body_comes_from_the_loop() -> None:
    inner = body(node("If", "go", "u", then_branch=body(node("Neg", "state", "n"), outputs="n")), outputs="u")
    inner.input.extend(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("state", "go"))
    made = edges(model(node("Loop", "m _ x", "y", body=inner), inputs="m x"))
    assert made.producers["y|body|state"] == ("y",)
    assert made.consumers["y|body|state"] == ("y|body|u|then_branch|n",)
    assert made.consumers["y|body|u"] == ("y",)
    assert "" not in made.consumers


def test_a_function_is_run_by_all_who_call_it() -> None:
    function = helper.make_function(
        "local", "Twice", ["a"], ["b"], [node("Add", "a a", "b")], [helper.make_opsetid("", 20)]
    )
    made = edges(
        model(
            node("Twice", "x", "h", domain="local"),
            node("Twice", "h", "y", domain="local"),
            node("Twice", "h", "z", domain="other"),
            functions=[function],
        )
    )
    assert made.producers["local::Twice|a"] == ("h", "y")
    assert made.consumers["local::Twice|b"] == ("h", "y")
    assert made.domains == {"h": "local", "y": "local", "z": "other"}


def test_a_dangling_value_has_readers_and_no_producer() -> None:
    made = edges(model(node("Add", "x nowhere|at|all", "y")))
    assert made.consumers["nowhere|at|all"] == ("y",)
    assert "nowhere|at|all" not in made.producers


NAMES = st.sampled_from("abcdef")


@given(st.lists(st.tuples(st.lists(NAMES, min_size=1, max_size=3), st.booleans()), max_size=8))
def test_every_reader_is_listed_once_and_in_order(recipe: list[tuple[list[str], bool]]) -> None:
    nodes = []
    for number, (inputs, inside) in enumerate(recipe):
        made = node("Sum", " ".join(inputs), f"o{number}")
        nodes.append(node("If", "c", f"i{number}", then_branch=body(made, outputs=f"o{number}")) if inside else made)
    indexed = graph(*nodes, inputs="a b c d e f")
    found = edges_of(indexed)
    for readers in found.consumers.values():
        positions = [indexed.by_key[key].position for key in readers]
        assert positions == sorted(set(positions))
    for item in indexed.nodes:
        assert all(item.key in found.consumers[value] for value in item.inputs)
        assert all(found.producers[value] == (item.key,) for value in item.outputs)
