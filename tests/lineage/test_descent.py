"""Whole lineages of small graphs, as tools change them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from tests.support.building import body, graph, model, node, weight
from tests.support.graphs import models
from tests.support.scrambling import reordered

from modelexport.graph.index import Graph, index_model
from modelexport.graph.outline import sketch
from modelexport.lineage.descent import trace_lineage
from modelexport.record.lineage import Lineage, Link, Relation
from modelexport.record.outline import Sketch, Sketches
from modelexport.record.provenance import Confidence


def links(before: Graph, after: Graph) -> dict[str, tuple[str, set[str]]]:
    return told(trace_lineage(before, after))


def told(lineage: Lineage) -> dict[str, tuple[str, set[str]]]:
    return {key: (link.relation.value, set(link.sources)) for key, link in lineage.nodes.items()}


BLOCK = (
    node("MatMul", "x w1", "a"),
    node("Add", "a b1", "b"),
    node("Relu", "b", "c"),
    node("MatMul", "c w2", "d"),
    node("Add", "d x", "e"),
    node("Softmax", "e", "y"),
)
WEIGHTS = ("w1", "b1", "w2")


class TestWhatToolsDo:
    def test_nothing(self) -> None:
        same = graph(*BLOCK, weights=WEIGHTS)
        found = trace_lineage(same, same)
        assert told(found) == {one.key: ("kept", {one.key}) for one in same.nodes}
        assert {link.confidence for link in found.nodes.values()} == {Confidence.EXACT}
        assert (found.overlap.after, found.overlap.before) == (1, 1)
        assert found.consistency.covered == len(same.nodes)
        assert not found.initializers
        assert not found.stands_for

    @pytest.mark.parametrize("product", ["MatMul", "MatMulNBits"])
    def test_the_first_of_two_views_is_left(self, product: str) -> None:
        """The second one had a constant shape; what is left has that of the first, and others read it."""
        before = graph(
            node("Add", "x z", "a"),
            node("Pow", "a a", "p"),
            node("Sqrt", "p", "q"),
            node("Div", "a q", "d"),
            node("Mul", "d scale", "r"),
            node("Shape", "r", "s"),
            node("Gather", "s axis", "g"),
            node("Reshape", "r g", "v"),
            node("Reshape", "v shape", "w"),
            node("MatMul", "w weight", "m"),
            node("Shape", "v", "t"),
            node("Reshape", "m t", "y"),
            inputs="x z",
            weights=["weight", "axis", "shape", "scale"],
        )
        after = graph(
            node("SkipNorm", "x z scale", "r0", domain="com.microsoft"),
            node("Shape", "r0", "s0"),
            node("Gather", "s0 axis", "g0"),
            node("Reshape", "r0 g0", "v0"),
            node(product, "v0 weight", "m0", domain="" if product == "MatMul" else "com.microsoft"),
            node("Shape", "v0", "t0"),
            node("Reshape", "m0 t0", "y"),
            inputs="x z",
            weights=["weight", "axis", "scale"],
        )
        found = links(before, after)
        sources = {key: origins for key, (_, origins) in found.items()}
        assert sources["v0"] in ({"v"}, {"v", "w"})
        assert {key: sources[key] for key in ("s0", "g0", "t0")} == {"s0": {"s"}, "g0": {"g"}, "t0": {"t"}}

    def test_other_names(self) -> None:
        after = graph(
            node("MatMul", "x w1", "t0"),
            node("Add", "t0 b1", "t1"),
            node("Relu", "t1", "t2"),
            node("MatMul", "t2 w2", "t3"),
            node("Add", "x t3", "t4"),
            node("Softmax", "t4", "y"),
            weights=WEIGHTS,
        )
        found = links(graph(*BLOCK, weights=WEIGHTS), after)
        assert {key: (relation, *sources) for key, (relation, sources) in found.items()} == {
            **{f"t{place}": ("renamed", key) for place, key in enumerate("abcde")},
            "y": ("kept", "y"),
        }

    def test_a_prefix_before_every_name(self) -> None:
        after = [onnx.NodeProto.FromString(one.SerializeToString()) for one in BLOCK]
        for one in after:
            one.input[:] = [f"sub/{name}" if len(name) == 1 and name not in "xy" else name for name in one.input]
            one.output[:] = [f"sub/{name}" if name != "y" else name for name in one.output]
        found = links(graph(*BLOCK, weights=WEIGHTS), graph(*after, weights=WEIGHTS))
        assert all(sources == {key.removeprefix("sub/")} for key, (_, sources) in found.items())

    def test_an_operator_in_the_place_of_another(self) -> None:
        before = graph(node("Relu", "x", "h"), node("Gelu", "h", "g"), node("Neg", "g", "y"))
        after = graph(node("Relu", "x", "h"), node("FastGelu", "h", "g", domain="com.microsoft"), node("Neg", "g", "y"))
        assert links(before, after)["g"] == ("rewritten", {"g"})

    def test_two_nodes_in_one(self) -> None:
        after = graph(
            node("Gemm", "x w1 b1", "b"),
            node("Relu", "b", "c"),
            node("MatMul", "c w2", "d"),
            node("Add", "d x", "e"),
            node("Softmax", "e", "y"),
            weights=WEIGHTS,
        )
        found = links(graph(*BLOCK, weights=WEIGHTS), after)
        assert found["b"] == ("fused", {"a", "b"})
        assert found["c"] == ("kept", {"c"})

    def test_a_chain_in_one_under_a_new_name(self) -> None:
        after = graph(
            node("FusedThing", "x w1 b1", "new", domain="tool"),
            node("MatMul", "new w2", "d"),
            node("Add", "d x", "e"),
            node("Softmax", "e", "y"),
            weights=WEIGHTS,
        )
        assert links(graph(*BLOCK, weights=WEIGHTS), after)["new"] == ("fused", {"a", "b", "c"})

    def test_a_sum_that_a_norm_took_in_without_any_names(self) -> None:
        before = graph(
            node("MatMul", "x w", "a"),
            node("Add", "a x", "b"),
            node("LayerNormalization", "b g", "y"),
            weights=["w", "g"],
        )
        after = graph(
            node("MatMul", "x w", "p"),
            node("SkipLayerNormalization", "p x g", "y", domain="com.microsoft"),
            weights=["w", "g"],
        )
        assert links(before, after) == {"p": ("renamed", {"a"}), "y": ("fused", {"b", "y"})}

    def test_a_quantizer_with_a_scale_of_its_own_that_went_into_another_node(self) -> None:
        before = graph(
            node("Relu", "x", "h"),
            node("DynamicQuantizeLinear", "h", "q s z"),
            node("MatMulInteger", "q w z", "m"),
            node("Cast", "m", "c", to=1),
            node("Mul", "c s", "y"),
            weights=["w"],
        )
        after = graph(
            node("Relu", "x", "h"), node("DynamicQuantizeMatMul", "h w", "y", domain="com.microsoft"), weights=["w"]
        )
        relation, sources = links(before, after)["y"]
        assert relation == "fused"
        assert {"m", "y", "q"} <= sources
        assert "h" not in sources

    def test_what_computed_a_constant_is_folded_into_it(self) -> None:
        before = graph(
            node("Transpose", "w", "t", perm=[1, 0]), node("MatMul", "x t", "h"), node("Relu", "h", "y"), weights=["w"]
        )
        after = graph(node("MatMul", "x t", "h"), node("Relu", "h", "y"), weights=["t"])
        found = trace_lineage(before, after)
        assert found.initializers["t"].sources == ("t",)
        assert found.initializers["t"].relation is Relation.FOLDED
        assert told(found) == {"h": ("kept", {"h"}), "y": ("kept", {"y"})}

    def test_what_a_tool_brought_along(self) -> None:
        before = graph(node("Relu", "x", "h"), node("MatMul", "h w", "y"), weights=["w"])
        after = graph(
            node("Relu", "x", "h"),
            node("Cast", "h", "h16", to=10),
            node("Cast", "w", "w16", to=10),
            node("MatMul", "h16 w16", "y16"),
            node("Cast", "y16", "y", to=1),
            weights=["w"],
        )
        found = links(before, after)
        assert found["h16"] == ("introduced", {"h"})  # of something computed: who computed it
        assert found["w16"] == ("introduced", {"y"})  # of a weight: who reads it
        assert found["y"] == ("introduced", {"y"})
        assert found["y16"][1] == {"y"}

    def test_twins_that_were_merged_are_shared(self) -> None:
        before = graph(
            node("Shape", "x", "s"), node("Shape", "x", "t"), node("Reshape", "x s", "a"), node("Expand", "a t", "y")
        )
        after = graph(node("Shape", "x", "s"), node("Reshape", "x s", "a"), node("Expand", "a s", "y"))
        found = links(before, after)
        assert found["s"] == ("shared", {"s", "t"})
        assert found["y"] == ("kept", {"y"})

    def test_a_node_that_was_made_twice(self) -> None:
        before = graph(node("Relu", "x", "h"), node("Neg", "h", "a"), node("Abs", "h", "b"), outputs="a b")
        after = graph(
            node("Relu", "x", "h"),
            node("Relu", "x", "h2"),
            node("Neg", "h", "a"),
            node("Abs", "h2", "b"),
            outputs="a b",
        )
        found = links(before, after)
        assert found["h"][1] == found["h2"][1] == {"h"}

    @pytest.mark.parametrize("operator", ["Sub", "Div", "Pow", "MatMul", "Concat"])
    @pytest.mark.parametrize("weights", [[], ["b"]])
    def test_swapped_inputs_are_noticed(self, operator: str, weights: list[str]) -> None:
        """Under names that say that nothing has happened."""

        def read(inputs: str) -> Graph:
            made = [] if weights else [node("Exp", "x", "b")]
            return graph(
                *made, node("Relu", "x", "a"), node(operator, inputs, "m"), node("Tanh", "m", "y"), weights=weights
            )

        same, swapped = (trace_lineage(read("a b"), read(inputs)).nodes for inputs in ("a b", "b a"))
        assert (same["m"].relation, same["m"].confidence) == (Relation.KEPT, Confidence.EXACT)
        assert (swapped["m"].relation, swapped["m"].confidence) == (Relation.REWRITTEN, Confidence.STRONG)
        assert swapped["m"].sources == ("m",)
        assert {swapped[key].relation for key in swapped.keys() - {"m"}} == {Relation.KEPT}

    @pytest.mark.parametrize("operator", ["Add", "Mul", "Max", "Equal"])
    def test_where_order_means_nothing_it_is_no_change(self, operator: str) -> None:
        one, other = (
            graph(node("Exp", "x", "b"), node("Relu", "x", "a"), node(operator, inputs, "m"), node("Tanh", "m", "y"))
            for inputs in ("a b", "b a")
        )
        assert trace_lineage(one, other).nodes["m"] == Link(("m",), Relation.KEPT)

    def test_a_removed_branch_is_listed(self) -> None:
        before = graph(node("Relu", "x", "h"), node("Neg", "x", "gone"), node("Abs", "h", "y"), outputs="y gone")
        after = graph(node("Relu", "x", "h"), node("Abs", "h", "y"))
        assert trace_lineage(before, after).consistency.removed == ("gone",)

    def test_nothing_to_do_with_each_other(self) -> None:
        before = graph(*BLOCK, weights=WEIGHTS)
        after = graph(
            *(node("Conv", "z k", "p"), node("BatchNormalization", "p m", "q"), node("GlobalAveragePool", "q", "o")),
            inputs="z",
            outputs="o",
            weights=["k", "m"],
        )
        assert trace_lineage(before, after).overlap.degree < 0.3

    def test_a_graph_without_nodes(self) -> None:
        empty = graph(inputs="x", outputs="x")
        full = graph(*BLOCK, weights=WEIGHTS)
        assert trace_lineage(full, empty).overlap.degree == 0
        assert trace_lineage(empty, full).overlap.degree == 0
        assert trace_lineage(empty, empty).overlap.degree == 1


class TestWeights:
    def sketches(self, **arrays: np.ndarray) -> Sketches:
        def find(name: str) -> Sketch | None:
            return sketch(arrays[name]) if name in arrays else None

        return find

    def test_weights_tell_branches_apart_that_nothing_else_does(self) -> None:
        random = np.random.default_rng(0)
        one, two = (random.normal(size=(64, 64)).astype(np.float32) for _ in range(2))
        before = graph(
            node("MatMul", "x w1", "a"), node("MatMul", "x w2", "b"), node("Sub", "a b", "y"), weights=["w1", "w2"]
        )
        after = graph(
            node("MatMul", "x m", "p"), node("MatMul", "x n", "q"), node("Sub", "q p", "y"), weights=["m", "n"]
        )
        sketches = self.sketches(w1=one, w2=two), self.sketches(m=two, n=one)
        found = trace_lineage(before, after, sketches)
        assert told(found)["p"][1] == {"b"}
        assert told(found)["q"][1] == {"a"}
        assert found.stands_for == {"m": ("w2",), "n": ("w1",)}

    @pytest.mark.parametrize("form", ["cast", "turned", "quantized"])
    def test_a_changed_weight_is_known_again(self, form: str) -> None:
        random = np.random.default_rng(1)
        one, two = (random.normal(size=(64, 64)).astype(np.float32) for _ in range(2))
        changes: dict[str, Callable[[np.ndarray], np.ndarray]] = {
            "cast": lambda array: array.astype(np.float16),
            "turned": np.transpose,
            "quantized": lambda array: np.rint(array / np.abs(array).max() * 127).astype(np.int8),
        }
        change = changes[form]
        before = graph(
            node("MatMul", "x w1", "a"), node("Relu", "a", "r"), node("MatMul", "r w2", "y"), weights=["w1", "w2"]
        )
        after = graph(
            node("MatMul", "x m", "p"), node("Relu", "p", "q"), node("MatMul", "q n", "y"), weights=["m", "n"]
        )
        sketches = self.sketches(w1=one, w2=two), self.sketches(m=change(one), n=change(two))
        assert trace_lineage(before, after, sketches).stands_for == {"m": ("w1",), "n": ("w2",)}


def function(name: str, *nodes: onnx.NodeProto, inputs: str = "a", outputs: str = "b") -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", 20)]
    return helper.make_function("local", name, inputs.split(), outputs.split(), list(nodes), imports)


class TestBodies:
    """Nodes inside of If, Loop, Scan and functions."""

    def branching(self, then: onnx.GraphProto, otherwise: onnx.GraphProto) -> Graph:
        return graph(
            node("Relu", "x", "h"),
            node("If", "c", "z", then_branch=then, else_branch=otherwise),
            node("Neg", "z", "y"),
            inputs="x c",
            weights=["w", "v"],
        )

    THEN = body(node("MatMul", "h w", "m"), node("Add", "m v", "t"), outputs="t")
    OTHERWISE = body(node("Sigmoid", "h", "t"), outputs="t")

    def test_untouched_bodies_are_kept(self) -> None:
        same = self.branching(self.THEN, self.OTHERWISE)
        assert links(same, same) == {one.key: ("kept", {one.key}) for one in same.nodes}

    def test_a_renamed_owner_takes_its_bodies_along(self) -> None:
        before = self.branching(self.THEN, self.OTHERWISE)
        after = graph(
            node("Relu", "x", "h"),
            node("If", "c", "other", then_branch=self.THEN, else_branch=self.OTHERWISE),
            node("Neg", "other", "y"),
            inputs="x c",
            weights=["w", "v"],
        )
        found = links(before, after)
        assert found["other"][1] == {"z"}
        assert found["other|then_branch|m"][1] == {"z|then_branch|m"}
        assert found["other|then_branch|t"][1] == {"z|then_branch|t"}
        assert found["other|else_branch|t"][1] == {"z|else_branch|t"}

    def test_what_a_tool_fuses_in_a_body_comes_from_that_body(self) -> None:
        fused = body(node("Gemm", "h w v", "t"), outputs="t")
        found = links(self.branching(self.THEN, self.OTHERWISE), self.branching(fused, self.OTHERWISE))
        assert found["z|then_branch|t"] == ("fused", {"z|then_branch|m", "z|then_branch|t"})
        assert found["z|else_branch|t"] == ("kept", {"z|else_branch|t"})

    def test_what_a_tool_fuses_in_a_body_under_new_names(self) -> None:
        fused = body(node("Gemm", "h w v", "g"), outputs="g")
        renamed = body(node("Sigmoid", "h", "s"), outputs="s")
        found = links(self.branching(self.THEN, self.OTHERWISE), self.branching(fused, renamed))
        assert found["z|then_branch|g"] == ("fused", {"z|then_branch|m", "z|then_branch|t"})
        assert found["z|else_branch|s"] == ("renamed", {"z|else_branch|t"})

    def test_loops_and_scans(self) -> None:
        inner = body(node("Mul", "s w", "p"), node("Tanh", "p", "q"), inputs="i k s", outputs="k q")
        scanned = body(node("Add", "s e", "n"), node("Relu", "n", "o"), inputs="s e", outputs="n o")
        before = graph(
            node("Loop", "n k x", "l", body=inner),
            node("Scan", "l x", "a y", body=scanned),
            inputs="x n k",
            weights=["w"],
        )
        fresh = body(node("Mul", "s1 w", "p1"), node("Tanh", "p1", "q1"), inputs="i1 k1 s1", outputs="k1 q1")
        again = body(node("Add", "s1 e1", "n1"), node("Relu", "n1", "o1"), inputs="s1 e1", outputs="n1 o1")
        after = graph(
            node("Loop", "n k x", "m", body=fresh),
            node("Scan", "m x", "b y", body=again),
            inputs="x n k",
            weights=["w"],
        )
        found = {key: sources for key, (_, sources) in links(before, after).items()}
        assert found == {
            "m": {"l"},
            "m|body|p1": {"l|body|p"},
            "m|body|q1": {"l|body|q"},
            "b": {"a"},
            "b|body|n1": {"a|body|n"},
            "b|body|o1": {"a|body|o"},
        }

    def test_a_body_inside_of_a_body(self) -> None:
        inner = body(node("Neg", "h", "n"), node("Exp", "n", "u"), outputs="u")
        outer = body(node("If", "c", "t", then_branch=inner, else_branch=self.OTHERWISE), outputs="t")
        same = self.branching(outer, self.OTHERWISE)
        fresh = body(node("Neg", "h", "n1"), node("Exp", "n1", "u1"), outputs="u1")
        after = self.branching(
            body(node("If", "c", "t1", then_branch=fresh, else_branch=self.OTHERWISE), outputs="t1"), self.OTHERWISE
        )
        found = links(same, after)
        assert found["z|then_branch|t1"][1] == {"z|then_branch|t"}
        assert found["z|then_branch|t1|then_branch|n1"][1] == {"z|then_branch|t|then_branch|n"}
        assert found["z|then_branch|t1|then_branch|u1"][1] == {"z|then_branch|t|then_branch|u"}

    def test_a_branch_that_is_always_taken_moves_out(self) -> None:
        """The condition was constant: what stood in the body stands in the graph now, and the If is gone."""
        before = self.branching(self.THEN, self.OTHERWISE)
        after = graph(
            node("Relu", "x", "h"),
            node("MatMul", "h w", "m"),
            node("Add", "m v", "t"),
            node("Neg", "t", "y"),
            inputs="x c",
            weights=["w", "v"],
        )
        found = links(before, after)
        assert "z|then_branch|m" in found["m"][1]
        assert "z|then_branch|t" in found["t"][1]
        assert found["y"] == ("kept", {"y"})

    def test_nodes_of_a_function_have_sources(self) -> None:
        one = function("Block", node("MatMul", "a w", "m"), node("Relu", "m", "b"), inputs="a w")
        proto = model(node("Block", "x w", "y", domain="local"), weights=["w"], functions=[one])
        same = index_model(proto)
        assert links(same, same) == {item.key: ("kept", {item.key}) for item in same.nodes}

    def test_a_function_with_other_names_inside(self) -> None:
        def calling(one: onnx.FunctionProto) -> Graph:
            return index_model(model(node("Block", "x w", "y", domain="local"), weights=["w"], functions=[one]))

        before = calling(function("Block", node("MatMul", "a w", "m"), node("Relu", "m", "b"), inputs="a w"))
        after = calling(
            function("Block", node("MatMul", "p q", "r"), node("Relu", "r", "s"), inputs="p q", outputs="s")
        )
        found = {key: sources for key, (_, sources) in links(before, after).items()}
        assert found == {
            "y": {"y"},
            "local::Block|r": {"local::Block|m"},
            "local::Block|s": {"local::Block|b"},
        }

    def test_a_function_that_a_tool_inlined(self) -> None:
        one = function("Block", node("MatMul", "a w", "m"), node("Relu", "m", "b"), inputs="a w")
        before = index_model(
            model(
                node("Neg", "x", "n"),
                node("Block", "n w", "h", domain="local"),
                node("Softmax", "h", "y"),
                weights=["w"],
                functions=[one],
            )
        )
        after = graph(
            node("Neg", "x", "n"),
            node("MatMul", "n w", "h_m"),
            node("Relu", "h_m", "h"),
            node("Softmax", "h", "y"),
            weights=["w"],
        )
        assert links(before, after) == {
            "n": ("kept", {"n"}),
            "h_m": ("renamed", {"local::Block|m"}),
            "h": ("renamed", {"local::Block|b"}),
            "y": ("kept", {"y"}),
        }

    def test_a_function_that_was_called_twice_and_inlined(self) -> None:
        """Which call it was says more than which node of the function."""
        one = function("Block", node("MatMul", "a w", "m"), node("Relu", "m", "b"), inputs="a w")
        before = index_model(
            model(
                node("Block", "x w", "g", domain="local"),
                node("Block", "g v", "h", domain="local"),
                node("Softmax", "h", "y"),
                weights=["w", "v"],
                functions=[one],
            )
        )
        after = graph(
            node("MatMul", "x w", "p"),
            node("Relu", "p", "q"),
            node("MatMul", "q v", "r"),
            node("Relu", "r", "s"),
            node("Softmax", "s", "y"),
            weights=["w", "v"],
        )
        assert links(before, after) == {
            **{key: ("split", {"g"}) for key in "pq"},
            **{key: ("split", {"h"}) for key in "rs"},
            "y": ("kept", {"y"}),
        }

    def test_a_function_that_a_tool_made(self) -> None:
        one = function("Block", node("MatMul", "a w", "m"), node("Relu", "m", "b"), inputs="a w")
        before = graph(
            node("MatMul", "x w", "p"),
            node("Relu", "p", "q"),
            node("MatMul", "q v", "r"),
            node("Relu", "r", "y"),
            weights=["w", "v"],
        )
        after = index_model(
            model(
                node("Block", "x w", "h", domain="local"),
                node("Block", "h v", "y", domain="local"),
                weights=["w", "v"],
                functions=[one],
            )
        )
        assert links(before, after) == {
            "h": ("fused", {"p", "q"}),
            "y": ("fused", {"r", "y"}),
            "local::Block|m": ("fused", {"p", "r"}),
            "local::Block|b": ("fused", {"q", "y"}),
        }

    def test_a_function_in_a_function_with_a_body(self) -> None:
        inner = function("Inner", node("Neg", "p", "n"), node("Exp", "n", "q"), inputs="p", outputs="q")
        choice = node(
            "If", "a", "c", then_branch=body(node("Relu", "a", "t"), outputs="t"), else_branch=body(outputs="a")
        )
        outer = function("Outer", choice, node("Inner", "c", "b", domain="local"))
        before = index_model(
            model(node("Outer", "x", "h", domain="local"), node("Abs", "h", "y"), functions=[outer, inner])
        )
        after = graph(
            node(
                *("If", "x", "i"), then_branch=body(node("Relu", "x", "t"), outputs="t"), else_branch=body(outputs="x")
            ),
            node("Neg", "i", "n"),
            node("Exp", "n", "e"),
            node("Abs", "e", "y"),
        )
        found = {key: sources for key, (_, sources) in links(before, after).items()}
        assert found == {
            "i": {"local::Outer|c"},
            "i|then_branch|t": {"local::Outer|c|then_branch|t"},
            "n": {"local::Inner|n"},
            "e": {"local::Inner|q"},
            "y": {"y"},
        }

    def test_a_function_that_calls_itself_does_no_harm(self) -> None:
        endless = function("Endless", node("Endless", "a", "m", domain="local"), node("Relu", "m", "b"))
        before = index_model(model(node("Endless", "x", "y", domain="local"), functions=[endless]))
        assert set(links(before, graph(node("Relu", "x", "y")))) == {"y"}


@given(models())
def test_a_graph_comes_from_itself(proto: onnx.ModelProto) -> None:
    made = index_model(proto)
    found = trace_lineage(made, made)
    assert told(found) == {one.key: ("kept", {one.key}) for one in made.nodes}
    assert {link.confidence for link in found.nodes.values()} <= {Confidence.EXACT}


@given(models(), st.randoms(use_true_random=False))
def test_another_order_of_nodes_gives_the_same_links(proto: onnx.ModelProto, random: Random) -> None:
    made = index_model(proto)
    other = index_model(reordered(proto, random))
    found = trace_lineage(made, other)
    assert {key: set(link.sources) for key, link in found.nodes.items()} == {one.key: {one.key} for one in made.nodes}


@given(models(), st.randoms(use_true_random=False))
def test_other_names_never_give_a_node_of_another_kind(proto: onnx.ModelProto, random: Random) -> None:
    made = index_model(proto)
    after = index_model(renamed(proto, random))
    found = trace_lineage(made, after)
    for one in after.nodes:
        link = found.nodes[one.key]
        assert link.sources or link.confidence is Confidence.NONE
        if link.relation is Relation.RENAMED:
            assert {made.by_key[key].op_type for key in link.sources} == {one.op_type}


def renamed(proto: onnx.ModelProto, random: Random) -> onnx.ModelProto:
    """All values under other names but those that go in and out; constants keep theirs."""
    found = onnx.ModelProto()
    found.CopyFrom(proto)
    fixed = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    names = [output for one in proto.graph.node for output in one.output if output not in fixed]
    numbers = random.sample(range(len(names)), len(names))
    new = {name: f"t{number}" for name, number in zip(names, numbers, strict=True)}
    _rename(found.graph, new)
    return found


def _rename(holder: onnx.GraphProto, new: dict[str, str]) -> None:
    for one in holder.node:
        one.input[:] = [new.get(name, name) for name in one.input]
        one.output[:] = [new.get(name, name) for name in one.output]
        for attribute in one.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, new)


def test_large_constants_in_nodes_are_constants() -> None:
    """A Constant node whose tensor is not small is still data and no work."""
    held = node("Constant", "", "held", value=numpy_helper.from_array(np.ones((64, 64), np.float32)))
    before = graph(held, node("MatMul", "x held", "y"))
    after = graph(node("MatMul", "x w", "y"), weights=[weight("w", 1)])
    assert links(before, after)["y"][1] == {"y"}
