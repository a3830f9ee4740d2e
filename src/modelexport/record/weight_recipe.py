"""Weight recipes: how an initializer of a file without weights comes from tensors of a checkpoint.

    Transpose(h.0.fc.weight)        {"op": "transpose", "numbers": [1, 0], "of": [
                                        {"tensor": "h.0.fc.weight", "dtype": "BF16", "shape": [8, 4],
                                         "file": "model.safetensors", "offset": 1024, "digest": "9f86d081"}]}

A recipe is what exporters and loaders do to weights: they cast, transpose, cut, join and scale them. It holds names and
numbers, and never code: a file with recipes may come from anybody. graph/file/checkpoint.py reads what they name.

Types of tensors are named as safetensors names them: https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from modelexport.record.json_reading import parse_json

# What strangers' recipes may have: steps, and axes of a tensor. DeepSeek-V3 joins 256 experts into one weight.
_MOST_PARTS = 10_000
_MOST_AXES = 64
_LARGEST = 2**63 - 1
# Bytes of a constant: the deviation of a norm that was folded, a sign.
_LONGEST_CONSTANT = 1 << 16


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint.

    file    its name in the folder of the checkpoint; empty where only a configuration is known
    offset  of its first byte in that file
    digest  of a part of its content (`Checkpoint.digest`); empty where there is none to compare with
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str = ""
    offset: int = 0
    digest: str = ""


@dataclass(frozen=True)
class FixedArray:
    """A small array that is no weight: the epsilon that a folded norm adds."""

    dtype: str
    shape: tuple[int, ...]
    content: bytes


@dataclass(frozen=True)
class Operation:
    """One step.

    name     one of OPERATIONS
    numbers  axes of a `transpose`, the shape of a `reshape`, start, stop and step for each axis of a `slice`, the axis
             of a `concatenate`
    dtype    what a `cast` gives
    """

    name: str
    operands: tuple[Recipe, ...]
    numbers: tuple[int, ...] = ()
    dtype: str = ""


Recipe: TypeAlias = StoredTensor | FixedArray | Operation

# By name: how many operands each takes; None for any number.
OPERATIONS: Mapping[str, int | None] = {
    "cast": 1,
    "transpose": 1,
    "reshape": 1,
    "slice": 1,
    "concatenate": None,
    "add": 2,
    "subtract": 2,
    "multiply": 2,
    "divide": 2,
    "sqrt": 1,
    "negative": 1,
}


def stored_tensors(recipe: Recipe) -> Iterator[StoredTensor]:
    """What is read of a checkpoint, each as often as it occurs."""
    waiting: list[Recipe] = [recipe]
    while waiting:
        match waiting.pop():
            case StoredTensor() as tensor:
                yield tensor
            case Operation(operands=operands):
                waiting += reversed(operands)


def write_recipe(recipe: Recipe) -> str:
    return json.dumps(_to_json(recipe), separators=(",", ":"))


def _to_json(recipe: Recipe) -> dict[str, object]:
    match recipe:
        case StoredTensor():
            document: dict[str, object] = {"tensor": recipe.name, "dtype": recipe.dtype, "shape": recipe.shape}
            return document | (
                {"file": recipe.file, "offset": recipe.offset, "digest": recipe.digest} if recipe.file else {}
            )
        case FixedArray():
            content = base64.b64encode(recipe.content).decode()
            return {"constant": content, "dtype": recipe.dtype, "shape": recipe.shape}
        case Operation():
            details = {"numbers": recipe.numbers, "dtype": recipe.dtype}
            named = {name: value for name, value in details.items() if value}
            return {"op": recipe.name, **named, "of": [_to_json(operand) for operand in recipe.operands]}


def read_recipe(text: str) -> Recipe:
    """Raises ValueError for what is none; whether the tensors are there is another question."""
    document = parse_json(text)
    recipe = _from_json(document)
    if sum(1 for _ in stored_tensors(recipe)) > _MOST_PARTS:
        raise ValueError(f"it has more than {_MOST_PARTS:,} tensors")
    return recipe


def _from_json(document: Any) -> Recipe:
    match document:
        case {"tensor": str(name), "dtype": str(dtype), "shape": list(shape)}:
            file, offset = document.get("file", ""), document.get("offset", 0)
            digest = document.get("digest", "")
            if not (isinstance(file, str) and _is_size(offset) and isinstance(digest, str)):
                raise ValueError(f"tensor {name!r} is at no place: file {file!r}, offset {offset!r}")
            return StoredTensor(name, dtype, _sizes(shape), file, offset, digest)
        case {"constant": str(content), "dtype": str(dtype), "shape": list(shape)}:
            return FixedArray(dtype, _sizes(shape), _decode(content))
        case {"op": str(name), "of": list(operands)} if name in OPERATIONS:
            numbers, dtype = document.get("numbers", []), document.get("dtype", "")
            if not (
                isinstance(numbers, list) and isinstance(dtype, str) and all(type(item) is int for item in numbers)
            ):
                raise ValueError(f"{name} has numbers {numbers!r} and type {dtype!r}")
            if (count := OPERATIONS[name]) not in (None, len(operands)) or not operands:
                raise ValueError(f"{name} has {len(operands)} operands, and takes {count or 'one or more'}")
            if len(numbers) > 3 * _MOST_AXES or any(abs(number) > _LARGEST for number in numbers):
                raise ValueError(f"{name} has numbers that no tensor has")
            return Operation(name, tuple(map(_from_json, operands)), tuple(numbers), dtype)
    raise ValueError("it is neither a tensor, nor a constant, nor an operation that is known")


def _sizes(shape: list[object]) -> tuple[int, ...]:
    sizes = tuple(size for size in shape if isinstance(size, int) and _is_size(size))
    if len(sizes) < len(shape) or len(sizes) > _MOST_AXES or math.prod(sizes) > _LARGEST:
        raise ValueError("a tensor has a shape that none can have")
    return sizes


def _is_size(number: object) -> bool:
    return type(number) is int and 0 <= number <= _LARGEST


def _decode(content: str) -> bytes:
    if len(content) > _LONGEST_CONSTANT:
        raise ValueError(f"a constant is longer than {_LONGEST_CONSTANT} characters")
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error as error:
        raise ValueError(f"a constant is not base64: {error}") from error
