"""What names and values tell about a file that a tool made, on graphs where everybody can see what is true."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from measure.lineage.truth import nearness, tells
from onnx import TensorProto
from tests.support.building import node, tree
from tests.support.tool_cases import DENSE, SIZE, Case, after_dense, dense, fused_gemm, model, random, tensor, values

from modelexport.record.hierarchy import ModuleCall


def written(calls: Iterable[ModuleCall]) -> set[str]:
    return set(map(str, calls))


SECOND = (node("MatMul", "r1 w2", "h2"), node("Add", "h2 b2", "y"))


class TestNames:
    def test_a_value_of_the_same_name_is_that_value(self) -> None:
        case = after_dense(*DENSE.graph.node)
        truth = case.truth()
        for one in case.graph.nodes:
            assert truth.origins(one) == {one.key}
            assert truth.work(one) == [one.key]
            assert written(truth.modules(one)) == written(truth.owners(one)) == set(case.owners[one.key])

    def test_a_fused_node_did_all_between_what_it_reads_and_what_it_makes(self) -> None:
        case = after_dense(fused_gemm("x w1 b1", "r1"), *SECOND)
        truth, fused = case.truth(), case.node("r1")
        assert set(truth.work(fused)) == {"h1", "a1", "r1"}
        assert written(truth.owners(fused)) == {"fc1", "act"}
        assert truth.modules(fused) == {ModuleCall("")}

    def test_the_same_operator_may_be_of_its_own_module_or_of_the_one_around_its_work(self) -> None:
        """A bias that is folded into the weights behind it, say, leaves the product that it was."""
        case = after_dense(node("Gemm", "x w1 b1", "a1"), node("Relu", "a1", "r1"), node("Add", "r1 b2", "y"))
        assert written(case.truth().modules(case.node("y"))) == {"fc2"}
        case = after_dense(node("Add", "x b2", "y"))
        assert written(case.truth().modules(case.node("y"))) == {"fc2", str(ModuleCall(""))}

    @pytest.mark.parametrize("read", ["nowhere", "hidden_7"])
    def test_what_reads_a_value_without_a_name_is_known_by_its_own_alone(self, read: str) -> None:
        case = after_dense(node("Relu", "x", read), node("Relu", read, "r1"), *SECOND)
        truth, one = case.truth(), case.node("r1")
        assert truth.origin(one) is not None
        assert truth.work(one) == []
        assert truth.owners(one) == frozenset()
        assert written(truth.modules(one)) == {"act"}
        fused = after_dense(node("Relu", "x", read), fused_gemm(f"{read} w1 b1", "r1"), *SECOND)
        assert fused.truth().modules(fused.node("r1")) == set()

    def test_a_name_that_was_not_there_before_tells_nothing(self) -> None:
        case = after_dense(node("Relu", "x", "elsewhere"), node("Relu", "elsewhere", "y"))
        truth, one = case.truth(), case.node("elsewhere")
        assert truth.origin(one) is None
        assert truth.origins(one) == set()
        assert truth.modules(one) == set()
        assert truth.owners(one) == frozenset()
        assert truth.merged(one, ("r1",)) is None

    def test_what_is_computed_from_something_else_has_no_known_work(self) -> None:
        """It reads what came out of it before."""
        case = after_dense(node("Relu", "r1", "a1"), fused_gemm("x w1 b1", "r1"), *SECOND)
        assert case.truth().work(case.node("a1")) == []

    def test_a_cast_or_quantizer_is_not_what_it_is_put_behind(self) -> None:
        case = after_dense(
            node("MatMul", "x w1", "h1"), node("Add", "h1 b1", "a1"), node("Relu", "a1", "r1_half"),
            node("Cast", "r1_half", "r1", to=TensorProto.FLOAT), *SECOND,
        )  # fmt: skip
        assert case.truth().origin(case.node("r1")) is None

    def test_values_are_known_behind_casts_and_quantizers(self) -> None:
        case = after_dense(
            node("MatMul", "x w1", "h1"),
            node("Cast", "h1", "h1_half", to=TensorProto.FLOAT16),
            node("Cast", "h1_half", "h1_again", to=TensorProto.FLOAT),
            node("Add", "h1_again b1", "a1"),
        )
        assert case.truth().work(case.node("a1")) == ["a1"]

    def test_a_prefix_is_no_other_name(self) -> None:
        """What `merge` puts before everything, inputs too."""
        fused_only = model(fused_gemm("before_x before_w1 before_b1", "before_r1"), inputs="before_x", outputs="y")
        case = replace(after_dense(), after=fused_only)
        truth, fused = case.truth(), case.node("before_r1")
        assert set(truth.work(fused)) == {"h1", "a1", "r1"}
        assert written(truth.owners(fused)) == {"fc1", "act"}


def test_pieces_of_a_packed_product_are_work_of_all_that_it_stands_for() -> None:
    before = model(
        node("MatMul", "x w1", "a"),
        node("MatMul", "x w1", "b"),
        node("Sum", "a b", "y"),
        weights=DENSE.graph.initializer,
    )
    packed = [node("MatMul", "x w1", "packed"), node("Split", "packed", "a b", num_outputs=2)]
    after = model(*packed, node("Sum", "a b", "y"), weights=DENSE.graph.initializer)
    case = Case(before, after, tree({"": "Net", "q": "Linear", "k": "Linear"}), {"a": ["q"], "b": ["k"], "y": [""]})
    for made in ("packed", "a"):
        assert written(case.truth().contributors(case.node(made))) == {"q", "k"}


def test_pieces_without_a_name_are_known_by_their_numbers() -> None:
    before = model(
        node("MatMul", "x w1", "a"),
        node("MatMul", "x w2", "b"),
        node("Relu", "a", "c"),
        node("Relu", "b", "d"),
        node("Sum", "c d", "y"),
        weights=DENSE.graph.initializer,
    )
    packed = [node("MatMul", "x w1", "packed"), node("Split", "packed", "one two", num_outputs=2)]
    relus = [node("Relu", "one", "c"), node("Relu", "two", "d")]
    after = model(*packed, *relus, node("Sum", "c d", "y"), weights=DENSE.graph.initializer)
    owners = {"a": ["q"], "b": ["k"], "c": ["act"], "d": ["act"], "y": [""]}
    case = Case(before, after, tree({"": "Net", "q": "Linear", "k": "Linear", "act": "ReLU"}), owners)
    made = values(before)
    both = np.concatenate((made["a"], made["b"]), axis=-1)
    truth = case.truth(packed=both, one=made["a"], two=made["b"], c=made["c"], d=made["d"], y=made["y"])
    for key in ("packed", "one"):
        assert written(truth.contributors(case.node(key))) == {"q", "k"}


TWINS = model(
    node("Relu", "x", "left"), node("Relu", "x", "right"), node("Sigmoid", "x", "third"), node("Sum", "left right", "y")
)
TWIN_OWNERS = {"left": ["a"], "right": ["b"], "third": ["c"], "y": [""]}


class TestTwins:
    def case(self, *also: str) -> Case:
        """The left one stays, with those that are said."""
        kept = [one for one in TWINS.graph.node if one.output[0] in {"left", *also}]
        after = model(*kept, node("Sum", "left left", "y"))
        return Case(TWINS, after, tree({"": "Net", "a": "ReLU", "b": "ReLU", "c": "Sigmoid"}), TWIN_OWNERS)

    def test_those_that_made_the_same_and_are_gone_are_in_the_one_that_stays(self) -> None:
        case = self.case()
        assert case.truth().merged(case.node("left"), ("left", "right")) == ModuleCall("")
        assert case.truth().merged(case.node("left"), ("right",)) == ModuleCall("b")

    @pytest.mark.parametrize("sources", [(), ("left",)])
    def test_one_that_stands_for_no_others_is_no_merger(self, sources: tuple[str, ...]) -> None:
        case = self.case()
        assert case.truth().merged(case.node("left"), sources) is None

    def test_one_that_is_still_there_is_in_no_other(self) -> None:
        case = self.case("right")
        assert case.truth().merged(case.node("left"), ("left", "right")) is None

    def test_one_that_made_something_else_is_none_of_them(self) -> None:
        case = self.case()
        assert case.truth().merged(case.node("left"), ("left", "third")) is None

    def test_without_values_nobody_knows(self) -> None:
        case = self.case()
        assert case.truth(ran=False).merged(case.node("left"), ("left", "right")) is None


class TestValues:
    def test_what_did_nothing_gives_its_name_away_and_is_nobodys_work(self) -> None:
        shape = tensor("shape", np.array([-1], np.int64))
        before = model(node("Relu", "x", "h"), node("Reshape", "h shape", "y"), weights=[shape])
        hierarchy = tree({"": "Net", "act": "ReLU", "view": "Flatten"})
        case = Case(before, model(node("Relu", "x", "y")), hierarchy, {"h": ["act"], "y": ["view"]})
        truth, one = case.truth(), case.node("y")
        assert truth.origins(one) == {"h", "y"}
        assert written(truth.owners(one)) == {"act"}
        assert written(truth.modules(one)) == {"act", str(ModuleCall(""))}
        assert truth.modules(one) != case.truth(ran=False).modules(one)

    def test_a_quantizer_that_does_an_activations_work_leaves_the_name_before_it(self) -> None:
        """Then `r1` is what `a1` was: values tell, where there are any."""
        case = after_dense(node("MatMul", "x w1", "h1"), node("Add", "h1 b1", "r1"), *SECOND)
        liar = case.node("r1")
        made = values(DENSE)
        for noise in (0.0, 0.01):
            origin = case.truth(r1=made["a1"] + noise).origin(liar)
            assert origin is not None
            assert origin.key == "a1"
        unknown, honest = case.truth().origin(liar), case.truth(r1=made["r1"] + 0.01).origin(liar)
        assert unknown is not None
        assert honest is not None
        assert unknown.key == honest.key == "r1"

    def test_where_values_hardly_tell_it_may_be_the_one_of_the_name_or_of_the_operator(self) -> None:
        """An activation that cut off next to nothing: that the node does its work is not sure."""
        case = after_dense(node("MatMul", "x w1", "h1"), node("Add", "h1 b1", "r1"), *SECOND)
        made, liar = values(DENSE), case.node("r1")
        truth = case.truth(r1=made["a1"] * 0.45 + made["r1"] * 0.55)
        assert truth.origins(liar) == {"a1", "r1"}
        assert written(truth.owners(liar)) == {"fc1"}
        assert written(truth.modules(liar)) == {"fc1", str(ModuleCall(""))}
        assert written(case.truth(r1=made["r1"]).owners(liar)) == {"fc1", "act"}

    def test_weights_that_take_in_what_came_next_may_leave_the_name_before_it(self) -> None:
        """Then `h1` is what `a1` was, and who reads it does not add anything."""
        case = after_dense(node("Gemm", "x w1 b1", "h1"), node("Relu", "h1", "r1"), *SECOND)
        truth, liar, reader = case.truth(h1=values(DENSE)["a1"]), case.node("h1"), case.node("r1")
        assert set(truth.work(liar)) == {"h1", "a1"}
        assert truth.work(reader) == ["r1"]
        assert set(case.truth().work(reader)) == {"r1", "a1"}

    def test_so_may_be_what_is_so_near_that_values_do_not_tell(self) -> None:
        """Whether the reader adds anything is not sure then, and it is not held against anybody."""
        case = after_dense(node("Gemm", "x w1 b1", "h1"), node("Relu", "h1", "r1"), *SECOND)
        made = values(DENSE)
        truth = case.truth(h1=(made["h1"] + made["a1"]) / 2)
        assert truth.work(case.node("r1")) == ["r1"]

    def test_what_it_made_is_looked_for_from_the_names_that_it_reads(self) -> None:
        """What it reads may be the sum already, as far as values tell: it may still be what adds, and no activation."""
        case = after_dense(node("MatMul", "x w1", "h1"), node("Add", "h1 b1", "r1"), *SECOND)
        made = values(DENSE)
        origin = case.truth(h1=(made["h1"] + made["a1"]) / 2, r1=made["a1"]).origin(case.node("r1"))
        assert origin is not None
        assert origin.key == "a1"

    def test_where_values_hardly_tell_one_that_reads_more_may_do_what_came_next(self) -> None:
        """A norm that was next to nothing, in a bias that was not there before."""
        before = dense(node("Gemm", "x w1", "h1"), node("Add", "h1 b1", "a1"), node("Relu", "a1", "y"))
        hierarchy = tree({"": "Net", "fc": "Linear", "norm": "BatchNorm1d", "act": "ReLU"})
        owners = {"h1": ["fc"], "a1": ["norm"], "y": ["act"]}
        made = values(before)
        for inputs, contributors in (("x w1 b1", {"fc", "norm"}), ("x w1", {"fc"})):
            case = Case(before, dense(node("Gemm", inputs, "h1"), node("Relu", "h1", "y")), hierarchy, owners)
            truth = case.truth(h1=(made["h1"] + made["a1"]) / 2, y=made["y"])
            assert written(truth.contributors(case.node("h1"))) == contributors

    def test_a_second_output_is_nothing_that_was_added(self) -> None:
        nodes = [node("Split", "x", "s t", axis=-1, num_outputs=2), node("Relu", "t", "y")]
        case = Case(model(*nodes), model(*nodes), tree({"": "Net", "act": "ReLU"}), {"s": [""], "y": ["act"]})
        made = values(case.before)
        assert written(case.truth(s=made["s"], t=made["t"], y=made["y"]).modules(case.node("y"))) == {"act"}

    @pytest.mark.parametrize("bias", ["b1", "copy"])
    def test_a_bias_of_zero_is_added_by_who_reads_it(self, bias: str) -> None:
        """Weights that are equal may be copies of one: the tool reads that."""
        weights = [each for each in DENSE.graph.initializer if each.name != "b1"]
        weights.append(tensor("b1", np.zeros(SIZE, np.float32)))
        copy = [node("Identity", "b1", "copy")] if bias == "copy" else []
        products = [node("MatMul", "x w1", "h1"), node("Add", f"h1 {bias}", "a1"), node("Gelu", "a1", "y")]
        fused = node("BiasGelu", "h1 b1", "y", domain="com.microsoft")
        alone = node("Gelu", "h1", "y", domain="com.microsoft")
        owners = {"copy": [""], "h1": ["fc"], "a1": ["fc"], "y": ["act"]}
        hierarchy = tree({"": "Net", "fc": "Linear", "act": "GELU"})
        before = model(*copy, *products, weights=weights)
        made = values(before)
        for last, modules in ((fused, {str(ModuleCall(""))}), (alone, {"act"})):
            case = Case(before, model(products[0], last, weights=weights), hierarchy, owners)
            assert written(case.truth(h1=made["h1"], y=made["y"]).modules(case.node("y"))) == modules

    def test_what_has_become_a_constant_under_its_name_is_nobodys_work(self) -> None:
        before = model(node("Shape", "x", "s"), node("Add", "s s", "t"), node("Concat", "s t", "y", axis=0))
        after = model(
            node("Shape", "x", "s"), node("Concat", "s t", "y", axis=0), weights=[tensor("t", np.array([8, 12]))]
        )
        case = Case(before, after, tree({"": "Net"}), {"s": [""], "t": [""], "y": [""]})
        assert case.truth().work(case.node("y")) == ["y"]

    def test_values_choose_among_the_nodes_between_alone(self) -> None:
        """That a tensor looks like another one elsewhere is chance."""
        case = after_dense(*DENSE.graph.node)
        origin = case.truth(h2=values(DENSE)["h1"]).origin(case.node("h2"))
        assert origin is not None
        assert origin.key == "h2"


def test_what_tells_nothing_is_known_by_its_name_alone() -> None:
    """Zeros are like nothing, so no value behind them is as near as they are: the product is still to be done."""
    case = after_dense(fused_gemm("x w1 b1", "r1"), fused_gemm("r1 w2 b2", "y"))
    zeros = np.zeros((4, SIZE), np.float32)
    truth = case.truth(r1=zeros, y=values(case.before)["y"])
    assert set(truth.work(case.node("y"))) == {"h2", "y"}


def test_only_tensors_of_unequal_floats_can_be_told_from_others() -> None:
    assert tells(random(3, seed=1))
    assert not tells(np.ones(3, np.float32))
    assert not tells(np.array([1.5], np.float32))
    assert not tells(np.arange(3))


def test_nearness_is_of_numbers_and_not_of_shapes() -> None:
    one = random(4, 6, seed=1)
    near, far = one + 0.001 * random(4, 6, seed=2), one + 0.1 * random(4, 6, seed=2)
    assert nearness(one, one.reshape(6, 4)) > 100
    assert nearness(one, near) == pytest.approx(nearness(one, far) + 40, abs=1)
    assert nearness(one, one[:2]) == nearness(one, np.ones((4, 6), np.float32)) == -np.inf


class TestContributors:
    RENAMED = (
        node("MatMul", "x w1", "p1"), node("Add", "p1 b1", "p2"), node("Relu", "p2", "p3"),
        node("MatMul", "p3 w2", "p4"), node("Add", "p4 b2", "y"),
    )  # fmt: skip

    @pytest.mark.parametrize(("renamed", "owner"), [("p1", "fc1"), ("p2", "fc1"), ("p3", "act"), ("p4", "fc2")])
    def test_values_tell_where_names_are_gone(self, renamed: str, owner: str) -> None:
        case = after_dense(*self.RENAMED)
        assert written(case.truth().contributors(case.node(renamed))) == {"fc1", "act", "fc2"}
        made = values(case.after)
        assert written(case.truth(ran=True, **made).contributors(case.node(renamed))) == {owner}

    def test_a_value_that_nobody_had_is_between_those_that_are_known(self) -> None:
        case = after_dense(*self.RENAMED)
        made = {**values(case.after), "p2": random(*values(case.after)["p2"].shape, seed=7)}
        assert written(case.truth(ran=True, **made).contributors(case.node("p2"))) == {"fc1", "act"}

    def test_who_asks_for_a_shape_alone_says_nothing(self) -> None:
        before = model(node("Exp", "x", "e"), node("Shape", "e", "s"), node("Cast", "s", "y", to=TensorProto.FLOAT))
        after = model(node("Exp", "x", "p"), node("Shape", "p", "s"), node("Cast", "s", "y", to=TensorProto.FLOAT))
        case = Case(before, after, tree({"": "Net", "a": "Linear"}), {"e": ["a"], "s": [""], "y": [""]})
        assert case.truth().contributors(case.node("p")) == frozenset()
        assert case.truth().contributors(case.node("s")) == {ModuleCall("")}
