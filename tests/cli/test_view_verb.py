"""`modelexport view` at the command line."""

from __future__ import annotations

import os
import signal
import sys
import urllib.request
from pathlib import Path

import onnx
import pytest
from tests.support.children import started
from tests.support.command_line import run
from tests.support.overlaid_pages import profile_text
from tests.support.small_file import SmallFile

import modelexport as mx
from modelexport.errors import FileUnwritable, UserError


def test_the_page_is_written_beside_the_model(small_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("view", str(small_path)) == 0
    page = small_path.with_suffix(".html")
    assert page.read_text().startswith("<!doctype html>")
    assert f"wrote {page} (" in capsys.readouterr().out


def test_quiet_says_nothing(small_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("view", str(small_path), "-o", str(tmp_path / "p.html"), "-q") == 0
    assert capsys.readouterr() == ("", "")
    assert (tmp_path / "p.html").is_file()


@pytest.mark.parametrize("name", ["small.onnx", "small.hierarchy.json", "profile.json"])
def test_what_is_read_is_never_replaced(name: str, small_path: Path) -> None:
    folder = small_path.parent
    overlay = folder / "profile.json"
    overlay.write_text(profile_text())
    before = (folder / name).read_bytes()
    assert run("view", str(small_path), "--overlay", str(overlay), "-o", str(folder / name)) == 2
    assert (folder / name).read_bytes() == before


def test_a_failure_leaves_nothing(small_path: Path, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    target = tmp_path / "p.html"
    assert run("view", str(small_path), "--overlay", str(tmp_path / "other.json"), "-o", str(target)) == 2
    assert not target.exists()


def test_a_file_without_a_record_says_how_to_get_one(
    small: SmallFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(small.proto(), tmp_path / "plain.onnx")
    assert run("view", str(tmp_path / "plain.onnx")) == 0
    assert "modelexport attach" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [["--serve", "-o", "x.html"], ["--port", "8000"], ["--at", "batch"], ["--at", "batch=2"], ["--against", "no.onnx"]],
)
def test_what_makes_no_sense_is_refused(options: list[str], small_path: Path) -> None:
    assert run("view", str(small_path), *options) == 2


def test_too_many_nodes_are_said_on_standard_error(
    small_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("modelexport.api.view.MOST_NODES", 5)
    assert run("view", str(small_path)) == 0
    assert "Modules alone are shown: 6 nodes are more than the 5" in capsys.readouterr().err


def test_a_page_that_would_be_too_large_shows_modules_alone(small_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelexport.api.view.MOST_BYTES", 1_000_000)
    found = mx.view(small_path)
    assert not found.page.has_nodes
    assert "larger than 1 MB" in found.page.notes[0]


def test_a_page_of_a_file_itself_as_python(small_path: Path, tmp_path: Path) -> None:
    found = mx.view(small_path, tmp_path / "p.html")
    assert (found.path, found.size) == (tmp_path / "p.html", (tmp_path / "p.html").stat().st_size)
    assert (found.page.nodes, found.page.has_nodes, found.page.notes) == (6, True, ())
    with pytest.raises(FileUnwritable):
        mx.view(small_path, small_path)
    with pytest.raises(UserError, match="no axis"):
        mx.view(small_path, at={"batch": 2})


def test_of_several_overlays_of_a_kind_the_last_is_shown(small_path: Path, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("first.json", "last.json")]
    for path in paths:
        path.write_text(profile_text(path.stem + ".onnx"))
    notes = mx.view(small_path, overlays=paths).page.notes
    assert notes == ("Several overlays of one kind were given: the last one is shown.", "Time is that of last.onnx.")


def test_a_difference_is_shown(small: SmallFile, small_path: Path, tmp_path: Path) -> None:
    other = SmallFile().write(tmp_path / "other.onnx")
    model = onnx.load(other)
    model.graph.node[2].op_type = "Sigmoid"
    onnx.save(model, other)
    found = mx.view(small_path, tmp_path / "p.html", against=other)
    assert found.page.has_nodes


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("ignored", [False, True], ids=["foreground", "background"])
def test_it_is_served_until_it_is_interrupted(ending: signal.Signals, ignored: bool, small_path: Path) -> None:
    """A shell starts what runs in the background with interrupts ignored, and a program inherits that."""
    command = [sys.executable, "-m", "modelexport", "view", str(small_path), "--serve"]
    environment = {**os.environ, "PYTHONPATH": str(Path(mx.__file__).parents[1])}
    with started(command, env=environment, ignoring=(signal.SIGINT,) if ignored else ()) as served:
        assert served.stdout is not None
        url = served.stdout.readline().split()[0]
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert answer.read().startswith(b"<!doctype html>")
        served.send_signal(ending)
        assert served.wait(60) == 0
        assert served.stderr is not None
        assert served.stderr.read() == ""
    assert not small_path.with_suffix(".html").exists()
