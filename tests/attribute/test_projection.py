"""Projecting a run on a graph, from small runs and graphs made by hand: no names, no metadata, no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, combinations_with_replacement, pairwise

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.building import graph, node, tree

from modelexport.attribute import projection as order
from modelexport.attribute.anchor_regions import Anchor
from modelexport.attribute.matched_values import ValueIndex, find_weight_uses
from modelexport.attribute.projection import project
from modelexport.graph.fingerprint import fingerprint
from modelexport.graph.index import Graph, Node
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.provenance import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.signals import GraphValues, Trace, TracedOp

BECOMES = {
    "sin": {"Sin"},
    "cos": {"Cos"},
    "mul": {"Mul"},
    "add": {"Add"},
    "mm": {"MatMul"},
    "addmm": {"Gemm", "MatMul", "Add"},
    "t": {"Transpose"},
    "view": {"Reshape"},
    "softmax": {"Softmax", "Exp", "ReduceSum", "Div"},
    "relu": {"Relu"},
    "to": {"Cast"},
}
TREE = tree({"": "Net", "a": "Block", "b": "Block", "a.one": "Linear", "a.two": "Linear", "c": "Block"})


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape or (3, 3)).astype(np.float32)


@dataclass
class Run:
    """A run, written down operator by operator: values by name."""

    inputs: Mapping[str, np.ndarray]
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    ops: list[tuple[str, str, list[str], list[str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.arrays.update({**self.inputs, **self.tensors})

    def op(self, name: str, call: str, read: str, made: str, array: np.ndarray) -> Run:
        self.ops.append((name, call, read.split(), [made]))
        self.arrays[made] = array
        return self

    @property
    def trace(self) -> Trace:
        number = {name: place for place, name in enumerate(self.arrays)}
        ops = tuple(
            TracedOp(name, ModuleCall.parse(call), tuple(map(number.__getitem__, read)), (number[made[0]],))
            for name, call, read, made in self.ops
        )
        prints = tuple(map(fingerprint, self.arrays.values()))
        operators = {name: frozenset(found) for name, found in BECOMES.items()}
        inputs, tensors = ({name: number[name] for name in names} for names in (self.inputs, self.tensors))
        return Trace("test", ops, prints, inputs, tensors, operators)


def seen(arrays: Mapping[str, np.ndarray], failure: str = "") -> GraphValues:
    return GraphValues({name: fingerprint(array) for name, array in arrays.items()}, failure)


def projected(
    made: Graph, run: Run, arrays: Mapping[str, np.ndarray], failure: str = "", hierarchy: Hierarchy = TREE
) -> dict[str, Claim]:
    return project(made, hierarchy, run.trace, seen({**run.inputs, **arrays}, failure), "test")


def said(claims: Mapping[str, Claim]) -> dict[str, tuple[str, str]]:
    return {key: (" ".join(map(str, claim.owners)), claim.confidence.label) for key, claim in claims.items()}


def weights(*names: str) -> list[str | onnx.TensorProto]:
    return list(names)


X, Z = numbers(0), numbers(9)
W, V = numbers(1), numbers(2)


# values


def test_a_value_that_one_call_made_is_that_calls() -> None:
    run = Run({"x": X}).op("sin", "a", "x", "h", np.sin(X)).op("cos", "b", "h", "o", np.cos(np.sin(X)))
    made = graph(node("Sin", "x", "p"), node("Cos", "p", "y"))
    claims = projected(made, run, {"p": np.sin(X), "y": np.cos(np.sin(X))})
    assert said(claims) == {"p": ("a", "exact"), "y": ("b", "exact")}
    assert claims["p"].evidence == (
        Evidence(EvidenceKind.VALUE, "test"),
        Evidence(EvidenceKind.TRACE, "test", "sin"),
    )


def test_a_value_may_have_another_shape_and_the_noise_of_another_kernel() -> None:
    run = Run({"x": X}).op("sin", "a", "x", "h", np.sin(X))
    noisy = (np.sin(X) * (1 + 1e-5 * Z)).reshape(9)
    assert said(projected(graph(node("Sin", "x", "y")), run, {"y": noisy})) == {"y": ("a", "exact")}


def test_a_value_that_several_calls_made_is_told_by_what_an_operator_becomes() -> None:
    run = Run({"x": X}).op("sin", "a", "x", "h", Z).op("cos", "b", "x", "k", Z)
    assert said(projected(graph(node("Cos", "x", "y")), run, {"y": Z})) == {"y": ("b", "exact")}


def test_a_value_that_several_calls_made_alike_is_no_anchor() -> None:
    run = Run({"x": X}).op("sin", "a", "x", "h", Z).op("sin", "b", "x", "k", Z)
    claims = projected(graph(node("Sin", "x", "y")), run, {"y": Z})
    assert all(claim.confidence < Confidence.EXACT for claim in claims.values())


def test_masks_and_constants_are_no_anchors() -> None:
    flat = np.zeros((3, 3), np.float32)
    run = Run({"x": X}).op("sin", "a", "x", "h", flat).op("cos", "b", "h", "o", flat)
    claims = projected(graph(node("Sin", "x", "p"), node("Cos", "p", "y")), run, {"p": flat, "y": flat})
    assert all(claim.confidence < Confidence.EXACT for claim in claims.values())


def test_a_table_made_from_sizes_is_whose_it_is_by_value() -> None:
    """In this shape: the same numbers in another one are somebody else's view of them."""
    made = graph(
        node("Shape", "x", "s"), node("Range", "zero s one", "p"), node("Sub", "p turned", "d"),
        node("Mul", "x d", "y"), weights=["zero", "one", "turned"],
    )  # fmt: skip
    x, p = numbers(0, 9, 9), np.arange(9)
    d = p[:, None] - p[None, :]
    run = Run({"x": x}).op("arange", "a", "", "p", p).op("sub", "a", "p", "d", d).op("view", "b", "d", "v", d[None])
    run.op("mul", "b", "x v", "y", x * d)
    claims = projected(made, run, {"s": np.array([9, 9]), "p": p, "d": d, "y": x * d})
    assert {key: said(claims)[key] for key in "pdy"} == {
        "p": ("a", "strong"),
        "d": ("a", "strong"),
        "y": ("b", "exact"),
    }
    assert claims["d"].evidence == (Evidence(EvidenceKind.VALUE, "test", "from sizes"),)
    # A few numbers are equal by chance, and what several calls made tells nobody.
    few = Run({"x": X}).op("arange", "a", "", "p", np.arange(3))
    assert "p" not in projected(made, few, {"p": np.arange(3)})
    run.op("arange", "c", "", "again", p)
    assert "p" not in projected(made, run, {"p": p})


def test_the_nearest_value_is_meant() -> None:
    run = Run({"x": X}).op("sin", "a", "x", "h", Z).op("sin", "b", "x", "k", Z * 1.001)
    assert said(projected(graph(node("Sin", "x", "y")), run, {"y": Z})) == {"y": ("a", "exact")}


def test_a_value_is_looked_up_among_those_of_its_size_and_kind() -> None:
    trace = Run({"x": X, "i": np.arange(9), "b": np.ones(9, np.bool_)}).trace
    index = ValueIndex(trace)
    assert index.matches(fingerprint(X.reshape(1, 9))) == (0,)
    assert index.matches(fingerprint(X[:2])) == ()
    assert index.matches(fingerprint(np.arange(9, dtype=np.int32))) == (1,)
    assert index.matches(fingerprint(np.ones(9, np.bool_))) == (2,)
    assert index.matches(fingerprint(np.ones(8, np.bool_))) == ()
    assert index.matches(fingerprint(Z)) == ()


def test_of_equal_values_those_of_the_same_shape_are_meant() -> None:
    trace = Run({"x": X, "flat": X.reshape(9)}).trace
    assert ValueIndex(trace).matches(fingerprint(X)) == (0,)
    assert ValueIndex(trace).matches(fingerprint(X.reshape(9, 1))) == (0, 1)


# values that are passed on


def test_a_node_that_passes_a_value_on_belongs_to_who_did() -> None:
    run = Run({"x": X}).op("sin", "a", "x", "h", np.sin(X)).op("to", "b", "h", "f", np.sin(X))
    made = graph(node("Sin", "x", "p"), node("Cast", "p", "y"))
    claims = projected(made, run, {"p": np.sin(X), "y": np.sin(X)})
    assert said(claims) == {"p": ("a", "exact"), "y": ("b", "inferred")}
    assert claims["y"].evidence[0].detail == "passed on"


def test_another_shape_of_a_value_is_whose_it_is() -> None:
    flat = np.sin(X).reshape(9)
    run = Run({"x": X}).op("sin", "a", "x", "h", np.sin(X)).op("view", "b", "h", "f", flat)
    made = graph(node("Sin", "x", "p"), node("Reshape", "p s", "y"), weights=weights("s"))
    assert said(projected(made, run, {"p": np.sin(X), "y": flat})) == {"p": ("a", "exact"), "y": ("b", "exact")}


def test_a_node_that_nobody_passed_on_is_not_sure() -> None:
    run = Run({"x": X}).op("sin", "a", "x", "h", np.sin(X)).op("cos", "b", "h", "o", Z)
    made = graph(node("Sin", "x", "p"), node("Identity", "p", "q"), node("Cos", "q", "y"))
    claims = projected(made, run, {"p": np.sin(X), "q": np.sin(X), "y": Z})
    assert said(claims)["p"] == ("a", "exact")
    assert said(claims)["y"] == ("b", "exact")
    assert claims["q"].confidence is Confidence.INFERRED


# weights


def test_a_node_that_reads_a_weight_belongs_to_the_call_that_used_it() -> None:
    run = Run({"x": X}, {"a.w": W}).op("t", "a", "a.w", "wt", W.T.copy()).op("mm", "a", "x wt", "h", Z)
    made = graph(node("MatMul", "x m", "y"), weights=weights("m"))
    claims = projected(made, run, {"m": W.T.copy()})
    assert said(claims) == {"y": ("a", "strong")}
    assert claims["y"].evidence[0].kind is EvidenceKind.PARAMETER


def test_a_rearranged_weight_is_used_where_the_result_is() -> None:
    run = Run({"x": X}, {"w": W, "idle": V})
    run.op("t", "a", "w", "wt", W.T.copy()).op("view", "a", "wt", "wv", W.T.reshape(9)).op("mm", "b", "x wv", "h", Z)
    trace = run.trace
    number = {name: place for place, name in enumerate(run.arrays)}
    uses = find_weight_uses(trace)
    assert {name: uses.get(number[name]) for name in ("w", "wt", "wv", "idle", "x")} == {
        "w": (2,),
        "wt": (2,),
        "wv": (2,),
        "idle": None,
        "x": None,
    }


def test_as_many_readers_as_calls_are_paired_in_order() -> None:
    run = Run({"x": X}, {"w": W}).op("mm", "a", "x w", "h", Z).op("sin", "", "h", "k", V).op("mm", "a#1", "k w", "o", Z)
    made = graph(node("MatMul", "x m", "p"), node("Sin", "p", "q"), node("MatMul", "q m", "y"), weights=weights("m"))
    claims = said(projected(made, run, {"m": W}))
    assert (claims["p"][0], claims["y"][0]) == ("a", "a#1")


def test_readers_that_cannot_be_paired_are_no_anchors() -> None:
    run = Run({"x": X}, {"w": W}).op("mm", "a", "x w", "h", Z).op("mm", "b", "h w", "o", V).op("mm", "c", "o w", "u", Z)
    made = graph(node("MatMul", "x m", "p"), node("MatMul", "p m", "y"), weights=weights("m"))
    claims = projected(made, run, {"m": W})
    assert all(claim.confidence <= Confidence.INFERRED for claim in claims.values())


def test_several_weights_narrow_the_calls_down() -> None:
    run = Run({"x": X}, {"w": W, "v": V})
    run.op("mm", "a", "x w", "h", numbers(5)).op("addmm", "b", "x w v", "k", numbers(6))
    made = graph(node("Gemm", "x m n", "y"), weights=weights("m", "n"))
    assert said(projected(made, run, {"m": W, "n": V})) == {"y": ("b", "strong")}


# regions


def test_what_an_operator_was_broken_down_to_is_its_calls() -> None:
    run = Run({"x": X}).op("sin", "b", "x", "h", np.sin(X)).op("softmax", "a", "h", "o", Z)
    nodes = node("Sin", "x", "s"), node("Exp", "s", "e"), node("ReduceSum", "e", "r"), node("Div", "e r", "y")
    claims = projected(graph(*nodes), run, {"s": np.sin(X), "e": numbers(7), "r": numbers(8, 3), "y": Z})
    assert said(claims) == {"s": ("b", "exact"), "e": ("a", "strong"), "r": ("a", "strong"), "y": ("a", "exact")}
    assert claims["e"].evidence == (Evidence(EvidenceKind.TRACE, "test", "before"),)


def test_dependence_tells_alike_operators_apart() -> None:
    """Nothing but what they read tells the two sines apart: they come the other way round in the file."""
    run = Run({"x": X, "z": Z}).op("sin", "a", "x", "p", V).op("sin", "b", "z", "q", W)
    run.op("mul", "c", "p q", "o", V * W)
    made = graph(node("Sin", "z", "q"), node("Sin", "x", "p"), node("Mul", "p q", "y"), inputs="x z")
    off = {"p": numbers(5), "q": numbers(6), "y": V * W}  # as if computed in another way
    claims = said(projected(made, run, off))
    assert {key: owner for key, (owner, _) in claims.items()} == {"p": "a", "q": "b", "y": "c"}


def test_a_node_does_not_belong_to_what_does_not_depend_on_its_inputs() -> None:
    run = Run({"x": X, "z": Z}).op("sin", "a", "x", "p", V).op("cos", "b", "z", "q", W)
    run.op("mul", "c", "p q", "o", V * W)
    made = graph(node("Neg", "z", "n"), node("Mul", "x n", "y"), inputs="x z")
    claims = said(projected(made, run, {"n": numbers(5), "y": V * W}))
    assert claims["n"][0] == "b"


def test_a_node_that_several_calls_share_belongs_to_all_of_them() -> None:
    flat = np.zeros((3, 3), np.float32)
    run = Run({"x": X}).op("relu", "a", "x", "p", flat).op("sin", "a", "p", "u", V)
    run.op("relu", "b", "x", "q", flat).op("cos", "b", "q", "v", W)
    made = graph(node("Relu", "x", "r"), node("Sin", "r", "u"), node("Cos", "r", "y"))
    claims = projected(made, run, {"r": flat, "u": V, "y": W})
    assert said(claims) == {"r": ("a b", "strong"), "u": ("a", "exact"), "y": ("b", "exact")}
    assert claims["r"].evidence[0].detail == "shared"


def test_a_node_that_does_the_work_of_several_calls_belongs_to_all_of_them() -> None:
    run = Run({"x": X}, {"a.w": W}).op("mm", "a", "x a.w", "h", V).op("relu", "b", "h", "o", Z)
    made = graph(node("FusedMatMul", "x m", "y"), weights=weights("m"))
    assert said(projected(made, run, {"m": W, "y": Z})) == {"y": ("a b", "exact")}


def test_between_several_calls_it_is_the_one_around_them() -> None:
    run = Run({"x": X}).op("sin", "a.one", "x", "p", V).op("cos", "a.two", "p", "q", W).op("mul", "b", "q q", "o", Z)
    made = graph(node("Odd", "x", "n"), node("Mul", "n n", "y"))
    claims = projected(made, run, {"n": numbers(5), "y": Z})
    assert said(claims)["y"] == ("b", "exact")
    (owner,) = claims["n"].owners
    assert claims["n"].confidence is Confidence.INFERRED
    assert owner.path in ("a", "a.one", "a.two", "")


# without values


def test_without_values_order_remains_and_everything_is_less_sure() -> None:
    run = Run({"x": X}, {"w": W}).op("sin", "a", "x", "h", V).op("mm", "b", "h w", "k", Z).op("cos", "c", "k", "o", V)
    made = graph(node("Sin", "x", "p"), node("MatMul", "p m", "q"), node("Cos", "q", "y"), weights=weights("m"))
    claims = project(made, TREE, run.trace, seen({"m": W}, "no runtime"), "test")
    assert said(claims) == {"p": ("a", "inferred"), "q": ("b", "inferred"), "y": ("c", "inferred")}


def test_a_failure_lowers_every_claim_by_one_and_none_below_inferred() -> None:
    run = (
        Run({"x": X}).op("sin", "a", "x", "h", np.sin(X)).op("to", "b", "h", "f", np.sin(X)).op("sin", "c", "f", "o", Z)
    )
    made = graph(node("Sin", "x", "p"), node("Cast", "p", "q"), node("Identity", "q", "r"), node("Sin", "r", "y"))
    arrays = {"p": np.sin(X), "q": np.sin(X), "r": np.sin(X), "y": Z}
    whole, lowered = projected(made, run, arrays), projected(made, run, arrays, "stopped")
    assert {claim.confidence.label for claim in whole.values()} == {"exact", "inferred"}
    for key, claim in lowered.items():
        assert claim.confidence == max(whole[key].confidence - 1, Confidence.INFERRED)
    assert min(claim.confidence for claim in lowered.values()) is Confidence.INFERRED


def test_nothing_is_claimed_of_what_the_run_does_not_explain() -> None:
    assert projected(graph(node("Sin", "x", "y")), Run({"x": X}), {"y": Z}) == {}


def test_values_in_bodies_and_constants_are_left_to_others() -> None:
    run = Run({"x": X}).op("sin", "a", "x", "h", np.sin(X))
    made = graph(node("Shape", "x", "s"), node("Sin", "x", "y"))
    assert list(projected(made, run, {"s": np.array([3, 3]), "y": np.sin(X)})) == ["y"]


# names mean nothing


@given(st.permutations(["x", "m", "p", "q", "y", "encoder.layer.0", "w"]))
def test_names_mean_nothing(names: Sequence[str]) -> None:
    x, m, p, q, y, *_ = names
    run = Run({"x": X}, {"w": W}).op("mm", "a", "x w", "h", V).op("sin", "b", "h", "k", np.sin(V))
    run.op("cos", "c", "k", "o", Z)
    nodes = node("MatMul", f"{x} {m}", p, "/c/MatMul"), node("Sin", p, q, "/a/Sin"), node("Cos", q, y, "/b/Cos")
    made = graph(*nodes, inputs=x, outputs=y, weights=weights(m))
    arrays = {x: X, m: W, p: V, q: np.sin(V), y: Z}
    claims = project(made, TREE, run.trace, seen(arrays), "test")
    assert said(claims) == {p: ("a", "exact"), q: ("b", "exact"), y: ("c", "exact")}


# order


class _Fitting:
    """In the place of a `Matched`: says which node can be made of which operator."""

    def __init__(self, fitting: Sequence[Sequence[bool]]) -> None:
        self._fitting = fitting

    def fits(self, made: Node, place: int) -> bool:
        return self._fitting[made.position][place]

    fits_itself = fits


@given(st.data(), st.integers(1, 5), st.integers(1, 5))
def test_the_alignment_is_the_cheapest_that_never_goes_back(data: st.DataObject, count: int, places: int) -> None:
    fitting = data.draw(
        st.lists(st.lists(st.booleans(), min_size=places, max_size=places), min_size=count, max_size=count)
    )
    left_out = data.draw(st.lists(st.sampled_from([0, 1, 4]), min_size=places, max_size=places))
    nodes = list(graph(*(node("Sin", "x", f"v{place}") for place in range(count))).nodes)

    def cost(chosen: Sequence[int]) -> int:
        misfits = sum(not fitting[at][place] for at, place in enumerate(chosen))
        return order._MISFIT * misfits + sum(left_out[place] for place in set(range(places)) - set(chosen))

    matched = _Fitting(fitting)
    found = dict(order._align(nodes, list(range(places)), left_out, matched))  # type: ignore[arg-type]
    chosen = [found[made.key] for made in nodes]
    assert chosen == sorted(chosen)
    assert cost(chosen) == min(map(cost, combinations_with_replacement(range(places), count)))


@given(st.lists(st.integers(0, 6), max_size=7))
def test_as_many_anchors_as_possible_are_kept_in_order(places: list[int]) -> None:
    evidence = Evidence(EvidenceKind.VALUE, "test")
    anchors = [(f"v{at}", Anchor((place,), frozenset({ModuleCall("")}), evidence)) for at, place in enumerate(places)]
    kept = order._increasing(anchors)
    in_order = [place for at, place in enumerate(places) if f"v{at}" in kept]
    assert in_order == sorted(in_order)
    assert all(kept[key] == anchor.op_indices[0] for key, anchor in anchors if key in kept)
    longest = max(
        length
        for length in range(len(places) + 1)
        for some in combinations(places, length)
        if list(some) == sorted(some)
    )
    assert len(kept) == longest


def test_a_moved_anchor_does_not_mislead_its_neighbours() -> None:
    """The file lists the work of `c` first; what follows is aligned with what was issued, not with what came after."""
    run = Run({"x": X, "z": Z}, {"w": W, "v": V, "u": numbers(4)})
    run.op("sin", "a", "x", "p", numbers(10)).op("mm", "a", "p w", "q", numbers(11))
    run.op("cos", "b", "q", "r", numbers(12)).op("mm", "b", "r v", "s", numbers(13))
    run.op("mm", "c", "z u", "t", numbers(14))
    made = graph(
        node("MatMul", "z n3", "t"),
        node("Sin", "x", "p"),
        node("MatMul", "p n1", "q"),
        node("Cos", "q", "r"),
        node("MatMul", "r n2", "s"),
        inputs="x z",
        outputs="s t",
        weights=weights("n1", "n2", "n3"),
    )
    held = {"n1": W, "n2": V, "n3": numbers(4)}
    claims = project(made, TREE, run.trace, seen(held, "no runtime"), "test")
    assert {key: owner for key, (owner, _) in said(claims).items()} == {
        "p": "a",
        "q": "a",
        "r": "b",
        "s": "b",
        "t": "c",
    }


def test_a_long_stretch_takes_time_in_proportion() -> None:
    """Quadratic in one stretch at most: anchors cut it, and real ones are short."""
    count = 300
    run = Run({"x": X})
    for place in range(count):
        run.op("sin", "a" if place < count // 2 else "b", "x" if not place else f"h{place}", f"h{place + 1}", Z)
    names = ["x", *(f"v{place}" for place in range(count))]
    made = graph(*(node("Sin", a, b) for a, b in pairwise(names)), outputs=names[-1])
    claims = project(made, TREE, run.trace, GraphValues({}, "no runtime"), "test")
    assert [str(claims[name].owners[0]) for name in names[1:]] == ["a"] * (count // 2) + ["b"] * (count // 2)


@pytest.mark.parametrize("failure", ["", "no runtime"])
def test_an_empty_graph_and_an_empty_run(failure: str) -> None:
    empty = replace(Run({"x": X}).trace, inputs={}, values=())
    assert project(graph(node("Sin", "x", "y")), TREE, empty, GraphValues({}, failure), "test") == {}
    assert project(graph(outputs=""), TREE, Run({"x": X}).trace, GraphValues({}, failure), "test") == {}


def test_zeros_that_are_no_weight_anchor_nothing() -> None:
    """A mask of zeros as large as a bias of zeros is not that bias."""
    zeros = np.zeros(9, np.float32)
    run = Run({"x": X}, {"bias": zeros}).op("sin", "a", "x", "h", V).op("addmm", "b", "h bias", "o", Z)
    made = graph(node("Sin", "x", "p"), node("Add", "p m", "q"), node("Cos", "p", "y"), weights=weights("m"))
    claims = projected(made, run, {"p": V, "m": zeros.reshape(3, 3), "q": X + 7, "y": Z})
    assert "q" not in claims


def test_a_bias_of_zeros_belongs_to_the_call_that_made_the_value() -> None:
    zeros = np.zeros(3, np.float32)
    run = Run({"x": X}, {"w": W, "bias": zeros}).op("addmm", "a", "bias x w", "o", Z)
    made = graph(node("MatMul", "x m", "p"), node("Add", "p z", "y"), weights=weights("m z"))
    claims = projected(made, run, {"m": W, "z": zeros, "p": Z, "y": Z})
    assert said(claims) == {"p": ("a", "exact"), "y": ("a", "exact")}


def test_a_node_does_the_work_of_a_weight_that_changes_nothing_and_has_no_node() -> None:
    ones = np.ones(3, np.float32)
    run = Run({"x": X}, {"w": W, "scale": ones}).op("mm", "a", "x w", "h", Z).op("mul", "b", "h scale", "o", Z)
    made = graph(node("MatMul", "x m", "y"), weights=weights("m"))
    claims = projected(made, run, {"m": W, "y": Z})
    assert {owner.path for owner in claims["y"].owners} == {"a", "b"}
