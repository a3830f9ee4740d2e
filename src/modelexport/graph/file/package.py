"""Package folder: `modelexport.json` and the files that it lists, checked by their sizes; digests on request.

    info = read_package(Path("qwen3"))               what the folder holds; models are there in their recorded sizes
    find_changed_files(Path("qwen3"), info)          files with another content than when they were written
    list_files_beside(info)                          ['genai_config.json', 'tokenizer.json']: people may edit these
    write_package(folder, info)                      sizes and digests of all files in a folder, and the description

A package comes from anywhere: no file outside of its folder is ever opened because of it, also by way of a link.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from modelexport.errors import FileUnreadable, quote_argument, some_of
from modelexport.graph.file.atomic import write_atomically
from modelexport.graph.file.metadata import sidecar_path
from modelexport.record.package import PACKAGE_FILE, PackageInfo, StoredFile
from modelexport.record.package_document import is_inside, parse_package_document, write_package_document
from modelexport.record.regular_files import open_regular

# That of a model with thousands of cache tensors is far below this.
_MOST_BYTES = 64_000_000
_CHUNK = 1 << 22


def is_package(path: Path) -> bool:
    """Whether this is a folder with a description of a package in it."""
    return path.is_dir() and (path / PACKAGE_FILE).is_file()


def read_package(folder: Path) -> PackageInfo:
    """The description, after a look at models, weights and records: FileUnreadable if one is missing or exchanged.

    Files beside them may be there or not, and be edited: to set a temperature in a configuration is no damage.
    """
    info = read_description(folder)
    beside = {*list_files_beside(info)}
    for name, stored in info.files.items():
        path = find_file(folder, name)
        if name in beside:
            continue
        if not path.is_file():
            raise FileUnreadable(f"{folder} has no {name}, which is part of the package", _restore(folder))
        size = path.stat().st_size
        if size != stored.nbytes:
            how = "truncated or exchanged" if size < stored.nbytes else "exchanged"
            raise FileUnreadable(
                f"{path} is {how}: it has {size} bytes, and {stored.nbytes} when the package was written",
                _restore(folder),
            )
    return info


def read_description(folder: Path) -> PackageInfo:
    """`modelexport.json` alone; the files that it lists may be there or not."""
    path = folder / PACKAGE_FILE
    if not path.is_file():
        raise explain_folder(folder) if folder.is_dir() else FileUnreadable(f"{folder} is not a folder")
    try:
        # Read to one byte more than allowed, so that a file that grows meanwhile cannot fill the memory.
        with open_regular(path) as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise FileUnreadable.from_os_error(path, error) from error
    if len(text) > _MOST_BYTES:
        raise FileUnreadable(f"{path} is larger than any description of a package", _restore(folder))
    return parse_package_document(text, str(path))


def list_files_beside(info: PackageInfo) -> list[str]:
    """Everything but models, their weights and their records: configuration, tokenizer, …"""
    models: set[str] = set()
    for component in info.components:
        sidecar = sidecar_path(Path(component.file)).as_posix()
        models |= {component.file, sidecar, *component.data}
    return [name for name in info.files if name not in models]


def explain_folder(folder: Path) -> FileUnreadable:
    """Why a folder cannot be asked as a model, and what to do instead."""
    if is_package(folder):
        files = [component.file for component in read_description(folder).components]
        return refuse_package(folder, files, f"{folder} is a package, and this takes one file")
    models = sorted(str(path.relative_to(folder)) for path in (*folder.glob("*.onnx"), *folder.glob("*/*.onnx")))
    if not models:
        return FileUnreadable(
            f"{folder} is a folder without any .onnx file", "Give a file, or the folder of a package."
        )
    return FileUnreadable(
        f"{folder} is a folder without {PACKAGE_FILE}: it has {some_of(models)}",
        f"Make it a package: `modelexport attach {quote_argument(folder)} -m MODEL -o OUT`; or give one of its files.",
    )


def refuse_package(folder: Path, files: Sequence[str], message: str) -> FileUnreadable:
    """Why a package cannot be taken for one of its files, with the files to choose from."""
    paths = ", ".join(quote_argument(folder / file) for file in files)
    return FileUnreadable(message, f"Give one of its files: {paths}." if len(files) > 1 else f"Give its file: {paths}.")


def find_file(folder: Path, name: str) -> Path:
    """The path of a file of a package, which may not be there. One that lies elsewhere is FileUnreadable."""
    path = folder / name
    if not is_inside(name) or not path.resolve().is_relative_to(folder.resolve()):
        raise FileUnreadable(
            f"{name} is outside of the package {folder}", "Put the file itself (not a link to it) into the folder."
        )
    return path


def digest_file(path: Path) -> StoredFile:
    """Size and SHA-256 of a file, read piece by piece."""
    digest, nbytes = hashlib.sha256(), 0
    with open_regular(path) as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            digest.update(chunk)
            nbytes += len(chunk)
    return StoredFile(nbytes, digest.hexdigest())


def find_changed_files(folder: Path, info: PackageInfo) -> Iterator[str]:
    """Files of the package whose content is not what it was when the package was written; reads all that are there."""
    for name, stored in info.files.items():
        path = find_file(folder, name)
        if path.is_file() and (path.stat().st_size != stored.nbytes or digest_file(path) != stored):
            yield name


def write_package(folder: Path, info: PackageInfo) -> PackageInfo:
    """Write `modelexport.json` with the digests of everything that is in the folder now.

    To be called last, in a folder that is staged (`staged_folder`).
    """
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    listed = replace(info, files={name: digest_file(folder / name) for name in names if name != PACKAGE_FILE})
    write_description(folder, listed)
    return listed


def write_description(folder: Path, info: PackageInfo) -> None:
    """Write `modelexport.json` as it is, with the digests that are in it."""
    text = write_package_document(info)
    # What is written can be read: a component without its file is found here and not by the user.
    parse_package_document(text)
    write_atomically(folder / PACKAGE_FILE, text)


def _restore(folder: Path) -> str:
    return f"Put the files back as they were written, or make the package {quote_argument(folder)} again."
