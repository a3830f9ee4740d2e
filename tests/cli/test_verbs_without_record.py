"""Verbs on a file without a record: one line says where modules come from, and what is written is marked with it."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from tests.support.any_files import plain, with_custom_domain, with_function, without_names
from tests.support.command_line import run

import modelexport as mx
from modelexport.graph.file.metadata import RECORD_KEY
from modelexport.inspect.analyze import ClassTally
from modelexport.record.hierarchy import Module

Captured = pytest.CaptureFixture[str]
SOURCE = "TorchScript node names"


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """By a short name, with which a line is not broken."""
    monkeypatch.chdir(tmp_path)
    return save(plain(), Path())


def save(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "given.onnx"
    onnx.save(model, path)
    return path


# By verb: arguments behind the file, and the option that names what is written.
WRITING: dict[str, tuple[list[str], str]] = {
    "attach": ([], "-o"),
    "fold": ([], "-o"),
    "flatten": ([], "-o"),
    "extract": (["layers.0"], "-o"),
    "quantize": (["--exclude", "module=layers.0"], "-o"),
    "run-tool": (["--tool", "ort:basic"], "-o"),
    "select": (["module=layers.0.**", "--for", "ort-exclude"], "--named"),
    "convert": (["--to", "netron"], "-o"),
}


@pytest.mark.parametrize("verb", WRITING)
def test_a_verb_that_writes_says_and_marks_its_source(verb: str, given: Path, tmp_path: Path, capsys: Captured) -> None:
    arguments, option = WRITING[verb]
    target = tmp_path / "written.onnx"
    assert run(verb, given, *arguments, option, target) == 0
    said = capsys.readouterr()
    [line] = [line for line in (said.out + said.err).splitlines() if "no record in" in line]
    assert f"no record in {given}: modules are read from {SOURCE}; `modelexport attach {given} -m MODEL" in line
    assert RECORD_KEY in {entry.key for entry in onnx.load(target).metadata_props}
    origin = mx.load(target).origin
    assert (origin.is_file, origin.exporter) == (True, SOURCE)


def test_where_nothing_is_folded_there_is_a_record_too(tmp_path: Path, capsys: Captured) -> None:
    """Another way through `fold` than that of a file with modules that repeat."""
    model = plain()
    del model.graph.node[3:]
    model.graph.node[2].output[0] = "y"
    given = save(model, tmp_path)
    assert run("fold", given, "-o", tmp_path / "folded.onnx") == 0
    assert capsys.readouterr().out.count("no record in") == 1
    folded = onnx.load(tmp_path / "folded.onnx")
    assert not folded.functions
    assert RECORD_KEY in {entry.key for entry in folded.metadata_props}


def test_functions_that_are_put_in_place(tmp_path: Path, capsys: Captured) -> None:
    """Another way through `flatten` than that of a file without functions."""
    given = save(with_function(), tmp_path)
    assert run("flatten", given, "-o", tmp_path / "flat.onnx") == 0
    said = capsys.readouterr()
    assert (said.out + said.err).count("no record in") == 1
    assert not onnx.load(tmp_path / "flat.onnx").functions
    assert mx.load(tmp_path / "flat.onnx").origin.exporter == SOURCE


READING: dict[str, list[str]] = {
    "analyze": [],
    "query": ["op=*"],
    "cost": [],
    "select": ["op=*", "--for", "names"],
    **{f"convert to {to}": ["--to", to] for to in ("dot", "mermaid", "csv", "graphml")},
}


@pytest.mark.parametrize("verb", READING)
def test_a_verb_that_reads_says_its_source_beside_its_answer(verb: str, given: Path, capsys: Captured) -> None:
    assert run(verb.split(maxsplit=1)[0], given, *READING[verb]) == 0
    said = capsys.readouterr()
    [line] = [line for line in said.err.splitlines() if "no record in" in line]
    assert f"modules are read from {SOURCE}" in line
    assert "no record in" not in said.out


def test_a_profile_says_its_source(given: Path, capsys: Captured) -> None:
    assert run("profile", given, "--runs", "1", "--warmup", "0") == 0
    assert capsys.readouterr().out.count(f"no record in {given}: modules are read from {SOURCE}") == 1


@pytest.mark.parametrize("verb", READING)
def test_a_record_needs_no_such_line(verb: str, given: Path, tmp_path: Path, capsys: Captured) -> None:
    mx.attach(given, None, tmp_path / "tagged.onnx")
    assert run(verb.split(maxsplit=1)[0], tmp_path / "tagged.onnx", *READING[verb]) == 0
    said = capsys.readouterr()
    assert "no record in" not in said.out + said.err


class TestTwoFiles:
    """Each of them is spoken of once, even if it is given twice."""

    @pytest.fixture
    def other(self, given: Path) -> Path:
        path = given.with_name("other.onnx")
        onnx.save(plain(), path)
        return path

    def sources(self, *arguments: object, capsys: Captured) -> list[str]:
        """The files that a line speaks of."""
        assert run(*arguments) in (0, 1)
        said = capsys.readouterr()
        return re.findall(r"no record in (\S+): modules are read from TorchScript node names;", said.out + said.err)

    @pytest.mark.parametrize("verb", ["compare", "diff"])
    def test_a_comparison(self, verb: str, given: Path, other: Path, capsys: Captured) -> None:
        assert self.sources(verb, given, other, capsys=capsys) == ["given.onnx", "other.onnx"]
        assert self.sources(verb, given, given, capsys=capsys) == ["given.onnx"]

    def test_values(self, given: Path, other: Path, capsys: Captured) -> None:
        named = self.sources("verify", other, "--against", given, capsys=capsys)
        assert sorted(named) == ["given.onnx", "other.onnx"]

    def test_a_record_that_is_carried_over(self, given: Path, other: Path, capsys: Captured) -> None:
        """The record comes from the file before; that the file after has none is what the verb is for."""
        target = other.with_name("relinked.onnx")
        assert self.sources("relink", given, other, "-o", target, capsys=capsys) == ["given.onnx"]
        origin = mx.load(target).origin
        assert (origin.is_file, origin.exporter) == (True, SOURCE)


class TestPage:
    def facts(self, path: Path, folder: Path) -> dict[str, str]:
        """The words at its head, from the data that the page carries."""
        html = mx.view(path, folder / "page.html").page.html
        packed = re.search(r'id="data">([^<]*)<', html)
        assert packed is not None
        return dict(json.loads(gzip.decompress(base64.b64decode(packed[1])))["file"]["facts"])

    def test_it_says_where_the_hierarchy_comes_from(self, given: Path, tmp_path: Path) -> None:
        facts = self.facts(given, tmp_path)
        assert facts["hierarchy"] == f"modules are read from {SOURCE}"
        assert not {"exporter", "strategy"} & facts.keys()

    def test_it_says_so_of_a_record_that_was_made_of_the_file(self, given: Path, tmp_path: Path) -> None:
        mx.attach(given, None, tmp_path / "tagged.onnx")
        assert self.facts(tmp_path / "tagged.onnx", tmp_path)["hierarchy"] == f"modules are read from {SOURCE}"

    def test_it_says_that_there_is_none(self, tmp_path: Path) -> None:
        model = without_names()
        del model.graph.node[1:]
        model.graph.node[0].output[0] = "y"
        fact = self.facts(save(model, tmp_path), tmp_path)["hierarchy"]
        assert SOURCE not in fact
        assert fact

    def test_it_says_why_nodes_are_not_counted(self, tmp_path: Path) -> None:
        """Their shapes are known; what the operator does is not."""
        flops = self.facts(save(with_custom_domain(), tmp_path), tmp_path)["FLOPs"]
        assert flops == "1 node not counted: there is no rule for com.example::Wave"


class TestClasses:
    @pytest.mark.parametrize(
        ("modules", "tally"),
        [
            ([Module("", "Net", "m"), Module("fc", "Linear", "torch.nn")], ClassTally(2, 0, 0)),
            ([Module("", "", ""), Module("fc", "Linear-like", "")], ClassTally(0, 1, 1)),
            ([Module("", "Net", "m"), Module("a", "Relu + Tanh", ""), Module("b", "", "")], ClassTally(1, 1, 1)),
            ([Module("layers", "", "", container=True)], ClassTally(0, 0, 0)),
            ([Module("layers", "ModuleList", "torch.nn", container=True)], ClassTally(1, 0, 0)),
        ],
    )
    def test_they_are_counted(self, modules: list[Module], tally: ClassTally) -> None:
        assert ClassTally.of(modules) == tally

    def test_the_analysis_has_their_numbers(self, given: Path, capsys: Captured) -> None:
        """The root and two layers are unknown; a product and an activation in each are described."""
        assert run("analyze", given) == 0
        assert "Classes of modules: 0 known, 4 described, 3 unknown." in capsys.readouterr().out
        assert run("analyze", given, "--format", "json") == 0
        classes = json.loads(capsys.readouterr().out)["coverage"]["classes"]
        assert classes == {"known": 0, "described": 4, "unknown": 3}

    def test_where_all_are_known_nothing_is_said(self, tmp_path: Path, capsys: Captured) -> None:
        model = plain()
        for node in model.graph.node:
            parts = [part for part in node.name.split("/")[:-1] if part]
            paths = ["", *(".".join(parts[: end + 1]) for end in range(len(parts)))]
            for key, values in (("name_scopes", paths), ("class_hierarchy", [f"m.C{n}" for n in range(len(paths))])):
                node.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=str([*values, "op"]))
        assert run("analyze", save(model, tmp_path)) == 0
        assert "Classes of modules" not in capsys.readouterr().out


@pytest.mark.parametrize("make", [plain, with_function], ids=lambda make: make.__name__)
def test_parameters_of_modules_that_were_read_from_the_file(
    make: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    modules = mx.load(save(make(), tmp_path)).hierarchy.modules
    held = {path: [tensor.name for tensor in module.parameters] for path, module in modules.items()}
    assert {path: names for path, names in held.items() if names} == {
        "layers.0.fc": ["weight", "bias"],
        "layers.1.fc": ["weight", "bias"],
    }
