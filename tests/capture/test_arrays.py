"""Arrays of a user: what a header states is held against the bytes that are there, before there is room for it."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelexport.capture import memory
from modelexport.capture.onnxruntime.arrays import read_arrays
from modelexport.errors import InputError
from modelexport.record.amounts import format_bytes


def _npy(header: str, content: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + content


def _archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def _header(shape: str, descr: str = "<f4") -> str:
    return f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}"


_LIES = {
    "far more than there is": _npy(_header("(1000000, 1000000)")),
    "a little more than there is": _npy(_header("(3,)"), bytes(8)),
    "less than there is": _npy(_header("(1,)"), bytes(8)),
    "a negative size": _npy(_header("(-1, -2)"), bytes(8)),
    "elements of no bytes": _npy(_header("(1000000000000,)", "<U0")),
    "Python objects": _npy(_header("(1,)", "|O"), b"\x80\x04N."),
    "another version": _npy(_header("(1,)"), bytes(4), b"\x07\x00"),
    "no dictionary": _npy("(" * 100),
    "a header that ends too early": _npy(_header("(1,)"))[:40],
    "nothing": b"",
}


@pytest.mark.parametrize("content", _LIES.values(), ids=_LIES)
def test_what_a_header_states_is_not_believed(tmp_path: Path, content: bytes) -> None:
    path = _archive(tmp_path / "lie.npz", x=content)
    with pytest.raises(InputError, match="not an npz file of plain arrays"):
        read_arrays(path)


def test_plain_archives_are_read_as_numpy_reads_them(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "ids": np.arange(6).reshape(2, 3),
        "fortran": np.asfortranarray(np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)),
        "scalar": np.array(True),
        "none": np.zeros((0, 4), np.float16),
        "name/0": np.ones(2),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        read = read_arrays(tmp_path / "a.npz")
        assert read.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(read[name], array)
            assert read[name].dtype == array.dtype


def test_an_archive_that_unfolds_to_more_than_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "zeros.npz", x=np.zeros(1 << 20))
    monkeypatch.setattr(memory, "available_memory", lambda: 1_000_000)
    with pytest.raises(InputError, match=r"take 8\.39 MB, and 1 MB of memory are free"):
        read_arrays(tmp_path / "zeros.npz")


def test_a_single_array_and_a_pipe_are_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "one.npy").write_bytes(_npy(_header("(1000000, 1000000)")))
    with pytest.raises(InputError, match="holds one array"):
        read_arrays(tmp_path / "one.npy")
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(InputError, match="regular file"):
        read_arrays(tmp_path / "pipe.npz")


def test_what_memory_is_left() -> None:
    available = memory.available_memory()
    assert available is None or available > 1 << 20
    assert format_bytes(4) == "4 bytes"
    assert format_bytes(12_400_000_000) == "12.4 GB"
