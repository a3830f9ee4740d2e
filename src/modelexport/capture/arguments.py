"""The arguments of one call of a model, by keyword wherever the model allows it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from modelexport.errors import InputError

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
        found: dict[str, torch.Tensor] = {}
        for name, value in self.named.items():
            found.update(_flatten(name, value))
        return found

    def with_tensors(self, tensors: Mapping[str, torch.Tensor]) -> CallArguments:
        """The same arguments with other tensors, by the names that `tensors` has them under."""

        def filled(name: str, value: Any) -> Any:
            return pytree.tree_map_with_path(lambda path, leaf: tensors.get(leaf_name(name, path), leaf), value)

        args = tuple(filled(name, value) for name, value in zip(self.positions, self.args, strict=True))
        return replace(self, kwargs={name: filled(name, value) for name, value in self.kwargs.items()}, args=args)

    def copied(self) -> CallArguments:
        """The same arguments with tensors of their own: a model may write into what it is given."""
        return self.with_tensors({name: tensor.detach().clone() for name, tensor in self.tensors.items()})


def bind_arguments(module: torch.nn.Module, inputs: object) -> CallArguments:
    """Turn a tensor, a sequence or a dictionary of inputs into arguments of the module's `forward`."""
    if isinstance(inputs, CallArguments):
        return inputs
    if isinstance(inputs, Mapping):
        # transformers' tokenizers return a mapping of their own.
        arguments = CallArguments(dict(inputs))
    else:
        args = tuple(inputs) if isinstance(inputs, Sequence) else (inputs,)
        arguments = _by_keyword(module, args)
    _check_names(module, arguments)
    return arguments


def _by_keyword(module: torch.nn.Module, args: tuple[Any, ...]) -> CallArguments:
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
    names: list[str] = []
    for name, value in bound.arguments.items():
        starred = kinds[name] is inspect.Parameter.VAR_POSITIONAL
        names += [f"{name}_{place}" for place in range(len(value))] if starred else [name]
    return CallArguments({}, args, tuple(names))


def _check_names(module: torch.nn.Module, arguments: CallArguments) -> None:
    parameters = inspect.signature(module.forward).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    unknown = [name for name in arguments.kwargs if name not in parameters]
    if unknown:
        raise InputError(
            f"{type(module).__name__}.forward has no input {unknown[0]!r}",
            f"It takes: {', '.join(parameters)}.",
        )


def _flatten(name: str, value: object) -> dict[str, torch.Tensor]:
    leaves, _ = pytree.tree_flatten_with_path(value)
    return {leaf_name(name, path): leaf for path, leaf in leaves if isinstance(leaf, torch.Tensor)}


def leaf_name(name: str, path: pytree.KeyPath) -> str:
    """The name that the ONNX graph gives to a tensor inside of an argument."""
    return name + "".join(f"_{getattr(key, 'idx', getattr(key, 'key', getattr(key, 'name', '')))}" for key in path)


def output_tensors(outputs: object) -> dict[str, torch.Tensor]:
    """The tensors that a model returned, by name: keys of a dictionary or dataclass, else `output`, `output_1`, …"""
    leaves, _ = pytree.tree_flatten_with_path(outputs)
    named: dict[str, torch.Tensor] = {}
    for path, leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            named[_output_name(path, len(named), set(named))] = leaf
    return named


def has_named_outputs(outputs: object) -> bool:
    return isinstance(outputs, Mapping)


def _output_name(path: pytree.KeyPath, place: int, taken: set[str]) -> str:
    parts = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", "")))) for key in path]
    named = parts and not parts[0].isdecimal()
    name = ".".join(parts) if named else (f"output_{place}" if place else "output")
    return name if name not in taken else f"{name}_{place}"
