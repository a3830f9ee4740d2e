"""The measure can fail: every kind of wrong lineage lowers the figures that it should, and no others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure.lineage.hold_out import hide
from measure.lineage.scoring import (
    SHARES,
    Relinked,
    Relinker,
    Score,
    Scorer,
    ToolOutcome,
    ToolResult,
    relink_model,
    sum_scores,
)
from tests.support.building import attribution, node, tree
from tests.support.tool_cases import Case, after_dense, fused_gemm, model, result, square

from modelexport.graph.file.tagged_file import Ancestor
from modelexport.graph.index import index_model
from modelexport.lineage.inherit import inherit_record
from modelexport.record.lineage import Lineage, Link, Relation

# The first dense layer with its activation in one node; the second as it was.
FUSED = after_dense(fused_gemm("x w1 b1", "r1"), node("MatMul", "r1 w2", "h2"), node("Add", "h2 b2", "y"))
GEMM, PRODUCT, SUM = range(3)

TWO = model(
    node("MatMul", "x wq", "q"), node("MatMul", "x wk", "k"), node("Mul", "q k", "y"),
    weights=[square("wq", 1), square("wk", 2)],
)  # fmt: skip
# Nothing tells the two products from each other but what they make.
PAIR = Case(TWO, TWO, tree({"": "Net", "q": "Linear", "k": "Linear"}), {"q": ["q"], "k": ["k"], "y": [""]})


def wrong(links: Mapping[int, Link]) -> Relinker:
    """The relinker, with other links of some nodes, by place: names may be hidden."""

    def relink(ancestor: Ancestor, made: onnx.ModelProto) -> Relinked:
        good = relink_model(ancestor, made)
        nodes = {**good.lineage.nodes, **{good.graph.nodes[place].key: link for place, link in links.items()}}
        lineage = replace(good.lineage, nodes=nodes)
        return replace(good, lineage=lineage, record=inherit_record(ancestor.record, lineage, good.graph, "test"))

    return relink


def credited(place: int, *owners: str) -> Relinker:
    """The relinker, with right links and other modules of one node."""

    def relink(ancestor: Ancestor, made: onnx.ModelProto) -> Relinked:
        good = relink_model(ancestor, made)
        entry = good.record.nodes[good.graph.nodes[place].key]
        other = replace(entry, attribution=attribution(ancestor.record.hierarchy, *owners))
        return replace(good, record=replace(good.record, nodes={**good.record.nodes, entry.key: other}))

    return relink


def by_name(ancestor: Ancestor, made: onnx.ModelProto) -> Relinked:
    """A relinker that knows nothing but names."""
    graph = index_model(made)
    links = {
        key: Link((key,) if key in ancestor.graph.by_key else (), Relation.KEPT) for key in graph.by_key
    }  # fmt: skip
    lineage = Lineage(links, {})
    return Relinked(graph, lineage, inherit_record(ancestor.record, lineage, graph, "names"))


def scored(case: Case, relinker: Relinker = relink_model, share: float = 0.0, *, ran: bool = True) -> Score:
    before, after = case.values
    return Scorer(case.ancestor, case.after, (before, after if ran else {}), lossy=False, relinker=relinker).score(
        share
    )


def changed(case: Case, relinker: Relinker) -> dict[str, int]:
    """What is other than with the right lineage, and by how much."""
    right, found = asdict(scored(case)), asdict(scored(case, relinker))
    return {name: found[name] - right[name] for name in right if found[name] != right[name]}


class TestRight:
    def test_all_is_found(self) -> None:
        everything = Score(
            nodes=3, scored=3, contains=3, told=3, module=3, several=1, judged=3, compared=3
        )  # fmt: skip
        assert scored(FUSED) == everything
        assert scored(PAIR) == replace(everything, several=0)

    @pytest.mark.parametrize("case", [FUSED, PAIR], ids=["fused", "pair"])
    @pytest.mark.parametrize("share", SHARES)
    def test_with_names_hidden_the_hidden_ones_are_scored(self, case: Case, share: float) -> None:
        found = scored(case, share=share)
        made = {one.key for one in case.graph.nodes}
        wanted = len(made & hide(case.after, share).names) if share else len(made)
        assert found.scored == found.contains == found.told == found.module == wanted
        assert found.nodes == 3
        assert not found.empty + found.one_only + found.contradicted

    def test_a_file_that_cannot_be_run_is_scored_without_values(self) -> None:
        assert scored(FUSED, ran=False) == replace(scored(FUSED), compared=0, several=0)


class TestWrong:
    def test_no_source(self) -> None:
        none = wrong({SUM: Link((), Relation.INTRODUCED)})
        assert changed(FUSED, none) == {"empty": 1, "contains": -1, "module": -1, "judged": -1, "compared": -1}

    def test_another_node_of_another_module(self) -> None:
        other = wrong({SUM: Link(("a1",), Relation.KEPT)})
        assert changed(FUSED, other) == {"contains": -1, "module": -1, "too_wide": 1, "contradicted": 1}

    def test_another_node_of_the_same_module(self) -> None:
        other = wrong({SUM: Link(("h2",), Relation.KEPT)})
        assert changed(FUSED, other) == {"contains": -1, "contradicted": 1, "compared": -1}

    def test_more_nodes_than_it_comes_from(self) -> None:
        """Whoever names them all has the true one among them, but not the module."""
        everything = wrong({SUM: Link(("h1", "a1", "r1", "h2", "y"), Relation.FUSED)})
        assert changed(FUSED, everything)["module"] == -1
        assert changed(FUSED, everything)["too_wide"] == 1
        assert "contains" not in changed(FUSED, everything)

    @pytest.mark.parametrize("owner", ["fc1", "act"])
    def test_a_fused_node_is_credited_to_one_of_several_modules(self, owner: str) -> None:
        assert changed(FUSED, credited(GEMM, owner)) == {"module": -1, "one_only": 1}

    def test_a_fused_node_comes_from_one_of_its_nodes(self) -> None:
        one = wrong({GEMM: Link(("r1",), Relation.REWRITTEN)})
        assert changed(FUSED, one) == {"module": -1, "one_only": 1}

    def test_the_module_alone_is_wrong(self) -> None:
        assert changed(FUSED, credited(PRODUCT, "act")) == {"module": -1, "too_wide": 1}
        assert changed(FUSED, credited(PRODUCT, "")) == {"module": -1, "too_wide": 1}
        assert changed(FUSED, credited(PRODUCT))["module"] == -1

    def test_two_tensors_of_one_shape_are_swapped(self) -> None:
        swapped = wrong({0: Link(("k",), Relation.RENAMED), 1: Link(("q",), Relation.RENAMED)})
        assert changed(PAIR, swapped) == {"contains": -2, "module": -2, "too_wide": 2, "contradicted": 2}

    def test_values_alone_see_what_names_cannot(self) -> None:
        """The tool has renamed both: there is no truth from names, and still they are refuted by what they make."""
        after = model(
            node("MatMul", "x wq", "one"), node("MatMul", "x wk", "two"), node("Mul", "one two", "y"),
            weights=TWO.graph.initializer,
        )  # fmt: skip
        case = replace(PAIR, after=after)
        swapped = wrong({0: Link(("k",), Relation.RENAMED), 1: Link(("q",), Relation.RENAMED)})
        assert scored(case).scored == 1
        assert changed(case, swapped) == {"too_wide": 2, "contradicted": 2}

    @pytest.mark.parametrize("share", SHARES)
    def test_every_wrong_node_is_told(self, share: float) -> None:
        before, after = FUSED.values
        none = wrong({PRODUCT: Link((), Relation.INTRODUCED)})
        scorer = Scorer(FUSED.ancestor, FUSED.after, (before, after), lossy=False, relinker=none)
        scorer.score(share)
        assert f"{share:.0%}: MatMul h2: no source" in scorer.wrong
        right = Scorer(FUSED.ancestor, FUSED.after, (before, after), lossy=False)
        right.score(share)
        assert right.wrong == []


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_who_knows_nothing_but_names_finds_nothing_that_is_hidden(share: float) -> None:
    assert scored(PAIR, by_name).contains == 3
    found = scored(PAIR, by_name, share)
    assert found.scored > 0
    assert found.contains == found.module == 0
    assert found.empty == found.scored


def test_literals_are_data_and_no_nodes() -> None:
    bias = node("Constant", "", "b", value=square("_", 5))
    before = model(bias, node("Add", "x b", "y"))
    case = Case(before, before, tree({"": "Net"}), {"b": [""], "y": [""]})
    feed = {"x": np.ones((6, 6), np.float32)}
    found = Scorer(case.ancestor, before, (feed, {}), lossy=False).score(0.0)
    assert found.nodes == 1


def test_one_that_stands_for_its_twins_belongs_to_the_module_around_them() -> None:
    twins = [node("Relu", "x", "left"), node("Relu", "x", "right")]
    before = model(*twins, node("Sum", "left right", "y"))
    after = model(twins[0], node("Sum", "left left", "y"))
    owners = {"left": ["a"], "right": ["b"], "y": [""]}
    case = Case(before, after, tree({"": "Net", "a": "ReLU", "b": "ReLU"}), owners)
    found = scored(case, wrong({0: Link(("left", "right"), Relation.SHARED)}))
    assert found.module == found.told == 2


counts = st.integers(0, 1000)
scores = st.builds(Score, *[counts] * len(fields(Score)))
results = st.builds(
    ToolResult,
    st.text(),
    st.sampled_from(["dynamo", "torchscript"]),
    st.text(),
    st.sampled_from(ToolOutcome),
    st.text(),
    st.dictionaries(st.sampled_from([0.0, 0.5, 0.9]), scores),
    st.booleans(),
    st.tuples(counts, counts),
    st.lists(st.text()).map(tuple),
)


@given(scores, scores)
def test_every_figure_is_added_to_itself(one: Score, other: Score) -> None:
    total = one + other
    for item in fields(Score):
        assert getattr(total, item.name) == getattr(one, item.name) + getattr(other, item.name)
    assert total == other + one
    assert one + Score() == one


@given(results)
def test_a_result_comes_back_from_json(one: ToolResult) -> None:
    assert ToolResult.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_sums_are_of_one_share_and_skip_what_has_no_scores() -> None:
    half = ToolResult("net", "dynamo", "int8", ToolOutcome.OK, scores={0.0: Score(nodes=1), 0.5: Score(nodes=10)})
    failed = ToolResult("net", "dynamo", "int4", ToolOutcome.FAILED, "no")
    assert sum_scores([half, failed, result(nodes=100)], 0.5) == Score(nodes=110)
    assert sum_scores([half, failed], 0.9) == sum_scores([], 0.0) == Score()
