"""A package folder is opened only if every file that it lists is there, inside of it and in its recorded size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.packages import edit_description, package_path

from modelexport.errors import FileUnreadable, RecordUnreadable
from modelexport.graph.file.package import find_changed_files, find_file, is_package, read_package
from modelexport.graph.file.reading import open_model
from modelexport.record.package import PACKAGE_FILE

__all__ = ["package_path"]


def test_a_package_is_read_with_all_of_its_files(package_path: Path) -> None:
    info = read_package(package_path)
    assert is_package(package_path)
    assert [component.name for component in info.components] == ["encoder", "decoder"]
    assert {"encoder_model.onnx", "decoder_model.hierarchy.json", "config.json"} < {*info.files}
    assert not [*find_changed_files(package_path, info)]


def test_a_missing_file_is_named(package_path: Path) -> None:
    (package_path / "encoder_model.onnx").unlink()
    with pytest.raises(FileUnreadable, match=r"has no encoder_model\.onnx"):
        read_package(package_path)


@pytest.mark.parametrize(("cut", "how"), [(-5, "truncated"), (5, "exchanged")])
def test_another_size_is_named(cut: int, how: str, package_path: Path) -> None:
    path = package_path / "decoder_model.onnx"
    data = path.read_bytes()
    path.write_bytes(data[:cut] if cut < 0 else data + bytes(cut))
    with pytest.raises(FileUnreadable, match=how):
        read_package(package_path)


def test_another_content_of_the_same_size_is_found_by_digest(package_path: Path) -> None:
    path = package_path / "config.json"
    path.write_text("[]\n")
    info = read_package(package_path)
    assert [*find_changed_files(package_path, info)] == ["config.json"]


def test_a_link_out_of_the_folder_is_refused(package_path: Path) -> None:
    path = package_path / "config.json"
    outside = package_path.parent / "secret"
    path.rename(outside)
    path.symlink_to(outside)
    with pytest.raises(FileUnreadable, match="outside of the package"):
        read_package(package_path)


def test_a_folder_that_is_a_link_itself_is_a_package(package_path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(package_path)
    assert read_package(link) == read_package(package_path)


@pytest.mark.parametrize("name", ["../a", "/a", "", "a\\b"])
def test_names_that_lead_elsewhere_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable):
        find_file(tmp_path, name)


def test_a_description_that_is_too_large_is_not_parsed(package_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelexport.graph.file.package._MOST_BYTES", 100)
    with pytest.raises(FileUnreadable, match="larger than any"):
        read_package(package_path)


def test_a_damaged_description_is_named_with_its_path(package_path: Path) -> None:
    edit_description(package_path, lambda document: document.pop("components"))
    with pytest.raises(RecordUnreadable, match=r"talker.modelexport\.json"):
        read_package(package_path)


def test_a_folder_of_models_without_description_says_what_to_do(package_path: Path) -> None:
    (package_path / PACKAGE_FILE).unlink()
    for read in (read_package, open_model):
        with pytest.raises(FileUnreadable, match="decoder_model") as caught:
            read(package_path)
        assert f"modelexport attach {package_path} -m MODEL -o OUT" in caught.value.hint


def test_a_folder_without_models_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable, match="is a folder") as caught:
        open_model(tmp_path)
    assert "attach" not in caught.value.hint


def test_what_takes_one_file_says_so_of_a_package(package_path: Path) -> None:
    with pytest.raises(FileUnreadable, match="is a package, and this takes one file"):
        open_model(package_path)


def test_digests_are_those_of_the_files(package_path: Path) -> None:
    import hashlib

    document = json.loads((package_path / PACKAGE_FILE).read_text())
    for name, stored in document["files"].items():
        data = (package_path / name).read_bytes()
        assert stored == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
