"""Laws of a diff: names and order say nothing; a planted change is found, and no other, in both directions."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from tests.support.foldable_graphs import Made, layers, random_graphs, saved
from tests.support.scrambling import scrambled
from tests.support.stacks import Save, node_of, set_weight, stack, weight_of

import modelexport as mx
from modelexport.record.results.diff import Change, Source, WeightForm

LAYERS = range(6)
RELAXED = settings(deadline=None, max_examples=20)


def diffed(one: onnx.ModelProto, other: onnx.ModelProto, **options: Any) -> mx.Diff:
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder) / "one.onnx", Path(folder) / "other.onnx"
        for model, path in zip((one, other), paths, strict=True):
            onnx.save(model, path)
        return mx.diff(*paths, **options)


@RELAXED
@given(made=random_graphs(), seed=st.integers(0, 99))
def test_another_order_and_other_names_are_no_difference(made: Made, seed: int) -> None:
    found = diffed(made.proto, scrambled(made.proto, seed))
    assert found.identical
    assert found.alike == found.same_weights == 1.0
    assert not found.left_nodes


@RELAXED
@given(
    layer=st.sampled_from(LAYERS),
    name=st.sampled_from("wb"),
    amount=st.sampled_from((0.5, -0.25, 4)),
    seed=st.integers(0, 9),
)
def test_a_planted_number_is_found(layer: int, name: str, amount: float, seed: int) -> None:
    other = stack()
    array = numpy_helper.to_array(weight_of(other, f"l{layer}.{name}")).copy()
    place = tuple(random.Random(seed).randrange(side) for side in array.shape)
    array[place] += amount
    set_weight(other, f"l{layer}.{name}", array)
    found = diffed(stack(), scrambled(other, seed))
    [(_, change)] = found.weight_changes()
    assert not list(found.node_changes())
    assert change.left is not None
    assert change.left.name == f"l{layer}.{name}"
    assert (change.form, change.changed) == (WeightForm.VALUES, 1)
    assert change.largest == pytest.approx(abs(amount), rel=1e-4)


@RELAXED
@given(layer=st.sampled_from(LAYERS), operator=st.sampled_from(("Tanh", "Sigmoid", "Neg")), seed=st.integers(0, 9))
def test_a_planted_operator_is_found(layer: int, operator: str, seed: int) -> None:
    other = stack()
    node_of(other, f"l{layer}.relu").op_type = operator
    found = diffed(stack(), scrambled(other, seed))
    [(_, change)] = found.node_changes()
    assert change.change is Change.REPLACED
    assert [node.key for node in change.left] == [f"l{layer}.relu"]
    assert [node.op_type for node in change.right] == [operator]
    assert len(found.pairs) == len(other.graph.node) - 1


@RELAXED
@given(layer=st.sampled_from(LAYERS), seed=st.integers(0, 9))
def test_what_is_added_one_way_is_removed_the_other_way(layer: int, seed: int) -> None:
    other = stack()
    reader = node_of(other, f"l{layer}.out")
    other.graph.node.insert(
        list(other.graph.node).index(reader), helper.make_node("Neg", [f"l{layer}.relu"], ["added"])
    )
    reader.input[0] = "added"
    there, back = diffed(stack(), scrambled(other, seed)), diffed(scrambled(other, seed), stack())
    [(_, added)], [(_, removed)] = list(there.node_changes()), list(back.node_changes())
    assert (added.change, removed.change) == (Change.ADDED, Change.REMOVED)
    assert [node.op_type for node in added.right] == [node.op_type for node in removed.left] == ["Neg"]
    assert {right: left for left, right in there.pairs.items()} == back.pairs


@RELAXED
@given(gone=st.sampled_from(LAYERS))
def test_a_layer_that_is_gone_is_all_that_is_gone(gone: int) -> None:
    found = diffed(stack(), stack([number for number in LAYERS if number != gone]))
    removed = {key for key, change in found.left_nodes.items() if change is Change.REMOVED}
    assert removed == {f"l{gone}.{name}" for name in ("mm", "add", "relu", "out")}
    assert not found.right_nodes


@pytest.mark.parametrize("seed", range(4))
def test_without_weights_only_structure_is_compared(save: Save, seed: int) -> None:
    """Large weights have other numbers; nobody reads them, so that nothing differs."""
    one, other = stack(), stack()
    for model, chance in ((one, 0), (other, 1)):
        for tensor in model.graph.initializer:
            if tensor.name.endswith("w"):
                numbers = np.random.default_rng(chance).standard_normal((64, 64), np.float32)
                tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
    paths = save(one), save(scrambled(other, seed))
    found = mx.diff(*paths, weights=False)
    assert found.identical
    assert not found.weights_read
    assert mx.diff(*paths).weights_read


def test_a_file_without_a_record_borrows_the_modules_of_the_other(tmp_path: Path) -> None:
    """The change is told in the module that it is in, though the changed file knows no modules."""
    tagged = saved(layers(3), tmp_path / "tagged.onnx")
    plain = layers(3).proto
    node = next(node for node in plain.graph.node if node.output[0] == "/layers.1/fc/mul")
    node.op_type = "Sub"
    onnx.save(scrambled(plain, notes=False), tmp_path / "plain.onnx")
    found = mx.diff(tagged, tmp_path / "plain.onnx")
    assert (found.left.source, found.right.source) == (Source.RECORD, Source.OTHER)
    [module] = found.modules
    assert (module.left, module.right) == ("layers.1.fc", "layers.1.fc")
    assert any("no record of its own" in note for note in found.notes)


def test_modules_that_were_renamed_are_aligned_by_what_they_do(tmp_path: Path) -> None:
    made = layers(3)
    renamed = {path.replace("layers", "blocks"): name for path, name in made.classes.items()}
    owners = {key: path.replace("layers", "blocks") for key, path in made.owners.items()}
    one = saved(made, tmp_path / "one.onnx")
    other = saved(Made(made.proto, renamed, owners), tmp_path / "other.onnx")
    found = mx.diff(one, other)
    assert found.identical
    assert found.aligned["layers.2.fc"] == "blocks.2.fc"
    assert {(item.left, item.right) for item in found.renamed if item.what == "module"} >= {("layers.0", "blocks.0")}


def test_a_module_can_be_compared_with_its_sibling(tmp_path: Path) -> None:
    """Layers differ in the number that `fc.weight` holds, and in nothing else."""
    path = saved(layers(3), tmp_path / "one.onnx")
    found = mx.diff(path, path, left_module="layers.0", right_module="layers.2")
    [(module, change)] = found.weight_changes()
    assert module.left == "layers.0.fc"
    assert change.largest == 2
    assert not list(found.node_changes())
    assert found.aligned["layers.0.fc"] == "layers.2.fc"
