"""Reading back what other verbs wrote, and refusing what is not about this model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.overlaid_pages import OWN_TIMES, profile_text, verification_text
from tests.support.small_file import small_hierarchy

from modelexport.errors import FileUnreadable, RecordMismatch
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.results.verification import Status, Verdict
from modelexport.show.data.overlays import Profiled, Verified, read_overlay


def written(folder: Path, text: str) -> Path:
    path = folder / "overlay.json"
    path.write_text(text)
    return path


def test_a_profile_is_read_back(tmp_path: Path) -> None:
    found = read_overlay(written(tmp_path, profile_text()), small_hierarchy())
    assert isinstance(found, Profiled)
    assert found.own == OWN_TIMES
    assert found.nodes == {"h0": 8.0}


def test_a_verification_is_read_back(tmp_path: Path) -> None:
    found = read_overlay(written(tmp_path, verification_text()), small_hierarchy())
    assert isinstance(found, Verified)
    fc = found.calls[ModuleCall("layers.0.fc")]
    assert (fc.status, fc.sqnr, fc.max_abs) == (Status.DIVERGES, 12, 0.5)
    assert found.calls[ModuleCall("layers.1")].sqnr is None
    assert found.nodes == {"h0": Verdict.PROVED}


def test_outputs_that_are_no_numbers_are_noise_and_not_left_out(tmp_path: Path) -> None:
    """`verify` writes null for what JSON has no number for."""
    document = json.loads(verification_text())
    wrong = next(item for item in document["calls"] if item["status"] == "diverges")
    wrong["outputs"] |= {"sqnr": None, "max_abs": None}
    found = read_overlay(written(tmp_path, json.dumps(document)), small_hierarchy())
    assert isinstance(found, Verified)
    fc = found.calls[ModuleCall("layers.0.fc")]
    assert (fc.sqnr, fc.max_abs) == (0.0, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[1]", "neither a profile nor a verification"),
        ('{"schema": 1, "nodes": []}', "neither a profile nor a verification"),
        ('{"schema": 2, "sum_check": {}}', "schema is 2"),
        ('{"schema": 1, "sum_check": {}}', "cannot be read: KeyError"),
        (json.dumps(json.loads(profile_text()) | {"modules": [{"path": 3}]}), "cannot be read"),
        (profile_text().replace('"self_us": 8.0', '"self_us": -8.0'), "cannot be read"),
        (verification_text().replace('"diverges"', '"splendid"'), "cannot be read"),
        (verification_text().replace('"max_abs": 0.5', '"max_abs": NaN'), "nan stands where a number should"),
        (verification_text().replace('"max_abs": 0.5', '"max_abs": Infinity'), "inf stands where a number should"),
        (profile_text().replace('"self_us": 8.0', f'"self_us": 1{"0" * 400}'), "cannot be read: OverflowError"),
        (json.dumps(json.loads(profile_text()) | {"runs": float("inf")}), "cannot be read: OverflowError"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable, match=said):
        read_overlay(written(tmp_path, text), small_hierarchy())


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable, match="no such file"):
        read_overlay(tmp_path / "none.json", small_hierarchy())


@pytest.mark.parametrize("write", [profile_text, verification_text])
@pytest.mark.parametrize(
    ("ours", "theirs"), [('"layers.0.fc"', '"layers.9.fc"'), ('"class": "Linear"', '"class": "Conv2d"')]
)
def test_what_is_about_another_model_is_refused(write: object, ours: str, theirs: str, tmp_path: Path) -> None:
    text = profile_text() if write is profile_text else verification_text()
    with pytest.raises(RecordMismatch, match="another model"):
        read_overlay(written(tmp_path, text.replace(ours, theirs)), small_hierarchy())
