"""Relatedness: what counts as one model, and that asking it takes time in proportion to the models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.building import model, node
from tests.support.small_file import small_hierarchy

from modelexport.errors import RecordMismatch
from modelexport.graph.index import Graph, index_model
from modelexport.graph.related import (
    ModuleOverlap,
    ValueOverlap,
    are_comparable,
    are_scopes_refuted,
    ensure_same_model,
    have_same_names,
    is_made_from,
    knows_most_nodes,
    module_overlap,
    node_overlap,
    value_overlap,
)
from modelexport.record.hierarchy import Hierarchy, Module, TensorInfo
from modelexport.record.lineage import Lineage, NodeOverlap


class _CountedPath(str):
    """A path that counts how often it is looked up."""

    __slots__ = ()
    lookups = 0

    def __hash__(self) -> int:
        type(self).lookups += 1
        return super().__hash__()


def _tree(size: int, side: int = 4) -> Hierarchy:
    weight = TensorInfo("weight", (side, side), "float32", 4 * side * side)
    return Hierarchy.of(
        Module(_CountedPath(f"layers.{place}"), "Linear", "torch.nn", (weight,)) for place in range(size)
    )


def _chain(*operators: str) -> Graph:
    values = ["x", *(f"v{place}" for place in range(len(operators)))]
    made = [node(operator, values[place], values[place + 1]) for place, operator in enumerate(operators)]
    return index_model(model(*made, outputs=values[-1]))


class TestModuleOverlap:
    def test_a_tree_is_its_own(self) -> None:
        overlap = module_overlap(small_hierarchy(), small_hierarchy())
        assert overlap.related
        assert (overlap.shared, overlap.unlike, overlap.notes) == (overlap.modules, (), ())

    def test_modules_of_other_sizes_are_others(self) -> None:
        overlap = module_overlap(_tree(5), _tree(5, side=8))
        assert overlap.shared == 0
        assert not overlap.related
        assert "layers.0" in str(overlap)

    def test_modules_that_only_the_other_has_are_named_and_not_counted(self) -> None:
        overlap = module_overlap(_tree(3), _tree(5))
        assert overlap == ModuleOverlap(3, 3, ("layers.3", "layers.4"))

    def test_half_of_the_modules_is_enough(self) -> None:
        assert module_overlap(_tree(4), _tree(2)).related
        assert not module_overlap(_tree(5), _tree(2)).related

    def test_work_grows_with_the_trees_and_no_faster(self) -> None:
        def count_lookups(size: int) -> int:
            tree, other = _tree(size), _tree(size, side=8)  # all unlike: the case that was quadratic
            _CountedPath.lookups = 0
            module_overlap(tree, other)
            return _CountedPath.lookups

        assert count_lookups(800) <= 2 * count_lookups(400) + 10


class TestValueOverlap:
    def test_counts_weights_and_computed_values_apart(self) -> None:
        graph = _chain("Relu", "Neg", "Exp")
        assert value_overlap(graph, ["v0", "v1", "v2", "x"], {"v1", "x"}) == ValueOverlap(0, 0, 3, 1)

    @pytest.mark.parametrize(
        ("overlap", "belongs"),
        [
            (ValueOverlap(10, 3, 0, 0), True),
            (ValueOverlap(10, 2, 0, 0), False),
            (ValueOverlap(10, 0, 10, 3), True),  # quantized: no weight is left, and values are
            (ValueOverlap(10, 0, 10, 2), False),
            (ValueOverlap(0, 0, 0, 0), True),  # nothing distinctive: it cannot be told from another
        ],
    )
    def test_a_fifth_is_not_enough_and_more_is(self, overlap: ValueOverlap, belongs: bool) -> None:
        assert overlap.belongs is belongs


class TestNodeOverlap:
    def test_shares_of_both_graphs(self) -> None:
        before, after = _chain("Relu", "Neg", "Exp", "Abs"), _chain("Relu", "Neg")
        sources = {here.key: there for here, there in zip(after.nodes, before.nodes, strict=False)}
        assert node_overlap(before.nodes, after.nodes, sources) == NodeOverlap(1.0, 0.5)

    def test_of_no_nodes_all_are_known(self) -> None:
        assert node_overlap((), (), {}) == NodeOverlap(1.0, 1.0)


class TestIsMadeFrom:
    @pytest.mark.parametrize(("degree", "weights", "made"), [(0.56, 0, True), (0.5, 0.3, True), (0.5, 0.29, False)])
    def test_by_nodes_or_by_weights(self, degree: float, weights: float, made: bool) -> None:
        lineage = replace(Lineage({}, {}), overlap=NodeOverlap(degree, degree))
        assert is_made_from(_chain("Exp"), _chain("Abs"), lineage, weights) is made

    def test_a_part_is_known_by_names_and_inputs(self) -> None:
        lineage = replace(Lineage({}, {}), overlap=NodeOverlap(0, 0))
        whole = _chain("Relu", "Neg", "Exp", "Abs")
        assert is_made_from(_chain("Relu", "Neg"), whole, lineage, 0)
        assert not is_made_from(_chain("Relu", "Exp"), whole, lineage, 0)
        assert not is_made_from(_chain(), whole, lineage, 0)


def test_graphs_are_compared_that_share_nodes_or_weights() -> None:
    assert are_comparable(0.35, 0)
    assert are_comparable(0, 0.1)
    assert not are_comparable(0.34, 0.09)


def test_graphs_name_values_alike_if_half_of_the_larger_one_does() -> None:
    assert have_same_names(_chain("Relu", "Neg"), _chain("Exp", "Exp", "Exp", "Exp"))
    assert not have_same_names(_chain("Relu", "Neg"), _chain("Exp", "Exp", "Exp", "Exp", "Exp"))


class TestEnsureSameModel:
    def test_every_module_must_be_there_with_its_class(self) -> None:
        tree = small_hierarchy()
        classes = {path: module.class_name for path, module in tree.modules.items()}
        ensure_same_model(tree, classes, Path("profile.json"))
        with pytest.raises(RecordMismatch, match="which is not there in this one"):
            ensure_same_model(tree, {**classes, "head": "Linear"}, Path("profile.json"))
        with pytest.raises(RecordMismatch, match="of the class"):
            ensure_same_model(tree, {**classes, "emb": "Linear"}, Path("profile.json"))

    def test_a_document_without_modules_says_nothing(self) -> None:
        with pytest.raises(RecordMismatch, match="names no module"):
            ensure_same_model(small_hierarchy(), {}, Path("profile.json"))


@pytest.mark.parametrize(
    ("known", "believed"), [((), False), (("a",), False), (("a", "b"), True), (("a", "b", "c"), True)]
)
def test_half_of_the_nodes_must_be_known(known: tuple[str, ...], believed: bool) -> None:
    graph = _chain("Relu", "Neg", "Exp", "Abs")
    assert knows_most_nodes(dict.fromkeys(known, "encoder"), graph) is believed


@pytest.mark.parametrize(("contradictions", "compared", "refuted"), [(0, 0, False), (2, 10, False), (3, 10, True)])
def test_more_than_a_fifth_of_contradicted_scopes_are_those_of_another_graph(
    contradictions: int, compared: int, refuted: bool
) -> None:
    assert are_scopes_refuted(contradictions, compared) is refuted
