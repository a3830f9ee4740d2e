"""`modelexport profile`."""

from __future__ import annotations

import csv
import inspect
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.support.command_line import run
from tests.support.spoiled_files import (
    EVIL,
    Captured,
    changed,
    circle,
    contents,
    evil_names,
    from_nowhere,
    metadata,
    of_another_version,
    refused,
    same_value_twice,
    without_record,
)

import modelexport as mx
from modelexport.api import profile as api
from modelexport.api import profile_run
from modelexport.errors import printable
from modelexport.graph.file.metadata import RECORD_KEY
from modelexport.inspect.kernel_events import join_events
from modelexport.record.results.profile import Profile

QUICK = ("--runs", 2, "--warmup", 0)


class Recorder:
    """Stands in for `modelexport.profile`."""

    def __init__(self, answer: Profile) -> None:
        self.asked: dict[str, Any] = {}
        self._answer = answer

    def __call__(self, file: Path, **options: Any) -> Profile:
        self.asked = {"file": file, **options}
        return self._answer


REAL = api.profile


def test_every_option_is_a_keyword_of_the_api(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(mx.profile(folder / "bert.onnx", runs=1, warmup=0))
    monkeypatch.setattr(api, "profile", recorder)
    assert run("profile", folder / "bert.onnx", "-q") == 0
    parameters = inspect.signature(REAL).parameters
    assert set(recorder.asked) == set(parameters)
    defaults = {name: found.default for name, found in parameters.items() if found.default is not found.empty}
    assert {name: recorder.asked[name] for name in defaults} == {**defaults, "providers": []}
    options = ["--before", "b.onnx", "--runs", 3, "--warmup", 1, "--optimization", "basic", "--providers", "CUDA, CPU"]
    options += ["--threads", 2, "--inputs", "a.npz", "--input", "x=1", "--seed", 4]
    assert run("profile", folder / "bert.onnx", *options, "-q") == 0
    asked = recorder.asked
    assert (asked["before"], asked["runs"], asked["warmup"], asked["optimization"]) == (Path("b.onnx"), 3, 1, "basic")
    assert (asked["providers"], asked["threads"], asked["inputs"]) == (["CUDA", "CPU"], 2, Path("a.npz"))
    assert (asked["input"], asked["seed"]) == (("x=1",), 4)


class TestAnswers:
    def test_text(self, folder: Path, capsys: Captured) -> None:
        assert run("profile", folder / "bert.onnx", *QUICK, "--all") == 0  # a short one may take next to no time
        text = capsys.readouterr().out
        assert "2 runs after 0 to warm up · optimization all (nodes are those of the optimized graph) · " in text
        assert re.search(r"^BertModel +[\d.]+ \S+ +100\.0%", text, re.MULTILINE)
        assert re.search(r"^module +time +share +self +± +calls +nodes +op types$", text, re.MULTILINE)
        assert "(fused: dense+intermediate_act_fn" in text
        assert re.search("ONNX Runtime's trace has .* of kernels a run on average, and the parts add up to it", text)
        assert "a run (spread unknown)" in text
        assert "note: 2 of 5 runs that it takes to say how far times are apart: give more --runs" in text
        assert "100.0 % of the time of all kernels belongs to a module" in text

    def test_json(self, folder: Path, capsys: Captured) -> None:
        jsonschema = pytest.importorskip("jsonschema")
        assert run("profile", folder / "bert.onnx", *QUICK, "--format", "json") == 0
        document = json.loads(capsys.readouterr().out)
        schema = Path(mx.__file__).parent / "record" / "schema" / "profile.schema.json"
        jsonschema.validate(document, json.loads(schema.read_text()))
        assert document["time_us"] == pytest.approx(sum(one["self_us"] for one in document["modules"]), rel=1e-3)

    def test_a_sum_that_does_not_hold(self, folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is shown all the same, and the exit code says that something is wrong."""
        monkeypatch.setattr(profile_run, "join_events", lambda *arguments: join_events(*arguments)[1:])
        assert run("profile", folder / "bert.onnx", *QUICK, "--format", "json") == 1
        assert json.loads(capsys.readouterr().out)["sum_check"]["holds"] is False
        assert run("profile", folder / "bert.onnx", *QUICK) == 1
        assert "NOT TO BE RELIED ON" in capsys.readouterr().out

    def test_csv_into_a_file(self, folder: Path, capsys: Captured) -> None:
        report = folder / "report.csv"
        assert run("profile", folder / "bert.onnx", *QUICK, "--format", "csv", "-o", report) == 0
        assert capsys.readouterr().out == ""
        rows = list(csv.DictReader(io.StringIO(report.read_text())))
        assert rows[0]["class"] == "BertModel"
        assert float(rows[0]["share"]) == pytest.approx(1)
        assert "encoder.layer.1.attention.self.query" in {row["module"] for row in rows}

    def test_a_trace_beside_the_table(self, folder: Path, capsys: Captured) -> None:
        trace = folder / "trace.json"
        assert run("profile", folder / "bert.onnx", *QUICK, "--trace", trace) == 0
        assert "BertModel" in capsys.readouterr().out
        events = json.loads(trace.read_text())["traceEvents"]
        bars = [one for one in events if one["ph"] == "X"]
        lanes = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
        assert list(lanes.values())[-1] == "kernels"
        assert {one["args"]["run"] for one in bars} == {0, 1}
        assert {one["name"] for one in bars if one["tid"] == 0} == {"BertModel"}
        assert all(one["dur"] >= 0 <= one["ts"] for one in bars)

    def test_quiet(self, folder: Path, capsys: Captured) -> None:
        assert run("profile", folder / "bert.onnx", *QUICK, "-q", "--trace", folder / "trace.json") == 0
        assert capsys.readouterr() == ("", "")
        assert (folder / "trace.json").exists()
        assert run("profile", folder / "bert.onnx", *QUICK, "-q", "-o", folder / "report") == 0
        assert "BertModel" in (folder / "report").read_text()

    def test_how_deep_and_how_much(self, folder: Path, capsys: Captured) -> None:
        assert run("profile", folder / "bert.onnx", *QUICK, "--depth", 1, "--all") == 0
        names = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "%" in line]
        assert "encoder" in names
        assert "query" not in names

    @pytest.mark.parametrize("optimization", ["all", "extended", "basic", "none"])
    def test_every_optimization(self, folder: Path, capsys: Captured, optimization: str) -> None:
        options = ["--optimization", optimization, "--format", "json"]
        assert run("profile", folder / "bert.onnx", *QUICK, *options) == 0
        assert json.loads(capsys.readouterr().out)["attributed"] == 1

    def test_a_file_without_a_record_and_the_one_before(self, folder: Path, capsys: Captured) -> None:
        bare = changed(folder, without_record)
        assert run("profile", bare, *QUICK, "--before", folder / "bert.onnx") == 0
        assert "BertModel" in capsys.readouterr().out

    @pytest.mark.parametrize("optimization", ["all", "none"])
    def test_nodes_without_names(self, folder: Path, optimization: str) -> None:
        """Who is charged with what runs when does not depend on names."""

        def strip(model: onnx.ModelProto) -> None:
            for node in model.graph.node:
                node.name = ""

        found = []
        for path in (folder / "bert.onnx", changed(folder, strip)):
            options = ["--optimization", optimization, "--trace", folder / "trace.json", "-q"]
            assert run("profile", path, *QUICK, *options) == 0
            events = json.loads((folder / "trace.json").read_text())["traceEvents"]
            kernels = [one for one in events if one["ph"] == "X" and "node" in one["args"]]
            found.append([(one["name"], one["args"]["modules"]) for one in kernels])
        assert found[0] == found[1]


class TestFailures:
    def test_files_and_records(self, folder: Path, capsys: Captured) -> None:
        (folder / "text.onnx").write_text("hello")
        (folder / "cut.onnx").write_bytes((folder / "bert.onnx").read_bytes()[:100_000])
        newer = changed(folder, metadata(RECORD_KEY, of_another_version), "new.onnx")
        for path, message in (
            (folder / "text.onnx", "is not an ONNX model"),
            (folder / "cut.onnx", "truncated or damaged"),
            (folder / "none.onnx", "no such file"),
            (newer, "schema 9"),
            (changed(folder, circle, "circle.onnx"), "ONNX Runtime cannot run"),
            (changed(folder, same_value_twice, "twice.onnx"), "ONNX Runtime cannot run"),
            (changed(folder, from_nowhere, "nowhere.onnx"), "ONNX Runtime cannot run"),
        ):
            arguments = ["profile", path, *QUICK, "-o", folder / "report", "--trace", folder / "trace.json"]
            assert message in refused(folder, capsys, *arguments)

    def test_the_record_of_another_file(self, folder: Path, capsys: Captured) -> None:
        strange = onnx.load(folder / "gpt2.onnx").metadata_props

        def mix_up(model: onnx.ModelProto) -> None:
            del model.metadata_props[:]
            model.metadata_props.extend(strange)

        text = refused(folder, capsys, "profile", changed(folder, mix_up), *QUICK)
        assert "was not made from the record in" in text
        text = refused(folder, capsys, "profile", folder / "bert.onnx", *QUICK, "--before", folder / "gpt2.onnx")
        assert f"was not made from {folder / 'gpt2.onnx'}: " in text
        assert "% of its nodes do the work of a node there" in text
        assert "--before" in text

    def test_what_onnx_runtime_wrote_is_no_model(self, folder: Path, capsys: Captured) -> None:
        (folder / "profile.json").write_text('[{"cat": "Session", "name": "model_run", "ts": 1, "dur": 2}]')
        assert "profile.json is not an ONNX model" in refused(
            folder, capsys, "profile", folder / "profile.json", *QUICK
        )
        text = refused(folder, capsys, "profile", folder / "bert.onnx", *QUICK, "--before", folder / "profile.json")
        assert "profile.json is not an ONNX model" in text

    def test_a_provider_that_is_not_there(self, folder: Path, capsys: Captured) -> None:
        text = refused(folder, capsys, "profile", folder / "bert.onnx", *QUICK, "--providers", "Abacus,CPU")
        assert "this ONNX Runtime has no provider 'Abacus'" in text
        assert "CPUExecutionProvider" in text

    def test_weights_that_are_missing(self, folder: Path, capsys: Captured) -> None:
        inner = folder / "inner"
        inner.mkdir()
        model = onnx.load(folder / "bert.onnx")
        onnx.save(model, inner / "a.onnx", save_as_external_data=True, location="a.data", size_threshold=1024)
        assert run("profile", inner / "a.onnx", *QUICK, "-q") == 0
        whole = (inner / "a.data").stat().st_size
        os.truncate(inner / "a.data", 1000)
        text = refused(folder, capsys, "profile", inner / "a.onnx", *QUICK)
        assert f"its data file {inner / 'a.data'} has 1,000 bytes, and {whole:,} are needed" in text
        (inner / "a.data").unlink()
        text = refused(folder, capsys, "profile", inner / "a.onnx", *QUICK)
        assert f"its data file {inner / 'a.data'} is not there" in text

    def test_inputs_of_another_model(self, folder: Path, capsys: Captured) -> None:
        np.savez(folder / "a.npz", pixel_values=np.ones((1, 3, 8, 8), np.float32))
        (folder / "text.npz").write_text("hello")
        for options, message in (
            (["--inputs", folder / "a.npz"], "'input_ids'"),
            (["--inputs", folder / "none.npz"], "cannot read the arrays"),
            (["--inputs", folder / "text.npz"], "not an npz file"),
            (["--inputs", folder / "a.npz", "--input", "input_ids=1x2"], "either --inputs or --input"),
            (["--input", "nobody=1x8"], "no input 'nobody'"),
            (["--input", "input_ids=1x2x3"], "not as 1x2x3"),
            (["--input", "input_ids"], "cannot read the input"),
            (["--seed", "-1"], "the seed is -1"),
            (["--providers", "Abacus"], "no provider 'Abacus'"),
            (["--runs", "0"], "'--runs'"),
            (["--optimization", "most"], "'most' is not one of"),
        ):
            assert message in refused(folder, capsys, "profile", folder / "bert.onnx", *QUICK, *options)

    def test_onnxruntime_is_missing(self, folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
        text = refused(folder, capsys, "profile", folder / "bert.onnx", *QUICK)
        assert "needs onnxruntime, which is not installed" in text
        assert "pip install 'modelexport[runtime]'" in text


class TestTargets:
    @pytest.mark.parametrize("option", ["-o", "--trace"])
    @pytest.mark.parametrize(
        "target", ["bert.onnx", "bert.hierarchy.json", "gpt2.onnx", "a.npz", "nowhere/report", "."]
    )
    def test_what_was_read_is_never_written_over(
        self, folder: Path, capsys: Captured, option: str, target: str
    ) -> None:
        (folder / "a.npz").write_bytes(b"inputs")
        given = ["--before", folder / "gpt2.onnx", "--inputs", folder / "a.npz"]
        refused(folder, capsys, "profile", folder / "bert.onnx", *QUICK, *given, option, folder / target)

    def test_a_report_and_a_trace_in_one_file(self, folder: Path, capsys: Captured) -> None:
        arguments = ["profile", folder / "bert.onnx", *QUICK, "-o", folder / "a.json", "--trace", folder / "a.json"]
        assert "two files would be written" in refused(folder, capsys, *arguments)

    def test_a_trace_is_not_written_where_the_report_cannot_be(self, folder: Path, capsys: Captured) -> None:
        arguments = ["profile", folder / "bert.onnx", *QUICK, "--trace", folder / "trace.json"]
        refused(folder, capsys, *arguments, "-o", folder / "nowhere" / "report")


def test_evil_names_are_harmless(folder: Path, capsys: Captured) -> None:
    evil = changed(folder, evil_names)
    for form in ("text", "json", "csv"):
        assert run("profile", evil, "--before", folder / "bert.onnx", *QUICK, "--format", form) == 0
        text = capsys.readouterr().out
        assert all(printable(line) == line for line in text.splitlines())
    before = contents(folder)
    assert run("profile", evil, "--before", folder / "bert.onnx", *QUICK, "--input", f"{EVIL}=1") == 2
    assert "\\x1b]0;evil" in capsys.readouterr().err
    assert contents(folder) == before
