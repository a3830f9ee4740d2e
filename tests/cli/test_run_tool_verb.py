"""`modelexport run-tool`."""

from __future__ import annotations

import importlib.util
import inspect
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.support.command_line import run
from tests.support.spoiled_files import (
    Captured,
    changed,
    circle,
    contents,
    evil_names,
    metadata,
    of_another_version,
    refused,
)

import modelexport as mx
from modelexport.api import run_tool as api
from modelexport.capture.onnxruntime import inputs as graph_inputs
from modelexport.errors import UnknownName, UserError
from modelexport.graph.file.metadata import RECORD_KEY
from modelexport.transform.tools import optimizers
from modelexport.transform.tools.catalogue import TOOLS, parse_chain
from modelexport.transform.tools.tool import Job


class Recorder:
    """Stands in for `modelexport.run_tool`."""

    def __init__(self, answer: mx.RelinkResult) -> None:
        self.asked: dict[str, Any] = {}
        self._answer = answer

    def __call__(self, file: Path, **options: Any) -> mx.RelinkResult:
        self.asked = {"file": file, **options}
        return self._answer


REAL = api.run_tool


def test_every_option_is_a_keyword_of_the_api(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(mx.relink(folder / "bert.onnx"))
    monkeypatch.setattr(api, "run_tool", recorder)
    assert run("run-tool", folder / "bert.onnx", "--tool", "int8", "-o", folder / "out.onnx") == 0
    parameters = inspect.signature(REAL).parameters
    assert set(recorder.asked) == set(parameters)
    defaults = {name: found.default for name, found in parameters.items() if found.default is not found.empty}
    assert {name: recorder.asked[name] for name in defaults} == defaults
    options = ["--inputs", "a.npz", "--input", "x=1", "--samples", 2, "--seed", 3, "--no-check", "--embed", "lean"]
    run("run-tool", folder / "bert.onnx", "--tool", "int8", "-o", folder / "out.onnx", *options)
    asked = recorder.asked
    assert (asked["inputs"], asked["input"], asked["samples"], asked["seed"]) == (Path("a.npz"), ("x=1",), 2, 3)
    assert (asked["check"], asked["embed"], asked["tool"]) == (False, "lean", "int8")


class TestAnswers:
    def test_a_tool_and_its_lineage(self, folder: Path, capsys: Captured) -> None:
        target = folder / "out.onnx"
        assert run("run-tool", folder / "bert.onnx", "--tool", "ort:extended", "-o", target) == 0
        text = capsys.readouterr().out
        assert f"wrote {target} (" in text
        assert f"nodes from {folder / 'bert.onnx'}: kept " in text
        found = mx.load(target)
        assert all(entry.attribution.owners for entry in found.nodes.values())
        assert any("ort:extended" in str(item) for one in found.nodes.values() for item in one.attribution.evidence)

    def test_json_and_quiet(self, folder: Path, capsys: Captured) -> None:
        target = folder / "out.onnx"
        assert run("run-tool", folder / "bert.onnx", "--tool", "ort:basic", "-o", target, "--format", "json") == 0
        document = json.loads(capsys.readouterr().out)
        assert document["files"] == [str(target), str(target.with_suffix(".hierarchy.json"))]
        assert set(document["seconds"]) == {"read", "ort", "check", "link", "write"}
        assert run("run-tool", folder / "bert.onnx", "--tool", "ort:basic", "-o", target, "-q") == 0
        assert capsys.readouterr() == ("", "")

    def test_a_file_that_a_tool_made_before(self, folder: Path) -> None:
        one, two = folder / "one.onnx", folder / "two.onnx"
        assert run("run-tool", folder / "bert.onnx", "--tool", "ort:basic", "-o", one, "-q") == 0
        assert run("run-tool", one, "--tool", "int8", "-o", two, "-q") == 0
        assert all(entry.attribution.owners for entry in mx.load(two).nodes.values())


class TestNames:
    @pytest.mark.parametrize(
        ("tool", "message"),
        [
            ("onnxslimm", "unknown tool 'onnxslimm'\nDid you mean 'onnxslim'?"),
            ("int8+onxslim", "unknown tool 'onxslim'\nDid you mean 'onnxslim'?"),
            ("ort:max", "ort has no option 'max'\nIt knows: all, extended, basic."),
            ("int8:3", "int8 has no option '3'\nIt has none."),
            ("ort:3", "ort has no option '3'"),
            ("opset:x", "opset has no option 'x'\nIt takes a number, as in opset:21."),
            ("transformers:none", "transformers has no option 'none'\nIt knows: bart"),
            ("INT8", "unknown tool 'INT8'\nDid you mean 'int8'?"),
            ("OnnxSlim", "unknown tool 'OnnxSlim'\nDid you mean 'onnxslim'?"),
            ("ort-all", "unknown tool 'ort-all'\nDid you mean 'ort:all'?"),
            ("int8,ort:all", "unknown tool 'int8,ort:all'\nJoin several tools by +: int8+ort:all."),
            ("int8 -> ort:all", "Join several tools by +: int8+ort:all."),
            ("", "'' names no tool\nKnown: ort, "),
            (" + ", "' + ' names no tool\nKnown: ort, "),
            ("int8+", "there is no tool on one side of a + in 'int8+'\nName one on both sides, or leave it out: int8."),
            ("int8++ort:all", "or leave it out: int8+ort:all."),
        ],
    )
    def test_a_name_or_an_option_that_nobody_knows(
        self, folder: Path, capsys: Captured, tool: str, message: str
    ) -> None:
        text = refused(folder, capsys, "run-tool", folder / "bert.onnx", "--tool", tool, "-o", folder / "out.onnx")
        assert message in text

    def test_all_known_names_are_listed_where_none_is_near(self) -> None:
        with pytest.raises(UnknownName) as caught:
            parse_chain("zzz")
        assert all(name in caught.value.hint for name in TOOLS)

    def test_the_help_names_all_of_them(self, capsys: Captured) -> None:
        assert run("run-tool", "--help") == 0
        text = capsys.readouterr().out
        assert all(name in text for name in TOOLS)

    def test_chains(self) -> None:
        found = [(tool.name, option) for tool, option in parse_chain("int8 + ort:basic+opset:18+ort+transformers:bert")]
        assert found == [
            ("int8", ""),
            ("ort", "basic"),
            ("opset", "18"),
            ("ort", "all"),
            ("transformers", "bert"),
        ]


class TestWhatChangedNothing:
    def test_it_is_said(self, folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
        with_tool(monkeypatch, "onnxslim", lambda job: shutil.copy(job.source, job.target))
        arguments = ["run-tool", folder / "bert.onnx", "-o", folder / "out.onnx", "--no-check"]
        assert run(*arguments, "--tool", "onnxslim") == 0
        assert "onnxslim changed nothing: graph, weights and shapes are as they were before it" in output(capsys)
        assert run(*arguments, "--tool", "ort:basic+onnxslim", "--format", "json") == 0
        assert json.loads(capsys.readouterr().out)["idle"] == ["onnxslim"]

    def test_not_of_a_tool_that_did_something(self, folder: Path, capsys: Captured) -> None:
        arguments = ["run-tool", folder / "bert.onnx", "-o", folder / "out.onnx", "--no-check"]
        for tool in ("ort:basic", "shapes"):  # shapes alone are something, too
            assert run(*arguments, "--tool", tool) == 0
            assert "changed nothing" not in output(capsys)

    def test_nor_of_one_that_changed_a_weight(
        self, folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def touch(job: Job) -> None:
            model = onnx.load(job.source)
            largest = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
            largest.raw_data = largest.raw_data[:-1] + bytes([largest.raw_data[-1] ^ 1])
            onnx.save(model, job.target)

        with_tool(monkeypatch, "onnxslim", touch)
        run("run-tool", folder / "bert.onnx", "-o", folder / "out.onnx", "--tool", "onnxslim", "--no-check")
        assert "changed nothing" not in output(capsys)


class TestWeights:
    """A tool may move, round, fuse or quantize what a file holds; other numbers under one name are no such thing."""

    @pytest.mark.parametrize("damage", [np.zeros_like, np.negative, lambda array: np.roll(array, 1, -1)])
    def test_a_tool_that_damages_one(
        self, folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, damage: Any
    ) -> None:
        name = "encoder.layer.0.attention.self.query.bias"

        def spoil(job: Job) -> None:
            model = onnx.load(job.source)
            weight = next(tensor for tensor in model.graph.initializer if tensor.name == name)
            numbers = np.random.default_rng(0).normal(size=tuple(weight.dims)).astype(np.float32)
            weight.CopyFrom(onnx.numpy_helper.from_array(damage(numbers), name))
            onnx.save(model, job.target)

        with_tool(monkeypatch, "onnxslim", spoil)
        assert run("run-tool", folder / "bert.onnx", "-o", folder / "out.onnx", "--tool", "onnxslim+ort:basic") == 1
        assert f"1 weight with other numbers under the same name ({name})" in output(capsys)

    @pytest.mark.parametrize("tool", ["ort:all", "ort:extended", "onnxslim", "fp16", "int8"])
    def test_tools_that_damage_none(self, folder: Path, tool: str) -> None:
        assert run("run-tool", folder / "bert.onnx", "-o", folder / "out.onnx", "--tool", tool) == 0


def output(capsys: Captured) -> str:
    """Without the breaks that a narrow terminal puts in."""
    return " ".join(capsys.readouterr().out.split())


class TestInputs:
    @pytest.fixture
    def made(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Seeds of inputs that were made."""
        seeds: list[int] = []
        real = graph_inputs.make_feed

        def make(*arguments: Any, seed: int, **options: Any) -> Any:
            seeds.append(seed)
            return real(*arguments, seed=seed, **options)

        monkeypatch.setattr(graph_inputs, "make_feed", make)
        return seeds

    def test_none_are_made_where_nobody_needs_any(self, folder: Path, made: list[int]) -> None:
        arguments = ["run-tool", folder / "bert.onnx", "-o", folder / "out.onnx", "-q", "--samples", "2"]
        assert run(*arguments, "--tool", "int8", "--no-check") == 0
        assert made == []
        assert run(*arguments, "--tool", "int8") == 0
        assert made == [0, 1]
        assert run(*arguments, "--tool", "qdq", "--no-check") == 0
        assert made == [0, 1, 0, 1]


class TestFailures:
    def test_a_tool_that_fails_says_why(self, folder: Path, capsys: Captured) -> None:
        text = refused(folder, capsys, "run-tool", folder / "bert.onnx", "--tool", "opset:3", "-o", folder / "out.onnx")
        assert text.startswith("error: opset failed: ")
        assert "Nothing was written. The message is the tool's own" in text

    def test_a_tool_that_fails_after_another_did_not(self, folder: Path, capsys: Captured) -> None:
        chain = "ort:basic+opset:999"
        text = refused(folder, capsys, "run-tool", folder / "bert.onnx", "--tool", chain, "-o", folder / "out.onnx")
        assert text.startswith("error: opset failed: ")

    def test_what_was_there_stays(self, folder: Path, capsys: Captured) -> None:
        (folder / "out.onnx").write_bytes((folder / "gpt2.onnx").read_bytes())
        refused(folder, capsys, "run-tool", folder / "bert.onnx", "--tool", "opset:3", "-o", folder / "out.onnx")

    def test_a_tool_that_writes_nothing(self, folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
        with_tool(monkeypatch, "onnxslim", lambda _: None)
        text = refused(folder, capsys, "run-tool", folder / "bert.onnx", "--tool", "onnxslim", "-o", folder / "o.onnx")
        assert "onnxslim wrote nothing, and did not say why" in text

    def test_a_tool_that_writes_what_cannot_run(
        self, folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def turn(job: Job) -> None:
            model = onnx.load(job.source)
            next(node for node in model.graph.node if node.op_type == "Gelu").op_type = "Nonsense"
            onnx.save(model, job.target)

        with_tool(monkeypatch, "onnxslim", turn)
        arguments = ["run-tool", folder / "bert.onnx", "--tool", "onnxslim", "-o", folder / "out.onnx"]
        text = refused(folder, capsys, *arguments)
        assert "ONNX Runtime cannot run what onnxslim made: " in text
        assert "--no-check" in text
        assert run(*arguments, "--no-check") == 0

    def test_a_tool_that_writes_rubbish(self, folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
        with_tool(monkeypatch, "onnxslim", lambda job: job.target.write_text("hello"))
        text = refused(folder, capsys, "run-tool", folder / "bert.onnx", "--tool", "onnxslim", "-o", folder / "o.onnx")
        assert "onnxslim wrote a file that is no ONNX model" in text

    @pytest.mark.parametrize("tool", ["onnxscript", "ort:basic"])
    def test_no_tool_is_to_blame_for_a_file_that_could_not_be_run_before(
        self, folder: Path, capsys: Captured, tool: str
    ) -> None:
        def break_it(model: onnx.ModelProto) -> None:
            next(node for node in model.graph.node if node.op_type == "Gelu").op_type = "Nonsense"

        broken = changed(folder, break_it)
        text = refused(folder, capsys, "run-tool", broken, "--tool", tool, "-o", folder / "out.onnx")
        assert f"ONNX Runtime cannot run {broken} either, as it was before." in text
        assert "The tool broke the model" not in text
        assert "Nonsense" in text
        assert "ONNX Runtime says" not in text, "the reason is told once"

    @pytest.mark.parametrize("chain", ["onnxscript", "ort:basic+opset:18"])
    @pytest.mark.parametrize("helps", [True, False])
    def test_cleaning_up_is_proposed_where_it_helps(
        self, folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, chain: str, helps: bool
    ) -> None:
        cleaned: list[Path] = []

        def clean(job: Job) -> None:
            shutil.copy(job.source, job.target)
            cleaned.append(job.target)

        def fail(job: Job) -> None:
            if not (cleaned and helps):
                raise ValueError("no")
            shutil.copy(job.source, job.target)

        with_tool(monkeypatch, "onnxslim", clean)
        with_tool(monkeypatch, chain.rsplit("+", maxsplit=1)[-1].partition(":")[0], fail)
        text = refused(folder, capsys, "run-tool", folder / "bert.onnx", "--tool", chain, "-o", folder / "out.onnx")
        assert cleaned, "it was tried"
        assert (f"--tool onnxslim+{chain} -o FILE" in text) is helps
        assert ("onnxslim" in text) is helps

    def test_cleaning_up_is_not_proposed_where_it_failed(
        self, folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_: Job) -> None:
            raise ValueError("no")

        with_tool(monkeypatch, "onnxslim", fail)
        text = refused(folder, capsys, "run-tool", folder / "bert.onnx", "--tool", "onnxslim", "-o", folder / "o.onnx")
        assert "onnxslim+" not in text

    def test_what_a_failing_tool_leaves_behind_goes_with_it(
        self, folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def litter(_: Job) -> None:
            Path("left.onnx").write_text("x")
            raise ValueError("no")

        with_tool(monkeypatch, "onnxslim", litter)
        monkeypatch.chdir(folder)
        text = refused(folder, capsys, "run-tool", "bert.onnx", "--tool", "onnxslim", "-o", "out.onnx")
        assert text.startswith("error: onnxslim failed: no")
        assert Path.cwd() == folder

    @pytest.mark.parametrize("tool", ["int8", "qdq"])
    def test_nothing_is_ever_written_beside_the_input(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, tool: str
    ) -> None:
        inner = folder / "inner"
        inner.mkdir()
        shutil.copy(folder / "bert.onnx", inner / "bert.onnx")
        inner.chmod(0o500)
        seen: list[str] = []
        real = onnx.shape_inference.infer_shapes_path

        def infer(model: str, output: str = "", **options: Any) -> None:
            seen.append(output or model)
            real(model, output, **options)

        monkeypatch.setattr(onnx.shape_inference, "infer_shapes_path", infer)
        assert run("run-tool", inner / "bert.onnx", "--tool", tool, "-o", folder / "out.onnx", "-q") == 0
        inner.chmod(0o700)
        assert [path for path in seen if Path(path).parent == inner] == []

    def test_a_tool_that_writes_no_graph(self, folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
        def spoil(job: Job) -> None:
            model = onnx.load(job.source)
            circle(model)
            onnx.save(model, job.target)

        with_tool(monkeypatch, "onnxslim", spoil)
        arguments = ["run-tool", folder / "bert.onnx", "--tool", "onnxslim", "-o", folder / "out.onnx", "--no-check"]
        assert "what onnxslim made is not a valid ONNX graph" in refused(folder, capsys, *arguments)

    def test_a_tool_that_writes_another_model(
        self, folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with_tool(monkeypatch, "onnxslim", lambda job: job.target.write_bytes((folder / "gpt2.onnx").read_bytes()))
        arguments = ["run-tool", folder / "bert.onnx", "--tool", "onnxslim", "-o", folder / "out.onnx", "--no-check"]
        assert "was not made from" in refused(folder, capsys, *arguments, code=1)

    @pytest.mark.parametrize(
        ("tool", "package", "extra"),
        [("onnxslim", "onnxslim", "tools"), ("int8", "onnxruntime", "runtime"), ("onnxscript", "onnxscript", "export")],
    )
    def test_a_package_that_is_not_there(
        self, folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, tool: str, package: str, extra: str
    ) -> None:
        find = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
        text = refused(folder, capsys, "run-tool", folder / "bert.onnx", "--tool", tool, "-o", folder / "out.onnx")
        assert f"{tool} needs the package {package}, which is not installed" in text
        assert f"pip install 'modelexport[{extra}]'" in text

    def test_a_package_that_a_package_needs(
        self, folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_: Job) -> None:
            raise ModuleNotFoundError("No module named 'sympy'", name="sympy")

        with_tool(monkeypatch, "onnxslim", fail)
        text = refused(folder, capsys, "run-tool", folder / "bert.onnx", "--tool", "onnxslim", "-o", folder / "o.onnx")
        assert "onnxslim needs the package sympy" in text

    def test_a_tool_may_be_as_loud_as_it_likes(
        self, folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def shout(job: Job) -> None:
            print("look at me")  # noqa: T201
            optimizers.ort(Job(job.source, job.target, "basic", job.feeds))

        with_tool(monkeypatch, "onnxslim", shout)
        assert run("run-tool", folder / "bert.onnx", "--tool", "onnxslim", "-o", folder / "out.onnx") == 0
        assert "look at me" not in "".join(capsys.readouterr())


def with_tool(monkeypatch: pytest.MonkeyPatch, name: str, work: Any) -> None:
    """Another way to do what a tool does."""
    from dataclasses import replace

    monkeypatch.setitem(TOOLS, name, replace(TOOLS[name], run=work, package="onnx"))


class TestFiles:
    def test_the_input_is_never_written_over(self, folder: Path, capsys: Captured) -> None:
        for target in ("bert.onnx", "bert.x"):
            arguments = ["run-tool", folder / "bert.onnx", "--tool", "ort:basic", "-o", folder / target]
            assert "is read here" in refused(folder, capsys, *arguments)

    def test_what_cannot_be_used(self, folder: Path, capsys: Captured) -> None:
        (folder / "text.onnx").write_text("hello")
        newer = changed(folder, metadata(RECORD_KEY, of_another_version), "new.onnx")
        for path, message in (
            (folder / "text.onnx", "is not an ONNX model"),
            (folder / "none.onnx", "no such file"),
            (newer, "schema 9"),
            (changed(folder, circle, "circle.onnx"), "ort failed: "),
        ):
            text = refused(folder, capsys, "run-tool", path, "--tool", "ort:basic", "-o", folder / "out.onnx")
            assert message in text

    def test_inputs_of_another_model(self, folder: Path, capsys: Captured) -> None:
        np.savez(folder / "a.npz", pixel_values=np.ones((1, 3, 8, 8), np.float32))
        arguments = ["run-tool", folder / "bert.onnx", "--tool", "qdq", "-o", folder / "out.onnx"]
        text = refused(folder, capsys, *arguments, "--inputs", folder / "a.npz")
        assert "'input_ids'" in text
        assert "pixel_values" in text
        assert "the seed is -1" in refused(folder, capsys, *arguments, "--seed", "-1")
        assert "no input 'nobody'" in refused(folder, capsys, *arguments, "--input", "nobody=1x8")

    def test_how_many_samples(self, folder: Path) -> None:
        before = contents(folder)
        with pytest.raises(UserError, match="samples is 0"):
            mx.run_tool(folder / "bert.onnx", "qdq", folder / "out.onnx", samples=0)
        assert contents(folder) == before

    def test_evil_names_are_harmless(self, folder: Path, capsys: Captured) -> None:
        evil = changed(folder, evil_names)
        assert run("relink", folder / "bert.onnx", evil, "-o", folder / "tagged.onnx", "-q") == 0
        assert run("run-tool", folder / "tagged.onnx", "--tool", "ort:basic", "-o", folder / "out.onnx") == 0
        assert "\x1b" not in "".join(capsys.readouterr())
        assert run("run-tool", folder / "bert.onnx", "--tool", "\x1b[31m", "-o", folder / "out.onnx") == 2
        assert "unknown tool '\\x1b[31m'" in capsys.readouterr().err


@contextmanager
def listed(path: Path) -> Iterator[None]:
    """Nothing is left in a folder that was not there before."""
    before = set(path.iterdir())
    yield
    assert set(path.iterdir()) == before


def test_no_temporary_file_is_left(folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: Any) -> None:
    place = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr("tempfile.tempdir", str(place))
    with listed(place):
        assert run("run-tool", folder / "bert.onnx", "--tool", "ort:basic", "-o", folder / "out.onnx") == 0
        assert run("run-tool", folder / "bert.onnx", "--tool", "opset:3", "-o", folder / "out.onnx") == 2
        assert run("profile", folder / "bert.onnx", "--runs", "1", "--warmup", "0", "-q") == 0
