"""Where a file is cut: what comes along, what goes in and out, and why not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.support.cut_files import FUSED, ROW, SHARED, Handmade, run

from modelexport.errors import CutImpossible, UnknownName, UserError

CHAIN = Handmade(
    nodes=[
        ("a1", "Relu", ["x"], "a"),
        ("b1", "MatMul", ["a1", "b.weight"], "b"),
        ("b2", "Neg", ["b1"], "b.inner"),
        ("c1", "Abs", ["b2"], "c"),
        ("y", "Add", ["c1", "a1"], ""),
    ],
    calls=[("", ""), ("a", ""), ("b", ""), ("b.inner", "b"), ("c", "")],
    outputs=["y"],
    weights={"b.weight": np.eye(4, dtype=np.float32) * 2, "c.weight": np.ones(1, np.float32)},
)


def test_a_module_is_cut_at_its_border() -> None:
    found = CHAIN.cut("b")
    assert [node.key for node in found.nodes] == ["b1", "b2"]
    assert (found.enters, found.leaves, found.along) == (("a1",), ("b2",), frozenset())


def test_the_file_has_only_its_own_weights_and_says_shapes() -> None:
    graph = CHAIN.extract("b").file.proto.graph
    assert [tensor.name for tensor in graph.initializer] == ["b.weight"]
    dims = [dim.dim_param or dim.dim_value for dim in graph.input[0].type.tensor_type.shape.dim]
    assert (graph.input[0].name, dims) == ("a1", ["batch", 4])
    assert np.array_equal(run(CHAIN.extract("b"), a1=ROW)[0], -2 * ROW)


def test_the_module_is_the_root_of_its_record() -> None:
    record = CHAIN.extract("b").provenance
    assert list(record.hierarchy.modules) == ["", "inner"]
    assert [str(site.call) for site in record.hierarchy.calls] == ["", "inner"]
    assert {key: entry.attribution.module for key, entry in record.nodes.items()} == {"b1": "", "b2": "inner"}
    assert record.initializers["b.weight"].module == ""


def test_several_modules_that_hang_together() -> None:
    found = CHAIN.cut("b", "c")
    assert [node.key for node in found.nodes] == ["b1", "b2", "c1"]
    assert list(CHAIN.extract("b", "c").provenance.hierarchy.modules) == ["", "b", "b.inner", "c"]


def test_a_module_between_several_is_named() -> None:
    with pytest.raises(CutImpossible, match=r"^b lies between the parts of a c") as refused:
        CHAIN.cut("a", "c")
    assert "Ask for it as well" in refused.value.hint
    with pytest.raises(CutImpossible, match=r"^b, c lie between the parts of a d") as refused:
        Handmade(
            nodes=[
                (f"{one}1", "Neg", [read], one) for one, read in (("a", "x"), ("b", "a1"), ("c", "b1"), ("d", "c1"))
            ],
            calls=[("", ""), *((one, "") for one in "abcd")],
            outputs=["d1"],
        ).cut("a", "d")
    assert "Ask for them as well" in refused.value.hint


def test_the_whole_model_may_be_asked_for_by_the_name_that_messages_give_it() -> None:
    assert [node.key for node in CHAIN.cut("(model)").nodes] == ["a1", "b1", "b2", "c1", "y"]


def test_the_whole_model_returns_what_it_did_in_the_same_order() -> None:
    assert replace(CHAIN, outputs=["y", "b2"]).cut("(model)").leaves == ("y", "b2")


def test_modules_that_have_nothing_to_do_with_each_other() -> None:
    scene = Handmade(
        nodes=[
            ("a1", "Relu", ["x"], "a"),
            ("h", "Neg", ["x"], ""),
            ("b1", "Abs", ["h"], "b"),
            ("y", "Add", ["a1", "b1"], ""),
        ],
        calls=[("", ""), ("a", ""), ("b", "")],
        outputs=["y"],
    )
    with pytest.raises(CutImpossible, match="2 parts that do not read from each other"):
        scene.cut("a", "b")


def test_what_the_module_around_does_between_two_comes_along() -> None:
    scene = Handmade(
        nodes=[("a1", "Relu", ["x"], "a"), ("h", "Neg", ["a1"], ""), ("b1", "Abs", ["h"], "b")],
        calls=[("", ""), ("a", ""), ("b", "")],
        outputs=["b1"],
    )
    found = scene.cut("a", "b")
    assert ([node.key for node in found.nodes], set(found.along)) == (["a1", "h", "b1"], {"h"})
    assert "Neg" in found.notes[0]


def test_a_fused_module_names_the_smallest_cut() -> None:
    scene = Handmade(
        nodes=[("c", "MatMul", ["x", "p.conv.weight"], "p.conv+p.norm"), ("y", "Relu", ["c"], "p")],
        calls=[("", ""), ("p", ""), ("p.conv", "p"), ("p.norm", "p")],
        outputs=["y"],
        evidence={"c": FUSED},
        weights={"p.conv.weight": np.eye(4, dtype=np.float32)},
    )
    with pytest.raises(CutImpossible, match=r"^p\.conv was fused with p\.norm") as refused:
        scene.cut("p.conv")
    assert refused.value.instead == ("p.conv", "p.norm")
    assert "the smallest module is p." in refused.value.hint
    assert [node.key for node in scene.cut("p.conv", "p.norm").nodes] == ["c"]


def test_a_node_that_is_shared_is_copied_and_returned_to_nobody_else() -> None:
    scene = Handmade(
        nodes=[
            ("s", "Neg", ["x"], "a.one+b.one"),
            ("a1", "Relu", ["s"], "a"),
            ("b1", "Abs", ["s"], "b"),
            ("y", "Add", ["a1", "b1"], ""),
        ],
        calls=[("", ""), ("a", ""), ("a.one", "a"), ("b", ""), ("b.one", "b")],
        outputs=["y"],
        evidence={"s": SHARED},
    )
    for module, inner in (("a", "a1"), ("b", "b1")):
        found = scene.cut(module)
        assert ([node.key for node in found.nodes], found.leaves) == (["s", inner], (inner,))
    assert scene.cut("a.one").leaves == ("s",)


def test_what_a_shared_node_reads_for_others_leaves_the_module_that_makes_it() -> None:
    scene = Handmade(
        nodes=[
            ("bias", "Abs", ["x"], "a"),
            ("masked", "Relu", ["bias"], "a+b"),
            ("a1", "Neg", ["masked"], "a"),
            ("b1", "Sign", ["masked"], "b"),
            ("y", "Add", ["a1", "b1"], ""),
        ],
        calls=[("", ""), ("a", ""), ("b", "")],
        outputs=["y"],
        evidence={"masked": SHARED},
    )
    assert scene.cut("a").leaves == ("bias", "a1")
    assert scene.cut("b").enters == ("bias",)


def test_constants_and_shapes_come_along() -> None:
    scene = Handmade(
        nodes=[
            ("h", "Relu", ["x"], ""),
            ("whole", "Shape", ["x"], ""),
            ("b1", "Expand", ["h", "whole"], "b"),
            ("two", "Neg", ["b.two"], ""),
            ("y", "Mul", ["b1", "two"], "b"),
        ],
        calls=[("", ""), ("b", "")],
        outputs=["y"],
        weights={"b.two": np.full((1,), 2, np.float32)},
    )
    extracted = scene.extract("b")
    assert [value.name for value in extracted.file.proto.graph.input] == ["h"]
    rows = np.concatenate([ROW, ROW, ROW])
    assert np.array_equal(run(extracted, h=rows)[0], -2 * rows)
    assert {entry.attribution.module for entry in extracted.provenance.nodes.values()} == {""}


def test_a_size_that_nothing_given_has_is_an_input() -> None:
    scene = Handmade(
        nodes=[
            ("h", "ReduceSum", ["x", "axes"], "a"),
            ("whole", "Shape", ["x"], ""),
            ("y", "Expand", ["h", "whole"], "b"),
        ],
        calls=[("", ""), ("a", ""), ("b", "")],
        outputs=["y"],
        weights={"axes": np.array([0], np.int64)},
    )
    assert scene.cut("b").enters == ("h", "whole")


def test_a_module_without_nodes_hands_on_what_it_is_given() -> None:
    scene = Handmade(
        nodes=[("a1", "Relu", ["x"], "a"), ("y", "Abs", ["a1"], "b")],
        calls=[("", ""), ("a", ""), ("drop", ""), ("b", "")],
        outputs=["y"],
        classes={"drop": "Dropout"},
    )
    extracted = scene.extract("drop")
    assert [node.op_type for node in extracted.file.proto.graph.node] == ["Identity"]
    assert np.array_equal(run(extracted, a1=ROW)[0], ROW)


def test_as_many_axes_as_went_through_a_module_whatever_lies_around_it() -> None:
    scene = Handmade(
        nodes=[
            ("a1", "Relu", ["x"], "a"),
            ("h1", "Unsqueeze", ["a1", "axes"], ""),
            ("h2", "Neg", ["h1"], ""),
            ("h3", "Abs", ["h2"], ""),
            ("y", "Abs", ["h3"], "b"),
        ],
        calls=[("", ""), ("a", ""), ("drop", ""), ("other", ""), ("b", "")],
        outputs=["y"],
        weights={"axes": np.array([0], np.int64)},
        through={"drop": 2, "other": 5},
    )
    shapes = [[value.type for value in scene.extract(one).file.proto.graph.input] for one in ("drop", "other")]
    assert [len(kind.tensor_type.shape.dim) for kinds in shapes for kind in kinds] == [2, 5]


def test_a_module_that_was_folded_into_several_constants() -> None:
    scene = Handmade(
        nodes=[("h", "Mul", ["x", "table.cos"], ""), ("y", "Add", ["h", "table.sin"], "")],
        calls=[("", ""), ("table", ""), ("table.inner", "table")],
        outputs=["y"],
        weights={"table.cos": np.ones(4, np.float32), "table.sin": np.full(4, 2, np.float32)},
    )
    first, second = run(scene.extract("table"))
    assert (first[0], second[0]) == (1, 2)


def test_the_smallest_cut_around_may_be_a_constant() -> None:
    scene = Handmade(
        nodes=[("y", "Mul", ["x", "table.folded"], "")],
        calls=[("", ""), ("table", ""), ("table.inner", "table")],
        outputs=["y"],
        weights={"table.folded": np.ones(4, np.float32), "table.inner.weight": np.ones(4, np.float32)},
    )
    with pytest.raises(CutImpossible) as refused:
        scene.cut("table.inner")
    assert refused.value.instead == ("table",)


def test_a_module_whose_weights_are_gone_is_not_in_the_file() -> None:
    scene = Handmade(
        nodes=[("a1", "Relu", ["x"], "a")],
        calls=[("", ""), ("a", ""), ("lost", "")],
        outputs=["a1"],
        weights={"lost.weight": np.ones(4, np.float32)},
    )
    with pytest.raises(CutImpossible, match=r"lost \(Part\) has no node in the file"):
        scene.cut("lost")


def test_a_module_whose_weights_others_read_was_not_removed() -> None:
    scene = Handmade(
        nodes=[("y", "MatMul", ["x", "attn.proj.weight"], "attn")],
        calls=[("", ""), ("attn", ""), ("attn.proj", "attn")],
        outputs=["y"],
        weights={"attn.proj.weight": np.ones((4, 4), np.float32)},
    )
    with pytest.raises(CutImpossible, match=r"has no node in the file: its weights are read by MatMul of attn\n"):
        scene.cut("attn.proj")


def test_the_calls_of_a_repeated_module() -> None:
    scene = Handmade(
        nodes=[("a1", "Relu", ["x"], "a"), ("a2", "Neg", ["a1"], "a#1"), ("y", "Abs", ["a2"], "a#2")],
        calls=[("", ""), ("a", ""), ("a#1", ""), ("a#2", "")],
        outputs=["y"],
    )
    assert scene.cut("a#1").leaves == ("a2",)
    assert [str(site.call) for site in scene.extract("a#1").provenance.hierarchy.calls] == [""]
    assert "called 3 times" in scene.cut("a").notes[0]
    with pytest.raises(UserError, match="there is no call a#3"):
        scene.cut("a#3")


def test_a_container_that_nobody_calls() -> None:
    scene = Handmade(
        nodes=[("a1", "Relu", ["x"], "layers.0"), ("a2", "Neg", ["a1"], "layers.1"), ("y", "Abs", ["a2"], "")],
        calls=[("", ""), ("layers.0", ""), ("layers.1", "")],
        outputs=["y"],
        classes={"layers": "ModuleList"},
    )
    extracted = scene.extract("layers")
    assert extracted.provenance.hierarchy.modules[""].class_name == "ModuleList"
    assert [entry.attribution.module for entry in extracted.provenance.nodes.values()] == ["0", "1"]


def test_names_that_nobody_has() -> None:
    with pytest.raises(UnknownName, match=r"unknown module 'b\.iner'"):
        CHAIN.cut("b.iner")


def test_what_lies_between_parts_of_one_call_belongs_to_it() -> None:
    scene = Handmade(
        nodes=[("a1", "Relu", ["x"], "a"), ("h", "Neg", ["a1"], ""), ("y", "Add", ["h", "a1"], "a")],
        calls=[("", ""), ("a", "")],
        outputs=["y"],
    )
    assert (scene.cut("a").enters, set(scene.cut("a").along)) == (("x",), {"h"})
