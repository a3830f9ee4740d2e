"""A folder of files appears as a whole or not at all, and nothing that is there is touched unless it is replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.packages import PackageRecipe, folder_content

from modelexport.errors import FileUnreadable, FileUnwritable
from modelexport.graph.file.folder import copy_beside, ensure_folder_target, staged_folder
from modelexport.graph.file.package import read_package, write_package


def test_a_folder_appears_at_the_end(tmp_path: Path) -> None:
    with staged_folder(tmp_path / "out") as folder:
        (folder / "onnx").mkdir()
        (folder / "onnx" / "a").write_text("one")
        assert not (tmp_path / "out").exists()
    assert folder_content(tmp_path) == {"out/onnx/a": b"one"}


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with staged_folder(tmp_path / "out") as folder:
        (folder / "a").write_text("one")
    assert folder_content(tmp_path) == {"out/a": b"one"}


def test_an_empty_folder_is_still_there_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()

    def failing(self: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied", str(self), None, str(target))

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(FileUnwritable, match="permission denied"), staged_folder(tmp_path / "out") as folder:
        (folder / "a").write_text("one")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("force", [False, True])
def test_a_failure_leaves_no_trace(error: type[BaseException], force: bool, tmp_path: Path) -> None:
    target = tmp_path / "out"
    if force:
        target.mkdir()
        (target / "a").write_text("old")
    with pytest.raises(error), staged_folder(target, force=force) as folder:
        (folder / "a").write_text("new")
        raise error
    assert folder_content(tmp_path) == ({"out/a": b"old"} if force else {})
    assert target.exists() is force


def test_a_folder_that_is_not_empty_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(FileUnwritable, match="is not empty") as caught, staged_folder(tmp_path / "out"):
        pytest.fail("nothing is computed for a target that is refused")
    assert "--force" in caught.value.hint
    assert folder_content(tmp_path) == {"out/notes.txt": b"mine"}


def test_force_replaces_files_of_the_same_name_and_leaves_others(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    (out / "a").write_text("old")
    with staged_folder(out, force=True) as folder:
        (folder / "a").write_text("new")
        (folder / "onnx").mkdir()
        (folder / "onnx" / "b").write_text("new")
    assert folder_content(tmp_path) == {"out/notes.txt": b"mine", "out/a": b"new", "out/onnx/b": b"new"}


def test_what_is_no_package_leaves_the_one_there_alone(tmp_path: Path) -> None:
    out = PackageRecipe().write(tmp_path / "out")
    before = folder_content(out)
    with staged_folder(out, force=True) as folder:
        (folder / "encoder.dot").write_text("new")
    assert folder_content(out) == {**before, "encoder.dot": b"new"}


def test_a_package_replaces_a_package(tmp_path: Path) -> None:
    """With it, what only the one before had; what belongs to neither stays."""
    out = PackageRecipe().write(tmp_path / "out")
    (out / "tokenizer.json").write_text("{}")
    write_package(out, PackageRecipe().info())
    (out / "notes.txt").write_text("mine")
    with staged_folder(out, force=True) as folder:
        PackageRecipe(absent=()).write(folder)
    assert read_package(out).absent == ()
    fresh = folder_content(PackageRecipe(absent=()).write(tmp_path / "fresh"))
    assert folder_content(out) == {**fresh, "notes.txt": b"mine"}


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", ["[1]", "{}  "])
def test_a_file_that_was_changed_since_is_not_lost(name: str, content: str, tmp_path: Path) -> None:
    """Neither one that the new package has as well, nor one that only the old one has."""
    out = PackageRecipe().write(tmp_path / "out")
    (out / "tokenizer.json").write_text("{ }")
    write_package(out, PackageRecipe().info())
    (out / name).write_text(content)
    before = folder_content(tmp_path)
    with pytest.raises(FileUnwritable, match=f"{name} was changed") as caught, staged_folder(out, force=True):
        pytest.fail("nothing is computed for a target that is refused")
    assert "Move that file" in caught.value.hint
    assert folder_content(tmp_path) == before
    (out / name).unlink()
    with staged_folder(out, force=True) as folder:
        PackageRecipe().write(folder)
    assert folder_content(out) == folder_content(PackageRecipe().write(tmp_path / "fresh"))


def test_a_move_that_fails_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in ("a", "z"):
        (out / name).write_text("old")
    before, replace = folder_content(tmp_path), Path.replace

    def failing(self: Path, target: Path) -> Path:
        if target.name == "z" and self.read_text() == "new":
            raise OSError(28, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(FileUnwritable, match="no space"), staged_folder(out, force=True) as folder:
        (folder / "onnx").mkdir()
        for name in ("a", "onnx/b", "z"):
            (folder / name).write_text("new")
    assert folder_content(tmp_path) == before
    assert not (out / "onnx").exists()


def test_a_file_in_the_way_of_a_folder_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "onnx").write_text("mine")
    with pytest.raises(FileUnwritable, match="in its way"), staged_folder(out, force=True) as folder:
        (folder / "onnx").mkdir()
        (folder / "onnx" / "b").write_text("new")
    assert folder_content(tmp_path) == {"out/onnx": b"mine"}


def test_targets_that_cannot_be_folders_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name, message in (("file", "not a folder"), ("file/out", "not a folder"), ("dangling", "link to nothing")):
        with pytest.raises(FileUnwritable, match=message):
            ensure_folder_target(tmp_path / name, force=True)


def test_folders_above_the_target_are_made_and_vanish_with_it(tmp_path: Path) -> None:
    with staged_folder(tmp_path / "a" / "b" / "out") as folder:
        (folder / "f").write_text("one")
    assert folder_content(tmp_path) == {"a/b/out/f": b"one"}
    with pytest.raises(ValueError, match="spoiled"), staged_folder(tmp_path / "a" / "c" / "d" / "out") as folder:
        (folder / "f").write_text("one")
        raise ValueError("spoiled")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_link_to_a_folder_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with staged_folder(tmp_path / "link") as folder:
        (folder / "a").write_text("one")
    assert (tmp_path / "real" / "a").read_text() == "one"
    assert (tmp_path / "link").is_symlink()


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_force_replaces_nothing_behind_a_link_that_leads_elsewhere(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    elsewhere.mkdir()
    (elsewhere / "model.onnx").write_text("mine")
    (out / "onnx").symlink_to(elsewhere)
    with pytest.raises(FileUnwritable, match="leads out of the folder"), staged_folder(out, force=True) as folder:
        (folder / "onnx").mkdir()
        (folder / "onnx" / "model.onnx").write_text("new")
    assert folder_content(elsewhere) == {"model.onnx": b"mine"}


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_link_out_of_a_folder_is_not_copied(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("key")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "notes.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(FileUnreadable, match="leads out of"):
        copy_beside(folder / "notes.txt", folder, tmp_path / "out" / "notes.txt")
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_links_of_a_hub_cache_are_copied_as_files(tmp_path: Path) -> None:
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    folder.mkdir(parents=True)
    (blobs / "digest").write_text("{}")
    (folder / "tokenizer.json").symlink_to(Path("../../blobs/digest"))
    copy_beside(folder / "tokenizer.json", folder, tmp_path / "out" / "tokenizer.json")
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
