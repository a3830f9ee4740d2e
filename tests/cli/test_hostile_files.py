"""Files of strangers, on every verb that reads one: exit code 2 and a line that says why; `validate` lists it, with 1.

In this process and within seconds: whatever unfolds must be refused before it does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.support.children import run_child
from tests.support.command_line import run
from tests.support.hostile_files import (
    EXPLOSIVE,
    MALFORMED,
    RECORDS,
    Make,
    chained,
    doubling,
    long_class,
    not_utf8,
    tagged,
    with_record,
)

SECONDS = 20
VERBS = {
    "analyze": "analyze {file}",
    "analyze in detail": "analyze {file} --format detailed",
    "query": "query {file} op=*",
    "cost": "cost {file}",
    "compare": "compare {good} {file}",
    "diff": "diff {file} {good}",
    "view": "view {file} -o {made}/page.html",
    "convert": "convert {file} --to graphml -o {made}/a.graphml",
    "netron": "convert {file} --to netron -o {made}/netron.onnx",
    "select": "select {file} op=* --for names",
    "extract": "extract {file} op=* -o {made}/part.onnx",
    "fold": "fold {file} -o {made}/folded.onnx",
    "flatten": "flatten {file} -o {made}/flat.onnx",
    "attach": "attach {file} -o {made}/tagged.onnx",
    "relink": "relink {good} {file} -o {made}/relinked.onnx",
    "run-tool": "run-tool {file} --tool ort:basic -o {made}/tool.onnx",
    "quantize": "quantize {file} -o {made}/int8.onnx",
    "profile": "profile {file} --runs 1",
    "verify": "verify {file} --against {good}",
}
# These answer without the record, and `relink` reads that of the file before.
_RECORDLESS = ("strip", "relink", "verify", "attach", "diff", "flatten")
# These ask for more than the small file has, or run it.
_DEMANDING = ("extract", "attach", "run-tool", "quantize", "profile", "verify")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "good.onnx"
    onnx.save(tagged(), path)
    return path


@pytest.fixture
def quick() -> Iterator[None]:
    began = time.process_time()
    yield
    assert time.process_time() - began < SECONDS


def command(verb: str, file: Path, good: Path) -> list[str]:
    made = file.parent / "made"
    made.mkdir(exist_ok=True)
    return [word.format(file=file, good=good, made=made) for word in {**VERBS, **WRITERS}[verb].split()]


WRITERS = {"strip": "strip {file} -o {made}/plain.onnx"}


def assert_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    code = run(*arguments)
    said = capsys.readouterr().err
    assert code == 2, said
    assert said.startswith("error: ")
    assert "Traceback" not in said
    assert "unexpected" not in said
    assert all(len(line) <= 500 for line in said.splitlines())
    return said


def write(make: Make, folder: Path) -> Path:
    (folder / "a.onnx").write_bytes(make().SerializeToString())
    return folder / "a.onnx"


FILES = {**MALFORMED, **EXPLOSIVE}
# Opening is one place: every file with one verb, and every verb with two files.
ALL_VERBS = [*VERBS, *WRITERS]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", FILES)
def test_every_file_is_refused(name: str, tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot be read: " in assert_refused(command("analyze", write(FILES[name], tmp_path), good), capsys)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", FILES)
def test_validate_lists_it(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("validate", write(FILES[name], tmp_path), "--check-consistency") == 1
    assert "malformed" in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", ["short raw data", "doubling functions"])
@pytest.mark.parametrize("verb", ALL_VERBS)
def test_every_verb_refuses(
    verb: str, name: str, tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(FILES[name], tmp_path)
    assert_refused(command(verb, file, good), capsys)
    assert list((tmp_path / "made").iterdir()) == []


@pytest.mark.parametrize("verb", ["analyze", "fold", "strip", "relink"])
def test_names_that_are_no_utf8(verb: str, tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.onnx").write_bytes(not_utf8())
    assert "is not UTF-8" in assert_refused(command(verb, tmp_path / "a.onnx", good), capsys)
    assert run("validate", tmp_path / "a.onnx") == 1


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", RECORDS)
def test_records_that_unfold_without_end(
    name: str, tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(lambda: with_record(RECORDS[name]()), tmp_path)
    assert "the embedded record is damaged" in assert_refused(command("analyze", file, good), capsys)
    assert run("validate", file) == 1
    assert "record-unreadable" in capsys.readouterr().out


@pytest.mark.parametrize("verb", [verb for verb in ALL_VERBS if verb not in _RECORDLESS])
def test_every_verb_refuses_such_a_record(
    verb: str, tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(lambda: with_record(RECORDS["modules 3,000 deep"]()), tmp_path)
    assert_refused(command(verb, file, good), capsys)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in _DEMANDING])
def test_a_name_of_a_megabyte_is_answered_for(
    verb: str, tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(*command(verb, write(long_class, tmp_path), good))
    captured = capsys.readouterr()
    assert code == (1 if verb in ("compare", "diff") else 0), captured.err
    assert len(captured.out) < 200_000


def test_no_line_of_an_error_is_longer_than_one_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / ("n" * 5_000)
    assert "characters" in assert_refused(["analyze", str(missing)], capsys)
    query = "module=" + "\x1b" * 100_000
    onnx.save(tagged(), tmp_path / "a.onnx")
    assert_refused(["query", str(tmp_path / "a.onnx"), query], capsys)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes that have a name")
class TestSpecialFiles:
    """A pipe that nobody writes to: whoever opens it waits for ever."""

    @pytest.fixture
    def piped(self, tmp_path: Path) -> Path:
        """A model whose weight is in a pipe."""
        onnx.save(tagged(), tmp_path / "a.onnx", save_as_external_data=True, location="w.bin", size_threshold=100)
        (tmp_path / "w.bin").unlink()
        os.mkfifo(tmp_path / "w.bin")
        return tmp_path / "a.onnx"

    @pytest.mark.parametrize("verb", ALL_VERBS)
    def test_as_external_data(self, verb: str, piped: Path, good: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert "'w.bin' is not a regular file" in assert_refused(command(verb, piped, good), capsys)

    def test_is_a_finding(self, piped: Path) -> None:
        assert run("validate", piped) == 1

    @pytest.mark.parametrize("verb", ["analyze", "validate", "verify", "fold"])
    def test_as_the_model(self, verb: str, tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]) -> None:
        os.mkfifo(tmp_path / "a.onnx")
        arguments = (
            ["validate", str(tmp_path / "a.onnx")] if verb == "validate" else command(verb, tmp_path / "a.onnx", good)
        )
        assert "not a regular file" in assert_refused(arguments, capsys)

    def test_as_the_record_beside(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """It is not there for whoever looks for a file."""
        onnx.save(tagged(), tmp_path / "a.onnx")
        os.mkfifo(tmp_path / "a.hierarchy.json")
        assert run("analyze", tmp_path / "a.onnx") == 0
        assert_refused(["query", str(tmp_path / "a.hierarchy.json"), "op=*"], capsys)

    @pytest.mark.parametrize("option", ["--inputs", "--overlay"])
    def test_as_another_input(
        self, option: str, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        os.mkfifo(tmp_path / "in.npz")
        verb = ["profile", str(good)] if option == "--inputs" else ["view", str(good), "-o", str(tmp_path / "a.html")]
        assert "not a regular file" in assert_refused([*verb, option, str(tmp_path / "in.npz")], capsys)


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of file sizes")
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_output_that_is_cut_off_is_an_error(unbuffered: str, good: Path, tmp_path: Path) -> None:
    import resource

    with (tmp_path / "out.json").open("wb") as out:
        ended = run_child(
            [sys.executable, "-m", "modelexport", "analyze", str(good), "--format", "json"],
            stdout=out,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
        )
    assert ended.returncode == 2
    assert "error: " in ended.stderr


@pytest.mark.parametrize("verb", ["analyze", "diff", "fold", "flatten", "relink", "cost", "view"])
def test_a_function_that_nobody_calls_is_answered_for(
    verb: str, tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = tagged()
    nodes = [onnx.helper.make_node("Relu", ["b"], ["c"]), onnx.helper.make_node("Neg", ["a"], ["b"])]
    opset = onnx.helper.make_opsetid("", 20)
    proto.functions.append(onnx.helper.make_function("[]", "F", ["a"], ["c"], nodes, [opset]))
    code = run(*command(verb, write(lambda: proto, tmp_path), good))
    assert code in (0, 1), capsys.readouterr().err


@pytest.mark.parametrize("verb", sorted({*VERBS} - {"compare", *_DEMANDING}))
def test_a_node_without_the_inputs_of_its_operator(
    verb: str, tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record is of the sound model, and fits no longer."""
    proto = tagged()
    proto.graph.node[1].input[:] = []
    code = run(*command(verb, write(lambda: proto, tmp_path), good))
    assert code in (0, 1, 2), capsys.readouterr().err


@pytest.mark.parametrize("verb", ["analyze", "diff", "fold", "flatten", "relink", "cost", "view"])
def test_functions_in_any_order(verb: str, tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ONNX asks for no order: who is called may come behind who calls."""
    proto = chained(4)
    proto.functions.reverse()
    code = run(*command(verb, write(lambda: proto, tmp_path), good))
    assert code in (0, 1, 2), capsys.readouterr().err
    assert verb in ("diff", "relink") or code == 0


@pytest.mark.parametrize("verb", ["diff", "cost"])
def test_calls_of_functions_that_belong_to_many_modules(tmp_path: Path, verb: str) -> None:
    """Each call of a function is read as a module: twelve that call the next one twice are thousands, in 2 KB."""
    proto = doubling(12)
    proto.graph.node[0].input[:], proto.graph.node[0].output[:] = ["layers.1.fc.weight_packed"], ["layers.1.fc.weight"]
    for name in ("layers.0.fc.weight", "layers.1.fc.weight_packed"):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((16, 16), np.float32), name))
    for reader, number, result in (("x", 0, "h"), ("h", 1, "y")):
        read = [reader, f"layers.{number}.fc.weight"]
        proto.graph.node.append(onnx.helper.make_node("MatMul", read, [result], f"/layers.{number}/fc/MatMul"))
    onnx.save(proto, tmp_path / "a.onnx")
    began = time.process_time()
    assert run(verb, *[tmp_path / "a.onnx"] * (2 if verb == "diff" else 1)) == 0
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize("verb", ["cost", "diff"])
def test_a_version_of_operators_that_32_bits_do_not_hold(tmp_path: Path, verb: str) -> None:
    proto = chained(2)
    proto.opset_import[0].version = 2**40
    onnx.save(proto, tmp_path / "a.onnx")
    assert run(verb, *[tmp_path / "a.onnx"] * (2 if verb == "diff" else 1)) == 0


def test_arrays_whose_header_lies(tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000)}".ljust(117) + "\n"
    with zipfile.ZipFile(tmp_path / "lie.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
    for verb in ("profile {good} --runs 1", "verify {good} --against {good}"):
        arguments = verb.format(good=good).split()
        assert "its header says 1000000x1000000" in assert_refused(
            [*arguments, "--inputs", str(tmp_path / "lie.npz")], capsys
        )


@pytest.mark.parametrize("arguments", ["view {good} --overlay {nest} -o {made}", "query {nest} op=*"])
def test_json_that_is_nested_without_end(
    arguments: str, tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nest.json").write_text("[" * 50_000)
    filled = [
        word.format(good=good, nest=tmp_path / "nest.json", made=tmp_path / "a.html") for word in arguments.split()
    ]
    assert "nested more than 64 levels deep" in assert_refused(filled, capsys)


@pytest.mark.parametrize("form", ["graphml", "model-explorer", "dot", "mermaid", "csv", "netron"])
def test_external_data_in_what_is_no_name_of_a_file(form: str, tmp_path: Path) -> None:
    """Data of the model must not be overwritten; what has a NUL in it is no file that could be."""
    proto = tagged()
    weight = next(tensor for tensor in proto.graph.initializer if tensor.name == "w")
    size = len(weight.raw_data)
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "a\0b"), ("length", str(size))):
        weight.external_data.add(key=key, value=value)
    onnx.save(proto, tmp_path / "a.onnx")
    assert run("convert", tmp_path / "a.onnx", "--to", form, "-o", tmp_path / "made") in (0, 2)


def test_a_size_that_is_squared_again_and_again(quick: None, tmp_path: Path) -> None:
    """Sixty nodes; the power of an axis doubles with each of them."""
    helper = onnx.helper
    nodes = [helper.make_node("Shape", ["x"], ["s0"])]
    nodes += [helper.make_node("Mul", [f"s{step}", f"s{step}"], [f"s{step + 1}"]) for step in range(60)]
    nodes.append(helper.make_node("Reshape", ["x", "s60"], ["y"]))
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["a", "b"]) for name in "xy"]
    onnx.save(helper.make_model(helper.make_graph(nodes, "main", ends[:1], ends[1:])), tmp_path / "a.onnx")
    assert run("cost", tmp_path / "a.onnx") == 0


def _save(path: Path, nodes: list[onnx.NodeProto], *initializers: onnx.TensorProto) -> Path:
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["a", 3]) for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "main", ends[:1], ends[1:], initializers)
    onnx.save(onnx.helper.make_model(graph), path)
    return path


def test_an_axis_that_is_added_twice(quick: None, tmp_path: Path) -> None:
    axes = onnx.helper.make_tensor("axes", onnx.TensorProto.INT64, [2], [0, 0])
    path = _save(tmp_path / "a.onnx", [onnx.helper.make_node("Unsqueeze", ["x", "axes"], ["y"])], axes)
    assert run("cost", path) == 0
    assert run("view", path, "-o", tmp_path / "a.html") == 0


def test_a_constant_that_says_to_read_something(good: Path, tmp_path: Path) -> None:
    """With a record, which says whose the nodes are: nothing walks the graph for that."""
    proto = tagged()
    node = next(
        node for node in proto.graph.node if not {*node.input} <= {"x", *(w.name for w in proto.graph.initializer)}
    )
    node.op_type = "Constant"
    onnx.save(proto, tmp_path / "a.onnx")
    assert run("diff", good, tmp_path / "a.onnx") in (0, 1)


def test_a_body_that_returns_what_its_own_node_makes(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["n"])], "inside", [], [])
    for name in "yn":
        inside.output.add(name=name)
    which = onnx.helper.make_tensor("which", onnx.TensorProto.BOOL, [], [True])
    node = onnx.helper.make_node("If", ["which"], ["y"], then_branch=inside, else_branch=inside)
    path = _save(tmp_path / "a.onnx", [node], which)
    assert run("attach", path, "-o", tmp_path / "b.onnx") == 2
    assert "circle: 'y'" in capsys.readouterr().err
