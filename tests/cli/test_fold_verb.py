from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.command_line import run as run_verb
from tests.support.foldable_graphs import Made, layers, saved
from tests.support.small_file import SmallFile

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a verb, and gives its exit code and all that it said."""

    def code_and_text(*arguments: object) -> tuple[int, str]:
        code = run_verb(*arguments)
        said = capsys.readouterr()
        return code, said.out + said.err

    return code_and_text


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    return saved(layers(3), tmp_path / "flat.onnx")


def test_there_and_back(run: Run, flat: Path, tmp_path: Path) -> None:
    code, said = run("fold", flat, "-o", tmp_path / "folded.onnx")
    assert code == 0
    assert "16 nodes before, 10 after (62.5%), in the main graph and 2 functions" in said
    code, said = run("flatten", tmp_path / "folded.onnx", "-o", tmp_path / "back.onnx")
    assert code == 0
    assert "10 nodes before, 16 after: exactly the graph that was folded" in said
    assert (tmp_path / "back.onnx").read_bytes() == flat.read_bytes()


def test_json(run: Run, flat: Path, tmp_path: Path) -> None:
    code, said = run("fold", flat, "-o", tmp_path / "folded.onnx", "--class", "Layer", "--format", "json")
    found = json.loads(said)
    assert code == 0
    assert found["functions"] == [
        {"name": "Layer", "class": "Layer", "calls": 3, "nodes": 5, "modules": ["layers.0", "layers.1", "layers.2"]}
    ]
    code, said = run("flatten", tmp_path / "folded.onnx", "-o", tmp_path / "back.onnx", "--format", "json")
    assert json.loads(said)["exact"] is True


def test_quiet_says_nothing_and_verbose_says_why_not(run: Run, tmp_path: Path) -> None:
    flat = saved(layers(1), tmp_path / "flat.onnx")
    assert run("fold", flat, "-o", tmp_path / "a.onnx", "-q") == (0, "")
    code, said = run("fold", flat, "-o", tmp_path / "b.onnx", "-v")
    assert code == 0
    assert "the file is as it was" in said
    assert "1 call of Linear not folded: it is called once" in said


def test_bad_input_is_one_error_and_writes_nothing(run: Run, flat: Path, tmp_path: Path) -> None:
    code, said = run("fold", flat, "-o", tmp_path / "a.onnx", "--class", "Lyer")
    assert (code, "Did you mean 'Layer'?" in said) == (2, True)
    assert not (tmp_path / "a.onnx").exists()
    run("fold", flat, "-o", tmp_path / "folded.onnx")
    code, said = run("fold", tmp_path / "folded.onnx", "-o", tmp_path / "a.onnx")
    assert (code, "modelexport flatten" in said) == (2, True)
    assert not (tmp_path / "a.onnx").exists()


def test_control_characters_in_names_do_not_reach_the_terminal(run: Run, tmp_path: Path) -> None:
    made = layers(2)
    classes = {path: "Bad\x1b[31m" if name == "Layer" else name for path, name in made.classes.items()}
    flat = saved(Made(made.proto, classes, made.owners), tmp_path / "flat.onnx")
    code, said = run("fold", flat, "-o", tmp_path / "folded.onnx")
    assert code == 0
    assert "\x1b" not in said


def test_a_repeated_class_that_cannot_be_folded_is_told_without_being_asked() -> None:
    from modelexport.record.results.files import ALONE, INTERLEAVED, Folding, FoldResult, Unfolded
    from modelexport.show.text.written_files import folding_lines

    left = (Unfolded("Mixer", 3, INTERLEAVED), Unfolded("Pooler", 1, ALONE))
    result = FoldResult(Path("a.onnx"), (), SmallFile().provenance(), Folding(9, 9, unfolded=left))
    said = [str(line) for line in folding_lines(result)]
    assert f"note: 3 calls of Mixer not folded: {INTERLEAVED}" in said
    assert "1 class with a single call or a single node not folded; -v lists them" in said
