"""Sharing: how files of steps get to other machines, through a folder that all of them see or an fsspec address.

    Share("s3://bucket/fleet").store(folder, "rows/bert/export")      every file of a folder
    Share("s3://bucket/fleet").fetch("rows/bert/export", folder)      and back

fsspec (https://filesystem-spec.readthedocs.io) knows the protocols: s3, gs, abfs, hdfs, sftp, and `file` for folders.
Credentials are those of the machine, never part of the file of models.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from modelexport.errors import ExtraMissing, UserError, propose_name

# What such libraries raise that are not made to be caught by users of fsspec: botocore's errors, for one.
_FOREIGN = (OSError, ValueError, ImportError)


class Share:
    """One address below which all files of a fleet are."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._files, self._root = _open_address(address)

    def store(self, folder: Path, name: str) -> None:
        """Every file of a folder; the mark that it is complete comes last."""
        paths = sorted(
            (path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.name == "result.json"
        )
        with _as_os_error(self.address):
            for path in paths:
                target = f"{self._root}/{name}/{path.relative_to(folder).as_posix()}"
                self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
                self._files.put_file(os.fspath(path), target)

    def fetch(self, name: str, folder: Path) -> None:
        """Names of an address are not ours: none of them leads out of the folder."""
        with _as_os_error(self.address):
            start = f"{self._root}/{name}"
            for found in self._files.find(start):
                relative = PurePosixPath(str(found)[len(start) :].lstrip("/"))
                if ".." in relative.parts or relative.is_absolute():
                    raise OSError(f"{found} is outside of {start}")
                target = folder / relative
                target.parent.mkdir(parents=True, exist_ok=True)
                self._files.get_file(found, os.fspath(target))

    def write(self, name: str, data: bytes) -> None:
        with _as_os_error(self.address):
            self._files.makedirs(f"{self._root}/{name}".rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(f"{self._root}/{name}", data)

    def read(self, name: str) -> bytes | None:
        """None for what is not there."""
        with _as_os_error(self.address):
            path = f"{self._root}/{name}"
            return bytes(self._files.cat_file(path)) if self._files.exists(path) else None


def _open_address(address: str) -> tuple[Any, str]:
    open_url = _import_fsspec()
    try:
        files, root = open_url(address)
    except _FOREIGN as error:
        from fsspec.registry import known_implementations

        protocol = address.partition("://")[0]
        hint = "" if protocol in known_implementations else propose_name(protocol, sorted(known_implementations))
        raise UserError(f"cannot use the address {address}: {error}", hint) from error
    return files, str(root).rstrip("/")


def _import_fsspec() -> Callable[[str], tuple[Any, str]]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        remedy = "pip install 'modelexport[fleet]'"
        raise ExtraMissing.of_import("sharing results by an address", "fsspec", error, remedy) from error
    opener: Callable[[str], tuple[Any, str]] = url_to_fs
    return opener


@contextmanager
def _as_os_error(address: str) -> Iterator[None]:
    """Each protocol has errors of its own; whoever shares files wants to know that it did not work, and why."""
    try:
        yield
    except OSError:
        raise
    except _FOREIGN as error:
        raise OSError(f"{address}: {error}") from error
