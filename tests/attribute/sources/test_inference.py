"""What follows for nodes without names: from the order of the file, and from dataflow. Parameters alone have names."""

from __future__ import annotations

import random
from collections.abc import Iterator

import onnx
import pytest
from onnx import TensorProto, helper
from tests.support.scrambling import reordered

from modelexport.attribute.sources.find import find_hierarchy
from modelexport.graph.index import index_model
from modelexport.record.provenance import Confidence, Provenance

ATTENTION = "net.layers.0.attn"


def model_of(*lines: str) -> onnx.ModelProto:
    """`MatMul x net.fc.weight -> h` is a node; dotted names are weights, and `x` and `mask` are fed."""
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, None] = {}
    for line in lines:
        (operator, *inputs), (output,) = (part.split() for part in line.split("->"))
        nodes.append(helper.make_node(operator, inputs, [output]))
        weights |= dict.fromkeys(name for name in inputs if "." in name)
    shapes = {name: (4,) if "norm" in name or name.endswith(".bias") else (4, 4) for name in weights}
    tensors = [
        helper.make_tensor(name, TensorProto.FLOAT, shape, [1.0] * 4 ** len(shape)) for name, shape in shapes.items()
    ]
    tensors.append(helper.make_tensor("axes", TensorProto.INT64, (1,), [-1]))
    fed = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in ("x", "mask")]
    last = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    return helper.make_model(helper.make_graph(nodes, "g", fed, [last], tensors))


def find(*lines: str) -> Provenance:
    return find_hierarchy(index_model(model_of(*lines)))


def answers(provenance: Provenance) -> dict[str, tuple[str, str]]:
    """By node: its module, and the reason."""
    entries = {key: entry.attribution for key, entry in provenance.nodes.items()}
    return {
        key: (entry.module or "", entry.evidence[0].source if entry.evidence else "") for key, entry in entries.items()
    }


def attention(layer: int, value: str, *, mask: str = "m") -> Iterator[str]:
    path, own = f"net.layers.{layer}", f"{layer}"
    yield f"MatMul {value} {path}.attn.q.weight -> q{own}"
    yield f"Shape {value} -> shape{own}"
    yield f"Concat shape{own} -> target{own}"
    yield f"Reshape q{own} target{own} -> heads{own}"
    yield f"MatMul {value} {path}.attn.k.weight -> k{own}"
    yield f"MatMul {value} {path}.attn.v.weight -> v{own}"
    yield f"Transpose k{own} -> turned{own}"
    yield f"MatMul heads{own} turned{own} -> scores{own}"
    yield f"Add {mask} scores{own} -> masked{own}"
    yield f"Softmax masked{own} -> weights{own}"
    yield f"MatMul weights{own} v{own} -> context{own}"
    yield f"Transpose context{own} -> merged{own}"
    yield f"MatMul merged{own} {path}.out.fc.weight -> o{own}"
    yield f"Relu o{own} -> r{own}"
    yield f"MatMul r{own} {path}.mlp.fc.weight -> h{own}"
    yield f"Add h{own} o{own} -> y{own}"


EMBEDDED = ("MatMul x embed.weight -> e", "Cast mask -> m")


class TestAttention:
    found = answers(find(*EMBEDDED, *attention(0, "e"), *attention(1, "y0"), "MatMul y1 net.norm.weight -> y"))

    def test_between_two_modules_it_is_the_module_around_both(self) -> None:
        assert self.found["heads0"] == (ATTENTION, "between")

    def test_made_from_two_modules_inside_of_one_it_is_that_one(self) -> None:
        assert self.found["scores0"] == (ATTENTION, "joins")
        assert self.found["context0"] == (ATTENTION, "joins")

    def test_before_a_join_the_module_was_not_left(self) -> None:
        assert self.found["turned0"] == (ATTENTION, "between")

    def test_what_is_made_from_a_join_alone_is_still_inside(self) -> None:
        assert self.found["merged0"] == (ATTENTION, "joins")

    def test_shapes_are_computed_where_they_are_read(self) -> None:
        assert self.found["shape0"] == self.found["target0"] == (ATTENTION, "made for")

    def test_the_sum_of_a_layer_is_the_layer_and_not_the_list(self) -> None:
        assert self.found["y0"] == ("net.layers.0", "joins")

    def test_between_unrelated_modules_it_is_the_layer(self) -> None:
        assert self.found["r0"] == ("net.layers.0", "between")

    def test_nothing_is_more_than_inferred(self) -> None:
        found = find(*EMBEDDED, *attention(0, "e"), "MatMul y0 net.norm.weight -> y")
        sure = {key for key, entry in found.nodes.items() if entry.attribution.confidence > Confidence.INFERRED}
        assert sure == {"e", "q0", "k0", "v0", "o0", "h0", "y"}

    def test_the_evidence_names_the_order(self) -> None:
        found = find(*EMBEDDED, *attention(0, "e"), "MatMul y0 net.norm.weight -> y")
        assert str(found.nodes["heads0"].attribution.evidence[0]) == "dataflow:between (order of the file)"
        assert "order" not in str(found.nodes["shape0"].attribution.evidence[0])


class TestSideInputs:
    def test_a_mask_is_made_by_the_module_that_holds_the_layers(self) -> None:
        found = find(*EMBEDDED, *attention(0, "e"), *attention(1, "y0"), "MatMul y1 net.norm.weight -> y")
        assert answers(found)["m"] == ("net", "side input")

    def test_a_module_that_only_runs_a_list_makes_none(self) -> None:
        found = find(*EMBEDDED, *attention(0, "e"), *attention(1, "y0"), "MatMul y1 head.fc.weight -> y")
        assert answers(found)["m"] == ("", "between")

    def test_what_another_module_returned_is_no_side_input(self) -> None:
        lines = ("MatMul x embed.weight -> e", "MatMul mask bias.weight -> b", "Relu b -> m")
        found = find(*lines, *attention(0, "e"), *attention(1, "y0"), "MatMul y1 net.norm.weight -> y")
        assert answers(found)["m"] == ("", "between")
        # It is added inside of the attention, before what surely is inside of it.
        assert answers(found)["masked0"] == (ATTENTION, "between")
        assert answers(found)["context0"] == (ATTENTION, "joins")


class TestJoins:
    FIRST = ("MatMul x net.block.a.weight -> a", "MatMul x net.block.b.weight -> b")

    @pytest.mark.parametrize(("operator", "module"), [("Mul", "net.block"), ("Add", "net")])
    def test_nothing_follows_a_sum_inside_of_its_module(self, operator: str, module: str) -> None:
        found = answers(find(*self.FIRST, f"{operator} a b -> s", "Relu s -> r", "MatMul r net.head.weight -> y"))
        assert found["s"] == ("net.block", "joins")
        assert found["r"][0] == module

    def test_a_value_that_is_read_twice_is_no_join(self) -> None:
        lines = ("MatMul x net.block.a.weight -> a", "Relu a -> p", "Sigmoid a -> q", "Mul p q -> s")
        assert answers(find(*lines, "MatMul s net.head.weight -> y"))["s"] == ("net", "between")

    def test_two_values_of_a_join_are_one(self) -> None:
        lines = (*self.FIRST, "Mul a b -> s", "Relu s -> p", "Sigmoid s -> q", "Mul p q -> t")
        assert answers(find(*lines, "MatMul t net.head.weight -> y"))["t"] == ("net.block", "joins")


class TestLeaves:
    def test_what_only_stands_between_two_weights_is_not_theirs(self) -> None:
        bias = "Add product net.block.v.bias -> v"
        lines = ("MatMul x net.block.k.weight -> k", "MatMul x net.block.v.weight -> product", "Relu k -> r", bias)
        assert answers(find(*lines, "MatMul r v -> s", "MatMul s net.head.weight -> y"))["r"][0] == "net.block"

    def test_what_computes_between_them_is(self) -> None:
        lines = ("MatMul x net.block.v.weight -> product", "Relu product -> r", "Add r net.block.v.bias -> v")
        assert answers(find(*lines, "MatMul v net.head.weight -> y"))["r"][0] == "net.block.v"

    def test_what_is_handed_to_a_module_is_computed_by_its_caller(self) -> None:
        lines = ("MatMul x net.a.weight -> a", "Shape a -> s", "Gather net.block.table.weight s -> t")
        found = answers(find(*lines, "MatMul t net.block.fc.weight -> y"))
        assert found["s"] == ("net.block", "made for")

    def test_a_module_with_modules_inside_uses_its_weights_itself(self) -> None:
        lines = ("MatMul x net.block.a.weight -> a", "Mul a net.block.scale -> s", "Relu s -> y")
        assert answers(find(*lines))["y"] == ("net.block", "between")

    def test_after_the_last_one_it_is_the_caller(self) -> None:
        lines = ("MatMul x net.a.weight -> a", "MatMul a net.head.fc.weight -> h", "Relu h -> y")
        assert answers(find(*lines))["y"] == ("net.head", "between")

    def test_after_the_last_one_of_the_model_it_is_the_model(self) -> None:
        lines = ("MatMul x net.a.weight -> a", "MatMul a net.b.weight -> b", "MatMul b head.weight -> h", "Relu h -> y")
        assert answers(find(*lines))["y"] == ("", "between")


def test_a_normalization_that_was_taken_apart_is_one_module() -> None:
    lines = (
        "MatMul x net.fc.weight -> h",
        "ReduceMean h axes -> mean",
        "Sub h mean -> centered",
        "Mul centered centered -> squared",
        "ReduceMean squared axes -> variance",
        "Add variance .eps -> positive",
        "Sqrt positive -> deviation",
        "Div centered deviation -> normal",
        "Mul normal net.norm.weight -> scaled",
        "Add scaled net.norm.bias -> shifted",
        "MatMul shifted net.head.weight -> y",
    )
    found = answers(find(*lines))
    inside = ("mean", "centered", "squared", "variance", "deviation", "normal")
    assert {found[key] for key in inside} == {("net.norm", "normalization")}


def test_another_order_of_the_same_graph_has_the_same_answers() -> None:
    lines = [*EMBEDDED]
    for layer in range(4):
        lines += attention(layer, f"y{layer - 1}" if layer else "e")
    model = model_of(*lines, "MatMul y3 net.norm.weight -> y")
    found = {key: path for key, (path, _) in answers(find_hierarchy(index_model(model))).items()}
    for seed in range(5):
        other = answers(find_hierarchy(index_model(reordered(model, random.Random(seed)))))
        moved = {key for key, (path, _) in other.items() if path != found[key]}
        assert len(moved) <= 0.05 * len(found), moved
