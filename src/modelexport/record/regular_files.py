"""Regular files: the only ones that are read, whoever named them.

    open_regular(Path("model.onnx.data"))     a stream of bytes
    open_regular(Path("/dev/zero"))           OSError: it is not a regular file

Opened, a pipe waits for somebody to write, and a device may never end. To look before opening is not enough: what is
there can change in between. So the file is opened without waiting, and what was opened is asked what it is.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

# Windows has no such files, nor all of these flags.
_FLAGS = ("O_BINARY", "O_CLOEXEC", "O_NOCTTY", "O_NONBLOCK")
_READING = os.O_RDONLY | sum(getattr(os, name, 0) for name in _FLAGS)


def open_regular(path: Path) -> BinaryIO:
    """Raises OSError for what is not there, cannot be read, or is no regular file."""
    descriptor = os.open(path, _READING)
    file = None
    try:
        _refuse_special(os.fstat(descriptor).st_mode)
        file = os.fdopen(descriptor, "rb")
    finally:
        if file is None:
            os.close(descriptor)
    return file


def _refuse_special(kind: int) -> None:
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(kind):
        raise OSError(errno.EINVAL, "it is not a regular file")


def is_special(path: Path) -> bool:
    """Whether there is something that is neither a file nor a folder."""
    try:
        kind = path.stat().st_mode
    except (OSError, ValueError):  # ValueError: a name with a NUL
        return False
    return not stat.S_ISREG(kind) and not stat.S_ISDIR(kind)
