"""Which ONNX operators an operator of torch can become, asked of the exporters' own registries.

Both exporters keep one function for each operator, and what a function can emit is written in its code: dynamo's calls
`op.MatMul(...)`, TorchScript's `g.op("MatMul", ...)`. So the names of ONNX operators that a function's code mentions,
or the code of functions that it calls, are the answer; it stays right when torch changes its mind.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from types import CodeType
from typing import Any

import onnx
import torch
from torch.onnx import _constants

from modelexport.capture.state import quiet

# Code outside of these emits no ONNX operators.
_EXPORTERS = ("torch.onnx", "onnxscript")


def onnx_operators(names: Iterable[str]) -> dict[str, frozenset[str]]:
    """For each operator (`aten::addmm`) that an exporter knows, the ONNX operators that it can become."""
    with quiet():
        found = {name: _mentioned([*_dynamo_functions(name), *_torchscript_functions(name)]) for name in set(names)}
    return {name: operators for name, operators in found.items() if operators}


def _dynamo_functions(name: str) -> Iterator[Callable[..., Any]]:
    # An operator that writes into its input is exported as the one that does not; `aten::__and__` does not.
    plain_name = name if name.endswith("__") else name.removesuffix("_")
    namespace, _, plain = plain_name.partition("::")
    packet = getattr(getattr(torch.ops, namespace, None), plain, None)
    overloads = getattr(packet, "overloads", tuple)  # control flow has none
    for overload in overloads():
        for decomposition in _dynamo_registry().get_decomps(getattr(packet, overload)):
            yield decomposition.onnx_function


@cache
def _dynamo_registry() -> Any:
    from torch.onnx._internal.exporter import _registration

    class OfAllOpsets(_registration.ONNXRegistry):
        def _cleanup_registry_based_on_opset_version(self) -> None:
            """A file may have any opset: keep what torch has for each of them."""

    return OfAllOpsets.from_torchlib()


def _torchscript_functions(name: str) -> Iterator[Callable[..., Any]]:
    group = _torchscript_registry().get_function_group(name.removesuffix("_"))
    function = None if group is None else group.get(_constants.ONNX_TORCHSCRIPT_EXPORTER_MAX_OPSET)
    if function is not None:
        yield function


@cache
def _torchscript_registry() -> Any:
    # Importing the exporter fills the registry.
    from torch.onnx._internal.torchscript_exporter import registration, utils  # noqa: F401

    return registration.registry


def _mentioned(functions: Iterable[Callable[..., Any]]) -> frozenset[str]:
    found: set[str] = set()
    seen: set[CodeType] = set()
    waiting = list(functions)
    while waiting:
        function = inspect.unwrap(getattr(waiting[-1], "func", waiting.pop()))
        code = getattr(function, "__code__", None)
        if code is not None and code not in seen:
            seen.add(code)
            words = _words(code)
            found |= words & _onnx_names()
            waiting += _called(words, function.__globals__)
    return frozenset(found)


def _called(words: Iterable[str], known: Mapping[str, Any]) -> Iterator[Callable[..., Any]]:
    """Functions that a function's code may call: by their own name, or as part of a module that it names."""
    modules = [known[word] for word in words if inspect.ismodule(known.get(word))]
    homes = [known, *(vars(module) for module in modules if module.__name__.startswith(_EXPORTERS))]
    for home in homes:
        yield from (home[word] for word in words if inspect.isfunction(inspect.unwrap(home.get(word))))


def _words(code: CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    own = {*code.co_names, *(constant for constant in code.co_consts if isinstance(constant, str))}
    return own.union(*map(_words, inner))


@cache
def _onnx_names() -> frozenset[str]:
    return frozenset(schema.name for schema in onnx.defs.get_all_schemas())
