"""The page shows what the results say, and a target that is missed is not said to hold."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from measure.lineage.chains import CHAINS
from measure.lineage.lineage_page import compose_lineage, targets
from measure.lineage.scoring import Score, ToolOutcome, ToolResult
from tests.support.tool_cases import result

PERFECT = Score(
    nodes=1000, scored=1000, contains=1000, told=1000, module=1000, several=10, judged=900, compared=500
)  # fmt: skip
GOOD = replace(result("ort:all"), scores=dict.fromkeys((0.0, 0.5, 0.9), PERFECT))
WHAT = (
    "nodes with a source, all relinkings",
    "50 % hidden: the true node is among the sources",
    "50 % hidden: the module is exact",
    "90 % hidden: the true node is among the sources",
    "90 % hidden: the module is exact",
    "90 % hidden: the module, weakest tool (ort:all)",
    "relinked tensors contradicted by value",
    "nodes credited too widely at `strong` or more",
    "fused nodes credited to only one of several modules",
)


def with_figure(share: float, **figures: int) -> ToolResult:
    return replace(GOOD, scores={**GOOD.scores, share: replace(PERFECT, **figures)})


def missed(*results: ToolResult) -> list[str]:
    return [target.what for target in targets(results) if not target.holds]


def rows(text: str, title: str) -> list[list[str]]:
    """The cells of a table, without its head. A `|` of a message is written with a backslash before it."""
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    found = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert {len(line) for line in found} == {len(found[0])}
    return found[2:]


class TestTargets:
    def test_all_hold(self) -> None:
        assert tuple(target.what for target in targets([GOOD])) == WHAT
        assert missed(GOOD) == []

    @pytest.mark.parametrize(
        ("share", "figures", "what"),
        [
            (0.0, {"empty": 2}, WHAT[:1]),
            (0.5, {"empty": 2}, WHAT[:1]),
            (0.9, {"empty": 2}, WHAT[:1]),
            (0.5, {"contains": 996}, WHAT[1:2]),
            (0.5, {"module": 992}, WHAT[2:3]),
            (0.9, {"contains": 984}, WHAT[3:4]),
            (0.9, {"module": 989}, WHAT[5:6]),
            (0.9, {"module": 984}, WHAT[4:6]),
            (0.0, {"contradicted": 1}, WHAT[6:7]),
            (0.5, {"contradicted": 1}, WHAT[6:7]),
            (0.9, {"contradicted": 1}, WHAT[6:7]),
            (0.0, {"too_wide": 1}, WHAT[7:8]),
            (0.5, {"too_wide": 1}, WHAT[7:8]),
            (0.9, {"too_wide": 1}, WHAT[7:8]),
            (0.0, {"one_only": 1}, WHAT[8:]),
            (0.5, {"one_only": 1}, WHAT[8:]),
            (0.9, {"one_only": 1}, WHAT[8:]),
        ],
    )
    def test_one_that_is_missed(self, share: float, figures: dict[str, int], what: tuple[str, ...]) -> None:
        assert missed(with_figure(share, **figures)) == list(what)

    @pytest.mark.parametrize(
        ("share", "figures"),
        [
            (0.0, {"empty": 1}),
            (0.5, {"contains": 997}),
            (0.5, {"module": 993}),
            (0.9, {"contains": 985}),
            (0.9, {"module": 990}),
        ],
    )
    def test_one_that_is_just_met(self, share: float, figures: dict[str, int]) -> None:
        assert missed(with_figure(share, **figures)) == []

    def test_a_weak_tool_does_not_hide_behind_many_good_ones(self) -> None:
        weak = replace(with_figure(0.9, told=100, module=90), chain="int4")
        assert missed(*[GOOD] * 9, weak) == ["90 % hidden: the module, weakest tool (int4)"]

    def test_tools_are_weak_over_all_models(self) -> None:
        weak = replace(with_figure(0.9, told=100, module=95), chain="int4")
        assert missed(*[GOOD] * 9, weak, replace(GOOD, chain="int4", row="other")) == []


class TestPage:
    def test_what_holds_and_what_does_not(self) -> None:
        found = rows(compose_lineage([with_figure(0.5, module=992)]), "Together")
        assert [line[-1] for line in found] == ["yes", "yes", "no", "yes", "yes", "yes", "yes", "yes", "yes"]
        assert found[2] == ["50 % hidden: the module is exact", "99.2 % of 1,000", "at least 99.3%", "no"]

    def test_the_head_counts_what_was_relinked(self) -> None:
        failed = ToolResult("third", "dynamo", "int8", ToolOutcome.FAILED, "no")
        text = compose_lineage([GOOD, replace(GOOD, exporter="torchscript"), replace(GOOD, row="other"), failed])
        assert "2 models, most of them of the corpus" in text
        assert "3 files with 3,000 nodes" in text

    def test_tools_stand_in_the_order_of_the_plan_with_the_worst_of_three_relinkings(self) -> None:
        one = replace(
            with_figure(0.5, empty=3, one_only=1, too_wide=4, contradicted=2), planted=True, alone=(999, 1000)
        )
        found = rows(compose_lineage([replace(GOOD, chain=CHAINS[5]), replace(one, chain=CHAINS[1])]), "Tools")
        assert [line[0] for line in found] == [f"`{CHAINS[1]}`", f"`{CHAINS[5]}`"]
        shares = ["100.0", "100.0", "100.0", "100.0"]
        assert found[0][1:] == ["1", "1,000", "3", *shares, "1", "4", "500", "2", "1", "99.9"]
        assert found[1][1:] == ["1", "1,000", "0", *shares, "0", "0", "500", "0", "0", ""]

    def test_models_go_over_all_tools(self) -> None:
        others = [replace(GOOD, chain="int8"), replace(GOOD, row="other", exporter="torchscript")]
        found = rows(compose_lineage([GOOD, *others]), "Models")
        assert [line[:4] for line in found] == [["net", "dynamo", "2", "2,000"], ["other", "torchscript", "1", "1,000"]]

    def test_exceptions_are_grouped_by_what_was_said(self) -> None:
        def odd(row: str, outcome: ToolOutcome, message: str, chain: str = "int8") -> ToolResult:
            return ToolResult(row, "dynamo", chain, outcome, message)

        results = [
            GOOD,
            odd("a", ToolOutcome.FAILED, "no such operator"),
            odd("b", ToolOutcome.FAILED, "no such operator"),
            odd("b", ToolOutcome.FAILED, "another reason", "qdq"),
            odd("c", ToolOutcome.CHANGED, "y differs by 1"),
            odd("d", ToolOutcome.CHANGED, "y differs by 2"),
            odd("e", ToolOutcome.REFUSED, "torch says no", "int8"),
            odd("e", ToolOutcome.REFUSED, "torch says no", "qdq"),
        ]
        assert rows(compose_lineage(results), "Tools that fail or break a model") == [
            ["(export)", "refused", "torch says no", "e (dynamo)"],
            ["`int8`", "changed", "", "c (dynamo), d (dynamo)"],
            ["`int8`", "failed", "no such operator", "a (dynamo), b (dynamo)"],
            ["`qdq`", "failed", "another reason", "b (dynamo)"],
        ]

    @pytest.mark.parametrize("message", ["a | b || c", "<class 'int'> | <b>", "two\nlines | here"])
    def test_messages_do_not_break_the_table(self, message: str) -> None:
        text = compose_lineage([GOOD, ToolResult("a", "dynamo", "int8", ToolOutcome.FAILED, message)])
        ((tool, outcome, written, models),) = rows(text, "Tools that fail or break a model")
        assert (tool, outcome, models) == ("`int8`", "failed", "a (dynamo)")
        assert "<" not in written
        assert written.replace("\\|", "|").replace("&lt;", "<") == " ".join(message.splitlines())
