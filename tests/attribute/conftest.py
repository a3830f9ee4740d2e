"""Exports, with the model run again beside them, made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import pytest
from tests.support.exports import Exports

if TYPE_CHECKING:
    from tests.support.reruns import Rerun


@pytest.fixture(scope="session")
def reruns(exports: Exports) -> Callable[[str, str], Rerun]:
    """The export of an architecture by an exporter, run again on first use."""
    from tests.support.reruns import rerun_export

    @cache
    def rerun(name: str, exporter: str) -> Rerun:
        return rerun_export(name, exports(name, exporter))

    return rerun
