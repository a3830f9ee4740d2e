"""The walk of one node: the files of the package that it passes on its way from `forward` to `analyze`.

    python -m measure.walk

A two-layer perceptron is exported and the file is analyzed, once with each exporter, with every call traced. The node
*passes* a file if a function there is given it, or returns it, by itself: its protobuf, its entry in the index, the
outline or the record, its key, a claim on it, or its attribution. Who follows the node has to open these files.

Not counted by this definition: functions that take a whole graph or table and loop over it, and the modules that only
say what such a value is (`VALUES`), since whoever reads `attribution.module` passes them. By a second, wider definition
every function counts that holds the node in a local variable at some line, so these loops do, too. Both are printed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import onnx
import torch

import modelexport as mx
from modelexport.graph.index import node_key
from modelexport.record.provenance import Attribution, Claim

PACKAGE = Path(mx.__file__).parent
EXPORTERS = ("dynamo", "torchscript")
MODULE = "first"
VALUES = frozenset({"record/provenance.py", "record/hierarchy.py", "graph/index.py"})


class Perceptron(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.second = torch.nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(torch.relu(self.first(x)))
        return result


class Walk:
    """Follows one node through every line that the package runs.

    passed  by file, in the order of the walk: the functions that are given the node or return it
    held    the same of the functions in which it is a local variable at some line
    """

    def __init__(self, key: str, attribution: Attribution) -> None:
        self.passed: dict[str, list[str]] = {}
        self.held: dict[str, list[str]] = {}
        self._key, self._owners = key, attribution.owners

    def trace(self, frame: FrameType, event: str, returned: object) -> Any:
        path = Path(frame.f_code.co_filename)
        if not path.is_relative_to(PACKAGE) or path.relative_to(PACKAGE).as_posix() in VALUES:
            return None
        name = path.relative_to(PACKAGE).as_posix()
        if any(map(self._is_node, list(frame.f_locals.values()))):
            _note(self.held, name, frame)
        exchanged = _arguments(frame) if event == "call" else [returned] if event == "return" else ()
        if any(map(self._is_node, exchanged)):
            _note(self.passed, name, frame)
        return self.trace

    def _is_node(self, value: object) -> bool:
        if isinstance(value, str):
            return value == self._key
        if isinstance(value, onnx.NodeProto):
            return node_key(value, "") == self._key
        if isinstance(value, Attribution | Claim):
            return value.owners == self._owners
        return bool(getattr(value, "key", None) == self._key)


def _note(files: dict[str, list[str]], name: str, frame: FrameType) -> None:
    functions = files.setdefault(name, [])
    if frame.f_code.co_qualname not in functions:
        functions.append(frame.f_code.co_qualname)


def _arguments(frame: FrameType) -> Iterator[object]:
    code = frame.f_code
    if not code.co_name.startswith("<"):  # comprehensions are given an iterator
        yield from (frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def walk_node(exporter: str, folder: Path) -> Walk:
    """The key is known from a first export: exporters name values alike each time."""
    model, inputs, path = Perceptron().eval(), torch.ones(2, 4), folder / f"{exporter}.onnx"
    provenance = mx.export(model, path, inputs=inputs, exporter=exporter).provenance
    key, entry = next((key, entry) for key, entry in provenance.nodes.items() if entry.attribution.module == MODULE)
    walk = Walk(key, entry.attribution)
    sys.settrace(walk.trace)
    try:
        mx.export(model, path, inputs=inputs, exporter=exporter)
        mx.analyze(path)
    finally:
        sys.settrace(None)
    return walk


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for exporter in EXPORTERS:
            walk = walk_node(exporter, Path(folder))
            for definition, files in (
                ("given to a function, or returned by one", walk.passed),
                ("in any local variable of a function", walk.held),
            ):
                lines = [f"{exporter}: the node passes {len(files)} files, {definition}"]
                for number, (name, functions) in enumerate(files.items(), 1):
                    lines.append(f"  {number:2} {name:38} {', '.join(functions[:3])}")
                sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
