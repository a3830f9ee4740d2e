"""Arrays of a user: .npz files, of which nothing is believed before it is checked.

    read_arrays(Path("inputs.npz"))      {"input_ids": array([[101, 2023, …]])}

NumPy makes room for as many elements as the header of an array states, and then reads them. So the header is held
against the bytes that are there, and the bytes of all arrays against the memory that is free: an archive of zeros grows
a thousandfold. https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from modelexport.capture.memory import ensure_fits
from modelexport.errors import InputError, ModelExportError
from modelexport.record.amounts import format_bytes
from modelexport.record.regular_files import open_regular

_SUFFIX = ".npy"
_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """An archive with Python objects inside is refused, never unpickled."""
    try:
        with open_regular(path) as file:
            _refuse_single_array(path, file)
            return _read_archive(path, file)
    except ModelExportError:
        raise
    except OSError as error:
        raise InputError(
            f"cannot read the arrays {str(path)!r}: {error.strerror or error}", "Check the path."
        ) from error
    except Exception as error:  # NumPy, zipfile and zlib have many words for "damaged"
        raise InputError(
            f"{str(path)!r} is not an npz file of plain arrays: {error}",
            "Write it with numpy.savez(path, input_ids=..., ...).",
        ) from error


def _refuse_single_array(path: Path, file: IO[bytes]) -> None:
    start = file.read(npy.MAGIC_LEN)
    file.seek(0)
    if start.startswith(npy.MAGIC_PREFIX):
        raise InputError(
            f"{str(path)!r} holds one array, which does not say the input that it is for",
            "Give an npz file with an array for each input: "
            f"numpy.savez({str(path.with_suffix('.npz'))!r}, NAME=numpy.load({str(path)!r}), …).",
        )


def _read_archive(path: Path, file: IO[bytes]) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        total = sum(member.file_size for member in members)
        ensure_fits(total, f"the arrays of {str(path)!r}", InputError, "Give fewer samples, or smaller ones.")
        return {member.filename.removesuffix(_SUFFIX): _read_member(archive, member) for member in members}


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    name = member.filename.removesuffix(_SUFFIX)
    with archive.open(member) as stream:
        _check_header(name, stream, member.file_size)
    with archive.open(member) as stream:
        array: np.ndarray = npy.read_array(stream, allow_pickle=False)
    return array


def _check_header(name: str, stream: IO[bytes], size: int) -> None:
    """Raise ValueError where a header states more, or fewer, bytes than there are."""
    version = npy.read_magic(stream)
    if version not in _READERS:
        raise ValueError(f"{name!r} is in version {'.'.join(map(str, version))} of the format")
    shape, _, dtype = _READERS[version](stream)
    if dtype.hasobject:
        raise ValueError(f"{name!r} holds Python objects, which can run code")
    stated, stored = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if stated != stored or not dtype.itemsize or any(length < 0 for length in shape):
        sizes = "x".join(map(str, shape)) or "a scalar"
        raise ValueError(
            f"{name!r} is damaged: its header says {sizes} of {dtype}, {format_bytes(stated)}, and there are "
            f"{format_bytes(stored)}"
        )
