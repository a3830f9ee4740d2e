"""What all tests share: exports that are made once, repeatable examples, and the quick lane."""

from __future__ import annotations

from tests.support.exports import bert, exports
from tests.support.quick_lane import (
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_ignore_collect,
    pytest_runtest_teardown,
)

__all__ = [
    "bert",
    "exports",
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_ignore_collect",
    "pytest_runtest_teardown",
]
