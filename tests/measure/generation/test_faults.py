"""Faults that are seeded in packages are named: by step, component and module."""

from __future__ import annotations

from pathlib import Path

import pytest
from measure.generation.faults import PLAIN_FAULTS, WINDOW_FAULTS, Fault, find_faults
from tests.support.generating import Generating, generating

__all__ = ["generating"]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("family", "faults"), [("llama", PLAIN_FAULTS), ("mistral", WINDOW_FAULTS)])
def test_seeded_faults_are_named(
    family: str, faults: tuple[Fault, ...], generating: Generating, tmp_path: Path
) -> None:
    model, package = generating(family)
    missed = [found.fault.name for found in find_faults(package, model, faults, tmp_path) if not found.is_named]
    assert not missed


def test_there_are_twelve_faults_of_four_kinds() -> None:
    assert len(PLAIN_FAULTS) + len(WINDOW_FAULTS) == 12
