"""Inputs as the user writes them: `name=SHAPE[:DTYPE]`, a JSON file of specs, an npz file of arrays.

A JSON file describes each tensor by its shape, and optionally its dtype and the range of its values, both
ends included:

    {"input_ids": {"shape": [2, 16], "dtype": "int64", "range": [0, 999]}, "scale": {"shape": []}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from modelexport.capture.graph_inputs import read_arrays
from modelexport.capture.inputs.request import InputSpec
from modelexport.errors import InputError, UnknownName

_EXAMPLE = "Write name=SHAPE[:DTYPE], for example x=1x3x224x224:float32, or flag=:bool for a scalar."
_SPEC_KEYS = {"shape", "dtype", "range"}
_FILE_EXAMPLE = 'Write {"input_ids": {"shape": [2, 16], "dtype": "int64", "range": [0, 999]}}.'
_BOUNDS = 2
# Torch has more, but most of those can be neither filled with numbers nor exported.
_DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")


def parse_input_spec(text: str) -> InputSpec:
    """`x=1x3x224x224:float32`; without a dtype the usual one for the name, without a shape a scalar."""
    name, equals, rest = text.partition("=")
    sizes, colon, dtype = rest.partition(":")
    name = name.strip()
    if not equals or not name.isidentifier() or not (sizes or colon):
        raise InputError(f"cannot read the input {text!r}", _EXAMPLE)
    if not re.fullmatch(r"(\d+([x,]\d+)*)?", sizes.strip()):
        raise InputError(f"input {name!r}: {sizes!r} is not a shape", _EXAMPLE)
    shape = tuple(int(size) for size in re.findall(r"\d+", sizes))
    return _checked(InputSpec(name, shape, dtype.strip() if colon else None))


def read_specs_file(path: Path) -> tuple[InputSpec, ...]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the input specs {str(path)!r}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{str(path)!r} is not valid JSON: {error}", _FILE_EXAMPLE) from error
    if not isinstance(content, dict):
        raise InputError(f"{str(path)!r} holds a JSON {type(content).__name__}, not an object", _FILE_EXAMPLE)
    return tuple(_spec_entry(name, entry) for name, entry in content.items())


def _spec_entry(name: str, entry: object) -> InputSpec:
    if not isinstance(entry, dict) or not _is_list_of(entry.get("shape"), int):
        raise InputError(f"input {name!r}: no 'shape' (a list of sizes) in {entry!r}", _FILE_EXAMPLE)
    if unknown := sorted(set(entry) - _SPEC_KEYS):
        raise InputError(f"input {name!r}: unknown key {unknown[0]!r}", _FILE_EXAMPLE)
    dtype, bounds = entry.get("dtype"), entry.get("range")
    if bounds is not None and not _is_range(bounds):
        raise InputError(f"input {name!r}: range {bounds!r} is not [lowest, highest]", _FILE_EXAMPLE)
    given = None if bounds is None else (float(bounds[0]), float(bounds[1]))
    return _checked(InputSpec(name, tuple(entry["shape"]), None if dtype is None else str(dtype), given))


def _is_list_of(value: object, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) and not isinstance(item, bool) for item in value)


def _is_range(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == _BOUNDS
        and _is_list_of(value, (int, float))
        and (value[0] <= value[1])
    )


def _checked(spec: InputSpec) -> InputSpec:
    if any(size < 1 for size in spec.shape):
        raise InputError(f"input {spec.name!r}: every size of {spec.shape} must be at least 1", _EXAMPLE)
    if spec.dtype is not None:
        dtype_named(spec.dtype, spec.name)
    return spec


def dtype_named(name: str, owner: str) -> torch.dtype:
    if name not in _DTYPES:
        hint = UnknownName("dtype", name, _DTYPES).hint
        raise InputError(f"input {owner!r}: unknown dtype {name!r}", hint)
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def read_arrays_file(path: Path) -> Mapping[str, torch.Tensor]:
    """Arrays with their own dtypes."""
    return {name: _tensor(array, name) for name, array in read_arrays(path).items()}


def _tensor(array: np.ndarray, name: str) -> torch.Tensor:
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise InputError(f"input {name!r}: torch has no tensors of {array.dtype}") from error
