"""Types of weights: the one that a model is loaded in, and the one that its folder holds.

    --dtype      a folder, hub id or config.json                    a callable, or a module passed in Python
    (none)       float32, and a note where the folder holds another  as it is: the code that built it chose its types
    float16, …   float16, …                                          converted; a module of the user is copied first
    auto         what config.json says, else what the weights are    as it is

float32 is what every runtime can execute and what numbers can be compared in: most language models say `bfloat16`, for
which ONNX Runtime has hardly any kernels on a CPU. A command on a file that exists loads weights in the type that the
file was made in instead (`ModelSource.file_dtype`).

Weights are not read to answer: a safetensors file begins with a JSON header that has the types.
https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch

from modelexport.capture.arguments import CallArguments
from modelexport.errors import ModelUnloadable, UnknownName
from modelexport.record.json_reading import parse_json
from modelexport.record.model_source import ModelSource
from modelexport.record.regular_files import open_regular

AUTO, DEFAULT = "auto", "float32"
DTYPES = ("float32", "float16", "bfloat16", "float64", AUTO)
_STORED_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000  # bytes; what the format allows


def torch_dtype(name: str | None) -> torch.dtype | None:
    """The type of `--dtype`; None where it names none."""
    if name is None or name == AUTO:
        return None
    if name not in DTYPES:
        raise UnknownName("dtype", name, DTYPES)
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def loading_dtype(options: ModelSource) -> torch.dtype | None:
    """The type that weights of a folder or of the hub are loaded in; None for the one that they have."""
    return torch_dtype(options.dtype or options.file_dtype or DEFAULT)


def note_conversion(raw: Mapping[str, object], folder: Path | None, options: ModelSource) -> tuple[str, ...]:
    """What is said where nobody chose a type and the source holds another. `raw` is its config.json."""
    if options.dtype is not None or options.file_dtype is not None:
        return ()
    held = (None if folder is None else stored_dtype(folder)) or stated_dtype(raw)
    if held is None or held == DEFAULT:
        return ()
    return (f"loaded as {DEFAULT}, although the weights are {held}; --dtype {held} keeps them",)


def stated_dtype(raw: Mapping[str, object]) -> str | None:
    """What a configuration says of itself, or else of its parts: `dtype`, in older ones `torch_dtype`."""
    parts = [raw, *(part for part in raw.values() if isinstance(part, dict))]
    stated = (part.get("dtype") or part.get("torch_dtype") for part in parts)
    return next((name.removeprefix("torch.") for name in stated if isinstance(name, str)), None)


def stored_dtype(folder: Path) -> str | None:
    """The type of most bytes of a checkpoint in safetensors; None if there is none, or none with floats."""
    stored: Counter[str] = Counter()
    for path in sorted(folder.glob("*.safetensors")):
        for tensor in _read_header(path).values():
            match tensor:
                case {"dtype": str(kind), "data_offsets": [int(start), int(end)]} if kind in _STORED_NAMES:
                    stored[_STORED_NAMES[kind]] += end - start
    return stored.most_common(1)[0][0] if stored else None


def _read_header(path: Path) -> Mapping[str, object]:
    """Empty for a file that is none: whoever loads it says what is wrong."""
    try:
        with open_regular(path) as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            text = file.read(length) if length <= _LONGEST_HEADER else b""
        header = parse_json(text)
    except (OSError, ValueError):
        return {}
    return header if isinstance(header, dict) else {}


def convert_module(module: torch.nn.Module, dtype: torch.dtype, *, own: bool) -> torch.nn.Module:
    """The module in a type. Where it is not `own` but the user's, a copy: theirs stays as it was."""
    tensors = (*module.parameters(), *module.buffers())
    if all(tensor.dtype is dtype for tensor in tensors if tensor.is_floating_point()):
        return module
    if own:
        return module.to(dtype)
    try:
        return copy.deepcopy(module).to(dtype)
    except Exception as error:
        raise ModelUnloadable(
            f"{type(module).__name__} cannot be copied to convert it to {describe_dtype(dtype)}: {error}",
            "Convert it yourself, and leave dtype out: model.to(dtype).",
        ) from error


def convert_inputs(arguments: CallArguments, dtype: torch.dtype | None) -> CallArguments:
    """Floats in the type that the model was put into; None leaves all as they are."""
    if dtype is None:
        return arguments
    floats = {name: tensor for name, tensor in arguments.tensors.items() if tensor.is_floating_point()}
    return arguments.with_tensors({name: tensor.to(dtype) for name, tensor in floats.items()})


def describe_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
