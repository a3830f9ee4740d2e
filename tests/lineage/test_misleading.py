"""Files whose names, places or numbers seem to say something else than what is true."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.support.building import graph, node

from modelexport.graph.index import Graph
from modelexport.lineage.descent import trace_lineage
from modelexport.record.lineage import Lineage
from modelexport.record.provenance import Confidence


def tensors(**arrays: object) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in arrays.items()]


LAYERS = 12
WEIGHTS = {f"w{place}": np.arange(4) * (place + 1) for place in range(LAYERS)}
VALUES = [f"{kind}{place}" for place in range(LAYERS) for kind in "hts"]


def residual(names: dict[str, str], layers: range = range(LAYERS), inputs: str = "x", outputs: str = "s11") -> Graph:
    """Layers with a residual sum, every value by the name that it is given."""

    def called(value: str) -> str:
        return names.get(value, value)

    nodes = []
    for place in layers:
        value = f"s{place - 1}" if place else "x"
        nodes += [
            node("MatMul", f"{called(value)} w{place}", called(f"h{place}")),
            node("Tanh", called(f"h{place}"), called(f"t{place}")),
            node("Add", f"{called(value)} {called(f't{place}')}", called(f"s{place}")),
        ]
    weights = tensors(**{f"w{place}": WEIGHTS[f"w{place}"] for place in layers})
    return graph(*nodes, inputs=inputs, outputs=outputs, weights=weights)


def sources(lineage: Lineage, key: str) -> tuple[str, ...]:
    return lineage.nodes[key].sources


@pytest.mark.parametrize("by", [1, 2, 3])
def test_names_that_moved_on_are_not_believed(by: int) -> None:
    """Every value bears the name of a later one, so that neighbours confirm each other."""
    inner = VALUES[:-1]
    names = dict(zip(inner, inner[by:] + inner[:by], strict=True))
    lineage = trace_lineage(residual({}), residual(names))
    assert all(sources(lineage, names[value]) == (value,) for value in inner)


def test_a_part_that_was_cut_out_is_that_part_alone() -> None:
    """What it returns is in the place of what the whole returned, and is not that."""
    lineage = trace_lineage(residual({}), residual({}, range(2, 5), inputs="s1", outputs="s4"))
    assert all(link.sources == (key,) for key, link in lineage.nodes.items())
    assert {link.confidence for link in lineage.nodes.values()} == {Confidence.EXACT}


def test_so_is_one_that_ends_right_before_it() -> None:
    """Little lies between what it returns and what the whole returned; but it is made as before."""
    head = node("MatMul", "x w1", "m")
    before = graph(head, node("Relu", "m", "r"), node("MatMul", "r w2", "y"), weights=tensors(w1=[1, 2], w2=[3, 4]))
    lineage = trace_lineage(before, graph(head, outputs="m", weights=tensors(w1=[1, 2])))
    assert (sources(lineage, "m"), lineage.nodes["m"].confidence) == (("m",), Confidence.EXACT)


def test_two_nodes_that_swapped_their_names_are_known_by_their_weights() -> None:
    before = graph(
        node("MatMul", "x w1", "a"),
        node("MatMul", "x w2", "b"),
        node("Sub", "a b", "y"),
        weights=tensors(w1=[1, 2], w2=[3, 4]),
    )
    after = graph(
        node("MatMul", "x w1", "b"),
        node("MatMul", "x w2", "a"),
        node("Sub", "b a", "y"),
        weights=tensors(w1=[1, 2], w2=[3, 4]),
    )
    lineage = trace_lineage(before, after)
    assert (sources(lineage, "b"), sources(lineage, "a")) == (("a",), ("b",))


def test_equal_nodes_are_told_apart_by_the_place_where_they_are_read() -> None:
    before = graph(node("Relu", "x", "a"), node("Relu", "x", "b"), node("Concat", "a b", "y", axis=0))
    after = graph(node("Relu", "x", "n0"), node("Relu", "x", "n1"), node("Concat", "n1 n0", "y", axis=0))
    lineage = trace_lineage(before, after)
    assert (sources(lineage, "n1"), sources(lineage, "n0")) == (("a",), ("b",))


def test_equal_nodes_that_nothing_tells_apart_are_guessed_and_said_to_be() -> None:
    before = graph(
        node("Relu", "x", "a"),
        node("Relu", "x", "b"),
        node("Add", "a b", "p"),
        node("Add", "b a", "q"),
        node("Mul", "p q", "y"),
    )
    after = graph(node("Relu", "x", "n0"), node("Relu", "x", "n1"), node("Fused", "n1 n0", "y"))
    lineage = trace_lineage(before, after)
    assert {sources(lineage, "n0"), sources(lineage, "n1")} == {("a",), ("b",)}
    assert min(lineage.nodes[key].confidence for key in ("n0", "n1")) is Confidence.INFERRED


def test_a_node_with_other_weights_is_not_surely_the_same() -> None:
    before = graph(node("Relu", "x", "r"), node("MatMul", "r w", "y"), weights=tensors(w=np.arange(16)))
    after = graph(node("Relu", "x", "r"), node("MatMul", "r v", "y"), weights=tensors(v=np.arange(16) ** 2))
    lineage = trace_lineage(before, after)
    assert sources(lineage, "y") == ("y",)
    assert lineage.nodes["y"].confidence is Confidence.STRONG


def test_equal_nodes_that_were_cut_off_are_in_nobody() -> None:
    """Every layer makes the same mask for itself; a part of the layers has no more than its own."""
    layers = [
        one
        for place in range(4)
        for one in (
            node("Cast", "x", f"c{place}", to=1),
            node("Sin", f"c{place}", f"m{place}"),
            node("Add", f"{f'v{place - 1}' if place else 'x'} m{place}", f"v{place}"),
        )
    ]
    before = graph(*layers, outputs="v3")
    found = trace_lineage(before, graph(*layers[:6], outputs="v1"))
    assert all(link.sources == (key,) for key, link in found.nodes.items())
    renamed = graph(node("Cast", "x", "h0", to=1), node("Sin", "h0", "h1"), node("Add", "x h1", "v0"), outputs="v0")
    alone = trace_lineage(before, renamed)
    assert sources(alone, "h1") == ("m0",)


def test_a_node_is_none_of_those_that_make_what_it_reads() -> None:
    """The bias of a convolution that became several nodes equals that of a sum before it, which was fused."""
    bias = [0.0, 0.0, 0.0, 0.0]
    before = graph(
        node("MatMul", "x w", "m"),
        node("Add", "m b", "a"),
        node("Tanh", "a", "t"),
        node("Conv", "t k c", "h"),
        node("Sigmoid", "h", "y"),
        weights=tensors(w=np.arange(16).reshape(4, 4), b=bias, k=np.arange(16).reshape(4, 4, 1, 1), c=bias),
    )
    after = graph(
        node("DynamicQuantizeMatMul", "x w_quantized w_scale _ b", "a"),
        node("Tanh", "a", "t"),
        node("ConvInteger", "t k_quantized", "h_integers"),
        node("Cast", "h_integers", "h_cast"),
        node("Mul", "h_cast k_scale", "h_scaled"),
        node("Reshape", "c shape", "c_reshaped"),
        node("Add", "h_scaled c_reshaped", "h"),
        node("Sigmoid", "h", "y"),
        weights=[
            *tensors(w_quantized=np.ones((4, 4)), w_scale=[0.5], b=bias, c=bias),
            *tensors(k_quantized=np.ones((4, 4, 1, 1)), k_scale=[0.25]),
            numpy_helper.from_array(np.array([1, 4, 1, 1]), "shape"),
        ],
    )
    lineage = trace_lineage(before, after)
    assert sources(lineage, "h") == ("h",)
    assert lineage.consistency.disorder == ()
    assert lineage.consistency.unexplained == ()
