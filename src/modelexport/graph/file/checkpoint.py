"""Checkpoint: tensors in safetensors files, of which only the part is read that is asked for.

    checkpoint = open_checkpoint(Path("llama"))       headers alone: names, types, shapes, places
    checkpoint.read(tensor, (slice(0, 9), slice(0, 64)))

The folder is the user's choice; names in it and headers are a stranger's. Nothing outside of the folder is named, only
regular files are read, and every tensor lies inside of its file.

https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
import onnx

from modelexport.errors import FileMalformed, FileUnreadable, shorten, some_of
from modelexport.record.json_reading import parse_json, read_json
from modelexport.record.regular_files import open_regular
from modelexport.record.weight_recipe import StoredTensor

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"  # the index names the shards of a large model
# Without a type that numpy has, a tensor cannot be read here.
DTYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    for name, kind in (
        ("F64", onnx.TensorProto.DOUBLE),
        ("F32", onnx.TensorProto.FLOAT),
        ("F16", onnx.TensorProto.FLOAT16),
        ("BF16", onnx.TensorProto.BFLOAT16),
        ("I64", onnx.TensorProto.INT64),
        ("I32", onnx.TensorProto.INT32),
        ("I16", onnx.TensorProto.INT16),
        ("I8", onnx.TensorProto.INT8),
        ("U64", onnx.TensorProto.UINT64),
        ("U32", onnx.TensorProto.UINT32),
        ("U16", onnx.TensorProto.UINT16),
        ("U8", onnx.TensorProto.UINT8),
        ("BOOL", onnx.TensorProto.BOOL),
        ("F8_E4M3", onnx.TensorProto.FLOAT8E4M3FN),
        ("F8_E5M2", onnx.TensorProto.FLOAT8E5M2),
    )
}
_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000  # bytes; what the format allows
# What a digest looks at: blocks of a tensor, from the first to the last.
_BLOCKS, _BLOCK_BYTES, _DIGEST_LETTERS = 16, 4096, 32

Region = tuple[slice, ...]


def read_header(path: Path) -> Mapping[str, object]:
    """What a safetensors file says of itself. Raises OSError, and ValueError for what is none."""
    with open_regular(path) as file:
        return _parse_header(file)[0]


def _parse_header(file: BinaryIO) -> tuple[Mapping[str, object], int]:
    """The header, and where the tensors begin."""
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    text = file.read(length) if length <= _LONGEST_HEADER else b""
    header = parse_json(text) if text else None
    if not isinstance(header, dict):
        raise ValueError("it does not begin with a header")  # noqa: TRY004 - the content of a file, and no argument
    return header, _LENGTH_BYTES + length


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The tensors of a folder by name."""

    folder: Path
    tensors: Mapping[str, StoredTensor]
    _open: dict[str, BinaryIO] = field(default_factory=dict)

    def read(self, tensor: StoredTensor, region: Region) -> np.ndarray:
        """A part of a tensor; its type and shape are those of the header."""
        dtype, sizes = DTYPES[tensor.dtype], [part.stop - part.start for part in region]
        result = np.empty(sizes, dtype)
        if not result.nbytes:
            return result
        # Axes behind the last one that is cut lie together in the file, as does that one.
        cut = [axis for axis, part in enumerate(region) if sizes[axis] < tensor.shape[axis]]
        inner = max(cut, default=0)
        steps = [math.prod(tensor.shape[axis + 1 :]) * dtype.itemsize for axis in range(len(region))]
        runs = result.reshape(*sizes[:inner], -1) if sizes else result.reshape(-1)
        start = tensor.offset + (region[inner].start * steps[inner] if region else 0)
        outer = [
            range(part.start * step, part.stop * step, step) for part, step in zip(region[:inner], steps, strict=False)
        ]
        buffer = as_bytes(runs)
        length = len(buffer) // math.prod(sizes[:inner])
        for number, offsets in enumerate(product(*outer)):
            self._fill(tensor, buffer[number * length : (number + 1) * length], start + sum(offsets))
        return result

    def digest(self, tensor: StoredTensor) -> str:
        """Of type, shape, and blocks of the content from the first to the last: of another training, all are others."""
        size = math.prod(tensor.shape) * DTYPES[tensor.dtype].itemsize
        digest = hashlib.sha256(f"{tensor.dtype} {tensor.shape}".encode())
        last = max(size - _BLOCK_BYTES, 0)
        for start in sorted({last * number // (_BLOCKS - 1) for number in range(_BLOCKS)}):
            block = memoryview(bytearray(min(_BLOCK_BYTES, size)))
            self._fill(tensor, block, tensor.offset + start)
            digest.update(block)
        return digest.hexdigest()[:_DIGEST_LETTERS]

    def close(self) -> None:
        """Files are opened again when they are read again."""
        while self._open:
            self._open.popitem()[1].close()

    def _fill(self, tensor: StoredTensor, buffer: memoryview, offset: int) -> None:
        if tensor.file not in self._open:
            self._open[tensor.file] = _open_file(self.folder / tensor.file)
        file = self._open[tensor.file].fileno()
        # The system reads 2 GB at once at most.
        while buffer:
            count = os.preadv(file, [buffer], offset)
            if not count:
                path = self.folder / tensor.file
                raise FileUnreadable(f"{path} is truncated: {tensor.name!r} goes on behind byte {offset}")
            buffer, offset = buffer[count:], offset + count


def as_bytes(array: np.ndarray) -> memoryview:
    """The content of an array in row order, without a copy; nothing for an empty one."""
    flat: Any = array.reshape(-1).view(np.uint8)
    return memoryview(flat) if array.size else memoryview(b"")


def open_checkpoint(folder: Path) -> Checkpoint:
    """Raises FileUnreadable for a folder without safetensors, and for shards that are missing or damaged."""
    names = _list_files(folder)
    tensors = {tensor.name: tensor for name in names for tensor in _read_tensors(folder, name)}
    return Checkpoint(folder, tensors)


def _list_files(folder: Path) -> list[str]:
    if (folder / WEIGHTS).is_file():
        return [WEIGHTS]
    index = folder / INDEX
    if not index.is_file():
        raise FileUnreadable(
            f"{folder} is no checkpoint: it has neither {WEIGHTS} nor {INDEX}",
            "Give a folder that save_pretrained wrote.",
        )
    try:
        content = read_json(index)
    except (OSError, ValueError) as error:
        raise FileUnreadable(f"{index} cannot be read: {error}", "Download the checkpoint again.") from error
    shards = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(shards, dict):
        raise FileMalformed(f"{index} has no 'weight_map'", "Write the checkpoint again.")
    names = sorted({str(shard) for shard in shards.values()})
    for name in names:
        if not is_inside(name):
            raise FileMalformed(f"{index} names a file outside of its folder: {shorten(name)!r}", "Do not use it.")
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise FileUnreadable(
            f"{index} names {some_of(missing)}, which is missing", "Copy or download every shard of the checkpoint."
        )
    return names


def is_inside(name: str) -> bool:
    """Whether a name is one of a safetensors file in a folder, as its writer spells it."""
    path = PurePosixPath(name.replace("\\", "/"))
    return path.suffix == ".safetensors" and not (path.is_absolute() or ".." in path.parts or {":", "\0"} & set(name))


def _open_file(path: Path) -> BinaryIO:
    try:
        return open_regular(path)
    except OSError as error:
        raise FileUnreadable.from_os_error(path, error) from error


def _read_tensors(folder: Path, name: str) -> Iterator[StoredTensor]:
    path = folder / name
    with _open_file(path) as file:
        try:
            header, start = _parse_header(file)
        except ValueError as error:
            raise FileMalformed(f"{path} is no safetensors file: {error}", "Download the checkpoint again.") from error
        size = file.seek(0, os.SEEK_END)
    for tensor, entry in header.items():
        if tensor == "__metadata__":
            continue
        match entry:
            case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]} if (
                all(type(side) is int and side >= 0 for side in shape) and 0 <= begin <= end <= size - start
            ):
                known = DTYPES.get(dtype)
                if known is None or end - begin == math.prod(shape) * known.itemsize:
                    yield StoredTensor(tensor, dtype, tuple(shape), name, start + begin)
                    continue
        raise FileMalformed(
            f"{path} has a tensor {shorten(tensor)!r} that does not fit it: {shorten(str(entry))}",
            "Download the checkpoint again.",
        )
