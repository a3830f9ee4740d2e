"""Checkpoint: tensors in safetensors files, read in pieces, and the initializers that recipes make of them.

    checkpoint = open_checkpoint(Path("llama"))       headers alone: names, types, shapes, places
    FilledWeight(recipe, checkpoint).pieces()         transpose(lm_head.weight), 64 MB at a time

A piece is some rows of the result. What they take of each operand is found backwards through the recipe, so that of a
tensor that is transposed, cut or joined only the part is read that goes into these rows:

    rows 0..9 of transpose(w)   ->   columns 0..9 of w   ->   a read for each row of w

The folder is the user's choice; names in it, headers and recipes are a stranger's. Nothing outside of the folder is
named, only regular files are read, and every tensor lies inside of its file.

https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from modelexport.errors import FileMalformed, FileUnreadable, ModelMismatch, shorten, some_of
from modelexport.graph.file.weights import Part, delimited
from modelexport.record.json_reading import parse_json, read_json
from modelexport.record.regular_files import open_regular
from modelexport.record.weight_recipe import Constant, Operation, Recipe, StoredTensor, stored_tensors

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"  # the index names the shards of a large model
# Without a type that numpy has, a tensor cannot be read here.
DTYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000  # bytes; what the format allows
# Bytes of a result that are made at once: its operands and a copy of it are in memory as well.
_PIECE = 1 << 26
# What a digest looks at: blocks of a tensor, from the first to the last.
_BLOCKS, _BLOCK_BYTES, _DIGEST_LETTERS = 16, 4096, 32
# Columns that are turned into rows at once: what they touch fits into the processor's cache.
_TILE = 64

Region = tuple[slice, ...]


def read_header(path: Path) -> Mapping[str, object]:
    """What a safetensors file says of itself. Raises OSError, and ValueError for what is none."""
    with open_regular(path) as file:
        return _parse_header(file)[0]


def _parse_header(file: BinaryIO) -> tuple[Mapping[str, object], int]:
    """The header, and where the tensors begin."""
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if not 0 < length <= _LONGEST_HEADER:
        raise ValueError("it does not begin with the length of a header")
    header = parse_json(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
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
        outer = [range(part.start * step, part.stop * step, step) for part, step in zip(region[:inner], steps, strict=False)]
        buffer = memoryview(runs.view(np.uint8)).cast("B")
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


def recipe_shape(recipe: Recipe) -> tuple[int, ...]:
    """The shape of a result. Raises ValueError for steps that do not fit each other."""
    if not isinstance(recipe, Operation):
        return recipe.shape
    shapes = [recipe_shape(operand) for operand in recipe.operands]
    first, numbers = shapes[0], recipe.numbers
    match recipe.name:
        case "transpose" if sorted(numbers) == list(range(len(first))):
            return tuple(first[axis] for axis in numbers)
        case "reshape" if math.prod(numbers) == math.prod(first) and all(number >= 0 for number in numbers):
            return numbers
        case "slice" if len(numbers) == 3 * len(first) and all(map(_is_cut, _triples(numbers), first)):
            return tuple(len(range(*triple)) for triple in _triples(numbers))
        case "concatenate" if len(numbers) == 1 and 0 <= numbers[0] < len(first):
            axis = numbers[0]
            if all(shape[:axis] + shape[axis + 1 :] == first[:axis] + first[axis + 1 :] for shape in shapes):
                return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])
        case "cast" | "sqrt" | "negative":
            return first
        case "add" | "subtract" | "multiply" | "divide":
            result = np.broadcast_shapes(*shapes)
            # A product of a row and a column would be larger than all that was read for it.
            if result in shapes:
                return result
    raise ValueError(f"{recipe.name} {list(numbers)} does not fit {' and '.join(map(str, shapes))}")


def _is_cut(triple: tuple[int, int, int], size: int) -> bool:
    start, stop, step = triple
    return 0 <= start <= stop <= size and step > 0


def _triples(numbers: tuple[int, ...]) -> list[tuple[int, int, int]]:
    return [(numbers[at], numbers[at + 1], numbers[at + 2]) for at in range(0, len(numbers), 3)]


def recipe_dtype(recipe: Recipe) -> np.dtype[Any]:
    """The type of a result. Raises ValueError for a type that numpy does not have."""
    name = recipe.dtype
    if isinstance(recipe, Operation) and not name:
        return np.result_type(*map(recipe_dtype, recipe.operands))
    if name not in DTYPES:
        raise ValueError(f"type {shorten(name)!r} is not known here")
    return DTYPES[name]


_ARITHMETIC = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "sqrt": np.sqrt,
    "negative": np.negative,
}


@dataclass(frozen=True, eq=False)
class FilledWeight:
    """The data of an initializer, made of a checkpoint when it is written."""

    recipe: Recipe
    checkpoint: Checkpoint
    field_number = 9  # raw_data

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return recipe_shape(self.recipe)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        return recipe_dtype(self.recipe)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getitem__(self, places: tuple[np.ndarray, ...]) -> np.ndarray:
        """Single elements, as numpy gives them: those of a sketch (graph/outline.py), and nothing else is read."""
        if _reshapes(self.recipe):
            return self._make(self.recipe, tuple(slice(0, size) for size in self.shape))[places]
        regions = (tuple(slice(int(at), int(at) + 1) for at in place) for place in zip(*places, strict=True))
        return np.concatenate([self._make(self.recipe, region).reshape(1) for region in regions])

    def raw(self) -> memoryview:
        return memoryview(b"".join(self.pieces()))

    def fields(self) -> list[Part]:
        return delimited(self.field_number, [self])

    def pieces(self) -> Iterator[memoryview]:
        """The bytes in their order, some rows at a time."""
        row = self.nbytes // max(self.shape[0], 1) if self.shape else 0
        count = max(_PIECE // row, 1) if row else 1
        # What is given another shape is made as a whole.
        if not self.shape or _reshapes(self.recipe):
            count = max(self.shape[0], 1) if self.shape else 1
        rows = self.shape[0] if self.shape else 1
        for start in range(0, rows, count):
            whole = [slice(0, size) for size in self.shape]
            region = (slice(start, min(start + count, rows)), *whole[1:]) if whole else ()
            array = _ordered(self._make(self.recipe, region))
            yield memoryview(array.reshape(-1).view(np.uint8)) if array.size else memoryview(b"")

    def _make(self, recipe: Recipe, region: Region) -> np.ndarray:
        """A part of a result."""
        if isinstance(recipe, StoredTensor):
            array = self.checkpoint.read(self.checkpoint.tensors[recipe.name], region)
            # A recipe that was made of a configuration has the type of the model, and not of a checkpoint.
            return array.astype(DTYPES[recipe.dtype], copy=False)
        if isinstance(recipe, Constant):
            return np.frombuffer(recipe.content, DTYPES[recipe.dtype]).reshape(recipe.shape)[region]
        operands, numbers = recipe.operands, recipe.numbers
        match recipe.name:
            case "cast":
                return self._make(operands[0], region).astype(DTYPES[recipe.dtype])
            case "transpose":
                inverse = [numbers.index(axis) for axis in range(len(numbers))]
                return self._make(operands[0], tuple(region[axis] for axis in inverse)).transpose(numbers)
            case "reshape":
                whole = tuple(slice(0, size) for size in recipe_shape(operands[0]))
                return self._make(operands[0], whole).reshape(numbers)[region]
            case "slice":
                return self._make_slice(operands[0], _triples(numbers), region)
            case "concatenate":
                return self._join(operands, numbers[0], region)
        return _ARITHMETIC[recipe.name](*(self._make(operand, _broadcast(operand, region)) for operand in operands))

    def _make_slice(self, operand: Recipe, triples: list[tuple[int, int, int]], region: Region) -> np.ndarray:
        taken = [range(*triple)[part] for triple, part in zip(triples, region, strict=True)]
        around = tuple(slice(part[0], part[-1] + 1) if part else slice(0, 0) for part in taken)
        return self._make(operand, around)[tuple(slice(None, None, part.step) for part in taken)]

    def _join(self, operands: tuple[Recipe, ...], axis: int, region: Region) -> np.ndarray:
        parts, end = [], 0
        for operand in operands:
            start, end = end, end + recipe_shape(operand)[axis]
            low, high = max(region[axis].start, start), min(region[axis].stop, end)
            if low < high:
                inner = slice(low - start, high - start)
                parts.append(self._make(operand, (*region[:axis], inner, *region[axis + 1 :])))
        if not parts:
            sizes = [part.stop - part.start for part in region]
            return np.empty(sizes, recipe_dtype(operands[0]))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis)


def _reshapes(recipe: Recipe) -> bool:
    return isinstance(recipe, Operation) and (recipe.name == "reshape" or any(map(_reshapes, recipe.operands)))


def _broadcast(operand: Recipe, region: Region) -> Region:
    shape = recipe_shape(operand)
    parts = region[len(region) - len(shape) :]
    return tuple(slice(0, 1) if size == 1 else part for size, part in zip(shape, parts, strict=True))


def _ordered(array: np.ndarray) -> np.ndarray:
    """In row order: a turned matrix tile by tile, for rows that are read across would miss the cache at every number."""
    if array.flags.c_contiguous or array.ndim != 2:
        return np.ascontiguousarray(array)
    result = np.empty(array.shape, array.dtype)
    for start in range(0, array.shape[1], _TILE):
        result[:, start : start + _TILE] = array[:, start : start + _TILE]
    return result


def find_weight(recipe: Recipe, checkpoint: Checkpoint, name: str) -> FilledWeight:
    """The data of initializer `name`. Raises ModelMismatch where the checkpoint has other tensors than the recipe."""
    for expected in stored_tensors(recipe):
        stored = checkpoint.tensors.get(expected.name)
        if stored is None:
            raise ModelMismatch(
                f"{checkpoint.folder} has no tensor {shorten(expected.name)!r}, of which {shorten(name)!r} is made",
                "Give the checkpoint that the file was exported from, or export the file again.",
            )
        if stored.shape != expected.shape or (expected.file and stored.dtype != expected.dtype):
            raise ModelMismatch(
                f"{shorten(expected.name)!r} is {stored.dtype} {list(stored.shape)} in {checkpoint.folder}, and "
                f"{expected.dtype} {list(expected.shape)} in the file",
                "Give the checkpoint that the file was exported from, or export the file again.",
            )
    return FilledWeight(recipe, checkpoint)
