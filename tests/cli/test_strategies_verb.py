from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from tests.support.command_line import run
from tests.support.foreign_files import PlainExports
from tests.support.small_file import SmallFile, credited

from modelexport.api import attach as api
from modelexport.attribute.judge import AttributionInput, StrategyResult, run_strategy
from modelexport.attribute.strategies import CATALOGUE, Strategy
from modelexport.inspect.compare import Dispute, Score, Scores
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Claim, Confidence

Captured = pytest.CaptureFixture[str]


def found_scores() -> Scores:
    found = SmallFile().but(h0=credited("layers.0.fc")).provenance()
    entry = found.nodes["h0"]
    claims = (Claim(entry.attribution.owners, Confidence.EXACT, entry.attribution.evidence, "htp"),)
    return Scores("a.onnx", found, (Score("htp", {}, 0, 0, 0, 0.0),), (Dispute(entry, claims),) * 11, 0.0, ("a note",))


class Recorder:
    """Stands in for `modelexport.compare_strategies`."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}

    def __call__(self, file: Path, model: str, **options: Any) -> Scores:
        self.asked = {"file": file, "model": model, **options}
        return found_scores()


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(api, "compare_strategies", made)
    return made


REAL = api.compare_strategies


def test_every_option_is_a_keyword_of_the_api(recorder: Recorder, tmp_path: Path) -> None:
    assert run("strategies", tmp_path / "a.onnx", "-m", "my-bert") == 0
    parameters = inspect.signature(REAL).parameters
    assert set(recorder.asked) == set(parameters)
    defaults = {name: found.default for name, found in parameters.items() if found.default is not found.empty}
    assert {name: recorder.asked[name] for name in defaults} == defaults


def test_every_dispute_is_listed(recorder: Recorder, tmp_path: Path, capsys: Captured) -> None:
    assert run("strategies", tmp_path / "a.onnx", "-m", "x") == 0
    assert capsys.readouterr().out.count("node_h0 (MatMul)") == 11


def test_quiet_still_says_what_was_asked_for(recorder: Recorder, tmp_path: Path, capsys: Captured) -> None:
    assert run("strategies", tmp_path / "a.onnx", "-m", "x", "-q") == 0
    captured = capsys.readouterr()
    assert "a.onnx: 6 nodes" in captured.out
    assert captured.err == ""


@pytest.mark.parametrize("form", ["text", "json"])
def test_into_a_file(form: str, recorder: Recorder, tmp_path: Path, capsys: Captured) -> None:
    assert run("strategies", tmp_path / "a.onnx", "-m", "x", "--format", form, "-o", tmp_path / "report") == 0
    assert capsys.readouterr().out == ""
    assert "htp" in (tmp_path / "report").read_text()


def test_a_report_never_replaces_the_file(recorder: Recorder, small_path: Path) -> None:
    before = small_path.read_bytes()
    assert run("strategies", small_path, "-m", "x", "-o", small_path) == 2
    assert run("strategies", small_path, "-m", "x", "-o", small_path.with_suffix(".hierarchy.json")) == 2
    assert small_path.read_bytes() == before
    assert recorder.asked == {}


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_all_strategies_on_a_plain_export(
    exporter: str, plain_exports: PlainExports, bert_folder: Path, capsys: Captured
) -> None:
    plain = plain_exports(exporter)
    assert run("strategies", plain, "-m", bert_folder, "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["nodes"] == len(onnx.load(plain).graph.node)
    scores = {score["strategy"]: score for score in document["strategies"]}
    assert set(scores) == set(CATALOGUE)
    for score in scores.values():
        assert score["attributed"] == sum(score["by_confidence"].values())
        assert score["attributed"] == score["same"] + score["less"] + score["other"]
    assert scores["usage_based"]["other"] == 0
    assert scores["htp"]["attributed"] >= 0.98 * document["nodes"]
    assert scores["htp"]["by_confidence"]["exact"] > 0.3 * document["nodes"]


def test_a_model_that_the_file_was_not_made_from(
    plain_exports: PlainExports, other_weights: Path, tmp_path: Path, capsys: Captured
) -> None:
    report = tmp_path / "report.json"
    assert run("strategies", plain_exports("torchscript"), "-m", other_weights, "-o", report) == 2
    assert "was not made from" in capsys.readouterr().err
    assert not report.exists()


def test_a_dispute_reaches_the_reader(
    monkeypatch: pytest.MonkeyPatch, plain_exports: PlainExports, bert_folder: Path, capsys: Captured
) -> None:
    """A strategy that says something else of one node is seen to do so."""
    plain = plain_exports("torchscript")
    key = next(node.output[0] for node in onnx.load(plain).graph.node if node.op_type == "Gemm")

    def lying(strategy: Strategy, scene: AttributionInput) -> StrategyResult:
        judged = run_strategy(strategy, scene)
        if strategy.name != "usage_based":
            return judged
        wrong = replace(judged.claims.nodes[key], owners=(ModuleCall("embeddings"),))
        return replace(judged, claims=replace(judged.claims, nodes={**judged.claims.nodes, key: wrong}))

    monkeypatch.setattr("modelexport.attribute.judge.run_strategy", lying)
    assert run("strategies", plain, "-m", bert_folder) == 0
    text = capsys.readouterr().out
    assert "contradict each other" in text
    assert "usage_based: embeddings, exact" in text
