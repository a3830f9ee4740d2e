"""A file of models is a plan, or an error that says where, what was seen and what is known."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fleets import write_fleet, write_model

from modelexport.errors import FileUnreadable, FleetInvalid, UserError
from modelexport.fleet.entries import is_inside
from modelexport.fleet.fleet_plan import Plan, safe_name
from modelexport.fleet.manifest import read_plan


def plan(folder: Path, text: str, *, trust: bool = False) -> Plan:
    return read_plan(write_fleet(folder, text), trust=trust)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(UserError) as caught:
        plan(folder, text)
    return str(caught.value)


ROW = '[[row]]\nsource = "org/bert"\n'


class TestRows:
    def test_a_row_is_named_after_its_model_and_has_the_usual_steps(self, tmp_path: Path) -> None:
        (row,) = plan(tmp_path, ROW).rows
        assert row.source == "org/bert"
        assert row.name.startswith("org-bert-")
        assert [step.name for step in row.steps] == ["export", "verify", "view"]

    def test_each_exporter_is_a_row(self, tmp_path: Path) -> None:
        rows = plan(tmp_path, ROW + 'name = "b"\nexporters = ["dynamo", "torchscript"]').rows
        assert [(row.name, row.exporter) for row in rows] == [("b-dynamo", "dynamo"), ("b-torchscript", "torchscript")]

    def test_a_glob_is_a_row_for_each_folder(self, tmp_path: Path) -> None:
        for name in ("bert", "t5/small"):
            (tmp_path / "models" / name).mkdir(parents=True)
            (tmp_path / "models" / name / "config.json").touch()
        rows = plan(tmp_path, '[[row]]\nglob = "models/**/config.json"\nsteps = ["export"]').rows
        assert [row.source for row in rows] == [str(tmp_path / "models" / name) for name in ("bert", "t5/small")]
        assert rows[0].name == "bert"
        assert "/" not in rows[1].name

    def test_onnx_files_of_a_glob_are_not_exported(self, tmp_path: Path) -> None:
        write_model(tmp_path / "files" / "x.onnx")
        (row,) = plan(tmp_path, '[[row]]\nglob = "files/*.onnx"').rows
        assert (row.name, row.file, row.source) == ("x", str(tmp_path / "files" / "x.onnx"), "")
        assert [step.name for step in row.steps] == ["view"]

    def test_a_table_is_a_row_for_each_line(self, tmp_path: Path) -> None:
        lines = ("name,source,task,exporters,budget.size", "b,org/bert,,dynamo torchscript,5MB", "t,org/t5,fill-mask,,")
        text = "\n".join(lines)
        (tmp_path / "more.csv").write_text(text, encoding="utf-8")
        rows = plan(tmp_path, '[[row]]\ntable = "more.csv"\ntimeout = "10m"\nsteps = ["export"]').rows
        assert [row.name for row in rows] == ["b-dynamo", "b-torchscript", "t"]
        assert [row.steps[0].limits.timeout for row in rows] == [600] * 3
        assert [budget.limit for budget in rows[0].budgets] == [5_000_000]
        assert rows[2].task == "fill-mask"
        assert not rows[2].budgets

    def test_lines_of_json_are_a_table_too(self, tmp_path: Path) -> None:
        (tmp_path / "more.jsonl").write_text('{"source": "org/a", "steps": ["export"]}\n\n{"source": "org/b"}\n')
        assert [row.source for row in plan(tmp_path, '[[row]]\ntable = "more.jsonl"').rows] == ["org/a", "org/b"]

    def test_rows_with_the_same_name_are_refused(self, tmp_path: Path) -> None:
        assert "two rows have the name 'b'" in refusal(tmp_path, (ROW + 'name = "b"\n') * 2)


class TestSteps:
    TEXT = '[steps.int8]\nverb = "quantize"\noptions = { weight_type = "int8" }\n'

    def test_steps_read_the_file_of_the_first_that_makes_one(self, tmp_path: Path) -> None:
        steps = '[fleet]\nsteps = ["export", "int8", "profile", "verify", "view"]\n'
        (row,) = plan(tmp_path, steps + self.TEXT + ROW).rows
        assert {step.name: step.reads for step in row.steps if step.reads} == dict.fromkeys(
            ("int8", "profile", "verify", "view"), "export"
        )
        assert row.step("view").after == ("profile", "verify")  # type: ignore[union-attr]

    def test_from_names_another(self, tmp_path: Path) -> None:
        text = (
            self.TEXT + '[steps.fast]\nverb = "profile"\nfrom = "int8"\n' + ROW + 'steps = ["export", "int8", "fast"]'
        )
        assert [step.reads for step in plan(tmp_path, text).rows[0].steps] == ["", "export", "int8"]

    def test_limits_of_a_row_go_over_those_of_a_step_and_of_all(self, tmp_path: Path) -> None:
        text = '[fleet]\ntimeout = 60\nmemory = "2GB"\n[steps.verify]\ntimeout = "2m"\n' + ROW
        (row,) = plan(tmp_path, text).rows
        assert [(step.limits.timeout, step.limits.memory) for step in row.steps] == [(60, 2e9), (120, 2e9), (60, 2e9)]
        (row,) = plan(tmp_path, text + 'timeout = "1h"').rows
        assert {step.limits.timeout for step in row.steps} == {3600}

    def test_a_budget_of_operators_brings_the_step_that_counts_them(self, tmp_path: Path) -> None:
        (row,) = plan(tmp_path, ROW + 'steps = ["export"]\nbudget = { operators = { Loop = 0 } }').rows
        assert [step.name for step in row.steps] == ["export", "analyze"]


class TestErrors:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (ROW + "timout = 3", "models.toml:3: [[row]] 1: there is no key 'timout'\nDid you mean 'timeout'?"),
            (ROW + 'timeout = "3 parsecs"', "models.toml:3: [[row]] 1: timeout is '3 parsecs', and should be a time"),
            (ROW + "name = 3", "models.toml:3: [[row]] 1: name is 3, and should be text"),
            ('[fleet]\nmemory = "-1GB"\n' + ROW, "models.toml:2: [fleet]: memory is '-1GB', and should be a size"),
            (
                "[fleet]\njobs = 0\n" + ROW,
                "models.toml:2: [fleet]: jobs is 0, and should be a whole number of at least 1",
            ),
            ("[flet]\n" + ROW, "models.toml:1: there is no key 'flet'\nDid you mean 'fleet'?"),
            (ROW + 'steps = ["exprt"]', "there is no step 'exprt'\nDid you mean 'export'?"),
            (ROW + 'steps = ["verify"]', "verify needs the file of 'export', which is no step before it"),
            ('[steps.x]\nverb = "vrify"\n' + ROW, "models.toml:2: [steps.x]: verb is 'vrify'\nDid you mean 'verify'?"),
            (
                ROW + "budget = { siz = 3 }",
                "models.toml:3: [[row]] 1 budget: there is no budget 'siz'\nDid you mean 'size'?",
            ),
            ('[[row]]\nglob = "nothing/*"', "models.toml:2: [[row]] 1: nothing matches 'nothing/*'"),
            ('[[row]]\nname = "x"', "[[row]] 1: it has no model\nGive one of source, file, glob, table."),
            ("", "there are no rows"),
            ("[[row]\n", "Expected ']]'"),
            ("a = " + "[" * 20_000, "nested too deeply"),
            ('[fleet]\noutput = "../elsewhere"\n' + ROW, "outside of the folder of the file"),
            ('[steps.export]\noptions = { output = "/etc/x" }\n' + ROW, "output is set by the fleet"),
            ('[steps.profile]\noptions = { trace = "../x" }\n' + ROW, "the name of a file without folders"),
        ],
    )
    def test_what_is_wrong_is_said_with_its_place(self, tmp_path: Path, text: str, said: str) -> None:
        assert said in refusal(tmp_path, text)

    def test_a_line_of_a_table_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "more.csv").write_text("source,timeout\norg/a,10m\norg/b,soon\n", encoding="utf-8")
        assert "more.csv:3: timeout is 'soon'" in refusal(tmp_path, '[[row]]\ntable = "more.csv"')

    def test_a_file_that_is_none_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(FileUnreadable):
            read_plan(tmp_path / "nothing.toml")
        (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
        with pytest.raises(FileUnreadable, match="UTF-8"):
            read_plan(tmp_path / "bytes.toml")


class TestTrust:
    """A file from a stranger names models and steps; code is run if the user says so."""

    @pytest.mark.parametrize(
        "text",
        [
            '[[row]]\nsource = "os:abort"',
            '[[row]]\nsource = "nets.py:build"',
            ROW + "load = { trust-remote-code = true }",
            ROW + "load = { allow_pickle = true }",
            "[steps.export]\noptions = { trust-remote-code = true }\n" + ROW,
            '[fleet]\nenv = { PYTHONPATH = "." }\n' + ROW,
            ROW + 'env = { LD_PRELOAD = "x.so" }',
            "[cluster]\noptions = { job_script_prologue = ['rm'] }\n" + ROW,
        ],
    )
    def test_what_runs_code_needs_trust(self, tmp_path: Path, text: str) -> None:
        assert "If you trust the file, add --trust." in refusal(tmp_path, text)
        assert plan(tmp_path, text, trust=True).rows

    def test_harmless_variables_do_not(self, tmp_path: Path) -> None:
        assert plan(tmp_path, ROW + "env = { OMP_NUM_THREADS = 2 }").rows[0].environment == {"OMP_NUM_THREADS": "2"}

    def test_a_model_is_never_an_option(self, tmp_path: Path) -> None:
        with pytest.raises(FleetInvalid, match="which is no model"):
            plan(tmp_path, '[[row]]\nsource = "--help"\nname = "x"')


@given(st.text(max_size=200))
def test_names_are_safe_in_paths_and_stay_apart(name: str) -> None:
    safe = safe_name(name)
    assert 0 < len(safe) < 100
    assert not set(safe) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert not safe.startswith((".", "-"))
    assert is_inside(safe)
    assert safe == name or safe_name(safe) == safe


def test_names_of_devices_are_not_used() -> None:
    assert safe_name("con") != "con"
    assert safe_name("../../etc/passwd").startswith("etc-passwd-")
    assert safe_name("a/b") != safe_name("a-b") != safe_name("a?b")
