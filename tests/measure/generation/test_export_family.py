"""A family, from its row to its result: exported, run, verified; what goes wrong is the result."""

from __future__ import annotations

from pathlib import Path

import pytest
from measure.generation.export_family import measure_task
from measure.generation.family_result import PACKAGE, VERIFY, FamilyResult

from measure.generation import export_family


def test_a_family_is_exported_run_and_verified(tmp_path: Path) -> None:
    exported = measure_task(FamilyResult("llama", "decoder", PACKAGE), tmp_path)
    assert exported.list_faults() == []
    assert exported.genai == "equal"
    assert (exported.generation.steps, exported.points) == (32, 12)
    verified = measure_task(FamilyResult("llama", "decoder", VERIFY), tmp_path)
    assert verified.list_faults() == []
    assert verified.proof is not None
    assert verified.proof.nodes == exported.nodes


def test_what_a_library_raises_is_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError(f"{tmp_path}/model has no weights\nTraceback")

    monkeypatch.setattr(export_family, "save_folder", fail)
    result = measure_task(FamilyResult("llama", "decoder", PACKAGE), tmp_path)
    assert result.list_faults() == ["export: ValueError: model has no weights"]
