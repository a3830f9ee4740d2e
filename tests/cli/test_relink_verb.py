"""`modelexport relink`: what it answers, and what it says of files that it can do nothing with."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.support.command_line import run
from tests.support.foreign_copies import plain_copy
from tests.support.spoiled_files import (
    EVIL,
    Captured,
    Change,
    changed,
    circle,
    contents,
    evil_names,
    from_nowhere,
    metadata,
    of_another_version,
    refused,
    returns_nothing,
    same_value_twice,
    same_weight_twice,
    without_record,
)

import modelexport as mx
from modelexport.errors import FileUnwritable, printable
from modelexport.graph.file.metadata import OUTLINE_KEY, RECORD_KEY


class TestAnswers:
    def test_text(self, folder: Path, capsys: Captured) -> None:
        target = folder / "out.onnx"
        assert run("relink", folder / "bert.onnx", changed(folder, without_record), "-o", target) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith(f"wrote {target} (")
        assert lines[1].startswith(f"wrote {target.with_suffix('.hierarchy.json')} (")
        assert re.fullmatch(rf"\d+ nodes from {re.escape(str(folder / 'bert.onnx'))}: kept \d+", lines[2])
        assert lines[3].startswith("attributions: exact ")
        assert mx.load(target).nodes == mx.load(folder / "bert.onnx").nodes

    def test_json(self, folder: Path, capsys: Captured) -> None:
        jsonschema = pytest.importorskip("jsonschema")
        after = changed(folder, without_record)
        assert run("relink", folder / "bert.onnx", after, "--format", "json") == 0
        text = capsys.readouterr().out
        document = json.loads(text)
        schema = Path(mx.__file__).parent / "record" / "schema" / "lineage.schema.json"
        jsonschema.validate(document, json.loads(schema.read_text()))
        assert document["related"] is True
        assert document["files"] == []
        assert document["relations"] == {"kept": len(document["nodes"])}
        assert all(one["sources"] == [one["key"]] and one["modules"] for one in document["nodes"])

    def test_the_file_alone(self, folder: Path, capsys: Captured) -> None:
        assert run("relink", folder / "bert.onnx", "--format", "json") == 0
        assert json.loads(capsys.readouterr().out)["before"] == f"the record in {folder / 'bert.onnx'}"

    def test_nothing_is_written_unless_asked(self, folder: Path) -> None:
        before = contents(folder)
        assert run("relink", folder / "bert.onnx") == 0
        assert contents(folder) == before

    def test_quiet_and_verbose(self, folder: Path, capsys: Captured) -> None:
        assert run("relink", folder / "bert.onnx", "-q", "-o", folder / "out.onnx") == 0
        assert capsys.readouterr() == ("", "")
        assert (folder / "out.onnx").exists()
        assert run("relink", folder / "bert.onnx", "-q", "--format", "json") == 0
        assert json.loads(capsys.readouterr().out)
        assert run("relink", folder / "bert.onnx", "-v") == 0
        assert re.search(r"read \d+\.\d s, link \d+\.\d s", capsys.readouterr().out)

    @pytest.mark.parametrize("embed", ["full", "lean", "none"])
    def test_how_much_goes_into_the_file(self, folder: Path, embed: str) -> None:
        target = folder / "out.onnx"
        assert run("relink", folder / "bert.onnx", "-o", target, "--embed", embed) == 0
        keys = {entry.key for entry in onnx.load(target).metadata_props}
        assert ({RECORD_KEY, OUTLINE_KEY} <= keys) is (embed != "none")
        assert mx.load(target).nodes

    def test_who_made_the_file_is_in_the_evidence(self, folder: Path) -> None:
        def turn(model: onnx.ModelProto) -> None:
            node = next(node for node in model.graph.node if node.op_type == "Gelu")
            node.op_type, node.domain = "FastGelu", "com.microsoft"

        after = changed(folder, turn)
        assert run("relink", folder / "bert.onnx", after, "-o", folder / "out.onnx", "--tool", "mytool") == 0
        found = [entry for entry in mx.load(folder / "out.onnx").nodes.values() if entry.op_type == "FastGelu"]
        assert found[0].attribution.evidence[-1].source == "mytool"


class TestFindings:
    def test_files_that_have_nothing_to_do_with_each_other(self, folder: Path, capsys: Captured) -> None:
        arguments = ["relink", folder / "bert.onnx", folder / "gpt2.onnx", "-o", folder / "out.onnx"]
        text = refused(folder, capsys, *arguments, code=1)
        assert "was not made from" in text
        shares = r"\d+\.\d % of its nodes do the work of a node there, and \d+\.\d % of the nodes there are found"
        assert re.search(shares, " ".join(text.split()))
        assert "Nothing was written" in text
        document = json.loads(refused(folder, capsys, *arguments, "--format", "json", code=1))
        assert document["related"] is False
        assert document["kinship"]["after"] < 0.6

    def test_another_version_of_the_model(self, folder: Path, capsys: Captured) -> None:
        def retrain(model: onnx.ModelProto) -> None:
            for tensor in model.graph.initializer:
                if tensor.name in ("pooler.dense.weight", "pooler.dense.bias"):
                    tensor.CopyFrom(numpy_helper.from_array(np.full(tensor.dims, 3, np.float32), tensor.name))

        after = changed(folder, retrain)
        assert run("relink", folder / "bert.onnx", after, "-o", folder / "out.onnx") == 1
        assert "2 weights with other numbers under the same name (pooler.dense." in capsys.readouterr().out
        assert run("relink", after, "--format", "json") == 1
        assert set(json.loads(capsys.readouterr().out)["differing"]) == {"pooler.dense.weight", "pooler.dense.bias"}

    def test_the_record_of_another_file(self, folder: Path, capsys: Captured) -> None:
        strange = onnx.load(folder / "gpt2.onnx").metadata_props

        def mix_up(model: onnx.ModelProto) -> None:
            del model.metadata_props[:]
            model.metadata_props.extend(strange)

        mixed = changed(folder, mix_up)
        for files in ([mixed], [mixed, folder / "bert.onnx"]):
            assert "was not made from the record in" in refused(
                folder, capsys, "relink", *files, "-o", folder / "out.onnx", code=1
            )

    def test_a_graph_without_nodes(self, folder: Path, capsys: Captured) -> None:
        def empty(model: onnx.ModelProto) -> None:
            del model.graph.node[:], model.graph.initializer[:], model.graph.output[:]

        after = changed(folder, empty)
        text = refused(folder, capsys, "relink", folder / "bert.onnx", after, "-o", folder / "out.onnx", code=1)
        assert "it has no nodes" in text


class TestRecords:
    @pytest.mark.parametrize("alone", [True, False])
    def test_a_newer_record(self, folder: Path, capsys: Captured, alone: bool) -> None:
        newer = changed(folder, metadata(RECORD_KEY, of_another_version))
        files = [newer] if alone else [newer, folder / "bert.onnx"]
        text = refused(folder, capsys, "relink", *files, "-o", folder / "out.onnx")
        assert "schema 9" in text
        assert "Update modelexport" in text

    def test_a_newer_outline(self, folder: Path, capsys: Captured) -> None:
        newer = changed(folder, metadata(OUTLINE_KEY, of_another_version))
        assert "outline-9" in refused(folder, capsys, "relink", newer, "-o", folder / "out.onnx")
        assert run("relink", folder / "bert.onnx", newer) == 0

    def test_no_record(self, folder: Path, capsys: Captured) -> None:
        bare = changed(folder, without_record)
        text = refused(folder, capsys, "relink", bare, "-o", folder / "out.onnx")
        assert "modelexport relink BEFORE AFTER" in text
        assert run("relink", bare, folder / "bert.onnx", "-o", folder / "out.onnx") == 0
        assert "note: no record in" in capsys.readouterr().out

    def test_the_record_of_another_file_beside_it(self, folder: Path, capsys: Captured) -> None:
        bare = changed(folder, without_record)
        (folder / "after.hierarchy.json").write_text(mx_document(folder / "gpt2.onnx"))
        text = refused(folder, capsys, "relink", bare, folder / "bert.onnx", "-o", folder / "out.onnx")
        assert "made for another graph" in text

    def test_a_damaged_outline(self, folder: Path, capsys: Captured) -> None:
        damaged = changed(folder, metadata(OUTLINE_KEY, lambda value: value[:-40]))
        assert "outline in the file is damaged" in refused(folder, capsys, "relink", damaged, "-o", folder / "o.onnx")


def mx_document(path: Path) -> str:
    from modelexport.record.document import write_document

    return write_document(mx.load(path))


BROKEN: dict[str, tuple[Change, str]] = {
    "a value made twice": (same_value_twice, "2 nodes make the value"),
    "two weights of one name": (same_weight_twice, "2 initializers named"),
    "a circle": (circle, "nodes read each other in a circle"),
    "a value that nobody makes": (from_nowhere, "reads 'from nowhere', which nobody makes"),
    "no nodes for what it returns": (returns_nothing, "it returns 'last_hidden_state', which nobody makes"),
}


class TestFiles:
    @pytest.mark.parametrize(("change", "message"), BROKEN.values(), ids=BROKEN)
    def test_graphs_that_are_none(self, folder: Path, capsys: Captured, change: Change, message: str) -> None:
        broken = changed(folder, change)
        for files in ([folder / "bert.onnx", broken], [broken]):
            text = refused(folder, capsys, "relink", *files, "-o", folder / "out.onnx")
            assert f"{broken} is not a valid ONNX graph: " in text
            assert message in text

    def test_a_broken_file_before_whose_record_is_beside_it(self, folder: Path, capsys: Captured) -> None:
        def spoil(model: onnx.ModelProto) -> None:
            without_record(model)
            circle(model)

        broken = changed(folder, spoil)
        shutil.copy(folder / "bert.hierarchy.json", folder / "after.hierarchy.json")
        text = refused(folder, capsys, "relink", broken, folder / "bert.onnx", "-o", folder / "out.onnx")
        assert "nodes read each other in a circle" in text

    @pytest.mark.parametrize("place", ["before", "after", "alone"])
    @pytest.mark.parametrize("kind", ["text", "truncated", "missing", "folder", "empty"])
    def test_what_cannot_be_read(self, folder: Path, capsys: Captured, kind: str, place: str) -> None:
        bad = folder / "bad.onnx"
        if kind == "text":
            bad.write_text("hello")
        elif kind == "truncated":
            bad.write_bytes((folder / "bert.onnx").read_bytes()[:200_000])
        elif kind == "folder":
            bad.mkdir()
        elif kind == "empty":
            bad.touch()
        good = folder / "bert.onnx"
        files = {"before": [bad, good], "after": [good, bad], "alone": [bad]}[place]
        text = refused(folder, capsys, "relink", *files, "-o", folder / "out.onnx")
        assert str(bad) in text

    def test_the_folder_that_one_is_in(self, folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(folder)
        assert ". is a folder" in refused(folder, capsys, "relink", ".", "-o", "out.onnx")

    def test_nodes_without_names_and_with_the_same_one(self, folder: Path) -> None:
        for name in ("", "same"):

            def rename(model: onnx.ModelProto, name: str = name) -> None:
                for node in model.graph.node:
                    node.name = name

            assert run("relink", folder / "bert.onnx", changed(folder, rename), "-o", folder / "out.onnx") == 0
            found, before = mx.load(folder / "out.onnx").nodes, mx.load(folder / "bert.onnx").nodes
            assert {key: one.attribution for key, one in found.items()} == {
                key: one.attribution for key, one in before.items()
            }

    def test_three_files(self, folder: Path, capsys: Captured) -> None:
        assert "give one file, or the one before and the one after" in refused(folder, capsys, "relink", "a", "b", "c")


class TestWeightsElsewhere:
    @pytest.fixture
    def apart(self, folder: Path) -> Path:
        """The file with its weights in another one."""
        inner = folder / "inner"
        inner.mkdir()
        onnx.save(
            onnx.load(folder / "bert.onnx"),
            inner / "a.onnx",
            save_as_external_data=True,
            location="a.data",
            size_threshold=0,
        )
        return inner / "a.onnx"

    def test_they_are_there(self, folder: Path, apart: Path) -> None:
        assert run("relink", folder / "bert.onnx", apart, "-o", folder / "out.onnx") == 0
        assert mx.load(folder / "out.onnx").nodes == mx.load(folder / "bert.onnx").nodes

    def test_structure_is_enough_where_they_are_not(self, folder: Path, apart: Path, capsys: Captured) -> None:
        (apart.parent / "a.data").unlink()
        for files in ([folder / "bert.onnx", apart], [apart], [apart, folder / "bert.onnx"], [apart, apart]):
            assert run("relink", *files, "--format", "json") == 0
            document = json.loads(capsys.readouterr().out)
            assert document["relations"] == {"kept": len(document["nodes"])}

    def test_also_where_the_weights_have_other_names(self, folder: Path, apart: Path, capsys: Captured) -> None:
        (apart.parent / "a.data").unlink()
        model = onnx.load(apart, load_external_data=False)
        names = {tensor.name: f"w{place}" for place, tensor in enumerate(model.graph.initializer)}
        for tensor in model.graph.initializer:
            tensor.name = names[tensor.name]
        for node in model.graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
        onnx.save(model, apart)
        assert run("relink", folder / "bert.onnx", apart, "--format", "json") == 0
        document = json.loads(capsys.readouterr().out)
        assert all(one["sources"] == [one["key"]] for one in document["nodes"])

    def test_nothing_is_written_without_them(self, folder: Path, apart: Path, capsys: Captured) -> None:
        (apart.parent / "a.data").unlink()
        text = refused(folder, capsys, "relink", folder / "bert.onnx", apart, "-o", folder / "out.onnx")
        assert "a.data" in text

    def test_a_place_outside_of_the_folder_is_never_read(self, folder: Path, apart: Path, capsys: Captured) -> None:
        model = onnx.load(apart, load_external_data=False)
        for tensor in model.graph.initializer:
            next(entry for entry in tensor.external_data if entry.key == "location").value = "../bert.onnx"
        onnx.save(model, apart)
        text = refused(folder, capsys, "relink", folder / "bert.onnx", apart, "-o", folder / "out.onnx")
        assert "outside of the model's folder" in text
        assert run("relink", folder / "bert.onnx", apart) == 0


class TestTargets:
    @pytest.mark.parametrize("target", ["bert.onnx", "after.onnx", "bert.other", "after.x", "inner/../bert.onnx"])
    def test_what_was_read_is_never_written_over(self, folder: Path, capsys: Captured, target: str) -> None:
        (folder / "inner").mkdir()
        after = changed(folder, lambda _: None)
        text = refused(folder, capsys, "relink", folder / "bert.onnx", after, "-o", folder / target)
        assert "is read here" in text

    @pytest.mark.parametrize("target", ["bert.hierarchy.json", "nowhere/out.onnx", "."])
    def test_places_that_cannot_be_written(self, folder: Path, capsys: Captured, target: str) -> None:
        refused(folder, capsys, "relink", folder / "gpt2.onnx", "-o", folder / target)

    def test_a_failure_while_writing_leaves_nothing(
        self, folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> str:
            raise FileUnwritable("No space left on device", "Free some.")

        monkeypatch.setattr("modelexport.api.writing.write_document", fail)
        (folder / "out.onnx").write_bytes((folder / "gpt2.onnx").read_bytes())
        before = contents(folder)
        assert run("relink", folder / "bert.onnx", "-o", folder / "out.onnx") == 2
        assert contents(folder) == before
        assert "No space left" in capsys.readouterr().err


def drop_unread(graph: onnx.GraphProto) -> None:
    """Take out nodes whose results nobody reads, until there are none."""
    while True:
        read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
        unread = [node for node in graph.node if read.isdisjoint(node.output)]
        for node in unread:
            graph.node.remove(node)
        if not unread:
            return


class TestTerminals:
    def safe(self, capsys: Captured) -> str:
        captured = capsys.readouterr()
        text: str = captured.out + captured.err
        assert all(printable(line) == line for line in text.splitlines())
        return text

    def test_names_are_harmless(self, folder: Path, capsys: Captured) -> None:
        after = changed(folder, evil_names)
        assert run("relink", folder / "bert.onnx", after, "-o", folder / "out.onnx") == 0
        self.safe(capsys)
        assert run("relink", folder / "out.onnx", folder / "gpt2.onnx") == 1
        self.safe(capsys)

        model = onnx.load(folder / "out.onnx")
        del model.graph.output[1:]
        drop_unread(model.graph)
        onnx.save(model, folder / "less.onnx")
        assert run("relink", folder / "out.onnx", folder / "less.onnx", "-v") == 0
        assert "were removed (\\x1b]0;evil" in self.safe(capsys)

    def test_broken_files_with_evil_names(self, folder: Path, capsys: Captured) -> None:
        def spoil(model: onnx.ModelProto) -> None:
            evil_names(model)
            from_nowhere(model)
            model.graph.node[10].input[0] = f"{EVIL}nowhere"

        assert run("relink", folder / "bert.onnx", changed(folder, spoil), "-o", folder / "out.onnx") == 2
        assert "\\x1b]0;evil" in self.safe(capsys)

    def test_a_file_with_an_evil_name(self, folder: Path, capsys: Captured) -> None:
        path = plain_copy(folder / "bert.onnx", folder / "a\x1b[31m.onnx")
        assert run("relink", folder / "bert.onnx", path, "-o", folder / "b\x1b[31m.onnx") == 0
        assert "b\\x1b[31m.onnx" in self.safe(capsys)
        assert run("relink", path) == 2
        self.safe(capsys)
