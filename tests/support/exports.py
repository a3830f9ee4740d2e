"""Exports of real architectures, made once for all tests that look at them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import modelexport as mx

Exports = Callable[[str, str], mx.ExportResult]


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    """The export of an architecture by an exporter, made on first use."""
    from tests.support.architectures import build

    @cache
    def export(name: str, exporter: str) -> mx.ExportResult:
        folder = tmp_path_factory.mktemp(f"{name}-{exporter}")
        return mx.export(build(name), folder / f"{name}.onnx", exporter=exporter)

    return export


@pytest.fixture(scope="session")
def bert(exports: Exports) -> Path:
    """A tagged BERT, by the default exporter."""
    return exports("bert", "dynamo").path
