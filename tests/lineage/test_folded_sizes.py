"""Sizes that became constants, views and padding that a tool dropped: names do not help, what reads them does."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper
from tests.support.building import graph, node

from modelexport.graph.index import Graph
from modelexport.lineage.descent import trace_lineage


def sources(before: Graph, after: Graph, key: str) -> set[str]:
    return set(trace_lineage(before, after).nodes[key].sources)


def tensors(**arrays: object) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]


W1, W2, W3 = (np.arange(start, start + 16, dtype=np.float32) for start in (0, 16, 32))


def flattened(value: str, result: str, weight: str) -> list[onnx.NodeProto]:
    """Rows of a value times a weight; how long a row is, is asked of the value."""
    return [
        node("Shape", value, f"{result}_shape"),
        node("Slice", f"{result}_shape one two", f"{result}_slice"),
        node("Squeeze", f"{result}_slice zero", f"{result}_size"),
        node("Unsqueeze", f"{result}_size zero", f"{result}_row"),
        node("Concat", f"any {result}_row", f"{result}_rows", axis=0),
        node("Reshape", f"{value} {result}_rows", f"{result}_flat"),
        node("MatMul", f"{result}_flat {weight}", result),
    ]


def folded(value: str, result: str, weight: str) -> list[onnx.NodeProto]:
    """The same where a tool has found out how long a row is."""
    return [
        node("Squeeze", "known zero", f"{result}1"),
        node("Unsqueeze", f"{result}1 zero", f"{result}2"),
        node("Concat", f"any {result}2", f"{result}3", axis=0),
        node("Reshape", f"{value} {result}3", f"{result}4"),
        node("MatMul", f"{result}4 {weight}", result),
    ]


SIZES = tensors(w1=W1, w2=W2, w3=W3, any=[-1], zero=[0], one=[1], two=[2])


def test_sizes_that_are_equal_constants_now_belong_to_those_who_read_them() -> None:
    before = graph(*flattened("x", "p", "w1"), *flattened("p", "q", "w2"), *flattened("q", "y", "w3"), weights=SIZES)
    after = graph(
        *folded("x", "a", "w1"),
        *folded("a", "b", "w2"),
        *folded("b", "y", "w3"),
        weights=[*SIZES, *tensors(known=[4])],
    )
    for mine, theirs in (("a", "p"), ("b", "q"), ("y", "y")):
        assert sources(before, after, f"{mine}1") == {f"{theirs}_size"}
        assert sources(before, after, f"{mine}2") == {f"{theirs}_row"}
        assert sources(before, after, f"{mine}3") == {f"{theirs}_rows"}


def test_a_size_that_is_a_constant_now_says_nothing_about_who_reads_it() -> None:
    def halved(value: str, result: str) -> list[onnx.NodeProto]:
        return [
            node("Shape", value, f"{result}_shape"),
            node("Div", f"{result}_shape two", f"{result}_half"),
            node("Slice", f"{value} zero {result}_half zero", result),
        ]

    weights = tensors(w1=W1, w2=W2, two=[2], zero=[0])
    before = graph(
        node("MatMul", "x w1", "m"),
        *halved("m", "s"),
        node("Relu", "s", "r"),
        node("MatMul", "r w2", "n"),
        *halved("n", "t"),
        node("Relu", "t", "y"),
        weights=weights,
    )
    after = graph(
        node("MatMulNBits", "x packed", "a", domain="com.microsoft"),
        node("Div", "known two", "b"),
        node("Slice", "a zero b zero", "c"),
        node("Relu", "c", "d"),
        node("MatMul", "d w2", "e"),
        node("Div", "known two", "f"),
        node("Slice", "e zero f zero", "t"),
        node("Relu", "t", "y"),
        weights=[*weights, *tensors(known=[8], packed=W3)],
    )
    assert sources(before, after, "t") == {"t"}
    assert sources(before, after, "c") == {"s"}
    assert sources(before, after, "b") == {"s_half"}
    assert sources(before, after, "f") == {"t_half"}


def test_a_cast_that_is_gone_lies_between_a_size_and_its_reader() -> None:
    def cut(value: str, result: str) -> list[onnx.NodeProto]:
        return [
            node("Shape", value, f"{result}_shape"),
            node("Div", f"{result}_shape two", f"{result}_half"),
            node("Cast", f"{result}_half", f"{result}_cast", to=7),
            node("Unsqueeze", f"{result}_cast zero", f"{result}_end"),
            node("Slice", f"{value} zero {result}_end zero", result),
        ]

    weights = tensors(w1=W1, w2=W2, two=[2], zero=[0])
    before = graph(
        node("MatMul", "x w1", "m"), *cut("m", "s"), node("MatMul", "s w2", "n"), *cut("n", "y"), weights=weights
    )
    after = graph(
        node("MatMul", "x w1", "a"),
        node("Div", "known two", "b"),
        node("Unsqueeze", "b zero", "c"),
        node("Slice", "a zero c zero", "d"),
        node("MatMul", "d w2", "e"),
        node("Div", "known two", "f"),
        node("Unsqueeze", "f zero", "g"),
        node("Slice", "e zero g zero", "y"),
        weights=[*weights, *tensors(known=[8])],
    )
    assert sources(before, after, "b") == {"s_half"}
    assert sources(before, after, "f") == {"y_half"}


def test_of_a_view_of_a_view_the_last_is_left_and_reads_what_the_first_one_read() -> None:
    weights = tensors(w1=W1, rows=[-1, 4], blocks=[2, 2, 4], zero=np.int64(0), two=np.float32(2), first=[0], any=[-1])
    before = graph(
        node("Pow", "x two", "a"),
        node("ReduceMean", "a", "b"),
        node("Sqrt", "b", "c"),
        node("Div", "x c", "d"),
        node("Mul", "d w1", "m"),
        node("Shape", "m", "s"),
        node("Reshape", "m rows", "v"),
        node("Shape", "v", "t"),
        node("Gather", "t zero", "u"),
        node("Reshape", "v blocks", "r"),
        node("Relu", "r", "e"),
        node("Gather", "s zero", "f"),
        node("Unsqueeze", "f first", "g"),
        node("Concat", "g any", "h", axis=0),
        node("Reshape", "e h", "y"),
        node("Add", "u u", "z"),
        weights=weights,
    )
    after = graph(
        node("SimplifiedLayerNormalization", "x w1", "n0"),
        node("Shape", "n0", "n1"),
        node("Reshape", "n0 blocks", "n2"),
        node("Relu", "n2", "n3"),
        node("Gather", "n1 zero", "n4"),
        node("Unsqueeze", "n4 first", "n5"),
        node("Concat", "n5 any", "n6", axis=0),
        node("Reshape", "n3 n6", "y"),
        weights=weights,
    )
    assert sources(before, after, "n1") == {"s"}
    assert "r" in sources(before, after, "n2")
    assert sources(before, after, "n0") == {"a", "b", "c", "d", "m"}


def test_padding_is_done_by_the_window_that_reads_it() -> None:
    kernel = np.arange(36, dtype=np.float32).reshape(2, 2, 3, 3)
    weights = tensors(w1=kernel, w2=kernel + 36, sizes=[0, 0, 1, 1, 0, 0, 1, 1], low=np.float32(0), high=np.float32(6))
    before = graph(
        node("Conv", "x w1", "c"),
        node("Clip", "c low high", "r"),
        node("Pad", "r sizes", "p"),
        node("Conv", "p w2", "d"),
        node("Clip", "d low high", "y"),
        weights=weights,
    )
    after = graph(
        node("FusedConv", "x w1", "n0", domain="com.microsoft", activation="Clip"),
        node("FusedConv", "n0 w2", "y", domain="com.microsoft", activation="Clip", pads=[1, 1, 1, 1]),
        weights=weights,
    )
    assert sources(before, after, "n0") == {"c", "r"}
    assert sources(before, after, "y") == {"p", "d", "y"}


def test_fewer_equal_nodes_come_from_those_whose_readers_read_them() -> None:
    weights = tensors(w1=W1, w2=W2, w3=W3)
    before = graph(
        node("Softmax", "x", "a"),
        node("Softmax", "x", "b"),
        node("Softmax", "x", "c"),
        node("Mul", "a w1", "p"),
        node("Mul", "b w2", "q"),
        node("Mul", "c w3", "r"),
        node("Concat", "p q r", "y", axis=0),
        weights=weights,
    )
    after = graph(
        node("Softmax", "x", "n0"),
        node("Softmax", "x", "n1"),
        node("Mul", "n0 w1", "n2"),
        node("Mul", "n0 w2", "n3"),
        node("Mul", "n1 w3", "n4"),
        node("Concat", "n2 n3 n4", "y", axis=0),
        weights=weights,
    )
    assert sources(before, after, "n0") == {"a", "b"}
    assert sources(before, after, "n1") == {"c"}
