"""Differences in words, and the modules around them."""

from __future__ import annotations

from tests.support.small_file import small_hierarchy

from modelexport.record.results.diff import (
    Amount,
    Change,
    Diff,
    FieldChange,
    ModuleChange,
    NodeChange,
    NodeRef,
    Side,
    Source,
    WeightChange,
    WeightForm,
    WeightRef,
)
from modelexport.show.page.difference import difference_columns
from modelexport.show.page.nodes import ModuleTree, Texts

SIDES = Side("/models/v1.onnx", 6, 3, Source.RECORD), Side("v2.onnx", 6, 3, Source.RECORD)
NODE = NodeRef("h0", "node_h0", "MatMul")


def found(*modules: ModuleChange) -> tuple[dict[str, str], dict[str, list[str]], str]:
    tree, texts = ModuleTree.of(small_hierarchy()), Texts([""])
    charged = {"h0": tree.by_path["layers.0.fc"], "r0": tree.by_path["layers.0"]}
    columns = difference_columns(Diff(*SIDES, modules=modules), tree, texts, charged)
    paths = [row.item.path for row in tree.rows]
    states = {path: columns["state"][place] for place, path in enumerate(paths)}
    lines = {paths[place]: [texts.values[text] for text in row] for place, row in columns["lines"].items()}
    return states, lines, columns["against"]


def test_a_module_that_changed_marks_those_around_it() -> None:
    field = NodeChange(Change.CHANGED, (NODE,), (NODE,), (FieldChange("attribute axis", "1", "2"),))
    weight = WeightRef("layers.0.fc.weight", "float", (4, 4))
    values = WeightChange(WeightForm.VALUES, weight, weight, largest=0.5)
    states, lines, against = found(
        ModuleChange(Change.CHANGED, "layers.0.fc", "layers.0.fc", changes=(field,), weights=(values,))
    )
    assert states["layers.0.fc"] == "changed"
    assert {states[path] for path in ("", "layers", "layers.0")} == {"inside"}
    assert {states[path] for path in ("emb", "layers.1", "layers.1.fc")} == {"same"}
    assert lines == {
        "layers.0.fc": [
            "MatMul node_h0: attribute axis 1 → 2",
            "weight layers.0.fc.weight: values, largest difference 0.5",
        ]
    }
    assert against == "v1.onnx"


def test_what_replaced_nodes_of_several_modules_changed_all_of_them() -> None:
    after = NodeRef("r0", "node_r0", "Relu")
    fused = NodeChange(Change.REPLACED, (NodeRef("f", "fused", "FusedMatMul"),), (NODE, after))
    states, lines, _ = found(ModuleChange(Change.CHANGED, "layers.0", "layers.0", changes=(fused,)))
    assert (states["layers.0"], states["layers.0.fc"], states["layers.1.fc"]) == ("changed", "changed", "same")
    assert lines["layers.0.fc"] == lines["layers.0"]
    assert lines["layers.0"] == ["FusedMatMul → MatMul + Relu: MatMul node_h0, Relu node_r0"]


def test_many_operators_are_counted() -> None:
    before = tuple(NodeRef(str(number), "", f"Op{number % 10}") for number in range(20))
    _, lines, _ = found(
        ModuleChange(Change.CHANGED, "emb", "emb", changes=(NodeChange(Change.REPLACED, before, (NODE,)),))
    )
    names = " + ".join(f"Op{number} ×2" for number in range(8))
    assert lines["emb"] == [f"{names} + 2 others → MatMul: MatMul node_h0"]


def test_a_module_of_the_other_file_alone_is_told_by_the_model() -> None:
    gone = ModuleChange(Change.REMOVED, "layers.2", None, ("Block", ""), Amount(2, 0))
    states, lines, _ = found(gone)
    assert lines == {"": ["not in this file: layers.2 Block, 2 nodes"]}
    assert states[""] == "changed"


def test_a_module_of_this_file_alone_is_added() -> None:
    added = ModuleChange(Change.ADDED, None, "layers.1", ("", "Block"), Amount(0, 2), 16)
    states, lines, _ = found(added)
    assert states["layers.1"] == "added"
    assert lines["layers.1"] == ["in this file alone: 2 nodes, 16 parameters"]


def test_no_difference_marks_nothing() -> None:
    states, lines, _ = found()
    assert set(states.values()) == {"same"}
    assert lines == {}
