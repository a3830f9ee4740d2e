"""A key changes with everything that decides what comes out, and with nothing else."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from modelexport.fleet import contents
from modelexport.fleet.contents import ContentDigests, installed_versions, step_key
from modelexport.fleet.fleet_plan import Row, Step
from modelexport.fleet.process import Limits

VERSIONS = {"torch": "2.13.0"}
STEP = Step("export", "export", options={"opset": 18})


@pytest.fixture
def row(tmp_path: Path) -> Row:
    model = tmp_path / "bert"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"123")
    return Row("bert", str(model), steps=(STEP,))


def key_of(
    row: Row, step: Step = STEP, versions: dict[str, str] = VERSIONS, before: dict[str, str] | None = None
) -> str:
    return step_key(row, step, ContentDigests(Path("/nowhere/digests")), before or {}, versions)


def test_the_same_work_has_the_same_key(row: Row, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "other" / name).write_bytes((tmp_path / "bert" / name).read_bytes())
    same = replace(row, name="renamed", source=str(tmp_path / "other"))
    assert key_of(same, replace(STEP, limits=Limits(9, 9), resources={"GPU": 1})) == key_of(row)


def test_another_model_option_version_or_step_before_has_another(row: Row, tmp_path: Path) -> None:
    keys = {
        key_of(row),
        key_of(replace(row, task="fill-mask")),
        key_of(replace(row, exporter="torchscript")),
        key_of(replace(row, load={"dtype": "float16"})),
        key_of(replace(row, environment={"CUDA_VISIBLE_DEVICES": "0"})),
        key_of(row, replace(STEP, options={"opset": 20})),
        key_of(row, replace(STEP, verb="attach")),
        key_of(row, versions={"torch": "2.14.0"}),
        key_of(row, before={"export": "1"}),
        key_of(row, before={"export": "2"}),
    }
    (tmp_path / "bert" / "model.safetensors").write_bytes(b"124")
    keys.add(key_of(row))
    (tmp_path / "bert" / "tokenizer.json").touch()
    assert len({*keys, key_of(row)}) == 12


def test_files_of_options_count_by_what_is_in_them(row: Row, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"1")
    step = replace(STEP, options={"inputs": str(tmp_path / "x.npz")})
    first = key_of(row, step)
    (tmp_path / "x.npz").write_bytes(b"2")
    assert key_of(row, step) != first


def test_a_callable_is_known_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text("def build(): ...")
    by_module, by_file = Row("a", "nets:build", code=str(tmp_path)), Row("a", f"{tmp_path / 'nets.py'}:build")
    before = key_of(by_module), key_of(by_file)
    (tmp_path / "nets.py").write_text("def build(): return 1")
    assert all(key != old for key, old in zip((key_of(by_module), key_of(by_file)), before, strict=True))


def test_data_beside_a_file_belongs_to_it(tmp_path: Path) -> None:
    for name in ("a.onnx", "a.onnx.data", "b.onnx"):
        (tmp_path / name).write_bytes(b"1")
    row = Row("a", file=str(tmp_path / "a.onnx"))
    before = key_of(row)
    (tmp_path / "b.onnx").write_bytes(b"2")
    assert key_of(row) == before
    (tmp_path / "a.onnx.data").write_bytes(b"2")
    assert key_of(row) != before


def test_a_file_that_was_left_alone_is_read_once(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, weights = tmp_path / "digests", tmp_path / "bert" / "model.safetensors"
    for path in (weights, tmp_path / "bert" / "config.json"):
        os.utime(path, (1_000_000, 1_000_000))
    first = ContentDigests(cache)
    digest = first.of(row.source)
    first.save()
    assert str(weights) in json.loads(cache.read_text())
    monkeypatch.setattr(contents, "open_regular", lambda path: pytest.fail(f"read {path}"))
    assert ContentDigests(cache).of(row.source) == digest


def test_a_file_that_was_just_written_is_read_again(row: Row, tmp_path: Path) -> None:
    """It may change once more within the tick of the clock that the file system has."""
    digests = ContentDigests(tmp_path / "digests")
    digests.of(row.source)
    digests.save()
    assert not (tmp_path / "digests").exists()


def test_a_damaged_cache_is_no_cache(row: Row, tmp_path: Path) -> None:
    (tmp_path / "digests").write_text(f'{{"{row.source}/config.json": [1, "2", 3, 4], "x": null}}')
    assert ContentDigests(tmp_path / "digests").of(row.source) == ContentDigests(Path("/nowhere")).of(row.source)


def test_versions_are_told_without_importing_anything() -> None:
    versions = installed_versions()
    assert {"python", "modelexport", "onnx"} <= versions.keys()
    assert len(versions["modelexport"]) == 16
