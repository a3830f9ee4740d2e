"""Staged folder: a folder of files appears as a whole, or nothing does and everything is as it was before.

    with staged_folder(Path("qwen3"), force=False) as folder:      an empty folder beside qwen3, under another name
        save_model(model, folder / "model.onnx"); …
                                                                   qwen3/ is there, complete

A target that is not empty is refused before anything is computed. With `force`, files of the same name are replaced. A
package that replaces a package also removes the files that only the one before had, and is refused if one of its files
is not as it was written: somebody's work would be lost. Whatever else is in the folder is left alone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from modelexport.errors import FileUnreadable, FileUnwritable, ModelExportError
from modelexport.graph.file.atomic import forget_replaced, put_back, set_aside, unwritable
from modelexport.graph.file.package import find_changed_files, find_file, read_description
from modelexport.graph.file.temporaries import deferring_signals, name_temporary, remove_leftovers, remove_temporary
from modelexport.record.package import PACKAGE_FILE, PackageInfo


def ensure_folder_target(folder: Path, *, force: bool = False) -> None:
    """Fail now rather than after a long computation if a package cannot, or should not, be written there."""
    with unwritable(folder):
        if folder.exists() and not folder.is_dir():
            raise FileUnwritable(f"cannot write {folder}: it is not a folder", "Give the name of a folder.")
        if os.path.lexists(folder) and not folder.exists():
            raise FileUnwritable(f"cannot write {folder}: it is a link to nothing", "Give the name of a folder.")
        above = next(path for path in _folders_above(folder) if os.path.lexists(path))
        if not above.is_dir():
            raise FileUnwritable(f"cannot write {folder}: {above} is not a folder", "Write to another folder.")
        if not os.access(folder if folder.exists() else above, os.W_OK):
            raise FileUnwritable(f"cannot write {folder}: permission denied", "Write to another folder.")
        if folder.exists() and not force and any(folder.iterdir()):
            raise FileUnwritable(
                f"{folder} is not empty", "Write to another folder; --force replaces files of the same name."
            )


@contextmanager
def staged_folder(folder: Path, *, force: bool = False) -> Iterator[Path]:
    """A folder to write into; it becomes `folder` if the block ends well, and leaves no trace if it raises."""
    ensure_folder_target(folder, force=force)
    with unwritable(folder):
        _refuse_changed(folder)
    target = folder.resolve()
    made: list[Path] = []
    temporary = name_temporary(target.parent)
    try:
        with deferring_signals(), unwritable(folder):
            _remove_leftovers(target)
            _make_folders(target.parent, made)
            temporary.mkdir()
        yield temporary
        with deferring_signals(), unwritable(folder):
            _move_into_place(temporary, target)
    finally:
        with deferring_signals():
            remove_temporary(temporary)
            # Folders on the way are there for the target alone; one that holds it, or anything else, is not empty.
            _remove_empty(made)


def _remove_leftovers(target: Path) -> None:
    """Beside the folder, and inside of it, where files that were replaced are set aside."""
    remove_leftovers(target.parent)
    for above, names, _ in os.walk(target):
        remove_leftovers(Path(above))
        names[:] = [name for name in names if not name.startswith(".")]


def copy_beside(source: Path, folder: Path, target: Path) -> None:
    """Copy a file of somebody's folder. A link out of it is FileUnreadable: it could lead to any file of this machine.

    Links of a hub's cache lead from `snapshots/REVISION/tokenizer.json` to `blobs/DIGEST`.
    """
    real = folder.resolve()
    own = (real, real.parent.parent / "blobs") if real.parent.name == "snapshots" else (real,)
    if not any(source.resolve().is_relative_to(known) for known in own):
        raise FileUnreadable(
            f"{source} is a link that leads out of {folder}", "Put the file itself into the folder, or remove the link."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _folders_above(folder: Path) -> Sequence[Path]:
    """Nearest first; that of the file system is always there."""
    return Path(os.path.abspath(folder)).parents  # noqa: PTH100 - `resolve` would follow a link to another folder


def _move_into_place(temporary: Path, target: Path) -> None:
    if not target.exists():
        temporary.rename(target)
    elif not any(target.iterdir()):
        shutil.copymode(target, temporary)
        # Not one rename: Windows does not rename a folder over another one.
        target.rmdir()
        try:
            temporary.rename(target)
        except BaseException:
            target.mkdir(exist_ok=True)
            raise
    else:
        _merge(temporary, target)


def _merge(temporary: Path, target: Path) -> None:
    """File by file, undone as a whole if one of the moves fails.

    The description is away before anything changes and there again when all else is: whoever reads meanwhile, or after
    this process was killed, finds no package, and never one that is half of another.
    """
    files = sorted(path.relative_to(temporary) for path in temporary.rglob("*") if not path.is_dir())
    files.sort(key=lambda path: path.name == PACKAGE_FILE)
    _refuse_obstacles(files, target)
    is_package = Path(PACKAGE_FILE) in files
    before = _files_of_package(target) if is_package else ()
    outdated = [path for path in before if path.relative_to(target) not in files]
    replaced: list[tuple[Path, Path | None]] = []
    made: list[Path] = []
    try:
        if is_package:
            replaced.append((target / PACKAGE_FILE, set_aside(target / PACKAGE_FILE)))
            (target / PACKAGE_FILE).unlink(missing_ok=True)
        for path in files:
            _make_folders((target / path).parent, made)
            replaced.append((target / path, set_aside(target / path)))
            (temporary / path).replace(target / path)
        for path in outdated:
            replaced.append((path, set_aside(path)))
            path.unlink(missing_ok=True)
    except BaseException:
        put_back(replaced)
        _remove_empty(made)
        raise
    forget_replaced(replaced)


def _refuse_obstacles(files: list[Path], target: Path) -> None:
    for path in files:
        steps = [target / parent for parent in path.parents]
        if (target / path).is_dir() or any(step.exists() and not step.is_dir() for step in steps):
            raise FileUnwritable(f"cannot write {target / path}: there is a folder or a file in its way")
        # A folder of others may have a link in it: nothing elsewhere is replaced because of it.
        if not (target / path).parent.resolve().is_relative_to(target):
            raise FileUnwritable(
                f"cannot write {target / path}: a link there leads out of the folder",
                "Remove the link, or write to another folder.",
            )


def _refuse_changed(folder: Path) -> None:
    """Raise if a package that is there has a file that was changed, or exchanged, since the package was written."""
    info = _describe_present(folder)
    changed = None if info is None else next(find_changed_files(folder, info), None)
    if changed is not None:
        raise FileUnwritable(
            f"cannot replace the package {folder}: {changed} was changed after the package was written",
            "Move that file out of the folder, or write to another folder.",
        )


def _describe_present(folder: Path) -> PackageInfo | None:
    """The description of the package that is there now; None if there is none, or it cannot be read."""
    try:
        info = read_description(folder)
        for name in info.files:
            find_file(folder, name)
    except ModelExportError:
        return None
    return info


def _files_of_package(folder: Path) -> Iterator[Path]:
    """What the package that is there now says that it consists of; nothing if that cannot be told."""
    info = _describe_present(folder)
    paths = () if info is None else (folder / name for name in (*info.files, PACKAGE_FILE))
    yield from (path for path in paths if path.is_file())


def _make_folders(folder: Path, made: list[Path]) -> None:
    """Those that are missing, listed in `made` as they are made: one of them may fail."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        path.mkdir()
        made.append(path)


def _remove_empty(folders: list[Path]) -> None:
    for folder in reversed(folders):
        with suppress(OSError):
            folder.rmdir()
