"""Attention in graphs made by hand: however it is written, and what is none."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from tests.support.building import node, weight
from tests.support.role_finding import find, table

WEIGHTS = ("wq", "wk", "wv", "wo")
PROJECTIONS = {"q": "attention.query", "k": "attention.key", "v": "attention.value", "y": "attention.output"}


def project(source: str = "x", memory: str = "x") -> list[onnx.NodeProto]:
    return [
        node("MatMul", f"{source} wq", "q"),
        node("MatMul", f"{memory} wk", "k"),
        node("MatMul", f"{memory} wv", "v"),
    ]


def flip(value: str, result: str) -> onnx.NodeProto:
    return node("Transpose", value, result, perm=[0, 2, 1])


OUTPUT = node("MatMul", "c wo", "y")
AS_USUAL = [
    flip("k", "kt"),
    node("MatMul", "q kt", "s"),
    node("Softmax", "s", "p"),
    node("MatMul", "p v", "c"),
]
WRITTEN = {
    "as usual": AS_USUAL,
    "scores turned": [
        flip("q", "qt"),
        node("MatMul", "k qt", "st"),
        flip("st", "s"),
        node("Softmax", "s", "p"),
        node("MatMul", "p v", "c"),
    ],
    "softmax over the first axis": [
        flip("q", "qt"),
        node("MatMul", "k qt", "s"),
        node("Softmax", "s", "p", axis=1),
        flip("p", "pt"),
        node("MatMul", "pt v", "c"),
    ],
    "values on the left": [
        flip("k", "kt"),
        node("MatMul", "q kt", "s"),
        node("Softmax", "s", "p"),
        flip("p", "pt"),
        flip("v", "vt"),
        node("MatMul", "vt pt", "c"),
    ],
    "Gemm": [
        node("Gemm", "q k", "s", transB=1),
        node("Softmax", "s", "p"),
        node("Gemm", "p v", "c"),
    ],
    "Gemm that turns the probabilities": [
        node("Gemm", "k q", "s", transB=1),
        node("Softmax", "s", "p", axis=0),
        node("Gemm", "p v", "c", transA=1),
    ],
    "Einsum": [
        node("Einsum", "q k", "s", equation="bid,bjd->bij"),
        node("Softmax", "s", "p"),
        node("Einsum", "p v", "c", equation="b i j, b j d -> b i d"),
    ],
    "Einsum, key first": [
        node("Einsum", "k q", "s", equation="bjd,bid->bij"),
        node("Softmax", "s", "p"),
        node("Einsum", "v p", "c", equation="bjd,bij->bid"),
    ],
    "fused multiplication": [
        node("FusedMatMul", "q k", "s", domain="com.microsoft", transB=1),
        node("Softmax", "s", "p"),
        node("MatMul", "p v", "c"),
    ],
}


@pytest.mark.parametrize("core", WRITTEN.values(), ids=WRITTEN)
def test_query_and_key_are_told_apart_however_it_is_written(core: list[onnx.NodeProto]) -> None:
    found = find(*project(), *core, OUTPUT, weights=WEIGHTS)
    assert {key: role for key, role in found.items() if key in PROJECTIONS} == PROJECTIONS
    assert found["p"] == "attention.softmax"
    assert found["c"] == "attention.context"


@pytest.mark.parametrize(
    ("op_type", "domain"),
    [("Attention", ""), ("MultiHeadAttention", "com.microsoft"), ("GroupQueryAttention", "com.microsoft")],
)
def test_one_node_that_is_all_of_it(op_type: str, domain: str) -> None:
    fused = node(op_type, "q k v", "c", domain=domain)
    assert find(*project(), fused, OUTPUT, weights=WEIGHTS) == {**PROJECTIONS, "c": "attention"}
    crossed = find(*project("x", "z"), fused, OUTPUT, inputs="x z", weights=WEIGHTS)
    assert crossed == {key: f"cross_{role}" for key, role in {**PROJECTIONS, "c": "attention"}.items()}


def test_what_an_attention_leaves_out_is_packed_into_what_it_is_given() -> None:
    packed = node("MatMul", "x w", "qkv")
    fused = node("GroupQueryAttention", "qkv", "c", domain="com.microsoft")
    expected = {"qkv": "attention.qkv", "c": "attention", "y": "attention.output"}
    assert find(packed, fused, OUTPUT, weights=["w", "wo"]) == expected
    pair = [node("MatMul", "x wq", "q"), node("MatMul", "x w", "kv")]
    fused = node("MultiHeadAttention", "q kv", "c", domain="com.microsoft")
    roles = find(*pair, fused, OUTPUT, weights=["wq", "w", "wo"])
    assert (roles["q"], roles["kv"]) == ("attention.query", "attention.kv")


def test_one_node_that_projects_itself() -> None:
    fused = node("Attention", "x w b", "c", domain="com.microsoft")
    assert find(fused, OUTPUT, weights=["w", "b", "wo"]) == {"c": "attention", "y": "attention.output"}


def test_keys_of_another_stream_make_it_cross_attention() -> None:
    found = find(*project("x", "z"), *AS_USUAL, OUTPUT, inputs="x z", weights=WEIGHTS)
    assert {key: found[key] for key in PROJECTIONS} == {key: f"cross_{role}" for key, role in PROJECTIONS.items()}


def test_keys_that_were_shrunk_from_the_same_stream_do_not() -> None:
    shrunk = node("Conv", "x wr", "r")
    found = find(shrunk, *project("x", "r"), *AS_USUAL, OUTPUT, weights=[*WEIGHTS, "wr"])
    assert {key: found[key] for key in PROJECTIONS} == PROJECTIONS


def test_parts_of_one_product() -> None:
    whole = [node("MatMul", "x w", "h"), node("Split", "h", "q k v", num_outputs=3)]
    found = find(*whole, *AS_USUAL, OUTPUT, weights=["w", "wo"])
    assert found["h"] == "attention.qkv"
    two = [node("MatMul", "x wq", "q"), node("MatMul", "x w", "h"), node("Split", "h", "k v", num_outputs=2)]
    found = find(*two, *AS_USUAL, OUTPUT, weights=["w", "wq", "wo"])
    assert (found["q"], found["h"]) == ("attention.query", "attention.kv")


def test_scale_mask_bias_and_biases_of_projections() -> None:
    before = [node("MatMul", "x wq", "h"), node("Add", "h bq", "qb"), node("Mul", "qb half", "q")]
    rest = [node("MatMul", "x wk", "k"), node("MatMul", "x wv", "v"), flip("k", "kt")]
    scores = [
        node("MatMul", "q kt", "raw"),
        node("Div", "raw eight", "scaled"),
        node("Add", "scaled relative", "biased"),
        node("Where", "keep low zero", "penalty"),
        node("Add", "biased penalty", "s"),
        node("Softmax", "s", "p"),
        node("MatMul", "p v", "c"),
    ]
    scalars = [weight("half", 0.5), weight("eight", 8), weight("low", -1e9), weight("zero", 0)]
    tables = [table("relative", 4, 16, 16), table("bq", 64)]
    found = find(*before, *rest, *scores, OUTPUT, inputs="x keep", weights=[*WEIGHTS, *scalars, *tables])
    assert {key: found[key] for key in ("h", "qb", "q", "scaled", "biased", "s")} == {
        "h": "attention.query",
        "qb": "attention.query",
        "q": "attention.scale",
        "scaled": "attention.scale",
        "biased": "attention.bias",
        "s": "attention.mask",
    }


ADDED = {
    "a product with a huge negative number": ([node("Mul", "m low", "added")], "mask"),
    "a product with a slope": ([node("Mul", "m slope", "added")], "bias"),
    "a constant that lets some scores vanish": ([node("Identity", "causal", "added")], "mask"),
    "a constant": ([node("Identity", "distances", "added")], "bias"),
    "a comparison": ([node("Equal", "m one", "e"), node("Cast", "e", "added", to=1)], "mask"),
}


@pytest.mark.parametrize(("made", "component"), ADDED.values(), ids=ADDED)
def test_a_mask_is_told_from_other_things_that_are_added(made: list[onnx.NodeProto], component: str) -> None:
    small = {"causal": [[0, -1e9], [0, 0]], "distances": [[0, -1], [-1, 0]]}
    constants = [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in small.items()]
    numbers = [weight("low", -1e9), weight("slope", -0.5), weight("one", 1)]
    core = [flip("k", "kt"), node("MatMul", "q kt", "raw"), *made, node("Add", "raw added", "s"), *AS_USUAL[2:]]
    found = find(*project(), *core, OUTPUT, inputs="x m", weights=[*WEIGHTS, *numbers, *constants])
    assert found["s"] == f"attention.{component}"


def test_queries_and_keys_turned_by_position() -> None:
    turn = [
        node("Cos", "angles", "cos"),
        node("Sin", "angles", "sin"),
        node("Mul", "h cos", "a"),
        node("Neg", "h", "n"),
        node("Mul", "n sin", "b"),
        node("Add", "a b", "q"),
    ]
    rest = [node("MatMul", "x wk", "k"), node("MatMul", "x wv", "v")]
    found = find(
        node("MatMul", "x wq", "h"), *turn, *rest, *AS_USUAL, OUTPUT, weights=[*WEIGHTS, table("angles", 16, 64)]
    )
    assert found["h"] == "attention.query"
    assert {found[key] for key in ("cos", "sin", "a", "b", "q")} == {"position"}


NO_ATTENTION = {
    "a router": [
        node("MatMul", "x wq", "s"),
        node("Softmax", "s", "p"),
        node("MatMul", "x wk", "v"),
        node("MatMul", "p v", "c"),
    ],
    "a lookup in a learned table": [
        node("MatMul", "x wq", "q"),
        node("MatMul", "q wk", "s"),
        node("Softmax", "s", "p"),
        node("MatMul", "p wv", "c"),
    ],
    "a kernel made for each place": [
        node("MatMul", "x wq", "s"),
        node("Softmax", "s", "p"),
        node("Reshape", "p shape", "kernel"),
        node("MatMul", "x wv", "v"),
        node("MatMul", "v kernel", "c"),
    ],
    "similarities without values": [
        node("MatMul", "x wq", "q"),
        node("MatMul", "x wk", "k"),
        flip("k", "kt"),
        node("MatMul", "q kt", "s"),
        node("Softmax", "s", "c"),
    ],
    "no softmax": [*project(), flip("k", "kt"), node("MatMul", "q kt", "s"), node("MatMul", "s v", "c")],
}


@pytest.mark.parametrize("nodes", NO_ATTENTION.values(), ids=NO_ATTENTION)
def test_none_is_invented(nodes: list[onnx.NodeProto]) -> None:
    found = find(*nodes, OUTPUT, weights=[*WEIGHTS, table("shape", 3, dtype=TensorProto.INT64)])
    assert not [role for role in found.values() if "attention" in role]


def test_learned_queries() -> None:
    """Projected in the graph, or beforehand: then they are split into heads already."""
    projected = [node("Add", "latents shift", "z"), *project("z", "x")]
    found = find(*projected, *AS_USUAL, OUTPUT, weights=[*WEIGHTS, table("latents", 4, 64), table("shift", 64)])
    assert {key: found[key] for key in PROJECTIONS} == {key: f"cross_{role}" for key, role in PROJECTIONS.items()}
    found = find(*project()[1:], *AS_USUAL, OUTPUT, weights=[*WEIGHTS[1:], table("q", 4, 1, 16)])
    assert (found["k"], found["v"]) == ("cross_attention.key", "cross_attention.value")


@pytest.mark.parametrize("positions", [("wk", "wq"), ("w1", "w2")], ids=["by the same weights", "by their own"])
def test_products_with_positions_are_added_to_the_scores(positions: tuple[str, str]) -> None:
    of_key, of_query = positions
    placed = [
        node("Add", "places shift", "r"),
        node("MatMul", f"r {of_key}", "rk"),
        node("MatMul", f"r {of_query}", "rq"),
        flip("rk", "rkt"),
        flip("rq", "rqt"),
        flip("k", "kt"),
        node("MatMul", "q kt", "cc"),
        node("MatMul", "q rkt", "cp"),
        node("MatMul", "k rqt", "pc"),
        flip("pc", "pct"),
        node("Add", "cc cp", "a"),
        node("Add", "a pct", "s"),
        node("Softmax", "s", "p"),
        node("MatMul", "p v", "c"),
    ]
    tables = [table("places", 16, 64), table("shift", 64)]
    found = find(*project(), *placed, OUTPUT, weights=[*WEIGHTS, "w1", "w2", *tables])
    assert {key: found[key] for key in PROJECTIONS} == PROJECTIONS
    assert {found[key] for key in ("rk", "rq", "cp", "pc")} == {"position"}
    assert found["cc"] == "attention.scores"


def test_what_reads_more_than_the_result_is_no_output_projection() -> None:
    """An attention without one, added to its input: the next product reads both."""
    found = find(*project(), *AS_USUAL, node("Add", "c x", "r"), node("MatMul", "r wo", "y"), weights=WEIGHTS)
    assert found["y"] == "projection"
    assert found["r"] == "residual"


def test_two_projections_of_one_query_are_not_guessed_at() -> None:
    split = [node("MatMul", "x wq", "q1"), node("MatMul", "x w2", "q2"), node("Add", "q1 q2", "q")]
    rest = [node("MatMul", "x wk", "k"), node("MatMul", "x wv", "v")]
    found = find(*split, *rest, *AS_USUAL, OUTPUT, weights=[*WEIGHTS, "w2"])
    assert (found["q1"], found["q2"]) == ("projection", "projection")
    assert (found["k"], found["v"]) == ("attention.key", "attention.value")


def test_a_cache_of_keys_changes_nothing() -> None:
    nodes = [
        *project()[:1],
        node("MatMul", "x wk", "k1"),
        node("Concat", "past k1", "k", axis=1),
        node("MatMul", "x wv", "v"),
    ]
    found = find(*nodes, *AS_USUAL, OUTPUT, inputs="x past", weights=WEIGHTS)
    assert (found["q"], found["k1"], found["v"]) == ("attention.query", "attention.key", "attention.value")
