from __future__ import annotations

import onnx
import pytest
from tests.support.building import body, graph, node, weight
from tests.support.growing_graphs import blocks

from modelexport.graph.index import Graph
from modelexport.lineage.descent import trace_lineage
from modelexport.record.lineage import Link, Relation


def links(before: Graph, after: Graph) -> dict[str, tuple[str, str]]:
    """Relation and sources of every node, as text."""
    return {key: _text(link) for key, link in trace_lineage(before, after).nodes.items()}


def folded(before: Graph, after: Graph) -> dict[str, tuple[str, str]]:
    return {name: _text(link) for name, link in trace_lineage(before, after).initializers.items()}


def _text(link: Link) -> tuple[str, str]:
    return (link.relation.value, " ".join(link.sources))


def test_an_unchanged_graph_is_kept_node_by_node() -> None:
    same = graph(node("MatMul", "x w", "h"), node("Relu", "h", "y"), weights=["w"])
    assert links(same, same) == {"h": ("kept", "h"), "y": ("kept", "y")}
    assert folded(same, same) == {}


def test_names_of_nodes_do_not_matter() -> None:
    before = graph(node("Relu", "x", "h", "one"), node("Neg", "h", "y", "two"))
    after = graph(node("Relu", "x", "h", "two"), node("Neg", "h", "y"))
    assert links(before, after) == {"h": ("kept", "h"), "y": ("kept", "y")}


def test_a_removed_node_leaves_the_others_alone() -> None:
    before = graph(node("Relu", "x", "h"), node("Neg", "x", "unused"), node("Abs", "h", "y"))
    after = graph(node("Relu", "x", "h"), node("Abs", "h", "y"))
    assert links(before, after) == {"h": ("kept", "h"), "y": ("kept", "y")}


def test_another_operator_for_the_same_value_is_a_rewrite() -> None:
    before = graph(node("Relu", "x", "h"), node("Gemm", "h w", "y"), weights=["w"])
    after = graph(node("Relu", "x", "h"), node("MatMul", "h w", "y"), weights=["w"])
    assert links(before, after) == {"h": ("kept", "h"), "y": ("rewritten", "y")}


def test_other_attributes_are_a_rewrite() -> None:
    before = graph(node("Transpose", "x", "y", perm=[0, 1]))
    after = graph(node("Transpose", "x", "y", perm=[1, 0]))
    assert links(before, after) == {"y": ("rewritten", "y")}


NORMALIZED = graph(
    node("Conv", "x w", "c"),
    node("BatchNormalization", "c s b m v", "n"),
    node("Relu", "n", "y"),
    weights=["w", "s", "b", "m", "v"],
)


def test_a_convolution_that_took_the_name_of_its_normalization_is_both() -> None:
    after = graph(node("Conv", "x w_bn b_bn", "n"), node("Relu", "n", "y"), weights=["w_bn", "b_bn"])
    assert links(NORMALIZED, after) == {"n": ("fused", "c n"), "y": ("kept", "y")}


def test_a_convolution_that_kept_its_name_and_got_other_weights_is_both() -> None:
    after = graph(node("Conv", "x w_bn b_bn", "c"), node("Relu", "c", "y"), weights=["w_bn", "b_bn"])
    assert links(NORMALIZED, after) == {"c": ("fused", "c n"), "y": ("kept", "y")}


BIASED = graph(
    node("Conv", "x w bias", "c"),
    node("BatchNormalization", "c s b m v", "n"),
    node("Relu", "n", "y"),
    weights=["w", "bias", "s", "b", "m", "v"],
)


def test_so_is_one_that_had_a_bias_already() -> None:
    after = graph(node("Conv", "x w_bn b_bn", "c"), node("Relu", "c", "y"), weights=["w_bn", "b_bn"])
    assert links(BIASED, after) == {"c": ("fused", "c n"), "y": ("kept", "y")}


def test_a_bias_that_moved_into_a_convolution_makes_it_both() -> None:
    before = graph(node("Conv", "x w", "c"), node("Add", "c b", "n"), node("Relu", "n", "y"), weights=["w", "b"])
    after = graph(node("Conv", "x w b", "c"), node("Relu", "c", "y"), weights=["w", "b"])
    assert links(before, after) == {"c": ("fused", "c n"), "y": ("kept", "y")}


def test_only_what_has_weights_is_absorbed_into_weights() -> None:
    before = graph(
        node("Conv", "x w", "c"),
        node("Identity", "c", "dropped"),
        node("BatchNormalization", "dropped s b m v", "n"),
        node("Relu", "n", "y"),
        weights=list("wsbmv"),
    )
    after = graph(node("Conv", "x w_bn b_bn", "c"), node("Relu", "c", "y"), weights=["w_bn", "b_bn"])
    assert links(before, after) == {"c": ("fused", "c n"), "y": ("kept", "y")}


def test_a_normalization_folded_at_the_end_of_the_graph_is_found_by_the_outputs() -> None:
    before = graph(
        node("Conv", "x w", "c"), node("BatchNormalization", "c s b m v", "n"), outputs="n", weights=list("wsbmv")
    )
    after = graph(node("Conv", "x w_bn b_bn", "c"), outputs="c", weights=["w_bn", "b_bn"])
    assert links(before, after) == {"c": ("fused", "c n")}


def test_equal_weights_under_another_name_absorb_nothing() -> None:
    before = graph(
        node("Gemm", "x w", "c"),
        node("Identity", "c", "i"),
        node("Mul", "i one", "n"),
        node("Relu", "n", "y"),
        weights=[weight("w", 1, 2), weight("one", 1)],
    )
    after = graph(node("Gemm", "x copy", "c"), node("Relu", "c", "y"), weights=[weight("copy", 1, 2)])
    assert links(before, after) == {"c": ("kept", "c"), "y": ("kept", "y")}


def test_a_removed_no_op_adds_no_owner() -> None:
    before = graph(node("Relu", "x", "h"), node("Identity", "h", "dropped"), node("Neg", "dropped", "y"))
    after = graph(node("Relu", "x", "h"), node("Neg", "h", "y"))
    assert links(before, after) == {"h": ("kept", "h"), "y": ("kept", "y")}


def test_a_no_op_that_named_the_output_adds_no_owner() -> None:
    before = graph(node("Relu", "x", "h"), node("Identity", "h", "y"))
    after = graph(node("Relu", "x", "y"))
    assert links(before, after) == {"y": ("renamed", "h")}


def test_an_identity_that_is_kept_is_kept() -> None:
    same = graph(node("Identity", "x", "y"))
    assert links(same, same) == {"y": ("kept", "y")}


TWINS = graph(
    node("Sin", "x", "a1"),
    node("Sin", "x", "a2"),
    node("Cos", "a1", "b1"),
    node("Cos", "a2", "b2"),
    node("Add", "b1 b2", "y"),
)


def test_the_twin_that_stays_stands_for_both() -> None:
    after = graph(node("Sin", "x", "a1"), node("Cos", "a1", "b1"), node("Add", "b1 b1", "y"))
    assert links(TWINS, after) == {"a1": ("shared", "a1 a2"), "b1": ("shared", "b1 b2"), "y": ("kept", "y")}


def test_it_does_not_matter_which_twin_stays() -> None:
    after = graph(node("Sin", "x", "a2"), node("Cos", "a2", "b2"), node("Add", "b2 b2", "y"))
    assert links(TWINS, after) == {"a2": ("shared", "a1 a2"), "b2": ("shared", "b1 b2"), "y": ("kept", "y")}


def test_twins_that_both_stay_share_nothing() -> None:
    assert {relation for relation, _ in links(TWINS, TWINS).values()} == {"kept"}


def test_twins_may_read_equal_constants_of_different_names() -> None:
    before = graph(
        node("Add", "x one", "a"),
        node("Add", "x uno", "b"),
        node("Mul", "a b", "y"),
        weights=[weight("one", 1), weight("uno", 1)],
    )
    after = graph(node("Add", "x one", "a"), node("Mul", "a a", "y"), weights=[weight("one", 1)])
    assert links(before, after) == {"a": ("shared", "a b"), "y": ("kept", "y")}


def test_a_twin_whose_reader_was_rewritten_is_still_a_twin() -> None:
    before = graph(
        node("Sin", "x", "a"), node("Neg", "a", "n"), node("Sin", "x", "b"), node("Abs", "b", "y"), outputs="n y"
    )
    after = graph(node("Sin", "x", "a"), node("Neg", "a", "n"), node("Max", "a n", "y"), outputs="n y")
    assert links(before, after) == {"a": ("shared", "a b"), "n": ("kept", "n"), "y": ("rewritten", "y")}


def test_weights_too_large_to_compare_are_equal_where_their_readers_were_merged() -> None:
    before = graph(
        node("MatMul", "x w", "a1"),
        node("Tanh", "a1", "b1"),
        node("MatMul", "x v", "a2"),
        node("Tanh", "a2", "b2"),
        node("Add", "b1 b2", "y"),
        weights=["w", "v"],
    )
    after = graph(node("MatMul", "x w", "a1"), node("Tanh", "a1", "b1"), node("Add", "b1 b1", "y"), weights=["w"])
    assert links(before, after) == {"a1": ("shared", "a1 a2"), "b1": ("shared", "b1 b2"), "y": ("kept", "y")}


def test_nodes_with_bodies_are_never_twins() -> None:
    def choice(operator: str, output: str) -> onnx.NodeProto:
        return node("If", "c", output, then_branch=body(node(operator, "x", "t"), outputs="t"))

    before = graph(choice("Neg", "a"), choice("Abs", "b"), inputs="x c", outputs="a")
    after = graph(choice("Neg", "a"), inputs="x c", outputs="a")
    assert links(before, after)["a"] == ("kept", "a")


def test_random_nodes_are_never_twins() -> None:
    before = graph(
        node("RandomNormalLike", "x", "a"), node("RandomNormalLike", "x", "b"), node("Neg", "b", "n"), outputs="a n"
    )
    after = graph(node("RandomNormalLike", "x", "a"), outputs="a")
    assert links(before, after) == {"a": ("kept", "a")}


def test_nodes_whose_large_weights_differ_are_no_twins() -> None:
    before = graph(
        node("MatMul", "x w", "a"), node("MatMul", "x v", "b"), node("Neg", "b", "n"), outputs="a", weights=["w", "v"]
    )
    after = graph(node("MatMul", "x w", "a"), outputs="a", weights=["w"])
    assert links(before, after) == {"a": ("kept", "a")}


def test_a_chain_becomes_one_node() -> None:
    before = graph(
        node("Div", "x r", "d"),
        node("Erf", "d", "e"),
        node("Add", "e one", "p"),
        node("Mul", "x p", "y"),
        weights=["r"],
    )
    after = graph(node("Gelu", "x", "y"))
    assert links(before, after) == {"y": ("fused", "d e p y")}


def test_a_fused_node_owns_nothing_that_still_exists() -> None:
    before = graph(node("Relu", "x", "h"), node("MatMul", "h w", "m"), node("Add", "m b", "y"), weights=["w", "b"])
    after = graph(node("Relu", "x", "h"), node("Gemm", "h w b", "y"), weights=["w", "b"])
    assert links(before, after) == {"h": ("kept", "h"), "y": ("fused", "m y")}


def test_a_fused_node_does_not_own_the_shape_arithmetic_before_it() -> None:
    before = graph(
        node("Shape", "x", "s"), node("Concat", "s t", "k", axis=0), node("Reshape", "x k", "r"), node("Neg", "r", "y")
    )
    after = graph(node("NegReshape", "x", "y"))
    assert links(before, after) == {"y": ("fused", "r y")}


def test_several_nodes_become_one_with_several_outputs() -> None:
    before = graph(
        node("Slice", "x b0 e0", "left"),
        node("Slice", "x b1 e1", "right"),
        node("Mul", "left right", "y"),
        weights=["b0", "e0", "b1", "e1"],
    )
    after = graph(node("Split", "x", "left right", num_outputs=2), node("Mul", "left right", "y"))
    assert links(before, after) == {"left": ("fused", "left right"), "y": ("kept", "y")}


def test_of_a_packed_product_the_last_piece_is_what_is_left() -> None:
    """The second piece is known by who reads it; what reads the first has other work than making that."""
    gate = [node("MatMul", "x w", "a"), node("Sigmoid", "a", "s"), node("Mul", "a s", "g")]
    before = graph(*gate, node("MatMul", "x v", "b"), node("Sub", "g b", "y"), weights=["w", "v"])
    after = graph(
        node("MatMul", "x packed", "p"),
        node("Split", "p", "one two", num_outputs=2),
        node("QuickGelu", "one", "n"),
        node("Sub", "n two", "y"),
        weights=["packed"],
    )
    assert links(before, after) == {
        "p": ("fused", "a b"),
        "one": ("fused", "a b"),
        "n": ("fused", "s g"),
        "y": ("kept", "y"),
    }


def test_a_node_that_cuts_a_packed_product_does_the_work_of_all_pieces() -> None:
    """One piece alone is known, by its reader."""
    products = [node("MatMul", f"x {weight}", made) for weight, made in ("wa", "vb", "uc")]
    joined = [node("Mul", "a b", "s"), node("Sqrt", "s", "t"), node("Sub", "t c", "y")]
    before = graph(*products, *joined, weights=["w", "v", "u"])
    after = graph(
        node("MatMul", "x packed", "p"),
        node("Split", "p", "one two three", num_outputs=3),
        node("Strange", "one two", "n"),
        node("Sub", "n three", "y"),
        weights=["packed"],
    )
    found = links(before, after)
    assert (found["one"], found["y"]) == (("fused", "a b c"), ("kept", "y"))


def test_a_sum_that_a_norm_takes_in_says_what_its_other_input_is() -> None:
    """Two sums in a row, both in norms now: of the second norm, what the first hands on as a second output is known."""
    before = graph(
        node("Add", "x a", "first"),
        node("Add", "first b", "second"),
        node("Abs", "second", "size"),
        node("Div", "second size", "scaled"),
        node("Mul", "scaled w", "y"),
        inputs="x a b", weights=["w"],
    )  # fmt: skip
    after = graph(
        node("Strange", "x a", "sum"), node("SkipNorm", "b sum w", "y"), inputs="x a b", weights=["w"]
    )  # fmt: skip
    assert links(before, after) == {"sum": ("rewritten", "first"), "y": ("fused", "second size scaled y")}


def test_a_helper_was_made_for_what_reads_it() -> None:
    before = graph(node("Relu", "x", "h"), node("Gemm", "h w", "y"), weights=["w"])
    after = graph(
        node("Relu", "x", "h"),
        node("Cast", "h", "cast_1", to=10),
        node("Neg", "cast_1", "neg_1"),
        node("MatMul", "neg_1 w", "y"),
        weights=["w"],
    )
    assert links(before, after) == {
        "h": ("kept", "h"),
        "cast_1": ("introduced", "h"),
        "neg_1": ("introduced", "y"),
        "y": ("rewritten", "y"),
    }


def test_a_weight_with_a_scale_for_each_channel_is_unpacked_for_what_reads_it() -> None:
    before = graph(node("MatMul", "x w", "h"), node("Relu", "h", "y"), weights=["w"])
    packed = onnx.TensorProto(name="w_quantized", data_type=onnx.TensorProto.INT8, dims=[64, 64])
    after = graph(
        node("DequantizeLinear", "w_quantized scales", "w_unpacked", axis=1),
        node("MatMul", "x w_unpacked", "h"),
        node("Relu", "h", "y"),
        weights=[packed, weight("scales", 0.25, 0.5)],
    )
    assert links(before, after)["w_unpacked"] == ("introduced", "h")


def test_a_helper_that_nothing_reads_has_no_source() -> None:
    before = graph(node("Relu", "x", "y"))
    after = graph(node("Relu", "x", "y"), node("Neg", "x", "new"))
    assert links(before, after) == {"y": ("kept", "y"), "new": ("introduced", "")}


def test_a_computed_value_that_became_a_constant_was_folded() -> None:
    before = graph(
        node("Transpose", "w", "t"), node("Mul", "t two", "f"), node("MatMul", "x f", "y"), weights=["w", "two"]
    )
    after = graph(node("MatMul", "x f", "y"), weights=["f"])
    assert links(before, after) == {"y": ("kept", "y")}
    assert folded(before, after) == {"f": ("folded", "t f")}


def test_so_was_one_that_got_another_name() -> None:
    before = graph(node("Transpose", "w", "t"), node("MatMul", "x t", "y"), weights=["w"])
    after = graph(node("MatMul", "x onnx::MatMul_4", "y"), weights=["onnx::MatMul_4"])
    assert folded(before, after) == {"onnx::MatMul_4": ("folded", "t")}


def test_folding_owns_neither_literals_nor_data() -> None:
    before = graph(
        node("Constant", "", "two", value_float=2.0),
        node("Mul", "w two", "f"),
        node("Relu", "x", "h"),
        node("MatMul", "h f", "y"),
        weights=["w"],
    )
    after = graph(node("Relu", "x", "h"), node("MatMul", "h f", "y"), weights=["f"])
    assert folded(before, after) == {"f": ("folded", "f")}


def test_folding_a_shape_does_not_own_what_was_measured() -> None:
    before = graph(
        node("Relu", "x", "h"),
        node("Shape", "h", "s"),
        node("Gather", "s i", "f"),
        node("Reshape", "h f", "y"),
        weights=["i"],
    )
    after = graph(node("Relu", "x", "h"), node("Reshape", "h f", "y"), weights=["f"])
    assert folded(before, after) == {"f": ("folded", "s f")}


def test_bodies_are_linked_like_the_graph_around_them() -> None:
    def conditional(*inside: onnx.NodeProto) -> Graph:
        return graph(node("If", "c", "y", then_branch=body(*inside, outputs="t")), inputs="x c")

    before = conditional(node("Mul", "x x", "m"), node("Add", "m x", "t"))
    after = conditional(node("Fma", "x x x", "t"))
    assert links(before, after)["y|then_branch|t"] == ("fused", "y|then_branch|m y|then_branch|t")
    assert links(before, after)["y"] == ("kept", "y")


def test_sources_come_in_the_order_of_their_graph_and_once() -> None:
    before = graph(node("Sin", "x", "a"), node("Cos", "x", "b"), node("Add", "b a", "s"), node("Mul", "s a", "y"))
    (link,) = trace_lineage(before, graph(node("Fused", "x", "y"))).nodes.values()
    assert link.sources == ("a", "b", "s", "y")
    assert link.relation is Relation.FUSED


@pytest.mark.parametrize("count", [1, 5])
def test_every_node_of_a_deep_network_is_linked(count: int) -> None:
    found = links(blocks(count, fused=False), blocks(count, fused=True))
    assert found[f"n{count - 1}"] == ("fused", f"c{count - 1} n{count - 1}")
    assert found["s0"] == ("shared", "s0 z0")
    assert found[f"v{count}"] == ("kept", f"v{count}")


def test_one_node_that_became_several_is_split() -> None:
    before = graph(node("Relu", "x", "h"), node("Gemm", "h w b", "y"), weights=["w", "b"])
    after = graph(
        node("Relu", "x", "h"), node("MatMul", "h w", "y_product"), node("Add", "y_product b", "y"), weights=["w", "b"]
    )
    assert links(before, after) == {"h": ("kept", "h"), "y_product": ("split", "y"), "y": ("split", "y")}


def test_so_is_one_in_the_middle_of_a_graph() -> None:
    before = graph(node("Conv", "x w", "c"), node("HardSwish", "c", "s"), node("Conv", "s v", "y"), weights=["w", "v"])
    after = graph(
        node("Conv", "x w", "c"),
        node("HardSigmoid", "c", "part", alpha=1 / 6, beta=0.5),
        node("Mul", "c part", "s"),
        node("Conv", "s v", "y"),
        weights=["w", "v"],
    )
    assert links(before, after) == {
        "c": ("kept", "c"),
        "part": ("split", "s"),
        "s": ("split", "s"),
        "y": ("kept", "y"),
    }


def test_a_normalization_written_out_is_split() -> None:
    before = graph(
        node("Relu", "x", "h"), node("LayerNormalization", "h g b", "n"), node("Neg", "n", "y"), weights=["g", "b"]
    )
    after = graph(
        node("Relu", "x", "h"),
        node("ReduceMean", "h", "n_mean"),
        node("Sub", "h n_mean", "n_centred"),
        node("Mul", "n_centred g", "n_scaled"),
        node("Add", "n_scaled b", "n"),
        node("Neg", "n", "y"),
        weights=["g", "b"],
    )
    found = links(before, after)
    assert {found[key] for key in ("n_mean", "n_centred", "n_scaled", "n")} == {("split", "n")}
    assert found["h"] == ("kept", "h")
    assert found["y"] == ("kept", "y")


def test_a_node_that_was_doubled_is_not_split() -> None:
    before = graph(node("Sin", "x", "s"), node("Neg", "s", "a"), node("Abs", "s", "b"), outputs="a b")
    after = graph(
        node("Sin", "x", "s"), node("Sin", "x", "t"), node("Neg", "s", "a"), node("Abs", "t", "b"), outputs="a b"
    )
    found = links(before, after)
    assert found["s"] == ("kept", "s")
    assert found["t"] == ("renamed", "s")


def test_a_normalization_is_in_the_weights_even_if_these_kept_their_names() -> None:
    after = graph(node("Conv", "x w bias", "n"), node("Relu", "n", "y"), weights=["w", "bias"])
    assert links(BIASED, after) == {"n": ("fused", "c n"), "y": ("kept", "y")}


BOTTLENECK = graph(
    node("Conv", "x w", "c"),
    node("BatchNormalization", "c s b m v", "n"),
    node("Conv", "n u", "d"),
    node("BatchNormalization", "d t e k q", "o"),
    node("Relu", "o", "y"),
    weights=list("wsbmvutekq"),
)


def test_a_normalization_between_convolutions_goes_to_the_one_before_it() -> None:
    after = graph(
        node("Conv", "x w_bn b_bn", "c"),
        node("Conv", "c u_bn e_bn", "d"),
        node("Relu", "d", "y"),
        weights=["w_bn", "b_bn", "u_bn", "e_bn"],
    )
    assert links(BOTTLENECK, after) == {"c": ("fused", "c n"), "d": ("fused", "d o"), "y": ("kept", "y")}


def test_what_moves_numbers_is_in_no_weights() -> None:
    before = graph(
        node("Mul", "x f", "m"),
        node("Slice", "m from to", "s"),
        node("Slice", "s from to", "t"),
        node("MatMul", "t w", "y"),
        weights=["f", "from", "to", "w"],
    )
    after = graph(node("Mul", "x folded", "m"), node("MatMul", "m w", "y"), weights=["folded", "w"])
    assert links(before, after) == {"m": ("kept", "m"), "y": ("kept", "y")}


def test_places_that_are_computed_from_constants_do_not_hide_what_is_moved() -> None:
    before = graph(
        node("Relu", "x", "h"),
        node("Reshape", "zero one", "from"),
        node("Reshape", "most one", "to"),
        node("Slice", "h from to", "s"),
        node("Slice", "s from to", "t"),
        node("Transpose", "w", "turned"),
        node("MatMul", "t turned", "y"),
        weights=[weight("zero"), weight("most"), weight("one", 1), "w"],
    )
    after = graph(node("Relu", "x", "h"), node("MatMul", "h turned", "y"), weights=["turned"])
    assert links(before, after) == {"h": ("kept", "h"), "y": ("kept", "y")}


def test_a_view_of_a_view_is_one_view_for_both() -> None:
    before = graph(
        node("Relu", "x", "h"),
        node("Reshape", "h first", "r"),
        node("Reshape", "r second", "t"),
        node("Neg", "t", "y"),
        weights=["first", "second"],
    )
    after = graph(node("Relu", "x", "h"), node("Reshape", "h second", "t"), node("Neg", "t", "y"), weights=["second"])
    assert links(before, after) == {"h": ("kept", "h"), "t": ("fused", "r t"), "y": ("kept", "y")}


def test_a_cast_that_stays_stands_for_its_twins_but_not_for_those_that_did_nothing() -> None:
    before = graph(
        node("Cast", "x", "a", to=10),
        node("Cast", "x", "b", to=10),
        node("Identity", "a", "i"),
        node("Add", "i b", "y"),
    )
    after = graph(node("Cast", "x", "a", to=10), node("Add", "a a", "y"))
    assert links(before, after) == {"a": ("shared", "a b"), "y": ("kept", "y")}


def test_a_cast_is_known_when_it_no_longer_needs_an_example() -> None:
    before = graph(node("Relu", "x", "h"), node("CastLike", "h z", "c"), node("Neg", "c", "y"), inputs="x z")
    after = graph(node("Relu", "x", "h"), node("Cast", "h", "c", to=10), node("Neg", "c", "y"), inputs="x z")
    assert links(before, after) == {"h": ("kept", "h"), "c": ("rewritten", "c"), "y": ("kept", "y")}


def test_a_literal_that_became_an_initializer_is_known() -> None:
    before = graph(node("Constant", "", "two", value_float=2.0), node("Mul", "x two", "y"))
    after = graph(node("Mul", "x two", "y"), weights=["two"])
    assert folded(before, after) == {"two": ("folded", "two")}


def test_what_is_read_in_any_order_is_not_folded_from_the_other_input() -> None:
    before = graph(node("Shape", "x", "s"), node("Mul", "s two", "y"), weights=[weight("two", 1)])
    after = graph(node("Shape", "x", "s"), node("Mul", "two s", "y"), weights=[weight("two", 1)])
    assert folded(before, after) == {}


def stands_for(before: Graph, after: Graph) -> dict[str, str]:
    return {name: " ".join(others) for name, others in trace_lineage(before, after).stands_for.items()}


def test_a_weight_in_the_place_of_another_one_stands_for_it() -> None:
    before = graph(node("MatMul", "x w", "y"), weights=["w"])
    assert stands_for(before, graph(node("MatMul", "x onnx_1", "y"), weights=["onnx_1"])) == {"onnx_1": "w"}
    assert stands_for(before, before) == {}


def test_a_weight_that_others_were_merged_with_stands_for_all_of_them() -> None:
    before = graph(node("MatMul", "x w", "h"), node("MatMul", "h v", "y"), weights=["w", "v"])
    after = graph(node("MatMul", "x w", "h"), node("MatMul", "h w", "y"), weights=["w"])
    assert stands_for(before, after) == {"w": "w v"}


def test_weights_of_a_fused_node_stand_for_all_that_went_into_them() -> None:
    after = graph(node("Conv", "x w_bn b_bn", "n"), node("Relu", "n", "y"), weights=["w_bn", "b_bn"])
    sources = "w s b m v"
    assert stands_for(NORMALIZED, after) == {"w_bn": sources, "b_bn": sources}
