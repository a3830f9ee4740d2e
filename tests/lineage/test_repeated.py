"""Weights that do not tell nodes apart, and regions of which nothing but the borders is known."""

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

SIZE = 8


def tensors(**arrays: np.ndarray) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in arrays.items()]


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape or (SIZE, SIZE))


def sources(lineage: Lineage, key: str) -> set[str]:
    return set(lineage.nodes[key].sources)


WEIGHTS = {"w": numbers(0), "b": numbers(1, 2 * SIZE), "v": numbers(2)}


def called_often(times: int = 4) -> Graph:
    """One block of a product with a bias, an activation in three nodes and a second product, called several times."""
    nodes = []
    for call in range(times):
        read = f"y{call - 1}" if call else "x"
        nodes += [
            node("MatMul", f"{read} w", f"m{call}"),
            node("Add", f"m{call} b", f"a{call}"),
            node("Sigmoid", f"a{call}", f"s{call}"),
            node("Mul", f"a{call} s{call}", f"g{call}"),
            node("MatMul", f"g{call} v", f"y{call}"),
        ]
    return graph(*nodes, outputs=f"y{times - 1}", weights=tensors(**WEIGHTS))


def fused(times: int = 4, weights: str = "w b v") -> Graph:
    """The same without names, its products in another operator and its activation in one."""
    first, bias, second = weights.split()
    nodes = []
    for call in range(times):
        read = f"n{call - 1}_2" if call else "x"
        output = "y3" if call == times - 1 else f"n{call}_2"
        nodes += [
            node("FusedMatMul", f"{read} {first} {bias}", f"n{call}_0"),
            node("QuickGelu", f"n{call}_0", f"n{call}_1"),
            node("FusedMatMul", f"n{call}_1 {second}", output),
        ]
    known = {"w": WEIGHTS["w"], "b": WEIGHTS["b"], "v": WEIGHTS["v"]}
    unknown = {"p": numbers(8, 3 * SIZE), "q": numbers(9, 3 * SIZE)}
    chosen = {name: {**known, **unknown}[name] for name in (first, bias, second)}
    return graph(*nodes, outputs="y3", weights=tensors(**chosen))


# Weights of both products, then of neither: packed into a few bits, they are not known again.
@pytest.mark.parametrize("weights", ["w b v", "p b q"])
def test_calls_of_one_block_are_told_apart_by_their_order(weights: str) -> None:
    lineage = trace_lineage(called_often(), fused(weights=weights))
    for call in range(4):
        last = "y3" if call == 3 else f"n{call}_2"
        assert sources(lineage, f"n{call}_0") == {f"m{call}", f"a{call}"}
        assert sources(lineage, f"n{call}_1") == {f"s{call}", f"g{call}"}
        assert sources(lineage, last) == {f"y{call}"}


def chain(*operators: str, names: str, weights: bool = True) -> Graph:
    """Operators in a row; `MatMul` reads a weight of its own."""
    nodes, tensors_read, read = [], {}, "x"
    for number, (operator, name) in enumerate(zip(operators, names.split(), strict=True)):
        weight = f"{name}_w" if "MatMul" in operator and weights else ""
        if weight:
            tensors_read[weight] = numbers(100 + len(name) * 10 + number, 3 * SIZE)
        nodes.append(node(operator, f"{read} {weight}".strip(), name))
        read = name
    return graph(*nodes, outputs=read, weights=tensors(**tensors_read))


def test_the_only_one_of_its_kind_in_a_region_is_that_one() -> None:
    before = chain("MatMul", "Relu", "Sigmoid", "MatMul", names="a b c y")
    after = chain("MatMulNBits", "Fused", "MatMulNBits", names="first middle y")
    lineage = trace_lineage(before, after)
    assert sources(lineage, "first") == {"a"}
    assert sources(lineage, "middle") == {"b", "c"}
    assert sources(lineage, "y") == {"y"}
    assert lineage.nodes["middle"].confidence is Confidence.STRONG


def test_of_nodes_that_share_a_region_it_is_inferred_who_did_what() -> None:
    before = chain("Relu", "Sigmoid", "Tanh", "Exp", names="a b c y")
    lineage = trace_lineage(before, chain("Strange", "Odd", names="first y"))
    for key in ("first", "y"):
        assert sources(lineage, key) == {"a", "b", "c", "y"}
        assert lineage.nodes[key].confidence is Confidence.INFERRED
    # One node in the place of all of them is sure.
    alone = trace_lineage(before, chain("Strange", names="y")).nodes["y"]
    assert (set(alone.sources), alone.confidence) == ({"a", "b", "c", "y"}, Confidence.STRONG)


def test_a_transposition_divides_a_region_if_it_is_the_only_one_of_its_order() -> None:
    work = [node("Abs", "x", "a"), node("Sqrt", "a", "b"), node("Exp", "t", "e"), node("Tanh", "e", "y")]
    before = graph(*work[:2], node("Transpose", "b", "t", perm=[1, 0, 2]), *work[2:])

    def after(perm: list[int]) -> Graph:
        turned = node("Transpose", "first", "turned", perm=perm)
        return graph(node("Normed", "x", "first"), turned, node("Strange", "turned", "y"))

    lineage = trace_lineage(before, after([1, 0, 2]))
    assert [sources(lineage, key) for key in ("first", "turned", "y")] == [{"a", "b"}, {"t"}, {"e", "y"}]
    other = trace_lineage(before, after([0, 2, 1]))
    assert [sources(other, key) for key in ("first", "y")] == [{"a", "b", "t", "e", "y"}] * 2
    assert other.nodes["first"].confidence is Confidence.INFERRED


def merged(names: bool) -> Graph:
    """A file and a copy of it, each under a prefix of its own."""
    nodes = []
    for copy in ("one_", "two_"):
        for number, (operator, read, made) in enumerate(
            [("MatMul", "x w", "m0"), ("Relu", "m0", "r0"), ("MatMul", "r0 v", "y")]
        ):
            inner = {"m0": f"{copy}m0", "r0": f"{copy}r0"} if names else {"m0": f"{copy[0]}7", "r0": f"{copy[0]}8"}
            called = {value: inner.get(value, f"{copy}{value}") for value in ("x", "w", "v", "m0", "r0", "y")}
            inputs = " ".join(called[value] for value in read.split())
            nodes.append(node(operator, inputs, called[made]))
            assert number < 3
    weights = {f"{copy}{name}": WEIGHTS[name] for copy in ("one_", "two_") for name in ("w", "v")}
    return graph(*nodes, inputs="one_x two_x", outputs="one_y two_y", weights=tensors(**weights))


@pytest.mark.parametrize("names", [True, False])
def test_a_second_copy_of_a_file_comes_from_the_same_nodes(names: bool) -> None:
    before = graph(
        node("MatMul", "x w", "m0"),
        node("Relu", "m0", "r0"),
        node("MatMul", "r0 v", "y"),
        weights=tensors(w=WEIGHTS["w"], v=WEIGHTS["v"]),
    )
    after = merged(names)
    lineage = trace_lineage(before, after)
    found = [sources(lineage, each.key) for each in after.nodes]
    assert found == [{"m0"}, {"r0"}, {"y"}] * 2


def test_sizes_that_became_constants_are_still_those_of_their_readers() -> None:
    def half(tensor: str, name: str) -> list[onnx.NodeProto]:
        return [
            node("Shape", tensor, f"{name}_shape"),
            node("Gather", f"{name}_shape last", f"{name}_size"),
            node("Div", f"{name}_size two", f"{name}_half"),
        ]

    def read(name: str) -> list[onnx.NodeProto]:
        return [node("Slice", f"{name} zero {name}_half", f"{name}_cut")]

    sizes = [numpy_helper.from_array(np.array(number, np.int64), key) for key, number in (("last", 1), ("two", 2))]
    sizes.append(numpy_helper.from_array(np.array([0], np.int64), "zero"))
    rest = [node("Add", "p_cut q_cut", "y")]
    products = [node("MatMul", "x w", "p"), node("MatMul", "p v", "q")]
    weights = [*tensors(w=WEIGHTS["w"], v=WEIGHTS["v"]), *sizes]
    before = graph(*products, *half("p", "p"), *half("q", "q"), *read("p"), *read("q"), *rest, weights=weights)
    eight = numpy_helper.from_array(np.array(SIZE, np.int64), "eight")
    divisions = [node("Div", "eight two", "n0"), node("Div", "eight two", "n1")]
    slices = [node("Slice", "p zero n0", "n2"), node("Slice", "q zero n1", "n3"), node("Add", "n2 n3", "y")]
    after = graph(*products, *divisions, *slices, weights=[*weights, eight])
    lineage = trace_lineage(before, after)
    assert (sources(lineage, "n0"), sources(lineage, "n1")) == ({"p_half"}, {"q_half"})
