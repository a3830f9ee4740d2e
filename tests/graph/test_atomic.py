from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from modelexport.errors import FileUnwritable
from modelexport.graph.file.atomic import StagedFile, ensure_writable, staging, write_atomically


def contents(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in sorted(folder.iterdir()) if file.is_file()}


def test_files_appear_together_at_the_end(tmp_path: Path) -> None:
    with staging() as stage:
        stage.write(tmp_path / "a", "one")
        stage.write(tmp_path / "b", b"two")
        assert not (tmp_path / "a").exists()
    assert contents(tmp_path) == {"a": "one", "b": "two"}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, OSError])
def test_a_failure_inside_leaves_everything_as_it_was(error: type[BaseException], tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(error), staging() as stage:
        stage.write(tmp_path / "a", "new")
        stage.write(tmp_path / "b", "new")
        raise error
    assert contents(tmp_path) == {"a": "old"}


@pytest.mark.parametrize("links", [True, False])
def test_a_failure_between_two_moves_is_undone(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "c").write_text("old")
    replace = Path.replace

    def failing(self: Path, target: Path) -> Path:
        if target.name == "c" and self.read_text() == "new":
            raise KeyboardInterrupt
        return replace(self, target)

    def no_links(*_: object, **__: object) -> None:
        raise OSError(errno.ENOTSUP, "no hard links here")

    monkeypatch.setattr(Path, "replace", failing)
    if not links:
        monkeypatch.setattr("os.link", no_links)
    with pytest.raises(KeyboardInterrupt), staging() as stage:
        for name in "abc":
            stage.write(tmp_path / name, "new")
    assert contents(tmp_path) == {"a": "old", "c": "old"}


def test_a_full_disk_is_reported_with_path_and_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("old")

    class Full:
        def __init__(self, stream: BinaryIO) -> None:
            self.stream = stream

        def write(self, _: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            self.stream.close()
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(FileUnwritable) as caught, staging() as stage:
        file = stage.open(tmp_path / "a")
        file.stream = Full(file.stream)  # type: ignore[assignment]
        file.write(b"new")
    assert f"cannot write {tmp_path / 'a'}: no space left" in caught.value.message
    assert "Free some space" in caught.value.hint
    assert contents(tmp_path) == {"a": "old"}


def test_a_disk_that_fills_up_while_closing_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: StagedFile) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("modelexport.graph.file.atomic._complete", failing)
    with pytest.raises(FileUnwritable, match="no space left"):
        write_atomically(tmp_path / "a", "new")
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("missing/a", "does not exist"),
        ("folder", "is a folder"),
        ("file/a", "is not a folder"),
        ("x" * 300, "too long"),
        ("/dev/null", "not a regular file"),
    ],
)
@pytest.mark.parametrize("write", [ensure_writable, lambda path: write_atomically(path, "x")])
def test_unwritable_targets_are_named(target: str, message: str, write: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileUnwritable, match=message):
        write(tmp_path / target)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "folder"]


def test_a_folder_without_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> BinaryIO:  # the tests may run as root, whom no mode stops
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(FileUnwritable, match="permission denied") as caught:
        write_atomically(tmp_path / "a", "x")
    assert "permissions" in caught.value.hint


def test_a_read_only_file_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("old")
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(FileUnwritable, match="read-only"):
        write_atomically(tmp_path / "a", "new")
    assert contents(tmp_path) == {"a": "old"}


def test_checking_a_target_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    ensure_writable(tmp_path / "a")
    ensure_writable(tmp_path / "b")
    assert contents(tmp_path) == {"a": "old"}


def test_modes_are_kept_and_new_files_have_the_usual_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "a").chmod(0o640)
    write_atomically(tmp_path / "a", "new")
    write_atomically(tmp_path / "b", "new")
    (tmp_path / "c").write_text("usual")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "b").stat().st_mode == (tmp_path / "c").stat().st_mode


def test_a_link_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    (tmp_path / "shared").write_text("old")
    (tmp_path / "a").symlink_to("shared")
    write_atomically(tmp_path / "a", "new")
    assert contents(tmp_path) == {"a": "new", "shared": "old"}
    assert not (tmp_path / "a").is_symlink()


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileUnwritable, match="two files"), staging() as stage:
        stage.write(tmp_path / "a", "one")
        stage.write(tmp_path / "a", "two")
    assert list(tmp_path.iterdir()) == []
