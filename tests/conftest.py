"""What all tests share: exports that are made once, repeatable examples, and the quick lane."""

from __future__ import annotations

from hypothesis import settings
from tests.support.exports import bert, exports
from tests.support.quick_lane import (
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_ignore_collect,
    pytest_runtest_teardown,
)

__all__ = [
    "bert",
    "exports",
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_ignore_collect",
    "pytest_runtest_teardown",
]

# The same examples every time: a test fails for what was changed, or not at all.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")
