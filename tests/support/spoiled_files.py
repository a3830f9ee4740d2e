"""Files with something wrong about them, for the verbs that follow a model through tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
import pytest
from tests.support.command_line import run

from modelexport.record.packed import PACKED_VERSION

Captured = pytest.CaptureFixture[str]
Change = Callable[[onnx.ModelProto], object]
EVIL = "\x1b]0;evil\x07\u202e"


def changed(folder: Path, change: Change, name: str = "after.onnx") -> Path:
    model = onnx.load(folder / "bert.onnx")
    change(model)
    onnx.save(model, folder / name)
    return folder / name


def contents(folder: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def refused(folder: Path, capsys: Captured, *arguments: object, code: int = 2) -> str:
    """The message of a call that must fail and leave everything as it was."""
    before = contents(folder)
    assert run(*arguments) == code
    assert contents(folder) == before
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    if code == 1:
        assert captured.err == ""
        return captured.out
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "unexpected" not in captured.err
    assert len(captured.err.strip().splitlines()) >= 2, "there is no word about what to do next"
    return captured.err


def metadata(key: str, change: Callable[[str], str | None]) -> Change:
    """Another value for one entry of the model's metadata; None takes it out."""

    def apply(model: onnx.ModelProto) -> None:
        entries = {entry.key: entry.value for entry in model.metadata_props}
        found = change(entries.pop(key))
        del model.metadata_props[:]
        for name, value in {**entries, **({} if found is None else {key: found})}.items():
            model.metadata_props.add(key=name, value=value)

    return apply


def of_another_version(value: str) -> str:
    """A packed record or outline as a later version of this package would mark its own."""
    name, _, packed = value.partition(":")
    assert name in (f"modelexport-record-{PACKED_VERSION}", f"modelexport-outline-{PACKED_VERSION}")
    return f"{name.rpartition('-')[0]}-9:{packed}"


def without_record(model: onnx.ModelProto) -> None:
    del model.metadata_props[:]


def same_value_twice(model: onnx.ModelProto) -> None:
    model.graph.node[5].output[0] = model.graph.node[4].output[0]


def same_weight_twice(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(model.graph.initializer[0])


def circle(model: onnx.ModelProto) -> None:
    one, other = model.graph.node[10], model.graph.node[20]
    one.input[0], other.input[0] = other.output[0], one.output[0]


def from_nowhere(model: onnx.ModelProto) -> None:
    model.graph.node[10].input[0] = "from nowhere"


def returns_nothing(model: onnx.ModelProto) -> None:
    del model.graph.node[:]


def evil_names(model: onnx.ModelProto) -> None:
    """Every name but those of what goes in and out could speak to a terminal."""
    fixed = {value.name for value in (*model.graph.input, *model.graph.output)}
    names = {name: EVIL + name for node in model.graph.node for name in node.output if name not in fixed}
    names |= {tensor.name: EVIL + tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        node.name = EVIL + node.name
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for tensor in model.graph.initializer:
        tensor.name = names[tensor.name]
    del model.graph.value_info[:]
