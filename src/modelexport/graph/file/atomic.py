"""Atomic writing: all files of a verb appear, or none does and everything is as it was before.

Every file is written under a temporary name in its target's folder (so that moving it is a rename) and moved into place
once all are complete. When a move fails after others were made, those are undone; a signal waits until all are made. A
target that is a symbolic link is replaced by a file; what the link pointed to is left alone, because it may be shared
(a download cache, for instance).

A process that is killed outright between two moves leaves the first files new and the others old. Files are moved in
the order in which they were opened, so that this can be told: a model carries its record, and by that knows a sidecar
or a data file that is not its own. One without a record could not, and is away before its data changes (`away_first`).
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from modelexport.errors import FileUnwritable
from modelexport.graph.file.temporaries import deferring_signals, name_temporary, remove_leftovers, remove_temporary
from modelexport.record.amounts import format_bytes

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
    """A file being written; it appears at `target` when its stage is committed.

    away_first  what is at `target` is removed before any file of the stage appears
    """

    target: Path
    temporary: Path
    stream: BinaryIO
    away_first: bool = False
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

    def open(self, path: Path, *, away_first: bool = False) -> StagedFile:
        """Start a file that will replace `path` if the stage is committed."""
        _check_target(path)
        if any(file.target.absolute() == path.absolute() for file in self._files):
            raise FileUnwritable(f"two files would be written to {path}", "Give each of them a name of its own.")
        if not any(file.target.parent == path.parent for file in self._files):
            remove_leftovers(path.parent)
        with deferring_signals(), unwritable(path):
            temporary = name_temporary(path.parent)
            self._temporaries.append(temporary)
            self._files.append(StagedFile(path, temporary, temporary.open("xb"), away_first))
        return self._files[-1]

    def write(self, path: Path, data: bytes | str) -> None:
        self.open(path).write(data.encode() if isinstance(data, str) else data)

    def _commit(self) -> None:
        for file in self._files:
            with unwritable(file.target):
                _complete(file)
        with deferring_signals():
            self._move_into_place()

    def _move_into_place(self) -> None:
        replaced: list[tuple[Path, Path | None]] = []
        try:
            for file in self._files:
                with unwritable(file.target):
                    replaced.append((file.target, set_aside(file.target)))
                    if file.away_first:
                        file.target.unlink(missing_ok=True)
            for file in self._files:
                with unwritable(file.target):
                    file.temporary.replace(file.target)
        except BaseException:
            put_back(replaced)
            raise
        forget_replaced(replaced)

    def _discard(self) -> None:
        with deferring_signals():
            for file in self._files:
                with suppress(OSError):  # closing flushes, which fails again on a full disk
                    file.stream.close()
            for temporary in self._temporaries:
                remove_temporary(temporary)


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


def ensure_room(path: Path, size: int) -> None:
    """Fail now rather than after gigabytes were written if there is not so much room beside `path`.

    What is there already stays until the new file is complete, so its room does not count.
    """
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError:
        return  # where that cannot be told, writing will
    if size > free:
        room = f"{format_bytes(size)} are needed, and {format_bytes(free)} are free there"
        raise FileUnwritable(f"cannot write {path}: no space left on device: {room}", _HINTS[errno.ENOSPC])


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


def _complete(file: StagedFile) -> None:
    file.stream.close()
    if file.target.exists():
        shutil.copymode(file.target, file.temporary)


def set_aside(path: Path) -> Path | None:
    """A second name for what is at `path` now, to go back to; None if there is nothing."""
    if not os.path.lexists(path):
        return None
    aside = name_temporary(path.parent)
    try:
        os.link(path, aside, follow_symlinks=False)
    except (OSError, NotImplementedError):  # a file system without hard links
        # A copy: it would be lost with a process that is killed if this were the only one.
        shutil.copy2(path, aside, follow_symlinks=False)
    return aside


def put_back(replaced: list[tuple[Path, Path | None]]) -> None:
    """Undo moves: each target becomes what was set aside for it, or nothing."""
    for target, aside in reversed(replaced):
        with suppress(OSError):
            if aside is None:
                target.unlink(missing_ok=True)
            else:
                aside.replace(target)
    forget_replaced(replaced)  # renaming does nothing when both are the same file


def forget_replaced(replaced: list[tuple[Path, Path | None]]) -> None:
    for aside in (aside for _, aside in replaced if aside is not None):
        remove_temporary(aside)
