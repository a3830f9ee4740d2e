"""Budgets are held against what steps report; what is unknown is not kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.fleets import step_result, write_fleet

from modelexport.fleet.budgets import check_budgets
from modelexport.fleet.fleet_plan import Row
from modelexport.fleet.manifest import read_plan
from modelexport.record.results.fleet import StepResult, StepStatus

STEPS = '[fleet]\nsteps = ["export", "verify", "int8", "profile"]\n[steps.int8]\nverb = "quantize"\n'


def row_of(folder: Path, budget: str, above: str = "") -> Row:
    text = f'{STEPS}[budget]\n{above}\n[[row]]\nsource = "org/bert"\nname = "bert"\n[row.budget]\n{budget}\n'
    return read_plan(write_fleet(folder, text)).rows[0]


def results(*, status: StepStatus = StepStatus.OK, size: int = 2_000_000) -> dict[str, StepResult]:
    return {
        "export": step_result("export", files={"model.onnx": size, "model.hierarchy.json": 9}, figures={"nodes": 120}),
        "verify": step_result("verify", status),
        "int8": step_result("int8", files={"model.onnx": size // 4}, figures={"nodes": 90}),
        "profile": step_result("profile", figures={"latency": 0.012}),
    }


@pytest.mark.parametrize(
    ("budget", "broken"),
    [
        ('size = "2MB"', ""),
        ('size = "1.9MB"', "size of export is 2.0 MB, and may be 1.9 MB"),
        ("nodes = 119", "nodes of export is 120, and may be 119"),
        ("int8.nodes = 90", ""),
        ('int8.size = "400KB"', "size of int8 is 0.5 MB, and may be 0.4 MB"),
        ('time = "8s"', ""),
        ('time = "7s"', "time of all steps is 8.0 s, and may be 7.0 s"),
        ('int8.time = "1s"', "time of int8 is 2.0 s, and may be 1.0 s"),
        ('latency = "12ms"', ""),
        ('latency = "11ms"', "latency of profile is 12.000 ms, and may be 11.000 ms"),
        ("difference = 1e-4", "difference of export is unknown, and may be 0.0001"),
        ('memory = "1GB"', "memory of all steps is unknown, and may be 1,000.0 MB"),
        ("verified = true", ""),
    ],
)
def test_a_budget_is_kept_or_broken(tmp_path: Path, budget: str, broken: str) -> None:
    assert "; ".join(map(str, check_budgets(row_of(tmp_path, budget), results()))) == broken


@pytest.mark.parametrize(
    ("status", "seen"), [(StepStatus.FOUND, "not verified"), (StepStatus.CRASHED, "unknown"), (StepStatus.OK, "")]
)
def test_verified_is_what_verify_says(tmp_path: Path, status: StepStatus, seen: str) -> None:
    broken = list(check_budgets(row_of(tmp_path, "verified = true"), results(status=status)))
    assert [str(budget) for budget in broken] == (
        [f"verified of verify is {seen}, and may be verified"] if seen else []
    )


def test_not_verified_is_no_budget(tmp_path: Path) -> None:
    assert not list(check_budgets(row_of(tmp_path, "verified = false"), results(status=StepStatus.FOUND)))


def test_budgets_of_a_row_go_over_those_of_all(tmp_path: Path) -> None:
    row = row_of(tmp_path, 'size = "9MB"', 'size = "1MB"\nnodes = 7')
    assert [str(broken) for broken in check_budgets(row, results())] == ["nodes of export is 120, and may be 7"]


@pytest.mark.parametrize(
    ("operators", "broken"),
    [
        ("{ Loop = 0, MatMul = 8 }", ""),
        ("{ MatMul = 7 }", "operators of analyze is MatMul 8, and may be MatMul 7"),
        ('["MatMul", "Add"]', ""),
        ('["Add"]', "operators of analyze is MatMul 8, and may be Add"),
    ],
)
def test_operators_are_counted_or_listed(tmp_path: Path, operators: str, broken: str) -> None:
    row = row_of(tmp_path, f"operators = {operators}")
    counted = StepResult("bert", "analyze", "analyze", StepStatus.OK, operators={"MatMul": 8, "Add": 2})
    assert "; ".join(map(str, check_budgets(row, {**results(), "analyze": counted}))) == broken
    assert "is unknown" in str(next(check_budgets(row, results())))
