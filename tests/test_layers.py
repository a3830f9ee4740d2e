"""The layer rule of docs/architecture.md, read from the import statements.

A room is a folder or a module directly under the package. Every room is in the table.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from tests.support.children import run_child

SOURCE = Path(__file__).parents[1] / "src" / "modelexport"
PACKAGE = SOURCE.name

ANYTHING = None
BELOW = frozenset({"graph", "record", "errors"})
MAY_IMPORT: dict[str, frozenset[str] | None] = {
    "errors": frozenset(),
    "record": frozenset({"errors"}),
    "graph": frozenset({"record", "errors"}),
    "capture": BELOW,
    "lineage": BELOW,
    "inspect": BELOW,
    "verify": BELOW,
    "transform": BELOW,
    "targets": BELOW,
    "attribute": BELOW | {"lineage"},
    "show": BELOW | {"inspect"},
    "fleet": BELOW,
    "api": ANYTHING,
    "cli": frozenset({"api", "show", "record", "errors"}),
    "__init__": ANYTHING,
    "__main__": frozenset({"cli"}),
}

LIGHT = frozenset({"onnx", "numpy", "google"})
MAY_USE: dict[str, frozenset[str] | None] = {
    "errors": frozenset(),
    "record": frozenset(),
    "show": LIGHT | {"rich"},
    "cli": frozenset({"click", "rich"}),
    "capture": ANYTHING,
}

SLOW = frozenset({"torch", "transformers", "onnxruntime", "onnx_ir", "onnxscript", "sympy"})


@dataclass(frozen=True)
class Import:
    """One import statement. `eager` if it runs when the module is imported."""

    module: str
    target: str
    line: int
    eager: bool

    @property
    def part(self) -> str:
        return self.module.split(".")[1] if "." in self.module else "__init__"

    @property
    def distribution(self) -> str:
        return self.target.split(".")[0]

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


@cache
def modules() -> dict[str, Path]:
    return {_module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


@cache
def imports() -> tuple[Import, ...]:
    return tuple(found for name, path in modules().items() for found in _imports_of(name, path))


def _module_name(path: Path) -> str:
    steps = [PACKAGE, *path.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(steps[:-1] if steps[-1] == "__init__" else steps)


def _imports_of(module: str, path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    late = {id(inner) for node in ast.walk(tree) if _is_late(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        for target in _targets(node):
            yield Import(module, target, getattr(node, "lineno", 0), id(node) not in late)


def _is_late(node: ast.AST) -> bool:
    """Whether what is inside runs later (a function) or never (a block for type checkers)."""
    checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    return checking or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def _targets(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            name = f"{node.module}.{alias.name}"
            yield name if name in modules() else node.module


def _part_of(target: str) -> str:
    return target.split(".")[1] if "." in target else "__init__"


def test_parts_import_only_what_their_layer_may() -> None:
    wrong = []
    for found in imports():
        allowed = MAY_IMPORT[found.part]
        inside = found.distribution == PACKAGE and _part_of(found.target) != found.part
        if inside and allowed is not ANYTHING and _part_of(found.target) not in allowed:
            wrong.append(str(found))
    assert not wrong


def test_parts_use_only_the_libraries_of_their_layer() -> None:
    wrong = []
    for found in imports():
        allowed = MAY_USE.get(found.part, LIGHT)
        foreign = found.distribution not in sys.stdlib_module_names and found.distribution != PACKAGE
        if found.eager and foreign and allowed is not ANYTHING and found.distribution not in allowed:
            wrong.append(str(found))
    assert not wrong


def test_the_witness_of_verify_shares_nothing_with_the_strategies() -> None:
    """docs/decisions/0009: what checks the strategies must not be wrong in the same way."""
    witness = [found for found in imports() if found.part == "verify" or found.module.endswith("capture.eager")]
    assert witness
    shared = ("graph.fingerprint", "capture.op_trace")
    assert not [str(found) for found in witness if found.target.removeprefix(f"{PACKAGE}.").startswith(shared)]


def test_slow_libraries_are_imported_at_the_top_in_capture_only() -> None:
    eager = [found for found in imports() if found.eager and found.distribution in SLOW]
    assert not [str(found) for found in eager if found.part != "capture"]


def test_nothing_that_is_imported_at_start_imports_capture() -> None:
    eager = {(found.module, found.target) for found in imports() if found.eager}
    reached, waiting = set[str](), [PACKAGE, f"{PACKAGE}.__main__", f"{PACKAGE}.cli", f"{PACKAGE}.api"]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += [target for source, target in eager if source == module]
    assert not [module for module in reached if module.startswith(f"{PACKAGE}.capture")]


def test_there_are_no_import_cycles() -> None:
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for found in imports():
        if found.target in graph and found.target != found.module:
            graph[found.module].add(found.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def _imported_by(*arguments: str) -> set[str]:
    """The libraries that a Python process imports; it must not end with a traceback."""
    command = [sys.executable, "-X", "importtime", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    result = run_child(command, env=environment)
    assert "Traceback" not in result.stderr
    return {
        line.rsplit("|", 1)[1].strip().split(".")[0]
        for line in result.stderr.splitlines()
        if line.startswith("import time:")
    }


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph), tmp_path / "a.onnx")
    return tmp_path / "a.onnx"


needs_package = pytest.mark.skipif(f"{PACKAGE}.__main__" not in modules(), reason="no command line yet")


@needs_package
def test_importing_the_package_is_light() -> None:
    imported = _imported_by("-c", "import modelexport")
    assert PACKAGE in imported
    assert sorted(imported & SLOW) == []


@needs_package
@pytest.mark.parametrize(
    "verb",
    [
        "--help",
        "--version",
        "export --help",
        "attach --help",
        "strategies --help",
        "verify --help",
        "run-tool --help",
        "profile --help",
        "extract --help",
        "fold --help",
        "strip --help",
        "quantize --help",
        "fleet --help",
        "relink FILE FILE",
        "flatten FILE",
        "analyze FILE",
        "validate FILE",
        "compare FILE FILE",
        "diff FILE FILE",
        "query FILE op=Relu",
        "cost FILE",
        "select FILE op=Relu --for names",
        "convert FILE --to csv",
        "view FILE",
    ],
)
def test_reading_verbs_are_light(verb: str, onnx_file: Path) -> None:
    words = [str(onnx_file) if word == "FILE" else word for word in verb.split()]
    imported = _imported_by("-m", "modelexport", *words)
    assert PACKAGE in imported
    assert sorted(imported & SLOW) == []


@needs_package
@pytest.mark.parametrize("verb", ["analyze", "validate", "cost", "query"])
def test_reading_packages_is_light(verb: str, onnx_file: Path) -> None:
    folder = onnx_file.parent
    stored = {"a.onnx": {"bytes": onnx_file.stat().st_size, "sha256": "0" * 64}}
    component = {"name": "model", "file": "a.onnx", "inputs": ["x"], "outputs": ["y"], "cache": [], "data": []}
    document = {"schema": 1, "target": "", "model": "", "task": "", "components": [component], "files": stored}
    text = json.dumps({**document, "links": [], "absent": [], "notes": []})
    (folder / "modelexport.json").write_text(text, encoding="utf-8")
    imported = _imported_by("-m", "modelexport", verb, str(folder), *(["op=Relu"] if verb == "query" else []))
    assert "modelexport" in imported
    assert sorted(imported & SLOW) == []


def test_a_room_that_is_imported_does_not_hide_a_public_name() -> None:
    script = (
        "import modelexport.verify.numbers, modelexport as mx, types;"
        "hidden = [name for name in mx.__all__ if isinstance(getattr(mx, name), types.ModuleType)];"
        "assert not hidden, hidden"
    )
    run_child([sys.executable, "-c", script], check=True)
