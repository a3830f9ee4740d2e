from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.small_file import SmallFile

import modelexport as mx
from modelexport.api import export as api
from modelexport.cli.main import main
from modelexport.errors import ExportFailed, ModelUnloadable
from modelexport.record.results.files import ExportResult
from modelexport.record.signals import OutputCheck

REAL_EXPORT = api.export


class Recorder:
    """Stands in for `modelexport.export`: remembers what it was asked for."""

    def __init__(self, check: OutputCheck | None = None) -> None:
        self.check = check
        self.asked: dict[str, Any] = {}

    def __call__(self, model: str, output: Path, **options: Any) -> ExportResult:
        self.asked = {"model": model, "output": output, **options}
        path = SmallFile().write(output)
        notes = ("random weights",)
        return ExportResult(path, (path,), SmallFile().provenance(), self.check, notes, {"load": 0.5})


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["export", *map(str, arguments)])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder(OutputCheck(True, 1e-7, 1e-6))
    monkeypatch.setattr(api, "export", made)
    return made


def test_every_option_is_a_keyword_of_the_api(recorder: Recorder, tmp_path: Path) -> None:
    output = tmp_path / "a.onnx"
    assert run("-m", "my-bert", "-o", output, "--input", "x=1x3", "--input", "y=2", "--no-check", "--keep", "a*") == 0
    assert (recorder.asked["model"], recorder.asked["output"]) == ("my-bert", output)
    assert recorder.asked["input"] == ("x=1x3", "y=2")
    assert recorder.asked["no_check"] is True
    assert recorder.asked["external_data"] is None
    assert recorder.asked["progress"] is None
    parameters = inspect.signature(REAL_EXPORT).parameters
    assert set(recorder.asked) == set(parameters)
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    unasked = set(parameters) - {"model", "output", "input", "no_check", "keep"}
    assert {name: recorder.asked[name] for name in unasked} == {name: defaults[name] for name in unasked}


def test_the_result_is_shown(recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-m", "x", "-o", tmp_path / "a.onnx", "--verbose") == 0
    text = capsys.readouterr().out
    for part in ("wrote", "6 nodes: exact 6 (100.0 %)", "1.0e-07", "note: random weights", "load 0.5 s"):
        assert part in text


def test_the_result_as_json(recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-m", "x", "-o", tmp_path / "a.onnx", "--format", "json", "--quiet") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["files"] == [str(tmp_path / "a.onnx")]
    assert document["by_confidence"]["exact"] == document["nodes"] == 6
    assert document["check"]["ok"]


def test_quiet(recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-m", "x", "-o", tmp_path / "a.onnx", "-q") == 0
    assert capsys.readouterr() == ("", "")


def test_wrong_outputs_are_exit_code_1(recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder.check = OutputCheck(False, float("nan"), float("inf"), "logits differ by 0.24")
    assert run("-m", "x", "-o", tmp_path / "a.onnx") == 1
    assert "logits differ by 0.24" in capsys.readouterr().out
    assert run("-m", "x", "-o", tmp_path / "a.onnx", "--format", "json") == 1
    assert json.loads(capsys.readouterr().out)["check"]["max_abs_diff"] is None


def test_what_is_nowhere_finite_is_not_called_equal(
    recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder.check = OutputCheck(True, 0.0, 0.0, nothing_finite=("logits",))
    assert run("-m", "x", "-o", tmp_path / "a.onnx") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "not compared: logits is NaN or infinite everywhere, in PyTorch and in the file. Give other inputs" in text
    assert "equal" not in text


def test_something_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelUnloadable, match="the model is 42, an int"):
        mx.export(42, tmp_path / "a.onnx")  # type: ignore[call-overload]


def test_a_failed_export(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ExportFailed("torch cannot export Net", "Try --exporter torchscript.")

    monkeypatch.setattr(api, "export", fail)
    assert run("-m", "x", "-o", tmp_path / "a.onnx") == 2
    assert capsys.readouterr().err == "error: torch cannot export Net\nTry --exporter torchscript.\n"


@pytest.mark.parametrize(
    ("option", "value", "near"),
    [
        ("--strategy", "enhanced-semantic", "enhanced_semantic"),
        ("--exporter", "dynmo", "dynamo"),
        ("--fx-graph", "symbolictrace", "symbolic_trace"),
        ("--fx-graph", "torch.export", "torch_export"),
    ],
)
def test_unknown_names_propose_the_nearest(
    option: str, value: str, near: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("-m", "x", "-o", tmp_path / "a.onnx", option, value) == 2
    assert f"Did you mean '{near}'?" in capsys.readouterr().err


@pytest.mark.slow
class TestGraphTexts:
    """`--jit-graph` and `--fx-graph`, with real exports of a very small net."""

    NET = ("-m", "tests.support.nets:CalledThrice", "--input", "x=2x4:float32")

    @pytest.mark.parametrize("exporter", ["dynamo", "transformers", "torchscript"])
    def test_graphs_are_written_and_listed(
        self, exporter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        output, jit = tmp_path / "net.onnx", tmp_path / "jit.txt"
        options = ("--exporter", exporter, "--no-check", "--jit-graph", jit, "--fx-graph", "both")
        assert run(*self.NET, "-o", output, *options) == 0
        shown = capsys.readouterr().out
        names = ["net.onnx", "net.hierarchy.json", "net.torch_export.txt", "net.symbolic_trace.txt", "jit.txt"]
        assert _files(tmp_path) == sorted(names)
        assert [line.split()[1] for line in shown.splitlines() if line.startswith("wrote ")] == [
            str(tmp_path / name) for name in names
        ]
        assert "aten::linear" in jit.read_text()
        assert "aten.linear" in (tmp_path / "net.torch_export.txt").read_text()
        assert "call_module" in (tmp_path / "net.symbolic_trace.txt").read_text()
        assert all("lin#2" in (tmp_path / f"net.{kind}.txt").read_text() for kind in ("torch_export", "symbolic_trace"))

    def test_only_what_was_asked_for(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        options = ("--no-check", "--fx-graph", "torch_export", "--format", "json")
        assert run(*self.NET, "-o", tmp_path / "net.onnx", *options) == 0
        names = ["net.onnx", "net.hierarchy.json", "net.torch_export.txt"]
        assert json.loads(capsys.readouterr().out)["files"] == [str(tmp_path / name) for name in names]
        assert _files(tmp_path) == sorted(names)

    def test_a_graph_that_cannot_be_written_leaves_nothing(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        jit = tmp_path / "no" / "jit.txt"
        assert run(*self.NET, "-o", tmp_path / "net.onnx", "--exporter", "torchscript", "--jit-graph", jit) == 2
        assert "does not exist" in capsys.readouterr().err
        assert _files(tmp_path) == []

    def test_a_failed_export_leaves_no_graph(self, tmp_path: Path) -> None:
        options = ("--jit-graph", tmp_path / "jit.txt", "--fx-graph", "both")
        assert run("-m", "tests.support.verdicts:by_data", "-o", tmp_path / "net.onnx", *options) == 2
        assert _files(tmp_path) == []

    def test_htp_takes_over_where_fx_cannot_trace(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        options = ("--exporter", "torchscript", "--strategy", "fx_graph", "--fx-graph", "symbolic_trace")
        model = ("-m", "tests.support.verdicts:by_shape", "-o", tmp_path / "net.onnx")
        assert run(*model, *options, "--format", "json") == 0
        document = json.loads(capsys.readouterr().out)
        assert document["strategy"] == "htp"
        (note,) = (note for note in document["notes"] if "fx_graph" in note)
        assert note.startswith("fx_graph cannot trace this model (TraceError: symbolically traced variables")
        assert note.endswith("attributed by htp")
        assert _files(tmp_path) == ["net.hierarchy.json", "net.onnx"]

    def test_the_other_kind_is_used_where_one_cannot_trace(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = ("--exporter", "torchscript", "--strategy", "fx_graph", "--fx-graph", "both", "--no-check")
        model = ("-m", "tests.support.verdicts:by_shape", "-o", tmp_path / "net.onnx")
        assert run(*model, *options, "--format", "json") == 0
        assert json.loads(capsys.readouterr().out)["strategy"] == "fx_graph"
        assert _files(tmp_path) == ["net.hierarchy.json", "net.onnx", "net.torch_export.txt"]


@pytest.mark.slow
class TestAPathThatChangesWithTheData:
    MODEL = ("-m", "tests.support.verdicts:by_data")
    STRATEGIES = ("enhanced_semantic", "htp", "fx_graph", "usage_based", "universal", "all")

    @pytest.mark.parametrize("strategy", ["htp", "all"])
    def test_dynamo_refuses(self, strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(*self.MODEL, "-o", tmp_path / "net.onnx", "--strategy", strategy) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: torch cannot export ValueDependent with the dynamo exporter")
        assert "data-dependent" in error
        assert error.endswith("Try --exporter torchscript.\n")
        assert "Traceback" not in error
        assert _files(tmp_path) == []

    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_torchscript_follows_the_sample_and_says_so(
        self, strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = ("--exporter", "torchscript", "--strategy", strategy, "--format", "json")
        assert run(*self.MODEL, "-o", tmp_path / "net.onnx", *options) == 1
        document = json.loads(capsys.readouterr().out)
        notes = document["notes"]
        assert document["check"]["message"].startswith("the file is right only for inputs like the sample")
        assert any("fx_graph cannot trace this model" in note for note in notes) == (strategy in ("fx_graph", "all"))
        assert document["strategy"] == ("htp" if strategy == "fx_graph" else strategy)
        assert document["by_confidence"]["none"] == 0


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())
