"""Every verb on files that no model was run for: an answer, or a clear reason; and the file stays as it was."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import onnx
import pytest
from tests.support.any_files import VARIANTS, opset_of, plain, save_external, save_huge, with_hidden_size, without_names
from tests.support.command_line import run

import modelexport as mx
from modelexport.cli.export import attach
from modelexport.errors import UserError
from modelexport.graph.file.metadata import RECORD_KEY, read_node_keys
from modelexport.record.model_source import ModelSource
from modelexport.record.provenance import Confidence
from modelexport.record.results.diff import Source

Captured = pytest.CaptureFixture[str]
MODULE = "layers.0"


def reading_verbs(file: Path, folder: Path) -> Iterator[list[object]]:
    yield ["analyze", file]
    yield ["analyze", file, "--format", "json"]
    yield ["query", file, "op=*"]
    yield ["cost", file]
    yield ["view", file, "-o", folder / "page.html"]
    yield ["validate", file]
    yield ["validate", file, "--require-record"]
    yield ["compare", file, file]
    yield ["diff", file, file]
    yield ["select", file, "op=*", "--for", "names"]
    for form in ("model-explorer", "graphml", "dot", "mermaid", "csv"):
        yield ["convert", file, "--to", form, "-o", folder / f"drawn.{form}"]


def transforming_verbs(file: Path, folder: Path) -> Iterator[list[object]]:
    yield ["attach", file, "-o", folder / "tagged.onnx"]
    yield ["extract", file, MODULE, "-o", folder / "part.onnx"]
    yield ["fold", file, "-o", folder / "folded.onnx"]
    yield ["flatten", file, "-o", folder / "flat.onnx"]
    yield ["strip", file, "-o", folder / "stripped.onnx"]
    yield ["convert", file, "--to", "netron", "-o", folder / "netron.onnx"]
    yield ["select", file, "op=*", "--for", "ort-exclude", "--named", folder / "named.onnx"]
    yield ["run-tool", file, "--tool", "ort:basic", "-o", folder / "optimized.onnx"]
    yield ["quantize", file, "-o", folder / "int8.onnx", "--exclude", f"module={MODULE}"]
    yield ["profile", file, "--runs", "1", "--warmup", "0"]
    yield ["relink", file, folder / "optimized.onnx"]
    yield ["verify", folder / "optimized.onnx", "--against", file]


@pytest.fixture(params=[*VARIANTS, "external"])
def variant(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "given"
    folder.mkdir()
    path = folder / f"{request.param}.onnx"
    if request.param == "external":
        save_external(path)
    else:
        onnx.save(VARIANTS[request.param](), path)
    return path


def contents(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_every_verb_answers_or_says_why_not(variant: Path, tmp_path: Path, capsys: Captured) -> None:
    before = contents(variant.parent)
    for arguments in (*reading_verbs(variant, tmp_path), *transforming_verbs(variant, tmp_path)):
        code = run(*arguments)
        out, err = capsys.readouterr()
        assert code in ((0, 1, 2) if may_refuse(variant, arguments) else (0, 1)), (arguments, err)
        assert "Traceback" not in out + err, arguments
        assert code < 2 or err.startswith("error: "), (arguments, err)
    assert contents(variant.parent) == before


def may_refuse(variant: Path, arguments: list[object]) -> bool:
    """Questions about structure are answered; what runs or writes a file may have a reason not to."""
    if arguments[0] in ("query", "select"):
        # There are no nodes to ask for, or none that another tool could be told of by its name.
        return variant.stem in ("empty", "nameless") or "ort-exclude" in arguments
    reading = ("analyze", "cost", "view", "validate", "compare", "diff")
    return arguments[0] not in (*reading, "attach", "flatten", "strip", "fold")


@pytest.mark.parametrize("ir_version", [3, 7, 9, 10])
def test_written_files_have_a_marked_record_and_their_version(ir_version: int, tmp_path: Path) -> None:
    """Metadata on nodes would need version 10 of the format, and whoever reads the file might not."""
    path = tmp_path / "given.onnx"
    onnx.save(plain(ir_version=ir_version, opset=opset_of(ir_version)), path)
    assert run("attach", path, "-o", tmp_path / "tagged.onnx") == 0
    assert run("extract", path, MODULE, "-o", tmp_path / "part.onnx") == 0
    assert run("select", path, "op=*", "--for", "ort-exclude", "--named", tmp_path / "named.onnx") == 0
    assert run("flatten", path, "-o", tmp_path / "flat.onnx") == 0
    for name in ("tagged", "part", "named", "flat"):
        model = onnx.load(tmp_path / f"{name}.onnx")
        onnx.checker.check_model(model)
        assert model.ir_version == ir_version, name
        assert RECORD_KEY in {entry.key for entry in model.metadata_props}
        assert ir_version >= 10 or not any(read_node_keys(node) for node in model.graph.node)
        origin = mx.load(tmp_path / f"{name}.onnx").origin
        assert (origin.strategy, bool(origin.exporter)) == ("file", True)


def about_models() -> list[list[str]]:
    """Every option of `attach` that says something of a model or its inputs, with a value that is not the default."""
    values = {"input": "x=1x2", "seed": "3", "trust_remote_code": None, "allow_pickle": None}
    names = [item.name for item in fields(ModelSource)]
    known = [option for option in attach.params if option.name in (*names, "strategy") and option.name != "model"]
    given = [(option.opts[0], values.get(str(option.name), "htp")) for option in known]
    return [[option] if value is None else [option, value] for option, value in given]


def test_options_about_a_model() -> None:
    assert len(about_models()) == 12


class TestAttach:
    def test_what_the_file_says_becomes_its_record(self, tmp_path: Path, capsys: Captured) -> None:
        path = tmp_path / "given.onnx"
        onnx.save(plain(), path)
        assert run("attach", path, "-o", tmp_path / "tagged.onnx") == 0
        assert "no record in" in capsys.readouterr().out
        assert mx.load(tmp_path / "tagged.onnx").hierarchy == mx.load(path).hierarchy
        assert run("validate", tmp_path / "tagged.onnx", "--require-record") == 0

    def test_the_record_survives_the_names_that_it_was_read_from(self, tmp_path: Path) -> None:
        path = tmp_path / "given.onnx"
        onnx.save(plain(), path)
        mx.attach(path, None, tmp_path / "tagged.onnx")
        model = onnx.load(tmp_path / "tagged.onnx")
        for node in model.graph.node:
            node.name = ""
        onnx.save(model, tmp_path / "renamed.onnx")
        assert mx.load(tmp_path / "renamed.onnx").nodes.keys() == mx.load(path).nodes.keys()
        assert "layers.1.fc" in mx.load(tmp_path / "renamed.onnx").hierarchy.modules

    @pytest.mark.parametrize("option", about_models(), ids=lambda option: str(option[0]))
    def test_options_about_a_model_need_one(self, option: list[str], tmp_path: Path, capsys: Captured) -> None:
        path = tmp_path / "given.onnx"
        onnx.save(plain(), path)
        assert run("attach", path, "-o", tmp_path / "tagged.onnx", *option) == 2
        assert f"{option[0]} is about a model" in capsys.readouterr().err
        assert not (tmp_path / "tagged.onnx").exists()

    def test_a_record_is_not_replaced_by_less(self, tmp_path: Path) -> None:
        onnx.save(plain(), tmp_path / "given.onnx")
        mx.attach(tmp_path / "given.onnx", None, tmp_path / "tagged.onnx")
        with pytest.raises(UserError, match="has a record already"):
            mx.attach(tmp_path / "tagged.onnx", None, tmp_path / "again.onnx")


def test_what_nothing_is_known_of_is_a_fallback_and_not_covered(tmp_path: Path, capsys: Captured) -> None:
    model = without_names()
    del model.graph.node[1:]
    model.graph.node[0].output[0] = "y"
    onnx.save(model, tmp_path / "given.onnx")
    assert run("analyze", tmp_path / "given.onnx", "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [(node["module"], node["confidence"]) for node in document["nodes"]] == [("", "fallback")]
    assert document["coverage"]["nodes"]["by_confidence"]["fallback"]["count"] == 1
    assert not document["file"]["has_record"]
    assert run("profile", tmp_path / "given.onnx", "--runs", "1", "--warmup", "0", "--optimization", "none") == 0
    assert "0.0 % of the time of all kernels belongs to a module" in capsys.readouterr().out.splitlines()
    record = mx.load(tmp_path / "given.onnx")
    assert {entry.attribution.confidence for entry in record.nodes.values()} == {Confidence.FALLBACK}


class TestDiff:
    def test_two_files_that_name_their_modules(self, tmp_path: Path) -> None:
        onnx.save(plain(), tmp_path / "left.onnx")
        model = plain()
        model.graph.node[2].op_type = "Sigmoid"
        onnx.save(model, tmp_path / "right.onnx")
        found = mx.diff(tmp_path / "left.onnx", tmp_path / "right.onnx")
        assert (found.left.source, found.right.source) == (Source.FILE, Source.FILE)
        assert [module.left for module in found.modules] == ["layers.0.act"]
        assert any("TorchScript" in note for note in found.notes)

    def test_names_are_no_difference(self, tmp_path: Path) -> None:
        onnx.save(plain(), tmp_path / "left.onnx")
        onnx.save(without_names(), tmp_path / "right.onnx")
        found = mx.diff(tmp_path / "left.onnx", tmp_path / "right.onnx")
        assert found.identical
        assert (found.left.source, found.right.source) == (Source.FILE, Source.OTHER)

    def test_modules_of_one_file(self, tmp_path: Path) -> None:
        onnx.save(plain(), tmp_path / "given.onnx")
        path = tmp_path / "given.onnx"
        found = mx.diff(path, path, left_module="layers.0", right_module="layers.1")
        assert (found.left.nodes, found.right.nodes) == (3, 3)


def test_structure_is_answered_without_reading_weights(tmp_path: Path, capsys: Captured) -> None:
    save_huge(tmp_path / "huge.onnx", 200_000_000_000)
    for arguments in reading_verbs(tmp_path / "huge.onnx", tmp_path):
        assert run(*arguments) in (0, 1), (arguments, capsys.readouterr().err)
    assert len(mx.analyze(tmp_path / "huge.onnx").nodes) == 6


def test_a_graph_that_goes_in_a_circle_is_a_reason(tmp_path: Path, capsys: Captured) -> None:
    model = plain()
    model.graph.node[0].input[0] = "y"
    onnx.save(model, tmp_path / "circle.onnx")
    for verb in (["analyze"], ["cost"], ["attach", "-o", tmp_path / "out.onnx"]):
        assert run(verb[0], tmp_path / "circle.onnx", *verb[1:]) == 2
        assert "not a valid ONNX graph" in capsys.readouterr().err


def test_the_source_is_told_of(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "given.onnx"
    onnx.save(plain(), path)
    assert run("analyze", path) == 0
    shown = capsys.readouterr()
    assert "no record: modules are read from TorchScript node names" in shown.out
    assert shown.err.startswith(f"note: no record in {path}: modules are read from TorchScript node names")
    assert f"`modelexport attach {path} -m MODEL -o FILE`" in shown.err
    [note] = mx.view(path, tmp_path / "page.html").page.notes
    assert "modules are read from TorchScript node names" in note


def with_slashes() -> onnx.ModelProto:
    """Names as TensorFlow writes them, without a slash in front; weights have no names."""
    model = without_names()
    for node, named in zip(model.graph.node, plain().graph.node, strict=True):
        node.name = named.name.removeprefix("/")
    return model


@pytest.mark.parametrize(
    ("model", "advice"),
    [
        (plain(), "; `modelexport attach given.onnx -m MODEL -o FILE` proves them by values"),
        (
            with_slashes(),
            "; if it was exported from PyTorch, `modelexport attach given.onnx -m MODEL -o FILE` finds them",
        ),
        (
            without_names(),
            "; if it was exported from PyTorch, `modelexport attach given.onnx -m MODEL -o FILE` finds them",
        ),
        (VARIANTS["empty"](), ""),
    ],
    ids=["TorchScript", "TensorFlow", "nothing", "empty"],
)
def test_a_model_is_proposed_where_there_can_be_one(
    model: onnx.ModelProto, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(model, "given.onnx")
    [note] = mx.analyze("given.onnx").notes
    assert note.partition("; ")[1:] == ("", "") if not advice else advice in note


def test_commands_that_are_proposed_can_be_pasted(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "sp ace" / "my model.onnx"
    path.parent.mkdir()
    onnx.save(plain(), path)
    assert run("analyze", path) == 0
    assert f"`modelexport attach '{path}' -m MODEL -o FILE`" in capsys.readouterr().err
    assert run("validate", path) == 0
    assert f"`modelexport attach '{path}' -o FILE`" in " ".join(capsys.readouterr().out.split())
    assert run("validate", path, "--repair") == 2
    assert f"`modelexport attach '{path}' -o FILE`" in capsys.readouterr().err
    mx.fold(path, tmp_path / "my folded.onnx")
    assert run("quantize", tmp_path / "my folded.onnx", "-o", tmp_path / "out.onnx") == 2
    assert f"`modelexport flatten '{tmp_path / 'my folded.onnx'}' -o FILE`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("run-tool", ["--tool", "onnxslim", "-o", "out.onnx"]),
        ("quantize", ["-o", "out.onnx"]),
        ("profile", ["--runs", "1"]),
    ],
)
def test_inputs_that_were_made_up_are_named_before_what_the_runtime_says(
    verb: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(with_hidden_size(), "given.onnx")
    assert run(verb, "given.onnx", *options) == 2
    made, _, words = capsys.readouterr().err.partition("): ")
    assert re.search(r"cannot run given.onnx on inputs that were made up \(--input 'a b=\d+x\d+:float32'$", made)
    assert "Reshape" in words
    assert "Give other shapes in the same way" in words
    # It has nothing that could be quantized: written, and not as asked.
    assert run(verb, "given.onnx", *options, "--input", "a b=2x7:float32") == (1 if verb == "quantize" else 0)
