"""families.toml: read as a whole; what nobody understands is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from measure.corpus.rows import ManifestInvalid
from measure.generation.families import KINDS, find_family, read_families

_ROW = """
[sizes.text]
vocab_size = 128
[[family]]
name = "x"
kind = "decoder"
class = "C"
config_class = "D"
config = { like = "text" }
cache = ["full"]
"""


def test_there_are_many_families_of_every_kind() -> None:
    families = read_families()
    counts = [sum(family.kind == kind for family in families) for kind in KINDS]
    assert counts[0] >= 36 and counts[1] >= 10 and counts[2] >= 6  # noqa: PT018  # one claim
    assert len({family.name for family in families}) == len(families)


def test_windows_are_exceeded_by_new_tokens() -> None:
    windows = {family.name: family.window for family in read_families() if "sliding" in family.cache}
    assert windows
    assert all(0 < window <= 8 for window in windows.values())


def test_sizes_are_filled_in(tmp_path: Path) -> None:
    path = tmp_path / "families.toml"
    path.write_text(_ROW)
    (family,) = read_families(path)
    assert family.config == {"vocab_size": 128}


@pytest.mark.parametrize(
    ("text", "replacement", "message"),
    [
        ('"decoder"', '"reader"', "no such kind: 'reader'"),
        ('["full"]', '["whole"]', "no such kind of cache: 'whole'"),
        ('class = "C"\n', "", "'class'"),
        ('cache = ["full"]', 'cache = ["full"]\nwindows = 8', "windows"),
    ],
)
def test_what_nobody_understands_is_refused(tmp_path: Path, text: str, replacement: str, message: str) -> None:
    path = tmp_path / "families.toml"
    path.write_text(_ROW.replace(text, replacement, 1))
    with pytest.raises(ManifestInvalid, match=message):
        read_families(path)


def test_a_family_that_is_not_there_is_named() -> None:
    with pytest.raises(ManifestInvalid, match="nonesuch"):
        find_family("nonesuch")
