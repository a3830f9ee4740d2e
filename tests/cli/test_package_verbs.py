"""Reading verbs on the folder of a package: what they print, their exit codes, and what bad folders are told."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from tests.support.command_line import run
from tests.support.packages import DECODER, PackageRecipe, edit_description, folder_content, package_path

import modelexport as mx
from modelexport.record.package import PACKAGE_FILE
from modelexport.show.text.checks import comparison_tables
from modelexport.show.text.console import as_text

__all__ = ["package_path"]

Captured = pytest.CaptureFixture[str]

READING = {
    "analyze": (),
    "query": ("op=MatMul",),
    "validate": (),
    "cost": (),
}


@pytest.mark.parametrize("verb", READING)
def test_every_reading_verb_takes_a_folder(verb: str, package_path: Path, capsys: Captured) -> None:
    before = folder_content(package_path)
    assert run(verb, package_path, *READING[verb]) == 0
    text = capsys.readouterr().out
    assert "encoder" in text
    assert "decoder" in text
    assert run(verb, package_path, *READING[verb], "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["package"] == str(package_path)
    assert folder_content(package_path) == before


@pytest.mark.parametrize("verb", READING)
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "encoder_model.onnx").unlink(), "has no encoder_model.onnx"),
        (lambda folder: (folder / "encoder_model.onnx").write_bytes(b""), "is truncated"),
        (lambda folder: (folder / PACKAGE_FILE).write_text("{"), "is not JSON"),
        (lambda folder: (folder / PACKAGE_FILE).unlink(), "a folder without modelexport.json"),
    ],
    ids=["missing", "truncated", "damaged", "none"],
)
def test_folders_that_cannot_be_used_are_one_message(
    verb: str, spoil: object, message: str, package_path: Path, capsys: Captured
) -> None:
    assert callable(spoil)
    spoil(package_path)
    assert run(verb, package_path, *READING[verb]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert not captured.out
    assert len(captured.err.splitlines()) == 2


STRANGE_PATHS = ["\ud800", "a\0b", "../encoder_model.onnx", "/etc/passwd", "n" * 5_000, "link.onnx", "pipe", "around/x"]


@pytest.mark.parametrize("path", STRANGE_PATHS, ids=[ascii(path[:20]) for path in STRANGE_PATHS])
@pytest.mark.parametrize("verb", [*READING, "view", "strip", "convert", "run-tool"])
def test_descriptions_with_strange_paths(verb: str, path: str, package_path: Path, capsys: Captured) -> None:
    """A model of the package elsewhere, in a file that is none, under a name that no file can have."""
    outside = package_path.parent / "outside.onnx"
    outside.write_bytes((package_path / "encoder_model.onnx").read_bytes())
    (package_path / "link.onnx").symlink_to(outside)
    (package_path / "around").symlink_to(package_path.parent)
    os.mkfifo(package_path / "pipe")

    def rename(document: dict[str, Any]) -> None:
        document["components"][0]["file"] = path
        document["files"][path] = document["files"].pop("encoder_model.onnx")

    (package_path / PACKAGE_FILE).write_text(json.dumps(_changed(package_path, rename)))
    more = {"convert": ("--to", "dot"), "run-tool": ("--tool", "ort:basic")}.get(verb, READING.get(verb, ()))
    made = () if verb in READING else ("-o", package_path.parent / "made")
    assert run(verb, package_path, *more, *made) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "unexpected" not in error
    assert not (package_path.parent / "made").exists()


def _changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / PACKAGE_FILE).read_text())
    change(document)
    return document


def test_a_folder_of_others_is_told_how_to_become_a_package(package_path: Path, capsys: Captured) -> None:
    (package_path / PACKAGE_FILE).unlink()
    run("analyze", package_path)
    assert f"modelexport attach {package_path} -m MODEL -o OUT" in capsys.readouterr().err


def test_verbs_for_one_file_say_so(package_path: Path, tmp_path: Path, capsys: Captured) -> None:
    assert run("fold", package_path, "-o", tmp_path / "out.onnx") == 2
    error = capsys.readouterr().err
    assert "is a package, and this takes one file" in error
    advised = package_path / "decoder_model.onnx"
    assert str(advised) in error
    assert run("fold", advised, "-o", tmp_path / "out.onnx") == 0


def keep_decoder(document: dict[str, Any]) -> None:
    document.update(components=document["components"][1:], links=[])


@pytest.mark.parametrize("verb", ["fold", "flatten", "extract"])
def test_verbs_for_one_file_take_a_package_of_one(verb: str, package_path: Path, tmp_path: Path) -> None:
    edit_description(package_path, keep_decoder)
    asked = ("decoder.layers.0",) if verb == "extract" else ()
    assert run(verb, package_path, *asked, "-o", tmp_path / "out.onnx") == 0
    assert (tmp_path / "out.onnx").is_file()


def test_a_module_is_cut_out_of_the_only_file_that_has_it(package_path: Path, tmp_path: Path, capsys: Captured) -> None:
    for asked in ("decoder.layers.0", "decoder.layers.0#0", "op=Gather"):
        assert run("extract", package_path, asked, "-o", tmp_path / "out.onnx") == 0
    capsys.readouterr()
    assert run("extract", package_path, "bridge", "-o", tmp_path / "out.onnx") == 2
    error = capsys.readouterr().err
    assert "bridge is in 2 of its files" in error
    assert str(package_path / "encoder_model.onnx") in error
    assert run("extract", package_path, "brigde", "-o", tmp_path / "out.onnx") == 2
    assert "Did you mean 'bridge'?" in capsys.readouterr().err


def test_components_are_taken_for_their_files(package_path: Path, tmp_path: Path) -> None:
    decoder: Any = mx.open_package(package_path)["decoder"]
    assert mx.extract(decoder, "decoder.layers.0", tmp_path / "part.onnx").source == str(decoder.path)
    assert mx.fold(decoder, tmp_path / "folded.onnx").path.is_file()
    assert mx.analyze(decoder).file.path == str(decoder.path)
    assert mx.cost(decoder).file == str(decoder.path)
    assert mx.validate(decoder).ok
    assert mx.compare(decoder, decoder).identical


def test_folders_without_models_say_so(tmp_path: Path, capsys: Captured) -> None:
    assert run("analyze", tmp_path) == 2
    assert "without any .onnx file" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("profile", "--prompt", "8"), ("verify", "-m", "x:y", "--new-tokens", "8")])
def test_options_of_packages_on_a_folder_of_others(
    arguments: tuple[str, ...], package_path: Path, capsys: Captured
) -> None:
    (package_path / PACKAGE_FILE).unlink()
    assert run(arguments[0], package_path, *arguments[1:]) == 2
    assert "is a folder without modelexport.json" in capsys.readouterr().err


def test_sizes_that_do_not_add_up_are_refused(package_path: Path, capsys: Captured) -> None:
    assert run("cost", package_path, "--at", "past_sequence=64,sequence=1,total_sequence=3") == 2
    assert "total_sequence is 3, and past_sequence 64 and sequence 1 are 65 together" in capsys.readouterr().err


def test_nodes_of_modules_of_one_side_are_counted(package_path: Path) -> None:
    decoder = mx.open_package(package_path)["decoder"].path
    modules = tuple(module for module in mx.analyze(decoder).modules if module.path == "decoder.embed")
    comparison = mx.compare(decoder, decoder)
    for side, text in (("only_a", "1 module differs: 1 node removed, 0 added"), ("only_b", "0 nodes removed, 1 added")):
        assert text in as_text(comparison_tables(replace(comparison, **{side: modules})))


def test_tables_of_very_many_modules_are_cut(package_path: Path) -> None:
    decoder = mx.open_package(package_path)["decoder"].path
    comparison = replace(mx.compare(decoder, decoder), only_a=mx.analyze(decoder).modules[:1] * 1002)
    assert "… and 2 more (--format json)" in as_text(comparison_tables(comparison))


def test_analyses_show_what_joins_the_files(package_path: Path, capsys: Captured) -> None:
    run("analyze", package_path)
    text = capsys.readouterr().out
    assert "Cache of decoder: 2 tensors, 32 B·batch·past_sequence" in text
    assert "decoder.layers.{0,1} ×2: 1 tensor, 16 B·batch·past_sequence each" in text
    assert "encoder.last_hidden_state → decoder.encoder_hidden_states" in text
    assert "generate never called it" in text
    run("analyze", package_path, "--format", "detailed")
    assert "node_present.0.key" in capsys.readouterr().out


def test_costs_have_sizes_of_the_cache(package_path: Path, capsys: Captured) -> None:
    sizes = "batch=1,frames=8,past_sequence=4096,sequence=1"
    assert run("cost", package_path, "--at", sizes) == 0
    assert "Cache of decoder: 2 tensors, 131 KB" in capsys.readouterr().out
    assert run("cost", package_path, "--by", "node", "--format", "csv") == 0
    assert "decoder,node_k0" in capsys.readouterr().out
    assert run("cost", package_path, "--by", "node", "--at", sizes) == 0
    shown = capsys.readouterr().out
    assert shown.index("node_last_hidden_state") < shown.index("node_k1")


def test_names_are_behind_their_component(package_path: Path, capsys: Captured) -> None:
    assert run("query", package_path, "module=bridge", "--format", "names") == 0
    assert capsys.readouterr().out == "encoder\tnode_last_hidden_state\ndecoder\tnode_b\n"
    assert run("query", package_path, "op=MatMul & op=Gather") == 0
    assert "0 of 16 nodes" in capsys.readouterr().out
    assert run("query", package_path, "op=Gahter") == 2
    assert "Did you mean 'Gather'?" in capsys.readouterr().err


def test_nodes_of_one_component_are_counted_once(package_path: Path, capsys: Captured) -> None:
    edit_description(package_path, lambda document: document.update(components=document["components"][1:], links=[]))
    assert run("query", package_path, "op=MatMul") == 0
    assert capsys.readouterr().out.count(" of 13 nodes") == 1
    assert run("query", package_path, "op=MatMul & op=Gather") == 0
    assert capsys.readouterr().out.count("0 of 13 nodes") == 1


def test_findings_exit_with_one(package_path: Path, capsys: Captured) -> None:
    (package_path / "config.json").write_text("[]\n")
    assert run("validate", package_path) == 1
    assert "file-changed config.json" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["[]\n", '{"temperature": 0.7, "max_length": 4096}'], ids=["as long", "longer"])
def test_a_configuration_that_was_edited_does_not_lock_the_package(
    text: str, package_path: Path, tmp_path: Path, capsys: Captured
) -> None:
    (package_path / "config.json").write_text(text)
    for verb in ("analyze", "query", "cost"):
        assert run(verb, package_path, *READING[verb]) == 0
    assert run("strip", package_path, "-o", tmp_path / "plain") == 0
    assert (tmp_path / "plain" / "config.json").read_text() == text
    capsys.readouterr()
    assert run("validate", package_path) == 1
    assert "file-changed config.json: it was edited" in capsys.readouterr().out
    assert run("validate", package_path, "--repair", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["renewed"] == ["config.json"]
    assert run("validate", package_path) == 0
    assert (package_path / "config.json").read_text() == text


def test_a_configuration_that_is_missing_is_found_and_cannot_be_copied(
    package_path: Path, tmp_path: Path, capsys: Captured
) -> None:
    (package_path / "config.json").unlink()
    assert run("analyze", package_path) == 0
    capsys.readouterr()
    assert run("validate", package_path, "--repair") == 1
    assert "file-missing config.json" in capsys.readouterr().out
    assert run("strip", package_path, "-o", tmp_path / "plain") == 2
    assert "has no config.json" in capsys.readouterr().err
    assert not (tmp_path / "plain").exists()


def test_repair_does_not_accept_another_model(package_path: Path) -> None:
    path = package_path / "decoder_model.onnx"
    path.write_bytes(b"\xff" * path.stat().st_size)
    (package_path / "config.json").write_text("[]\n")
    assert run("validate", package_path, "--repair") == 2
    assert run("validate", package_path) == 1


def test_keys_of_a_package_are_repaired(package_path: Path, tmp_path: Path, capsys: Captured) -> None:
    decoder = package_path / "decoder_model.onnx"
    before = decoder.read_bytes()
    proto = onnx.load(decoder)
    for node in proto.graph.node:
        for item in node.metadata_props:
            item.value = "/Other" if item.key.endswith("tag") else item.value
    onnx.save(proto, decoder)
    edit_description(
        package_path, lambda content: content["files"]["decoder_model.onnx"].update(bytes=decoder.stat().st_size)
    )
    assert run("validate", package_path) == 1
    assert run("validate", package_path, "--repair") == 2  # the digest is that of another file
    assert "Repair into a new package" in capsys.readouterr().err
    assert run("validate", package_path, "--repair", "-o", tmp_path / "repaired") == 0
    assert "rewrote the keys of 13 nodes" in capsys.readouterr().out
    assert run("validate", tmp_path / "repaired") == 0
    assert [*mx.open_package(tmp_path / "repaired").info.files] == [*mx.open_package(package_path).info.files]
    digest = hashlib.sha256(decoder.read_bytes()).hexdigest()
    edit_description(package_path, lambda content: content["files"]["decoder_model.onnx"].update(sha256=digest))
    assert run("validate", package_path, "--repair") == 0
    assert run("validate", package_path) == 0
    assert {node.name for node in onnx.load_from_string(before).graph.node} == {
        node.name for node in onnx.load(decoder).graph.node
    }


@pytest.mark.parametrize("verb", ["compare", "diff"])
def test_packages_are_compared(verb: str, package_path: Path, tmp_path: Path, capsys: Captured) -> None:
    changed = replace(DECODER, rows=[*DECODER.rows[:-1], ("logits", "Gemm", ("h1", "head.weight"), "head", {})])
    other = PackageRecipe(decoder=changed, absent=()).write(tmp_path / "other")
    assert run(verb, package_path, package_path) == 0
    assert "no differences" in capsys.readouterr().out
    assert run(verb, package_path, other) == 1
    text = capsys.readouterr().out
    assert "decoder differs" in text
    assert "module in no file, removed: vision" in text
    assert run(verb, package_path, other, "--format", "json") == 1
    assert json.loads(capsys.readouterr().out)["components"]["encoder"]["identical"]
    assert run(verb, package_path, other / "encoder_model.onnx") == 2
    assert "is a package, and" in capsys.readouterr().err


def test_differences_of_packages_are_a_page(package_path: Path, tmp_path: Path) -> None:
    other = PackageRecipe(absent=()).write(tmp_path / "<other>")
    assert run("diff", package_path, other, "--format", "html", "-o", tmp_path / "diff.html") == 1
    page = (tmp_path / "diff.html").read_text(encoding="utf-8")
    assert "decoder_model.onnx" in page
    assert "module in no file, removed: vision" in page
    assert "&lt;other&gt;" in page
    assert "<other>" not in page


def test_a_module_is_compared_where_both_packages_have_it(package_path: Path, capsys: Captured) -> None:
    assert run("diff", package_path, package_path, "--left-module", "bridge", "--no-cost") == 0
    assert {"── encoder ──", "── decoder ──"} <= {*capsys.readouterr().out.splitlines()}
    layers = "--left-module", "decoder.layers.0", "--right-module", "decoder.layers.1"
    run("diff", package_path, package_path, *layers)
    shown = capsys.readouterr().out
    assert "── decoder ──" in shown
    assert "── encoder ──" not in shown
    assert run("diff", package_path, package_path, "--left-module", "vision") == 2
    assert "no component of both packages has nodes of vision" in capsys.readouterr().err
    assert run("diff", package_path, package_path, "--left-module", "bridgee") == 2
    assert "Did you mean 'bridge'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["decoder_model.onnx", PACKAGE_FILE, "config.json"])
def test_reports_never_replace_a_file_of_the_package(name: str, package_path: Path, capsys: Captured) -> None:
    before = folder_content(package_path)
    for verb, rest in (("analyze", ()), ("query", ("op=MatMul",)), ("cost", ()), ("compare", (package_path,))):
        assert run(verb, package_path, *rest, "-o", package_path / name) == 2
        assert "what the report is about" in capsys.readouterr().err
    assert folder_content(package_path) == before


def test_folders_are_written_from_packages(package_path: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    assert run("strip", package_path, "-o", out) == 0
    assert "encoder: 13 keys removed" in capsys.readouterr().out
    assert run("strip", package_path, "-o", out) == 2
    assert "is not empty" in capsys.readouterr().err
    assert run("strip", package_path, "-o", out, "--force") == 0
    assert run("validate", out) == 0
    assert run("convert", package_path, "--to", "mermaid", "-o", tmp_path / "graphs") == 0
    assert "decoder.mmd" in capsys.readouterr().err
    assert run("convert", package_path, "--to", "mermaid") == 2
    assert "-o FOLDER" in capsys.readouterr().err
    assert run("select", package_path, "op=Gather", "--for", "names") == 0
    assert capsys.readouterr().out == "node_e\n"
    assert run("select", package_path, "op=MatMul", "--for", "names", "-o", tmp_path / "lists") == 0
    assert "encoder.txt" in capsys.readouterr().err


def test_a_package_is_viewed(package_path: Path, tmp_path: Path, capsys: Captured) -> None:
    assert run("view", package_path, "-o", tmp_path / "page.html", "--at", "past_sequence=9") == 0
    assert "page.html" in capsys.readouterr().out
    assert run("view", package_path, "--against", package_path / "encoder_model.onnx") == 2
    assert "is a package, and" in capsys.readouterr().err


def test_control_characters_of_a_description_do_not_reach_the_terminal(package_path: Path, capsys: Captured) -> None:
    def poison(document: dict[str, Any]) -> None:
        document.update(target="\x1b[2J", model="\x1b]0;x\x07", notes=["\x1b[31m"])
        document["absent"][0].update(path="\x1b[A", reason="[bold]\x1b[B")

    edit_description(package_path, poison)
    for verb, arguments in READING.items():
        run(verb, package_path, *arguments)
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err
    assert "[bold]" in captured.out
