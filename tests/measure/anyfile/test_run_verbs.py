"""Every verb on one file: what is asked, how it ended, and what the file was found to tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from measure.anyfile.finding_time import make_layers, name_by_torchscript
from measure.anyfile.foreign_files import cached_path, read_manifest
from measure.anyfile.run_verbs import READ, VERBS, Subject, VerbResult, fill_command, perform, run_verb
from measure.job import Job
from measure.results import TaskFolder

from measure.anyfile import run_verbs
from modelexport.cli.main import _VERBS

# They need a model, or a file of ours.
# `fleet` runs the other verbs, on models that a list names.
NEEDS_MODEL = {"export", "fill", "strategies", "fleet"}


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    path = tmp_path / "given" / "net.onnx"
    path.parent.mkdir()
    onnx.save(name_by_torchscript(make_layers(38)), path)
    made = tmp_path / "made"
    made.mkdir()
    return Subject(path, made)


def test_every_verb_that_needs_no_model_is_run() -> None:
    assert {command.split()[0] for command in VERBS.values()} == set(_VERBS) - NEEDS_MODEL


def test_results_of_tasks_do_not_overwrite_each_other(tmp_path: Path) -> None:
    assert len({TaskFolder(tmp_path).result_path(task) for task in VERBS}) == len(VERBS)


def test_words_stand_for_arguments(subject: Subject) -> None:
    part = subject.part
    assert part.startswith("layers.")
    assert fill_command(VERBS["extract"], subject) == [
        *("extract", str(subject.path), part, "-o", str(subject.made / "part.onnx"))
    ]
    assert fill_command(VERBS["quantize"], subject)[2:4] == ["--exclude", f'module="{part}.**"']


def test_a_file_without_modules_is_asked_as_a_whole(subject: Subject) -> None:
    nameless = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) {y = Neg(x)}'
    )
    onnx.save(nameless, subject.path)
    assert fill_command("extract {part}", subject) == ["extract", "(model)"]
    assert fill_command("quantize {exclude} {query}", subject) == ["quantize", "op=*"]


def test_shapes_are_given_to_verbs_that_run_the_file(subject: Subject) -> None:
    shaped = replace(subject, inputs=("x=1,8",))
    running = [task for task, command in VERBS.items() if fill_command(command, shaped).count("x=1,8")]
    assert running == ["profile", "quantize", "run-tool", "verify"]
    assert fill_command("profile {inputs}", shaped) == ["profile", "--input", "x=1,8"]
    assert fill_command("profile {inputs}", subject) == ["profile"]


def test_a_verb_reads_what_an_earlier_one_wrote(subject: Subject) -> None:
    assert fill_command("strip {tagged}", subject) == ["strip", str(subject.path)]
    tool = subject.made / "tool.onnx"
    tool.touch()
    assert fill_command("strip {tagged}", subject) == ["strip", str(tool)]


def test_reading_brings_what_was_found(subject: Subject) -> None:
    result = run_verb("net", READ, subject)
    assert (result.code, result.reason) == (0, "")
    findings = result.findings
    assert findings is not None
    # Two layers of six linear modules each, and the list of layers.
    assert (findings.nodes, findings.modules, findings.source) == (38, 15, "TorchScript node names")
    assert findings.strong + findings.inferred + findings.fallback == 38
    assert findings.known + findings.described + findings.unknown == 14
    assert (subject.made / "analysis.json").exists()


def test_a_refusal_has_its_reason_without_places_of_this_machine(subject: Subject) -> None:
    subject.path.write_bytes(b"no model")
    result = run_verb("net", "cost", subject)
    assert (result.code, result.is_done, result.is_defect, result.findings) == (2, False, False, None)
    assert result.reason
    assert str(subject.path.parent) not in result.reason


@pytest.mark.parametrize(
    ("code", "reason", "is_defect"),
    [(0, "", False), (1, "", False), (2, "why", False), (2, "", True), (3, "why", True), (None, "killed", True)],
)
def test_what_is_a_defect(code: int | None, reason: str, is_defect: bool) -> None:
    assert VerbResult("net", "view", code, reason).is_defect is is_defect


def test_what_comes_out_of_the_edge_is_a_defect(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise RecursionError("too deep")

    monkeypatch.setattr(run_verbs, "run_guarded", fail)
    result = run_verb("net", "view", subject)
    assert (result.code, result.reason) == (3, "RecursionError: too deep")


@pytest.mark.parametrize("name", ["net.onnx", "net.onnx.json", "data/weights"])
def test_writing_where_the_input_is_is_a_defect(name: str, subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into the file itself, beside it, or into its external data."""
    folder = subject.path.parent
    (folder / "data").mkdir()
    (folder / "data" / "weights").write_bytes(b"0123")
    assert run_verb("net", "view", subject).code == 0

    def write(*_: object) -> int:
        (folder / name).write_bytes(b"4567")
        return 0

    monkeypatch.setattr(run_verbs, "run_guarded", write)
    result = run_verb("net", "view", subject)
    assert result.is_defect
    assert result.reason == f"it wrote where its input is: {name}"


def test_removing_the_input_is_a_defect(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    def remove(*_: object) -> int:
        subject.path.unlink()
        return 0

    monkeypatch.setattr(run_verbs, "run_guarded", remove)
    assert run_verb("net", "view", subject).is_defect


def test_a_file_of_others_fails_where_a_record_is_required(subject: Subject) -> None:
    result = run_verb("net", "validate:record", subject)
    assert (result.code, result.is_done) == (1, True)
    assert VerbResult("net", "validate:record", 0).is_defect


def test_every_format_is_written() -> None:
    formats = {command.split()[3] for command in VERBS.values() if command.startswith("convert")}
    assert formats == {"model-explorer", "graphml", "dot", "mermaid", "csv", "netron"}


def test_a_worker_leaves_results_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELEXPORT_CACHE", str(tmp_path))
    file = read_manifest()[0]
    path = cached_path(file, tmp_path)
    path.parent.mkdir()
    onnx.save(name_by_torchscript(make_layers(19)), path)
    folder = TaskFolder(tmp_path / "results")
    folder.path.mkdir()
    perform(Job((file.id,), (READ, "attach")), folder)
    assert sorted(item.name for item in folder.path.iterdir()) == ["analyze.json", "attach.json"]
    results = [VerbResult.from_json(folder.read(task)) for task in (READ, "attach")]
    assert [(result.file, result.code) for result in results] == [(file.id, 0)] * 2
    assert results[0].findings is not None
