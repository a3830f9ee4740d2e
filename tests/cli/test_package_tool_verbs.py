"""`quantize`, `run-tool` and `relink` on the folder of a package: what is written, what is said, exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.support.command_line import run
from tests.support.packages import folder_content, package_path

import modelexport as mx

__all__ = ["package_path"]

Captured = pytest.CaptureFixture[str]


def test_quantize_writes_a_package(package_path: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    options = (
        "--weight-type",
        "int4",
        "--exclude",
        "module=encoder",
        "--component",
        "encoder",
        "--component",
        "decoder",
    )
    assert run("quantize", package_path, "-o", out, *options, "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["package"], document["ok"], document["copied"]) == (str(out), True, [])
    assert [item["name"] for item in document["components"]["encoder"]["excluded"]] == ["node_e0", "node_e1"]
    assert document["components"]["decoder"]["lineage"]["files"][0] == str(out / "decoder_model.onnx")
    assert run("quantize", package_path, "-o", out) == 2
    assert "is not empty" in capsys.readouterr().err
    assert run("quantize", package_path, "-o", out, "--force", "--component", "decoder") == 0
    text = capsys.readouterr().out
    assert "copied as before: encoder" in text
    assert mx.validate(mx.open_package(out)).ok


def test_a_tool_runs_on_all_components(package_path: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    given = ("--input", "features=2x3x4", "--input", "input_ids=2x5")
    assert run("run-tool", package_path, "--tool", "ort:basic", "-o", out, *given) == 0
    text = capsys.readouterr().out
    assert text.index("encoder") < text.index("decoder")
    assert mx.validate(mx.open_package(out)).ok


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run-tool", "--tool", "nothing"), "unknown tool 'nothing'"),
        (("run-tool", "--tool", "ort", "--component", "encodr"), "Did you mean 'encoder'?"),
        (("run-tool", "--tool", "ort", "--input", "pixels=1"), "unknown input 'pixels'"),
        (("quantize", "--exclude", "module=nowhere"), "nowhere"),
        (("quantize", "--op-types", "Conv"), "unknown operator of the package 'Conv'"),
        (("quantize", "--static", "--calibration", "SAMPLES"), "--calibration is for one component"),
    ],
)
def test_nothing_is_written_for_bad_options(
    package_path: Path, tmp_path: Path, capsys: Captured, arguments: tuple[str, ...], message: str
) -> None:
    samples = tmp_path / "samples.npz"
    np.savez(samples, features=np.zeros((1, 3, 4), np.float32))
    verb, *options = (str(samples) if text == "SAMPLES" else text for text in arguments)
    assert run(verb, package_path, "-o", tmp_path / "out", *options) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_has_no_components(package_path: Path, tmp_path: Path, capsys: Captured) -> None:
    file = package_path / "encoder_model.onnx"
    for verb, options in (("quantize", ()), ("run-tool", ("--tool", "ort")), ("relink", ())):
        assert run(verb, file, "-o", tmp_path / "out.onnx", "--component", "encoder", *options) == 2
        assert "is not a package" in capsys.readouterr().err


def test_packages_are_relinked(package_path: Path, tmp_path: Path, capsys: Captured) -> None:
    shutil.copytree(package_path, tmp_path / "after")
    assert run("relink", package_path, tmp_path / "after", "-o", tmp_path / "out") == 0
    assert "3 nodes from" in capsys.readouterr().out
    assert {*folder_content(tmp_path / "out")} == {*folder_content(package_path)}
    assert run("relink", package_path, tmp_path / "after") == 0
    (tmp_path / "after" / "encoder_model.onnx").unlink()
    assert run("relink", package_path, tmp_path / "after") == 2
    assert "has no encoder_model.onnx" in capsys.readouterr().err
    for files in ([package_path / "encoder_model.onnx", tmp_path / "after"], [package_path, tmp_path / "nothing"]):
        assert run("relink", *files) == 2
        told = capsys.readouterr().err
        assert "Give two packages, or two files." in told
        assert all(str(path) in told for path in files)


@pytest.mark.parametrize("location", ["/dev/stdin", "../weights.data", "a\0b"])
def test_weights_outside_of_a_package_are_refused(
    location: str, package_path: Path, tmp_path: Path, capsys: Captured
) -> None:
    """A package without figures of its files, as other tools make them: what its files refer to is looked up."""
    after = tmp_path / "after"
    shutil.copytree(package_path, after)
    model = onnx.load(after / "encoder_model.onnx")
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    (after / "encoder_model.onnx").write_bytes(model.SerializeToString())
    assert run("relink", package_path, after, "-o", tmp_path / "out") == 2
    assert f"tensor {weight.name!r} has its data in {location!r}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_tools_are_listed(capsys: Captured) -> None:
    assert run("run-tool", "--list") == 0
    text = capsys.readouterr().out
    assert "ort:all|extended|basic" in text
    assert "GroupQueryAttention" in text
