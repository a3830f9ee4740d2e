"""The recipe of a folded file: written and read back it is the same, and a damaged one is never believed."""

from __future__ import annotations

from dataclasses import replace

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from tests.support.building import provenance, tree
from tests.support.foldable_graphs import Made, layers, random_graphs

from modelexport.errors import RecordUnreadable, UserError
from modelexport.graph.file.metadata import FOLDED_DOMAIN, FOLDED_KEY
from modelexport.transform.fold import recipe as module
from modelexport.transform.fold.fold import FoldedModel, fold_model, restore_model
from modelexport.transform.fold.recipe import (
    ABSENT,
    FlatteningRecipe,
    HiddenType,
    NodeLabels,
    apply_recipe,
    digest_graph,
    digest_io,
    read_recipe,
    unfold_nodes,
    write_recipe,
)

NUMBERS = st.integers(-1, 50)


def folded(made: Made) -> FoldedModel:
    record = provenance(made.proto, tree(dict(made.classes)), {key: [owner] for key, owner in made.owners.items()})
    return fold_model(made.proto, record, [], "it")


def recipe_of(made: FoldedModel) -> FlatteningRecipe:
    assert made.recipe is not None
    return made.recipe


@st.composite
def recipes(draw: st.DrawFn) -> FlatteningRecipe:
    labels = st.builds(
        NodeLabels, NUMBERS, NUMBERS, NUMBERS, st.lists(st.tuples(NUMBERS, NUMBERS), max_size=3).map(tuple)
    )
    return FlatteningRecipe(
        graph=draw(st.text(max_size=5)),
        flat="f",
        ends="e",
        header=draw(st.binary(max_size=20)),
        record=draw(st.text(max_size=5)),
        texts=tuple(draw(st.lists(st.text(max_size=8), max_size=5))),
        values=tuple(draw(st.lists(NUMBERS, max_size=8))),
        nodes=tuple(draw(st.lists(labels, max_size=6))),
        order=tuple(draw(st.lists(NUMBERS, max_size=8))),
        explicit=draw(st.dictionaries(st.integers(0, 9), st.binary(max_size=9), max_size=3)),
        types=tuple(draw(st.lists(st.builds(HiddenType, NUMBERS, NUMBERS, NUMBERS), max_size=4))),
        rests=tuple(draw(st.lists(st.binary(max_size=9), max_size=3))),
    )


@given(recipe=recipes())
def test_what_is_written_is_read_back(recipe: FlatteningRecipe) -> None:
    model = onnx.ModelProto()
    write_recipe(model, recipe)
    assert read_recipe(model) == recipe


def test_a_later_recipe_takes_the_place_of_an_earlier_one() -> None:
    model = onnx.ModelProto()
    model.metadata_props.add(key="other", value="stays")
    for graph in ("first", "second"):
        write_recipe(model, FlatteningRecipe(graph, "", "", b""))
    assert [entry.key for entry in model.metadata_props] == ["other", FOLDED_KEY]
    found = read_recipe(model)
    assert found is not None
    assert found.graph == "second"


def test_a_model_without_a_recipe_has_none() -> None:
    assert read_recipe(onnx.ModelProto()) is None
    assert restore_model(layers(1).proto).model is None


def test_more_than_a_file_can_carry_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGEST", 10)
    with pytest.raises(UserError, match="what is written on the nodes"):
        write_recipe(onnx.ModelProto(), FlatteningRecipe("", "", "", b""))


@pytest.mark.parametrize(
    "payload", ["", "modelexport-folded-1:", "modelexport-folded-1:????", "modelexport-folded-9:abc", "text"]
)
def test_a_recipe_that_cannot_be_read_is_told(payload: str) -> None:
    model = onnx.ModelProto()
    model.metadata_props.add(key=FOLDED_KEY, value=payload)
    with pytest.raises(RecordUnreadable):
        read_recipe(model)


@settings(max_examples=20, deadline=None)
@given(made=random_graphs())
def test_a_folded_graph_gives_the_flat_one(made: Made) -> None:
    """Every node byte for byte, in the order of the file, names, doc strings and metadata included."""
    before = made.proto.SerializeToString(deterministic=True)
    found = folded(made)
    assert made.proto.SerializeToString(deterministic=True) == before
    if found.recipe is None:
        assert not found.folding.functions
        return
    flat = apply_recipe(found.model, found.recipe)
    assert flat.SerializeToString(deterministic=True) == before


def test_only_what_functions_cannot_say_is_in_the_recipe() -> None:
    recipe = recipe_of(folded(layers(4)))
    assert not recipe.explicit
    assert len(recipe.nodes) == 4 * 5
    assert recipe.order == ()
    assert all(label.name != ABSENT for label in recipe.nodes)
    written = onnx.ModelProto()
    write_recipe(written, recipe)
    assert written.ByteSize() < sum(len(node.SerializeToString()) for node in layers(4).proto.graph.node)


def with_recipe(found: FoldedModel, recipe: FlatteningRecipe) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(found.model)
    write_recipe(model, recipe)
    return model


def test_a_model_that_was_not_changed_is_restored() -> None:
    found = folded(layers(3))
    restored = restore_model(with_recipe(found, recipe_of(found)))
    assert restored.model is not None
    assert digest_graph(restored.model.graph) == digest_graph(layers(3).proto.graph)


@pytest.mark.parametrize("field", ["texts", "values", "nodes"])
def test_a_recipe_that_lacks_something_is_not_believed(field: str) -> None:
    found = folded(layers(3))
    recipe = replace(recipe_of(found), **{field: getattr(recipe_of(found), field)[:-1]})
    restored = restore_model(with_recipe(found, recipe))
    assert restored.model is None
    assert restored.note


def test_names_that_were_exchanged_are_another_graph() -> None:
    found = folded(layers(3))
    texts = list(recipe_of(found).texts)
    texts[0], texts[1] = texts[1], texts[0]
    restored = restore_model(with_recipe(found, replace(recipe_of(found), texts=tuple(texts))))
    assert restored.model is None
    assert restored.note == "the graph was changed after it was folded"


def test_an_order_in_which_two_nodes_have_one_place_is_refused() -> None:
    found = folded(layers(2))
    count = len(layers(2).proto.graph.node)
    with pytest.raises(ValueError, match="one place"):
        unfold_nodes(found.model, replace(recipe_of(found), order=(0,) * count))


def test_a_function_that_calls_itself_does_not_unfold_for_ever() -> None:
    found = folded(layers(2))
    function = next(one for one in found.model.functions if one.name == "Linear")
    del function.node[1:]
    function.node[0].op_type, function.node[0].domain = "Linear", FOLDED_DOMAIN
    function.node[0].output[:] = function.output
    with pytest.raises(ValueError, match="calls itself"):
        unfold_nodes(found.model, recipe_of(found))


def test_digests_tell_graphs_apart_and_not_their_shapes() -> None:
    one, other = layers(2).proto.graph, layers(2).proto.graph
    assert digest_graph(one) == digest_graph(other)
    other.input[0].type.tensor_type.shape.dim[0].dim_value = 7
    assert digest_graph(one) == digest_graph(other)
    assert digest_io(one) != digest_io(other)
    other.node[0].name = "renamed"
    assert digest_graph(one) != digest_graph(other)


def test_what_others_wrote_on_the_model_stays_and_ours_is_that_of_the_flat_one() -> None:
    made = layers(2)
    made.proto.metadata_props.add(key="author", value="before")
    found = folded(made)
    entry = next(entry for entry in found.model.metadata_props if entry.key == "author")
    entry.value = "after"
    found.model.metadata_props.add(key="added", value="since")
    flat = apply_recipe(found.model, recipe_of(found))
    assert {entry.key: entry.value for entry in flat.metadata_props} == {"author": "after", "added": "since"}


def test_functions_of_others_stay() -> None:
    made = layers(2)
    body = [helper.make_node("Exp", ["a"], ["b"])]
    made.proto.functions.append(helper.make_function("other", "F", ["a"], ["b"], body, [helper.make_opsetid("", 20)]))
    flat = apply_recipe(folded(made).model, recipe_of(folded(made)))
    assert [one.domain for one in flat.functions] == ["other"]
