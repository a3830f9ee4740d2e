"""What a lineage says against itself."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.support.building import graph, node

from modelexport.graph.index import Graph
from modelexport.graph.outline import digested, graph_of, outlined
from modelexport.lineage.descent import find_disorder, trace_lineage
from modelexport.record.lineage import Consistency, Link, Relation


def filled(name: str, number: float, *shape: int, dtype: type = np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.full(shape, number, dtype), name)


def without(before: Graph, after: Graph) -> Consistency:
    return trace_lineage(before, after).consistency


def around(middle: onnx.NodeProto, *weights: onnx.TensorProto) -> Graph:
    """A node `m` that reads `h`, with others before and behind it."""
    return graph(
        node("MatMul", "x w", "g"), node("Relu", "g", "h"), middle, node("Exp", "m", "y"), weights=["w", *weights]
    )


# The same with the node left out.
LESS = graph(node("MatMul", "x w", "g"), node("Relu", "g", "h"), node("Exp", "h", "y"), weights=["w"])


def _written(one: onnx.NodeProto | onnx.TensorProto) -> str:
    if isinstance(one, onnx.NodeProto):
        return f"{one.op_type} {' '.join(one.input)}"
    return str(numpy_helper.to_array(one).tolist())


class TestWhatIsGone:
    @pytest.mark.parametrize(
        ("middle", "constant"),
        [
            (node("Mul", "h c", "m"), filled("c", 1)),
            (node("Mul", "c h", "m"), filled("c", 1, 1, 1)),
            (node("Mul", "h c", "m"), filled("c", 1, 32)),
            (node("Div", "h c", "m"), filled("c", 1)),
            (node("Add", "h c", "m"), filled("c", 0, 8)),
            (node("Sub", "h c", "m"), filled("c", 0)),
            (node("Pow", "h c", "m"), filled("c", 1, dtype=np.int64)),
        ],
        ids=_written,
    )
    def test_what_leaves_numbers_as_they_are_may_be_removed(
        self, middle: onnx.NodeProto, constant: onnx.TensorProto
    ) -> None:
        before = around(middle, constant)
        for one in (before, digested(before), graph_of(outlined(before, lambda _: None))):
            found = without(one, digested(LESS) if one is not before else LESS)
            assert (found.removed, found.unexplained) == (("m",), ())

    @pytest.mark.parametrize(
        ("middle", "constant"),
        [
            (node("Mul", "h c", "m"), filled("c", 2)),
            (node("Mul", "h c", "m"), filled("c", 0)),
            (node("Div", "c h", "m"), filled("c", 1)),
            (node("Sub", "c h", "m"), filled("c", 0)),
            (node("Add", "h c", "m"), filled("c", 1)),
        ],
        ids=_written,
    )
    def test_what_does_not_is_unexplained(self, middle: onnx.NodeProto, constant: onnx.TensorProto) -> None:
        found = without(around(middle, constant), LESS)
        assert (found.removed, found.unexplained, found.covered) == ((), ("m",), 3)

    def test_a_layer_that_was_dropped_is_unexplained(self) -> None:
        before = graph(
            *(node("MatMul", "x w", "a"), node("Mul", "a c", "b"), node("Mul", "b d", "y")),
            weights=["w", filled("c", 2), filled("d", 3)],
        )
        after = graph(node("MatMul", "x w", "a"), node("Mul", "a d", "y"), weights=["w", filled("d", 3)])
        found = without(before, after)
        assert (found.removed, found.unexplained) == ((), ("b",))

    @pytest.mark.parametrize("operator", ["Identity", "Cast", "Dropout", "Reshape", "Transpose", "Slice"])
    def test_what_only_hands_on_or_moves(self, operator: str) -> None:
        found = without(around(node(operator, "h", "m")), LESS)
        assert (found.removed, found.unexplained) == (("m",), ())

    def test_what_nobody_reads(self) -> None:
        before = graph(
            node("Relu", "x", "h"), node("Neg", "h", "dead"), node("Exp", "dead", "end"), node("Exp", "h", "y")
        )
        after = graph(node("Relu", "x", "h"), node("Exp", "h", "y"))
        found = without(before, after)
        assert (found.removed, found.unexplained) == (("dead", "end"), ())

    def test_what_is_asked_for_its_shape_alone(self) -> None:
        tail = (node("Shape", "t", "s"), node("Expand", "h s", "y"))
        before = graph(node("Relu", "x", "h"), node("Transpose", "h", "t"), *tail)
        after = graph(node("Relu", "x", "h"), node("Shape", "h", "s"), node("Expand", "h s", "y"))
        assert without(before, after).unexplained == ()

    def test_what_only_an_output_needs_that_is_gone(self) -> None:
        before = graph(node("Relu", "x", "h"), node("Neg", "h", "n"), node("Exp", "h", "y"), outputs="y n")
        after = graph(node("Relu", "x", "h"), node("Exp", "h", "y"))
        found = without(before, after)
        assert (found.removed, found.unexplained) == (("n",), ())

    def test_what_lies_before_a_part(self) -> None:
        before = graph(node("Relu", "x", "h"), node("Neg", "h", "n"), node("Exp", "n", "y"))
        after = graph(node("Exp", "n", "y"), inputs="n")
        found = without(before, after)
        assert (found.removed, found.unexplained) == (("h", "n"), ())

    def test_all_parts_add_up(self) -> None:
        before = around(node("Mul", "h c", "m"), filled("c", 2))
        found = without(before, LESS)
        assert found.covered + len(found.folded) + len(found.removed) + len(found.unexplained) == found.nodes


class TestWhatDoesNotFit:
    def test_a_weight_behind_nodes_that_work_on_constants_alone(self) -> None:
        """Nobody reads the weights themselves."""

        def layers(first: str, second: str) -> Graph:
            return graph(
                *(node("Transpose", first, "t1"), node("Transpose", second, "t2")),
                *(node("MatMul", "x t1", "a"), node("Relu", "a", "b"), node("MatMul", "b t2", "y")),
                weights=["v", "w"],
            )

        assert without(layers("v", "w"), layers("v", "w")).strayed == ()
        assert without(layers("v", "w"), layers("w", "v")).strayed != ()


class TestOrder:
    BEFORE = graph(node("Cast", "x", "c"), node("Relu", "c", "a"), node("Neg", "a", "b"), node("Exp", "b", "y"))
    AFTER = graph(node("Neg", "x", "n"), node("Relu", "n", "r"), node("Cast", "r", "k"), node("Exp", "k", "y"))

    def links(self, **sources: str) -> dict[str, Link]:
        return {key: Link((source,), Relation.RENAMED) for key, source in sources.items()}

    def test_nodes_that_changed_places(self) -> None:
        nodes = self.links(n="b", r="a", k="c", y="y")
        assert list(find_disorder(self.BEFORE, self.AFTER, nodes)) == [("n", "r")]

    def test_what_hands_on_may_stand_anywhere(self) -> None:
        nodes = self.links(n="a", r="b", k="c", y="y")
        assert list(find_disorder(self.BEFORE, self.AFTER, nodes)) == []

    def test_what_does_the_work_of_several_has_no_place(self) -> None:
        nodes = {**self.links(n="b", k="c", y="y"), "r": Link(("a", "y"), Relation.FUSED)}
        assert list(find_disorder(self.BEFORE, self.AFTER, nodes)) == []
