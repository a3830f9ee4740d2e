"""How a step ended is told from its code, what it wrote and what it said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelexport.fleet.process import Cause, Ended, Limits
from modelexport.fleet.reports import count_operators, describe_finding, judge_step, read_figures, read_report
from modelexport.record.results.fleet import StepStatus

OUTPUTS = ("model.onnx", "report.json")


def judge(
    folder: Path, code: int, log: str = "", *, cause: Cause = Cause.EXITED, done: bool = False
) -> tuple[str, str]:
    (folder / "log.txt").write_text(log)
    if done:
        (folder / "model.onnx").touch()
        (folder / "report.json").write_text("{}")
    status, reason = judge_step(Ended(cause, code, 1.0), Limits(60, 2 * 10**9), folder, OUTPUTS)
    return status.value, reason


@pytest.mark.parametrize(
    ("code", "log", "done", "status", "reason"),
    [
        (0, "", True, "ok", ""),
        (0, "", False, "crashed", "ended with exit code 0 without model.onnx"),
        (1, "", True, "found", ""),
        (1, "Traceback\nKeyError: 3", False, "crashed", "ended with exit code 1 without model.onnx: KeyError: 3"),
        (2, "note: x\nerror: no such model\nCheck it.", False, "failed", "no such model"),
        (3, "error: unexpected KeyError", False, "failed", "unexpected KeyError"),
        (7, "", False, "crashed", "ended with exit code 7 without model.onnx"),
        (7, "", True, "crashed", "ended with exit code 7"),
        (-11, "", False, "crashed", "killed by SIGSEGV"),
        (2, "error: no space left on device", False, "disk full", "no space left on device"),
        (2, "error: there is not enough memory", False, "out of memory", "there is not enough memory"),
        (2, "error: \x1b[31mred", False, "failed", "\\x1b[31mred"),
    ],
)  # fmt: skip
def test_a_step_that_ended_is_judged(tmp_path: Path, code: int, log: str, done: bool, status: str, reason: str) -> None:
    assert judge(tmp_path, code, log, done=done) == (status, reason)


def test_limits_are_reasons(tmp_path: Path) -> None:
    assert judge(tmp_path, -9, cause=Cause.TIMED_OUT) == ("timed out", "took longer than 60 s")
    assert judge(tmp_path, -9, cause=Cause.OUT_OF_MEMORY) == ("out of memory", "took more than 2 GB")


def test_a_report_that_is_none_is_a_crash(tmp_path: Path) -> None:
    for name in OUTPUTS:
        (tmp_path / name).write_text("half of a rep")
    assert judge(tmp_path, 0)[0] == "crashed"


def test_what_a_model_prints_is_no_part_of_the_report(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('loading {...}\n{"a": 1}\n{\n "nodes": 3\n}\n')
    assert read_report(tmp_path / "report.json") == {"nodes": 3}


def test_figures_of_reports() -> None:
    check = {"ok": True, "max_abs_diff": 1e-6}
    assert read_figures("export", {"nodes": 5, "check": check}) == {"ok": True, "nodes": 5, "difference": 1e-6}
    assert read_figures("quantize", {"lineage": {"nodes": [1, 2]}}) == {"nodes": 2}
    assert read_figures("profile", {"time_us": 1500, "nodes": []}) == {"nodes": 0, "latency": 0.0015}
    package = {"components": {"a": {"nodes": 3}, "b": {"nodes": [1]}}}
    assert read_figures("export", package) == {"nodes": 4}
    assert count_operators({"nodes": [{"op_type": "Add"}, {"op_type": "Add"}]}) == {"Add": 2}


def test_findings_of_verify() -> None:
    differs = {"numbers_agree": False, "divergence": {"modules": ["layer.0", "layer.1"]}}
    assert describe_finding("verify", differs) == "numbers differ, first in layer.0, layer.1"
    contradicted = {"numbers_agree": True, "proof": {"faults": {"contradicted": 2}}}
    assert describe_finding("verify", contradicted) == "attributions: contradicted 2"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["nodes", "check", "proof", "components", "unmet", "divergence", "op_type", "numbers_agree",
                         "modules", "faults", "lineage", "time_us"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(
    st.dictionaries(st.sampled_from(["nodes", "check", "proof", "components", "unmet", "divergence", "lineage"]), JSON)
)
def test_any_report_is_read(report: dict[str, object]) -> None:
    """A model can write there what it likes."""
    for verb in ("export", "verify", "quantize", "profile", "analyze"):
        json.dumps(read_figures(verb, report))
        assert describe_finding(verb, report).isprintable()
    assert isinstance(count_operators(report), dict)


def test_every_status_says_what_can_be_done_with_it() -> None:
    assert [status.value for status in StepStatus if status.has_output] == ["ok", "found"]
    assert [status.value for status in StepStatus if not status.is_lasting] == ["disk full", "lost", "skipped"]
