"""Input specifications: what the user may say about inputs, what `forward` accepts, and which axes are dynamic.

    --input x=1x3x224x224:float32          parse_input_spec   -> InputSpec("x", (1, 3, 224, 224), "float32")
    --input-specs FILE.json                read_specs_file    {"input_ids": {"shape": [2, 16], "dtype": "int64",
                                                              "range": [0, 999]}}, both ends included
    --inputs FILE.npz                      read_arrays_file   -> tensors

`ForwardSignature` is what `forward` accepts, by name. `ConfigFields` reads a configuration by field name, wherever in
its nested configurations the field stands:

    ConfigFields(config).number("hidden_size", within=("vision",))     config.vision_config.hidden_size, else any other

Dynamic axes: one rule, by input name and rank (`axis_names`). Axis 0 is the batch. Token-like inputs also have a
sequence axis, raw audio its samples. Sizes that the architecture or the preprocessing fixes (pixels, mel frames,
patches) stay static, as do tensors in lists.

    attention_mask  rank 2   {0: batch, 1: sequence}          pixel_values  rank 4   {0: batch}
    input_values    rank 2   {0: batch, 1: audio_samples}     image_grid_thw         {}
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from modelexport.capture.onnxruntime.arrays import read_arrays
from modelexport.errors import InputError, UnknownName, nearest_name, shorten
from modelexport.record.json_reading import read_json


@dataclass(frozen=True)
class InputSpec:
    """One tensor to make. `dtype` None: the usual one for this name. `bounds`: lowest and highest value."""

    name: str
    shape: tuple[int, ...]
    dtype: str | None = None
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class InputRequest:
    """Where inputs come from; whatever is not said here is made from the model's configuration.

    static    axes of size 1 stay; else they are made with size 2, because torch never lets an axis of size 1 grow
    floating  the type that floats of files, texts and images are converted to; None leaves them as they are
    """

    text: str | None = None
    image: Path | None = None
    shapes: tuple[InputSpec, ...] = ()
    specs_file: Path | None = None
    arrays_file: Path | None = None
    seed: int = 0
    static: bool = False
    floating: torch.dtype | None = None


@dataclass(frozen=True)
class ModelInputs:
    """Keyword arguments for `forward`, in its order, and which of their axes should be dynamic, by name and axis."""

    values: Mapping[str, Any]
    axes: Mapping[str, Mapping[int, str]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ForwardSignature:
    """`names` in the order of `forward`; `open_ended`: it also takes names that it does not list."""

    names: tuple[str, ...]
    required: frozenset[str]
    open_ended: bool
    runs_without_inputs: bool = False

    def check(self, given: Iterable[str]) -> None:
        """Raise InputError at a name that `forward` does not take, proposing the nearest that it does."""
        for name in given:
            if name not in self.names and not self.open_ended:
                near = nearest_name(name, self.names)
                listed = ", ".join(self.names) or "nothing by name"
                hint = f"Did you mean {near!r}?" if near else f"It takes: {listed}."
                raise InputError(f"forward has no input {name!r}", hint)

    def in_order(self, chosen: Iterable[str]) -> list[str]:
        wanted = list(chosen)
        listed = [name for name in self.names if name in wanted]
        return listed + [name for name in wanted if name not in self.names]


def read_signature(module: torch.nn.Module) -> ForwardSignature:
    """Arguments that can be given by name; `*args` cannot, and `**kwargs` makes the signature open-ended."""
    parameters = list(inspect.signature(module.forward).parameters.values())
    by_name = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    # A Hugging Face forward ends in **kwargs for flags, not for tensors: an unlisted name is a mistake.
    flags_only = hasattr(module, "main_input_name") and bool(by_name)
    return ForwardSignature(
        names=tuple(each.name for each in by_name),
        required=frozenset(each.name for each in by_name if each.default is each.empty),
        open_ended=takes_any and not flags_only,
        runs_without_inputs=not parameters,
    )


def main_inputs(module: torch.nn.Module, signature: ForwardSignature) -> tuple[str, ...]:
    """`main_input_name` is one name, a list of them, or absent; it may also be inherited and not apply."""
    named = getattr(module, "main_input_name", ())
    names = (named,) if isinstance(named, str) else tuple(named)
    return tuple(name for name in names if name in signature.names)


@dataclass(frozen=True)
class ConfigFields:
    """A configuration (or None for a module that has none) read by field name."""

    config: object | None

    def find(self, *names: str, within: Sequence[str] = ()) -> Any:
        """The first of `names` that is set anywhere.

        Configurations whose name contains one of `within` ("vision", "decoder") are asked first: their part
        of the model was built from them. Then come the outermost one and all the others.
        """
        levels = list(self._levels())
        ordered = sorted(levels, key=lambda level: not any(word in level[0] for word in within))
        values = (getattr(config, name, None) for name in names for _, config in ordered)
        return next((value for value in values if value is not None), None)

    def number(self, *names: str, within: Sequence[str] = ()) -> int | None:
        value = self.find(*names, within=within)
        return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def own(self, name: str) -> Any:
        """A field of the outermost configuration only."""
        return getattr(self.config, name, None)

    def special_tokens(self) -> frozenset[int]:
        """Every id that a field names as a special token, which sample text should not contain."""
        tokens: set[int] = set()
        for _, config in self._levels():
            for name, value in _attributes(config):
                if name.endswith(("_token_id", "_token_index")):
                    ids = value if isinstance(value, (list, tuple)) else (value,)
                    tokens.update(item for item in ids if isinstance(item, int))
        return frozenset(tokens)

    def _levels(self) -> Iterator[tuple[str, object]]:
        """Names and configurations, outermost first; whatever can be written as a dictionary is one."""
        level = [("", self.config)] if self.config is not None else []
        while level:
            yield from level
            level = [
                (name, value)
                for _, owner in level
                for name, value in _attributes(owner)
                if hasattr(value, "to_dict") and not isinstance(value, type)
            ]


def _attributes(config: object) -> list[tuple[str, Any]]:
    return list(getattr(config, "__dict__", {}).items())


BATCH = "batch"
SEQUENCE = "sequence"
DECODER_SEQUENCE = "decoder_sequence"
AUDIO_SAMPLES = "audio_samples"

_PER_TOKEN = re.compile(
    r"(?P<part>|decoder_|encoder_|qformer_|mm_|global_)"
    r"(?P<kind>input_ids|attention_mask|token_type_ids|position_ids|inputs_embeds|hidden_states|bbox)"
)
_SAME_SEQUENCE = {"mm_", "global_"}  # prefixes of inputs that go token by token with input_ids
# One vector per token: the sequence is axis 1. The others hold one number per token: it is the last axis.
_VECTORS = {"inputs_embeds", "hidden_states", "bbox"}
# Not one row per sample: flattened patches of all images, and the layout of those patches.
_BATCHLESS = re.compile(r"(\w+_)?grid_thw|cache_position")
_MATRIX, _CUBE, _IMAGE_RANK = 2, 3, 4  # ranks: batch x sequence, one more, batch x channels x height x width


def axis_names(name: str, rank: int, audio: bool = False) -> Mapping[int, str]:
    """The dynamic axes of one input by name and rank; `audio` says that its sequence is that of raw samples."""
    is_flattened = name.startswith("pixel_values") and rank < _IMAGE_RANK - 1
    if rank == 0 or _BATCHLESS.fullmatch(name) or is_flattened:
        return {}
    matched = _PER_TOKEN.fullmatch(name)
    if matched is None:
        return {0: BATCH, 1: AUDIO_SAMPLES} if name == "input_values" and rank == _MATRIX else {0: BATCH}
    if rank == 1 or (matched["kind"] == "position_ids" and rank > _MATRIX):
        return {0: BATCH} if rank == 1 else {}
    part = "" if matched["part"] in _SAME_SEQUENCE else matched["part"]
    sequence = AUDIO_SAMPLES if audio and name == "attention_mask" else f"{part}{SEQUENCE}"
    second = matched["kind"] in _VECTORS or (matched["kind"] == "attention_mask" and rank > _CUBE)
    return {0: BATCH, 1 if second else rank - 1: sequence}


def dynamic_axes(values: Mapping[str, Any]) -> Mapping[str, Mapping[int, str]]:
    """The axes rule for tensors at hand. torch.export wants one size for a name: it is kept where the sizes agree."""
    audio = "input_values" in values and not {"input_ids", "inputs_embeds"} & set(values)
    sizes: dict[str, int] = {}
    axes: dict[str, Mapping[int, str]] = {}
    for name, value in values.items():
        labels = axis_names(name, value.dim(), audio) if isinstance(value, torch.Tensor) else {}
        kept: dict[int, str] = {}
        for axis, label in labels.items():
            size = value.shape[axis]
            # An axis of another size than its namesakes is broadcast (size 1: static) or has a name of its own.
            if size == sizes.setdefault(label, size):
                kept[axis] = label
            elif size > 1:
                kept[axis] = f"{name}_{label}"
        if kept:
            axes[name] = kept
    return axes


_EXAMPLE = "Write name=SHAPE[:DTYPE], for example x=1x3x224x224:float32, or flag=:bool for a scalar."
_SPEC_KEYS = {"shape", "dtype", "range"}
_FILE_EXAMPLE = 'Write {"input_ids": {"shape": [2, 16], "dtype": "int64", "range": [0, 999]}}.'
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
    return _check_spec(InputSpec(name, shape, dtype.strip() if colon else None))


def read_specs_file(path: Path) -> tuple[InputSpec, ...]:
    try:
        content = read_json(path)
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
    is_pair = isinstance(bounds, list) and len(bounds) == 2 and _is_list_of(bounds, (int, float))
    if bounds is not None and not (is_pair and bounds[0] <= bounds[1]):
        raise InputError(f"input {name!r}: range {bounds!r} is not [lowest, highest]", _FILE_EXAMPLE)
    spec = _check_spec(InputSpec(name, tuple(entry["shape"]), None if dtype is None else str(dtype)))
    if bounds is None:
        return spec
    _ensure_in_type(bounds, spec)
    return replace(spec, bounds=(float(bounds[0]), float(bounds[1])))


def _ensure_in_type(bounds: Sequence[float], spec: InputSpec) -> None:
    """Numbers beyond their type would become infinite or wrap around. JSON writes infinity as 1e400, too."""
    dtype = torch.float32 if spec.dtype is None else parse_dtype(spec.dtype, spec.name)
    if dtype is torch.bool:
        return
    type_limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    for bound in bounds:
        if not type_limits.min <= bound <= type_limits.max:
            raise InputError(
                f"input {spec.name!r}: {shorten(repr(bound), 40)} is beyond {str(dtype).removeprefix('torch.')}",
                f"Give bounds from {type_limits.min:.4g} to {type_limits.max:.4g}. {_FILE_EXAMPLE}",
            )


def _is_list_of(value: object, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) and not isinstance(item, bool) for item in value)


def _check_spec(spec: InputSpec) -> InputSpec:
    if any(size < 1 for size in spec.shape):
        raise InputError(f"input {spec.name!r}: every size of {spec.shape} must be at least 1", _EXAMPLE)
    if spec.dtype is not None:
        parse_dtype(spec.dtype, spec.name)
    return spec


def parse_dtype(name: str, owner: str) -> torch.dtype:
    if name not in _DTYPES:
        hint = UnknownName("dtype", name, _DTYPES).hint
        raise InputError(f"input {owner!r}: unknown dtype {name!r}", hint)
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def read_arrays_file(path: Path) -> Mapping[str, torch.Tensor]:
    tensors = {}
    for name, array in read_arrays(path).items():
        try:
            tensors[name] = torch.from_numpy(array)
        except TypeError as error:  # uint64, strings: numpy has more types
            raise InputError(f"input {name!r}: torch has no tensors of {array.dtype}") from error
    return tensors
