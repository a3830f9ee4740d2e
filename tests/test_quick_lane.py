"""The quick lane itself: which files it leaves out, and that a test cannot bring a slow library in unnoticed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import settings
from tests.support import quick_lane
from tests.support.quick_lane import EXAMPLES, QUICK_EXAMPLES, ROOT, needs_run

pytest_plugins = ["pytester"]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the quick lane takes for this project."""
    monkeypatch.setattr(quick_lane, "ROOT", tmp_path)
    return tmp_path


def write(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import onnx", False),
        ("import torch", True),
        ("import torch.nn as nn", True),
        ("from transformers import AutoModel", True),
        ("def late():\n    import onnxruntime", True),
        ("from modelexport.capture import fx", True),
        ("from modelexport.graph import index", False),
        ("import torchless", False),
        ("text = 'import torch'", False),
    ],
)
def test_a_file_needs_a_run_if_it_imports_what_is_slow(text: str, expected: bool, written: Path) -> None:
    write(written, {"test_a.py": text})
    assert needs_run(written / "test_a.py") is expected


@pytest.mark.parametrize(("last", "expected"), [("import torch", True), ("import onnx", False)])
def test_files_may_import_each_other(last: str, expected: bool, written: Path) -> None:
    texts = {
        "tests/a.py": "from tests.b import one\nimport tests.a",
        "tests/b.py": "from tests import a, c",
        "tests/c.py": f"from tests.a import two\n{last}",
    }
    write(written, texts)
    assert [needs_run(written / name) for name in texts] == [expected] * 3


def test_a_package_is_its_init_file(written: Path) -> None:
    write(written, {"tests/parts/__init__.py": "import torch", "tests/test_a.py": "from tests.parts import anything"})
    assert needs_run(written / "tests/test_a.py")


def test_this_project_has_both_kinds_of_files() -> None:
    assert not needs_run(Path(__file__))
    assert needs_run(ROOT / "tests/api/test_topology.py")
    assert needs_run(ROOT / "tests/support/reruns.py")


def test_examples_are_the_same_every_time_whatever_is_imported(request: pytest.FixtureRequest) -> None:
    import tests.support.building  # noqa: F401 - it once had a profile of its own

    expected = QUICK_EXAMPLES if request.config.getoption("--quick") else EXAMPLES
    in_force = settings()
    assert (in_force.max_examples, in_force.derandomize) == (expected, True)


Lane = Callable[..., pytest.RunResult]


@pytest.fixture
def run_lane(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Lane:
    """Runs files in a process of its own, beside a library that has the name of a slow one."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest("from tests.support.quick_lane import *\n")
    pytester.makepyfile(onnxscript="")

    def run(*arguments: str, **files: str) -> pytest.RunResult:
        pytester.makepyfile(**files)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments)

    return run


@pytest.mark.slow
def test_files_that_import_a_slow_library_and_marked_tests_stay_out(run_lane: Lane) -> None:
    files = {
        "test_slow": "import onnxscript\ndef test_a(): raise ValueError",
        "test_quick": "import pytest\n@pytest.mark.slow\ndef test_b(): raise ValueError\ndef test_c(): pass",
    }
    run_lane("--quick", **files).assert_outcomes(passed=1, deselected=1)
    run_lane(**files).assert_outcomes(passed=1, failed=2)


HIDDEN_IMPORT = """
import importlib, pytest

@pytest.fixture(scope="module")
def standing():
    yield 1
    print("taken down")

def test_a(standing):
    importlib.import_module("onnx" + "script")

def test_b(standing):
    assert standing == 1
"""


@pytest.mark.slow
def test_a_hidden_import_fails_the_test_that_made_it_and_no_other(run_lane: Lane) -> None:
    result = run_lane("--quick", "-s", test_hidden=HIDDEN_IMPORT)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*test_a imports onnxscript: mark it slow*"])
    assert result.stdout.str().count("taken down") == 1
    result.stdout.no_fnmatch_line("*previous item was not torn down properly*")
    run_lane(test_hidden=HIDDEN_IMPORT).assert_outcomes(passed=2)


@pytest.mark.slow
def test_an_import_while_tests_are_collected_is_found_too(run_lane: Lane) -> None:
    text = 'import importlib\nimportlib.import_module("onnx" + "script")\ndef test_a(): pass\ndef test_b(): pass'
    run_lane("--quick", test_collected=text).assert_outcomes(passed=2, errors=1)
