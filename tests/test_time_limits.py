"""Nothing in the tests can wait forever: every test and every child process has a time limit."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.children import run_child, started

TESTS = Path(__file__).parent
CHILDREN = TESTS / "support" / "children.py"
STARTING = {"run", "call", "check_call", "check_output", "Popen", "getoutput", "getstatusoutput"}


def starts_child(node: ast.AST) -> bool:
    call = node.func if isinstance(node, ast.Call) else None
    if not isinstance(call, ast.Attribute) or not isinstance(call.value, ast.Name):
        return False
    owner, name = call.value.id, call.attr
    return (owner == "subprocess" and name in STARTING) or (
        owner == "os" and name.startswith(("system", "popen", "spawn"))
    )


def test_children_are_started_in_one_place_which_limits_their_time() -> None:
    files = [path for path in TESTS.rglob("*.py") if path != CHILDREN]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}
    outside = [
        f"{path.relative_to(TESTS)}:{getattr(node, 'lineno', 0)}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if starts_child(node) or (isinstance(node, ast.ImportFrom) and node.module == "subprocess")
    ]
    assert not outside, "use tests.support.children"


def test_a_test_that_hangs_ends_its_process_and_says_where_it_was(pytestconfig: pytest.Config) -> None:
    """pytest's own: with several processes, another one goes on with the tests behind it."""
    assert 0 < float(pytestconfig.getini("faulthandler_timeout")) <= 900
    assert pytestconfig.getini("faulthandler_exit_on_timeout") is True


def test_a_child_that_hangs_is_ended() -> None:
    waiting = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(subprocess.TimeoutExpired):
        run_child(waiting, limit=0.5)
    with started(waiting, limit=0.5) as child:
        assert child.stdout is not None
        assert child.stdout.read() == ""
    assert child.returncode < 0
