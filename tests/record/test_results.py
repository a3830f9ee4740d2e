"""What results say about themselves: when all is well, what counts, and what is charged to whom."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.building import model, node, provenance, tree

from modelexport.record.hierarchy import ModuleCall
from modelexport.record.lineage import Consistency, Lineage, NodeOverlap
from modelexport.record.polynomial import Polynomial
from modelexport.record.results.cost import Amounts, Cost, Kind, ModuleCost, NodeCost
from modelexport.record.results.diff import (
    Amount,
    Change,
    Diff,
    ModuleChange,
    NodeChange,
    NodeRef,
    Side,
    Source,
    WeightChange,
    WeightForm,
    WeightRef,
)
from modelexport.record.results.files import (
    ALONE,
    INTERLEAVED,
    RETURNED,
    SMALL,
    ExtractionCheck,
    Folding,
    OutputComparison,
    QuantizeResult,
    RelinkResult,
    Unfolded,
)
from modelexport.record.results.profile import KernelEvent, NodeTime, SumCheck
from modelexport.record.results.verification import Difference

RECORD = provenance(model(node("Relu", "x", "y")), tree({"": "Net"}), {"y": [""]})


def output(against: str, agrees: bool = True, max_abs: float = 0.0) -> OutputComparison:
    return OutputComparison("y", against, Difference(max_abs, 0.0, 99.0, 1.0, 0, agrees))


def checked(*outputs: OutputComparison, lost: int = 0, whole: bool = True) -> ExtractionCheck:
    return ExtractionCheck("torch", 1e-4, {}, outputs, lost=lost, whole=whole)


def test_an_extraction_is_well_if_something_that_was_returned_agrees() -> None:
    assert checked(output(RETURNED)).ok
    assert checked(output(RETURNED), output("file")).ok
    assert not checked(output(RETURNED), output("file", agrees=False)).ok
    assert not checked(output("file")).ok  # compared with the file alone, it proves nothing about the module
    assert checked(output("file"), whole=False).ok  # what nodes make may be nowhere else
    assert not checked().ok
    assert not checked(output(RETURNED), lost=1).ok


def test_the_worst_output_counts() -> None:
    assert checked(output(RETURNED, max_abs=0.1), output(RETURNED, max_abs=0.3)).max_abs == 0.3
    assert checked().max_abs == 0.0


def relinked(related: bool = True, differing: tuple[str, ...] = (), path: Path | None = None) -> RelinkResult:
    return RelinkResult(path, (), "before.onnx", RECORD, Lineage({}, {}), related, differing)


def test_a_relinked_file_is_well_if_it_comes_from_there_with_the_same_weights() -> None:
    assert relinked().ok
    assert not relinked(related=False).ok
    assert not relinked(differing=("w",)).ok
    quantized = QuantizeResult(relinked(differing=("w",), path=Path("q.onnx")), ())
    assert (quantized.ok, quantized.path) == (False, Path("q.onnx"))


def test_how_much_is_left_of_a_folded_file() -> None:
    assert Folding(10, 4).share == 0.4
    assert Folding(0, 0).share == 1.0  # an empty file is as it was
    assert [Unfolded("Block", 1, reason).is_usual for reason in (ALONE, SMALL, INTERLEAVED)] == [True, True, False]


@given(*[st.integers(0, 5)] * 4)
def test_every_node_before_is_covered_or_has_a_reason(
    covered: int, folded: int, removed: int, unexplained: int
) -> None:
    def keys(count: int) -> tuple[str, ...]:
        return tuple(map(str, range(count)))

    found = Consistency(covered + folded + removed + unexplained, keys(folded), keys(removed), keys(unexplained))
    assert found.covered == covered


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_degree_of_an_overlap_lies_between_both_shares(after: float, before: float) -> None:
    degree = NodeOverlap(after, before).degree
    assert min(after, before) - 1e-9 <= degree <= max(after, before) + 1e-9
    assert NodeOverlap(0.25, 1.0).degree == 0.5


def test_an_overlap_says_both_shares() -> None:
    assert "25.0 % of its nodes" in str(NodeOverlap(0.25, 0.5))
    assert "50.0 %" in str(NodeOverlap(0.25, 0.5))


SIDE = Side("a.onnx", 1, 1, Source.RECORD)
ADDED_NODE = NodeChange(Change.ADDED, (), (NodeRef("k", "n", "Relu"),))


def changed(
    *changes: NodeChange, classes: tuple[str, str] = ("A", "A"), weights: tuple[WeightChange, ...] = ()
) -> ModuleChange:
    return ModuleChange(Change.CHANGED, "m", "m", classes, Amount(1, 1), changes=changes, weights=weights)


def test_files_without_a_change_are_identical_whatever_is_renamed() -> None:
    assert Diff(SIDE, SIDE, alike=0.5).identical
    assert not Diff(SIDE, SIDE, modules=(changed(ADDED_NODE),)).identical


def test_a_module_counts_by_what_changed_in_it() -> None:
    weight = WeightChange(WeightForm.VALUES, WeightRef("w", "float", (2,)), None)
    found = Diff(
        SIDE,
        SIDE,
        modules=(
            changed(ADDED_NODE, ADDED_NODE, weights=(weight,)),
            changed(classes=("A", "B")),
            changed(classes=("A", "")),  # a class that is not known is no other class
            ModuleChange(Change.ADDED, None, "new"),
        ),
    )
    assert found.counts == {"modules changed": 1, "modules added": 1, "nodes added": 2, "weights": 1}
    assert [module.path for module, _ in found.weight_changes()] == ["m"]
    assert found.modules[-1].path == "new"
    assert ModuleChange(Change.REMOVED, "", None).path == ""


def test_the_own_time_of_a_kernel_is_never_negative() -> None:
    assert KernelEvent(("k",), 0, 0.0, 5.0, inside=2.0).own == 3.0
    assert KernelEvent(("k",), 0, 0.0, 5.0, inside=5.5).own == 0.0  # clocks of nested events differ a little


def test_modules_share_a_node_if_there_are_several() -> None:
    def timed(*owners: str) -> NodeTime:
        return NodeTime("k", "n", "Add", tuple(map(ModuleCall.parse, owners)), "m", 1.0, 1, "CPU", ("k2",))

    assert timed("a", "a#1").sharers == ()
    assert timed("a", "b", "a#1").sharers == ("a", "b")
    assert timed("a").keys == ("k", "k2")


@pytest.mark.parametrize(
    ("trace", "charged", "holds"), [(1e6, 1e6 + 0.5, True), (1e6, 1e6 + 5, False), (0, 1e-4, True)]
)
def test_sums_hold_up_to_rounding(trace: float, charged: float, holds: bool) -> None:
    assert SumCheck(trace, charged).holds is holds


def test_a_cost_finds_what_it_is_of_and_what_it_does_not_know() -> None:
    def cost(key: str, flops: Polynomial | None) -> NodeCost:
        zero = Polynomial()
        return NodeCost(key, key, "Add", Kind.ELEMENTWISE, (), None, flops, zero, 0, 0, zero)

    nodes = (cost("a", Polynomial.of(3)), cost("b", None), cost("c", Polynomial()))
    outside = ModuleCost(None, "", 0, Amounts(), Amounts())
    found = Cost("a.onnx", (), {}, nodes, (ModuleCost("m", "M", 1, Amounts(), Amounts()), outside), Amounts())
    assert [node.key for node in found.unknown] == ["b"]  # none at all is known to be none
    assert found.by_key["a"].flops == 3
    assert found.by_path[None] is outside
