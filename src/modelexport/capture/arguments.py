"""Call arguments: the inputs of one call of a model, by keyword wherever `forward` allows it.

A user gives a tensor, a sequence or a dictionary; `bind_arguments` makes it what exporters and recorders work with:

    bind_arguments(model, (ids, [k, v]))   kwargs   input_ids=ids, past=[k, v]
                                           tensors  input_ids, past_0, past_1   (the names of the graph's inputs)

The same file has what is done with tensors of a call: as numpy arrays in the types that ONNX Runtime has, as
fingerprints, and as other inputs that are as valid as the given ones (`with_mask`, `negate_or_mask`,
`resample_inputs`), to see what a model does beyond the one sample. Names of tensors inside of lists and dictionaries
follow torch.onnx: https://docs.pytorch.org/docs/stable/onnx_export.html.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.utils import _pytree as pytree

from modelexport.errors import InputError
from modelexport.graph.file.reading import ModelFile
from modelexport.graph.fingerprint import fingerprint
from modelexport.graph.index import Graph
from modelexport.record.lineage import Lineage
from modelexport.record.signals import ExporterScopes, Fingerprint

_BY_POSITION = frozenset({inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY})


@dataclass(frozen=True)
class CallArguments:
    """Keyword arguments, and positional ones only for a `forward` that insists on them.

    positions  the names that positional arguments have in the ONNX graph
    """

    kwargs: Mapping[str, Any]
    args: tuple[Any, ...] = ()
    positions: tuple[str, ...] = ()

    @property
    def named(self) -> Mapping[str, Any]:
        """All arguments by name, in the order of the graph's inputs."""
        return {**dict(zip(self.positions, self.args, strict=True)), **self.kwargs}

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Every tensor in the arguments by the name that the ONNX graph gives it, in the order of its inputs."""
        return {
            leaf_name(argument, path): leaf
            for argument, value in self.named.items()
            for path, leaf in pytree.tree_leaves_with_path(value)
            if isinstance(leaf, torch.Tensor)
        }

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {name: to_array(tensor) for name, tensor in self.tensors.items()}

    def with_tensors(self, tensors: Mapping[str, torch.Tensor]) -> CallArguments:
        """The same arguments with other tensors, by the names that `tensors` has them under."""

        def fill(name: str, value: Any) -> Any:
            return pytree.tree_map_with_path(lambda path, leaf: tensors.get(leaf_name(name, path), leaf), value)

        args = tuple(fill(name, value) for name, value in zip(self.positions, self.args, strict=True))
        return replace(self, kwargs={name: fill(name, value) for name, value in self.kwargs.items()}, args=args)

    def negate_or_mask(self) -> dict[str, torch.Tensor]:
        """Numbers of the other sign, and masks that hide the last position: other values that every model takes."""
        return {
            name: -tensor if tensor.is_floating_point() else _mask_last(tensor) for name, tensor in self.tensors.items()
        }

    def with_mask(self, free: Collection[str]) -> CallArguments | None:
        """The same arguments with the last position masked; None where no mask hides nothing.

            attention_mask  [[1, 1, 1]]  ->  [[1, 1, 0]]

        Models leave out the work of a mask that hides nothing, and exporters, who do not look at values, keep it: a run
        without that work has no values for those nodes of the file. `free` are the arguments that may be changed.
        """
        idle = {name: tensor for name, tensor in self.tensors.items() if name in free and _is_idle_mask(tensor)}
        return self.with_tensors({name: _mask_last(tensor) for name, tensor in idle.items()}) if idle else None

    def with_sizes(self, sizes: Mapping[str, Mapping[int, int]]) -> CallArguments | None:
        """The same arguments with other sizes of some axes, by name and axis; None if nothing changes.

        [[5, 6, 7]], axis 1 of size 2   ->  [[6, 7]]       of size 4   ->  [[7, 5, 6, 7]]

        What is last stays last: masks hide there, and texts end.
        """
        tensors = {name: tensor for name, tensor in self.tensors.items() if sizes.get(name)}
        resized = {name: _resize(tensor, sizes[name]) for name, tensor in tensors.items()}
        is_same = all(resized[name].shape == tensor.shape for name, tensor in tensors.items())
        return None if is_same else self.with_tensors(resized)

    def copy_tensors(self) -> CallArguments:
        """The same arguments with tensors of their own: a model may write into what it is given."""
        return self.with_tensors({name: tensor.detach().clone() for name, tensor in self.tensors.items()})


def bind_arguments(module: torch.nn.Module, inputs: object) -> CallArguments:
    """Inputs as arguments of the module's `forward`; InputError, its signature as hint, for what it does not take."""
    if isinstance(inputs, CallArguments):
        return inputs
    if not isinstance(inputs, Mapping):  # transformers' tokenizers return a mapping of their own
        return _bind_by_keyword(module, tuple(inputs) if isinstance(inputs, Sequence) else (inputs,))
    parameters = inspect.signature(module.forward).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [] if takes_any else [name for name in inputs if name not in parameters]
    if unknown:
        raise InputError(
            f"{type(module).__name__}.forward has no input {unknown[0]!r}", f"It takes: {', '.join(parameters)}."
        )
    return CallArguments(dict(inputs))


def _bind_by_keyword(module: torch.nn.Module, args: tuple[Any, ...]) -> CallArguments:
    signature = inspect.signature(module.forward)
    try:
        bound = signature.bind(*args)
    except TypeError as error:
        raise InputError(
            f"{type(module).__name__}.forward does not take these {len(args)} inputs: {error}",
            f"It takes {signature}; pass a dictionary of keyword inputs.",
        ) from error
    kinds = {name: signature.parameters[name].kind for name in bound.arguments}
    if _BY_POSITION.isdisjoint(kinds.values()):
        return CallArguments(dict(bound.arguments))
    # Only a forward with `*args` or `/` is called by position: exporters name and order keywords more reliably.
    names: list[str] = []
    for name, value in bound.arguments.items():
        starred = kinds[name] is inspect.Parameter.VAR_POSITIONAL
        names += [f"{name}_{index}" for index in range(len(value))] if starred else [name]
    return CallArguments({}, args, tuple(names))


def leaf_name(name: str, path: pytree.KeyPath) -> str:
    """The name that the ONNX graph gives to a tensor inside of an argument: `past_0_key` for `past[0]["key"]`."""
    return name + "".join(f"_{getattr(key, 'idx', getattr(key, 'key', getattr(key, 'name', '')))}" for key in path)


def output_tensors(outputs: object) -> dict[str, torch.Tensor]:
    """The tensors that a model returned, by name: keys of a dictionary or dataclass, else `output`, `output_1`, …"""
    named: dict[str, torch.Tensor] = {}
    for path, leaf in pytree.tree_leaves_with_path(outputs):
        if isinstance(leaf, torch.Tensor):
            named[_output_name(path, len(named), set(named))] = leaf
    return named


def _output_name(path: pytree.KeyPath, index: int, used: set[str]) -> str:
    parts = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", "")))) for key in path]
    named = parts and not parts[0].isdecimal()
    name = ".".join(parts) if named else (f"output_{index}" if index else "output")
    return name if name not in used else f"{name}_{index}"


def tensors_in(value: object) -> list[torch.Tensor]:
    """The tensors in nested lists, tuples and dictionaries."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def storage_pointer(tensor: torch.Tensor) -> int:
    """Where a tensor's data lies, the same for all views of it; 0 if it has none, or none that can be seen."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # sparse and fake tensors, and those of vmap
        return 0


# numpy has no such types; what they hold fits into a float. Which float8 types there are depends on torch's version.
_WIDENED = frozenset({torch.bfloat16, *(getattr(torch, name) for name in dir(torch) if name.startswith("float8_"))})


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as ONNX Runtime would return it: bfloat16 and float8 as float32, complex numbers as pairs."""
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)  # ONNX has pairs of real numbers instead
    array: np.ndarray = (tensor.float() if tensor.dtype in _WIDENED else tensor).numpy()
    return array


def to_stored_array(tensor: torch.Tensor) -> np.ndarray:
    """The same in the type that it has, without a copy where that is possible: what a file stores of a weight."""
    if tensor.dtype is not torch.bfloat16:
        return to_array(tensor)
    # numpy knows bfloat16 only through ml_dtypes, and torch hands it over only as bits.
    bits: np.ndarray = tensor.detach().cpu().contiguous().view(torch.int16).numpy()
    return bits.view(ml_dtypes.bfloat16)


def fingerprint_tensor(tensor: torch.Tensor) -> Fingerprint:
    """The fingerprint of a tensor; of its shape alone where its content cannot be seen."""
    if tensor.is_nested:
        return Fingerprint((), "other")  # it has several shapes
    plain = tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type != "meta"
    if not plain or type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return Fingerprint(tuple(map(int, tensor.shape)), "other")
    try:
        return fingerprint(to_array(tensor))
    except TypeError:  # several numbers in one byte: numpy has no such type
        return Fingerprint(tuple(tensor.shape), "other")


@dataclass(frozen=True)
class ExportRequest:
    """How to export.

    axes          dynamic axes by input name, each with its name; empty for a static export
    must_dynamic  a refusal of dynamic axes is an error instead of a static export
    output_names  names for the graph's outputs, or none to leave torch's own
    optimize      whether torch's optimizer runs on the graph
    """

    axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    must_dynamic: bool = False
    opset: int | None = None
    output_names: tuple[str, ...] = ()
    verbose: bool = False
    optimize: bool = True


@dataclass(frozen=True)
class Exported:
    """An ONNX model as torch made it, what dynamo.py and torchscript.py both return.

    before   the graph before torch's own optimizer, where the exporter has one
    lineage  what that optimizer was seen to make of it
    scopes   what the exporter knows about module calls beyond what it wrote into the graph
    """

    model: ModelFile
    exporter: str
    before: Graph | None = None
    lineage: Lineage | None = None
    scopes: ExporterScopes = ExporterScopes()
    notes: tuple[str, ...] = ()


def _is_idle_mask(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and tensor.dim() >= 2 and tensor.shape[-1] > 1 and bool((tensor == 1).all())


def _mask_last(tensor: torch.Tensor) -> torch.Tensor:
    if not _is_idle_mask(tensor):
        return tensor
    masked = tensor.clone()
    masked[..., -1] = 0
    return masked


def _resize(tensor: torch.Tensor, sizes: Mapping[int, int]) -> torch.Tensor:
    for axis, size in sizes.items():
        length = tensor.shape[axis]
        if length:
            tensor = tensor.index_select(axis, torch.arange(length - size, length, device=tensor.device) % length)
    return tensor


def resample_inputs(arguments: CallArguments, seed: int) -> CallArguments:
    """Further inputs like the given ones: same names, shapes, types and range.

    Floats are drawn anew with the same mean and deviation. Integers may be indices into a table of unknown length, so
    they are permuted: every one of them is known to be valid.
    """
    generator = torch.Generator().manual_seed(seed)
    return arguments.with_tensors({name: _resample(tensor, generator) for name, tensor in arguments.tensors.items()})


def reorder_inputs(arguments: CallArguments, seed: int) -> CallArguments:
    """Further inputs of the given ones: their positions in another order.

    A model may refuse numbers that it takes elsewhere: a box has its left edge first, a patch its row. Along the second
    axis, or the only one, each position stays whole, and what has one length keeps one order: a token and its box.
    """
    return arguments.with_tensors({name: _reorder(tensor, seed) for name, tensor in arguments.tensors.items()})


def _reorder(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    axis = min(1, tensor.dim() - 1)
    if axis < 0:
        return tensor
    order = torch.randperm(tensor.shape[axis], generator=torch.Generator().manual_seed(seed))
    return tensor.index_select(axis, order.to(tensor.device))


def _resample(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if tensor.is_floating_point():
        return _resample_floats(tensor.detach().double().cpu(), generator).to(tensor.dtype).to(tensor.device)
    order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
    return tensor.reshape(-1)[order].reshape(tensor.shape)


def _resample_floats(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """What is not finite, as in a mask that is added (0 and -inf), stays where it is."""
    finite = tensor.isfinite()
    if not finite.any():
        return tensor
    deviation, mean = tensor[finite].std(unbiased=False), tensor[finite].mean()
    # A constant tensor has no deviation; with 0 it would be resampled to itself.
    samples = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) * (deviation or 1.0) + mean
    return torch.where(finite, samples, tensor)
