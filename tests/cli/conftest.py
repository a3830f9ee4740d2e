"""Files that several verbs are tried on, made once. What needs torch is imported on first use."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.support.exports import Exports
from tests.support.small_file import small, small_path

__all__ = ["small", "small_path"]


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.foreign_files import save_bert

    return save_bert(tmp_path_factory.mktemp("model") / "tiny-bert")


@pytest.fixture(scope="session")
def other_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same architecture, trained differently."""
    from tests.support.foreign_files import save_other_weights

    return save_other_weights(tmp_path_factory.mktemp("model") / "other-bert")


@pytest.fixture(scope="session")
def plain_exports(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A file that `torch.onnx.export` wrote, made on first use."""
    from tests.support.foreign_files import export_plainly

    @cache
    def export(exporter: str, *, dynamic: bool = False) -> Path:
        return export_plainly(tmp_path_factory.mktemp(exporter) / "plain.onnx", exporter, dynamic)

    return export


@pytest.fixture
def folder(bert: Path, exports: Exports, tmp_path: Path) -> Path:
    """A tagged file with its record, and one of another model."""
    other = exports("gpt2", "dynamo").path
    for source, name in ((bert, "bert.onnx"), (other, "gpt2.onnx")):
        shutil.copy(source, tmp_path / name)
    shutil.copy(bert.with_suffix(".hierarchy.json"), tmp_path / "bert.hierarchy.json")
    return tmp_path
