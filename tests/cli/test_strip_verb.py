"""`modelexport strip`: all that was put into a file is gone, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from tests.support.command_line import run
from tests.support.exports import Exports
from tests.support.small_file import SmallFile
from tests.support.spoiled_files import refused

import modelexport as mx
from modelexport.graph.file.metadata import PREFIX, EmbedOptions, Level, embed

Captured = pytest.CaptureFixture[str]


def keys(path: Path) -> tuple[set[str], set[str]]:
    """Ours, in the model's metadata and on its nodes."""
    model = onnx.load(path)
    on_nodes = {entry.key for node in model.graph.node for entry in node.metadata_props}
    own = ({entry.key for entry in model.metadata_props}, on_nodes)
    of_model, of_nodes = ({key.removeprefix(PREFIX) for key in found if key.startswith(PREFIX)} for found in own)
    return of_model, of_nodes


@pytest.mark.parametrize("version", [8, 10])
@pytest.mark.parametrize("level", [Level.FULL, Level.LEAN])
def test_the_bytes_are_those_of_before(small: SmallFile, tmp_path: Path, version: int, level: Level) -> None:
    plain, tagged, clean = (tmp_path / name for name in ("plain.onnx", "tagged.onnx", "clean.onnx"))
    model = small.proto()
    model.ir_version = version
    model.metadata_props.add(key="author", value="me")
    model.graph.node[0].metadata_props.add(key="namespace", value="theirs")
    onnx.save(model, plain)
    for _ in range(2):  # also if it was tagged twice
        embed(model, small.provenance(), EmbedOptions(level))
    onnx.save(model, tagged)
    assert tagged.read_bytes() != plain.read_bytes()
    assert run("strip", tagged, "-o", clean) == 0
    assert clean.read_bytes() == plain.read_bytes()


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_an_export_is_what_torch_gives(exports: Exports, exporter: str, tmp_path: Path) -> None:
    found = exports("bert", exporter)
    clean = tmp_path / "clean.onnx"
    mx.strip(found.path, clean)
    assert keys(clean) == (set(), set())
    model, tagged = onnx.load(clean), onnx.load(found.path)
    for one in (model, tagged):
        del one.metadata_props[:]
        for node in one.graph.node:
            theirs = [entry for entry in node.metadata_props if not entry.key.startswith(PREFIX)]
            kept = onnx.NodeProto(metadata_props=theirs)
            del node.metadata_props[:]
            node.metadata_props.extend(kept.metadata_props)
    tagged.ir_version = model.ir_version
    assert model == tagged
    assert not clean.with_suffix(".hierarchy.json").exists()


def test_keys_that_stay(small_path: Path, tmp_path: Path, capsys: Captured) -> None:
    clean = tmp_path / "clean.onnx"
    assert run("strip", small_path, "-o", clean, "--keep", "tag,module") == 0
    assert keys(clean) == (set(), {"tag", "module"})
    assert "keys removed" in capsys.readouterr().out
    assert run("strip", small_path, "-o", clean, "--keep", "record", "--keep", "pkg.modelexport.layer", "-q") == 0
    assert keys(clean) == ({"record"}, set())
    assert mx.load(clean).nodes.keys() == mx.load(small_path).nodes.keys()
    assert capsys.readouterr().out == ""


def test_keys_that_are_not_there_to_be_kept(small: SmallFile, tmp_path: Path, capsys: Captured) -> None:
    path = replace(small, level=Level.LEAN).write(tmp_path / "lean.onnx")
    assert run("strip", path, "-o", tmp_path / "clean.onnx", "--keep", "tag,module,record") == 0
    assert "note: the file has no tag, module that could be kept" in capsys.readouterr().out


def test_a_version_that_was_raised_is_put_back_later(small: SmallFile, tmp_path: Path) -> None:
    model = small.proto()
    model.ir_version = 8
    embed(model, small.provenance(), EmbedOptions())
    onnx.save(model, tmp_path / "tagged.onnx")
    mx.strip(tmp_path / "tagged.onnx", tmp_path / "some.onnx", keep=["tag"])
    assert onnx.load(tmp_path / "some.onnx").ir_version == 10
    mx.strip(tmp_path / "some.onnx", tmp_path / "none.onnx")
    assert onnx.load(tmp_path / "none.onnx").ir_version == 8


def test_what_torch_wrote(small: SmallFile, tmp_path: Path) -> None:
    model = small.proto()
    for key in ("namespace", "pkg.torch.onnx.stack_trace", "author"):
        model.graph.node[0].metadata_props.add(key=key, value="x")
    onnx.save(model, tmp_path / "a.onnx")
    mx.strip(tmp_path / "a.onnx", tmp_path / "b.onnx", exporter_metadata=True)
    assert [entry.key for entry in onnx.load(tmp_path / "b.onnx").graph.node[0].metadata_props] == ["author"]


def test_a_file_without_anything_to_remove(small: SmallFile, tmp_path: Path, capsys: Captured) -> None:
    path = replace(small, level=Level.NONE, sidecar=False).write(tmp_path / "a.onnx")
    assert run("strip", path, "-o", tmp_path / "b.onnx") == 0
    assert "nothing to remove" in capsys.readouterr().out
    assert (tmp_path / "b.onnx").read_bytes() == path.read_bytes()


def test_what_is_refused(small_path: Path, tmp_path: Path, capsys: Captured) -> None:
    arguments = ["strip", small_path, "-o"]
    text = refused(tmp_path, capsys, *arguments, tmp_path / "b.onnx", "--keep", "tagg")
    assert "no key 'tagg'" in text
    assert "tag, module, modules, confidence, evidence, role, layer, record, outline" in text
    assert "is read here" in refused(tmp_path, capsys, *arguments, small_path)
    assert "folder" in refused(tmp_path, capsys, *arguments, tmp_path / "no" / "b.onnx")
    record = small_path.with_suffix(".hierarchy.json")
    assert "not a model" in refused(tmp_path, capsys, "strip", record, "-o", tmp_path / "b.onnx")
