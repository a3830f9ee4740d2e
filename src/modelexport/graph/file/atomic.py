"""Atomic writing: all files of a verb appear, or none does and everything is as it was before.

Every file is written under a temporary name in its target's folder (so that moving it is a rename) and moved into place
once all are complete. When a move fails after others were made, those are undone. A target that is a symbolic link is
replaced by a file; what the link pointed to is left alone, because it may be shared (a download cache, for instance).
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from modelexport.errors import FileUnwritable

_HINTS = {
    errno.ENOSPC: "Free some space, or write to another disk.",
    errno.EDQUOT: "Your disk quota is used up: free some space, or write to another disk.",
    errno.EACCES: "Check the permissions of the folder, or write to another one.",
    errno.EPERM: "Check the permissions of the folder, or write to another one.",
    errno.EROFS: "Write to a folder on a disk that is not read-only.",
    errno.ENAMETOOLONG: "Choose a shorter file name.",
}


@dataclass(eq=False)
class StagedFile:
    """A file being written; it appears at `target` when its stage is committed."""

    target: Path
    temporary: Path
    stream: BinaryIO
    position: int = 0

    def write(self, data: bytes | memoryview) -> None:
        with unwritable(self.target):
            self.stream.write(data)
        self.position += len(data)

    def pad_to(self, position: int) -> None:
        self.write(bytes(position - self.position))


@dataclass(eq=False)
class Stage:
    """Files that will appear together, in the order in which they were opened."""

    _files: list[StagedFile] = field(default_factory=list)
    _temporaries: list[Path] = field(default_factory=list)

    def open(self, path: Path) -> StagedFile:
        """Start a file that will replace `path` if the stage is committed."""
        _check_target(path)
        if any(file.target.absolute() == path.absolute() for file in self._files):
            raise FileUnwritable(f"two files would be written to {path}", "Give each of them a name of its own.")
        temporary = _temporary_beside(path)
        self._temporaries.append(temporary)  # before it exists, so that an interrupt cannot leave it behind
        with unwritable(path):
            stream = temporary.open("xb")
        self._files.append(StagedFile(path, temporary, stream))
        return self._files[-1]

    def write(self, path: Path, data: bytes | str) -> None:
        self.open(path).write(data.encode() if isinstance(data, str) else data)

    def _commit(self) -> None:
        for file in self._files:
            with unwritable(file.target):
                _complete(file)
        replaced: list[tuple[Path, Path | None]] = []
        try:
            for file in self._files:
                with unwritable(file.target):
                    replaced.append((file.target, set_aside(file.target)))
                    file.temporary.replace(file.target)
        except BaseException:
            put_back(replaced)
            raise
        for aside in (aside for _, aside in replaced if aside is not None):
            with suppress(OSError):
                aside.unlink()

    def _discard(self) -> None:
        for file in self._files:
            with suppress(OSError):  # closing flushes, which fails again on a full disk
                file.stream.close()
        for temporary in self._temporaries:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextmanager
def staging() -> Iterator[Stage]:
    """Collect files; they appear if the block ends well, and leave no trace if it raises."""
    stage = Stage()
    try:
        yield stage
        stage._commit()
    finally:
        stage._discard()


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write one file, replacing what was there only when the new one is complete."""
    with staging() as stage:
        stage.write(path, data)


def ensure_writable(*paths: Path) -> None:
    """Fail now rather than after a long computation if one of `paths` could not be written."""
    stage = Stage()
    try:
        for path in paths:
            stage.open(path)
    finally:
        stage._discard()


def _check_target(path: Path) -> None:
    with unwritable(path):
        if path.is_dir():
            raise FileUnwritable(f"cannot write {path}: it is a folder", "Give the name of a file inside it.")
        if path.exists() and not path.is_file():
            raise FileUnwritable(f"cannot write {path}: it is not a regular file", "Give a file name.")
        if path.is_file() and not path.is_symlink() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, "the file there is read-only")
        if not path.parent.exists():
            raise FileUnwritable(
                f"cannot write {path}: the folder {path.parent} does not exist",
                "Create the folder first, or write to another one.",
            )
        if not path.parent.is_dir():
            raise FileUnwritable(f"cannot write {path}: {path.parent} is not a folder", "Write to a folder.")


@contextmanager
def unwritable(path: Path) -> Iterator[None]:
    """Failures of the file system inside become FileUnwritable, which names the path and says what to do."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise FileUnwritable(f"cannot write {path}: {reason}", _HINTS.get(error.errno or 0, "")) from error


def _temporary_beside(path: Path) -> Path:
    return path.parent / f".modelexport-{secrets.token_hex(8)}.tmp"


def _complete(file: StagedFile) -> None:
    file.stream.close()
    if file.target.exists():
        shutil.copymode(file.target, file.temporary)


def set_aside(path: Path) -> Path | None:
    """A second name for what is at `path` now, to go back to; None if there is nothing."""
    if not os.path.lexists(path):
        return None
    aside = _temporary_beside(path)
    try:
        os.link(path, aside, follow_symlinks=False)
    except (OSError, NotImplementedError):  # a file system without hard links
        path.rename(aside)
    return aside


def put_back(replaced: list[tuple[Path, Path | None]]) -> None:
    """Undo moves: each target becomes what was set aside for it, or nothing."""
    for target, aside in reversed(replaced):
        with suppress(OSError):
            if aside is None:
                target.unlink(missing_ok=True)
            else:
                aside.replace(target)
                aside.unlink(missing_ok=True)  # renaming does nothing when both are the same file
