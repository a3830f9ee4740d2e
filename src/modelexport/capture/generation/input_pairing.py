"""Input pairing: which input of a file is which of an entry point, by names, then layers, kinds and ranks.

    file     past_key_self_0        past_key_self_1        …
    entry    past_key_values.0.key  past_key_values.1.key  …      the numbers in a name say the layer

Names that are equal are the same tensor. For the others there are several orders; the likeliest is tried first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx
import torch

from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.onnxruntime.session import required_inputs
from modelexport.errors import InputError
from modelexport.graph.types import input_dims

_NUMBERS = re.compile(r"\d+")


def takes_more(proto: onnx.ModelProto, tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether a file takes tensors that a plain call of the model was not given: a cache, say, or positions.

    An input of another name is one of the call's tensors of its kind and rank, each of them once.
    """
    wanted = required_inputs(proto)
    spare = [(not tensor.is_floating_point(), tensor.dim()) for name, tensor in tensors.items() if name not in wanted]
    for name, value in wanted.items():
        kind = not _is_float(value), len(input_dims(value) or ())
        if name in tensors:
            continue
        if kind not in spare:
            return True
        spare.remove(kind)
    return False


def _is_float(value: onnx.ValueInfoProto) -> bool:
    kind = value.type.tensor_type.elem_type
    return not kind or onnx.helper.tensor_dtype_to_np_dtype(kind).kind not in "iub"


def pair_inputs(proto: onnx.ModelProto, entry: EntryPoint) -> list[dict[str, str]]:
    """Names of the file's inputs, mapped to those of an entry point, the likeliest first; InputError if there are none.

    Equal names are certain. For others there are several orders, and a run will tell.
    """
    wanted = required_inputs(proto)
    unnamed = [name for name in wanted if name not in entry.inputs]
    pairings = [_pair_in_order(wanted, entry, order) for order in _orders(unnamed, wanted)]
    return [pairing for number, pairing in enumerate(pairings) if pairing not in pairings[:number]]


def _orders(names: list[str], wanted: Mapping[str, onnx.ValueInfoProto]) -> Iterator[list[str]]:
    """By the numbers in a name; as they are listed; and the second half of what floats between the first.

    key_0 key_1 value_0 value_1  ->  key_0 value_0 key_1 value_1
    """
    yield sorted(names, key=lambda name: [int(number) for number in _NUMBERS.findall(name)])
    yield names
    floats = [name for name in names if _is_float(wanted[name])]
    keys, values = floats[: len(floats) // 2], floats[len(floats) // 2 :]
    if len(keys) == len(values):
        rest = [name for name in names if name not in floats]
        yield [*rest, *(name for pair in zip(keys, values, strict=True) for name in pair)]


def _pair_in_order(
    wanted: Mapping[str, onnx.ValueInfoProto], entry: EntryPoint, unnamed: Iterable[str]
) -> dict[str, str]:
    pairs = {name: name for name in wanted if name in entry.inputs}
    spare = [name for name in entry.inputs if name not in pairs]
    for name in unnamed:
        match = next((other for other in spare if _may_be(wanted[name], entry, other)), None)
        if match is not None:
            spare.remove(match)
            pairs[name] = match
        elif not _is_flag(wanted[name]):
            raise InputError(f"it has no input like {name}")
    pasts = {pair.past for pair in entry.cache}
    unread = [name for name in spare if name in pasts]
    if unread:
        raise InputError(f"the file has no input for {unread[0]}")
    wrong = [name for name, other in pairs.items() if not _may_be(wanted[name], entry, other)]
    if wrong:
        raise InputError(f"{wrong[0]} has another shape in the file")
    return {name: pairs[name] for name in wanted if name in pairs}


def _may_be(value: onnx.ValueInfoProto, entry: EntryPoint, name: str) -> bool:
    """Whether kind, rank, and sizes of axes that are always the same, are those of a tensor of the entry point."""
    tensor, dims = entry.inputs[name], input_dims(value)
    if _is_float(value) != tensor.is_floating_point():
        return False
    open_axes = entry.axes.get(name, {})
    return dims is None or (
        len(dims) == tensor.dim()
        and all(axis in open_axes or dim == size for axis, (dim, size) in _fixed(dims, tensor.shape))
    )


def _fixed(dims: Sequence[int | str], shape: Sequence[int]) -> Iterator[tuple[int, tuple[int, int]]]:
    for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
        if isinstance(dim, int):
            yield axis, (dim, size)


def _is_flag(value: onnx.ValueInfoProto) -> bool:
    """A merged decoder asks whether there is a past."""
    return value.type.tensor_type.elem_type == onnx.TensorProto.BOOL and (input_dims(value) or (1,)) == (1,)


def fixed_sizes(proto: onnx.ModelProto, entry: EntryPoint, pairs: Mapping[str, str]) -> dict[str, int]:
    """Sizes that the file insists on, by the name of the axis."""
    wanted = required_inputs(proto)
    sizes: dict[str, int] = {}
    for name, other in pairs.items():
        axes = entry.axes.get(other, {})
        for axis, (dim, _) in _fixed(input_dims(wanted[name]) or (), entry.inputs[other].shape):
            if axis in axes:
                sizes[axes[axis]] = dim
    return sizes
