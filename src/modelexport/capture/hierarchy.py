"""Forward hooks: the module tree of a model, and the calls of its modules in one real run.

    class Net: self.a = Linear(4, 4); self.b = self.a        modules  "", "a" (alias "b")
               forward: return self.b(self.a(x))             calls    @0, a@0 in @0, a@1 in @0

Two global hooks of torch see each call begin and end; whoever wants operators too asks for a dispatch-mode trace of the
same run (op_trace.py). A module that returns its argument as it is (dropout in evaluation) is marked `through`.

Module map of TorchScript: `torch.jit._trace._trace_module_map`, where torch keeps the names of modules while it traces,
is touched here and nowhere else. It belongs to torch alone and is None unless a trace runs; the TorchScript exporter
fills it with a scope for each module, class and name: `torch.nn.modules.linear.Linear::query`. A version of torch
without it, or with another one, is not an error: whoever asks is told that there is nothing to read.
https://github.com/pytorch/pytorch/blob/main/torch/jit/_trace.py
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

from modelexport.capture.arguments import CallArguments, bind_arguments
from modelexport.capture.isolation import preserve_model
from modelexport.capture.op_trace import OpRecorder
from modelexport.capture.silence import quiet
from modelexport.capture.traced_weights import fake_mode_of
from modelexport.errors import InputError
from modelexport.record.hierarchy import CallSite, Hierarchy, Module, ModuleCall, TensorInfo, join
from modelexport.record.signals import Trace

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)  # they hold modules, and compute nothing themselves


class TracingHierarchyBuilder:
    def trace_model_execution(self, model: nn.Module, inputs: object) -> Hierarchy:
        """Run the model once and record its modules and their calls. The model is left as it was."""
        with quiet():
            return trace_run(model, bind_arguments(model, inputs)).hierarchy


@dataclass(frozen=True)
class ObservedRun:
    hierarchy: Hierarchy
    outputs: Any
    trace: Trace | None = None


def trace_run(model: nn.Module, arguments: CallArguments, *, operators: bool = False) -> ObservedRun:
    """Run a model once and see what happens; again if it put other modules in the place of its own while it ran.

    A module that builds or exchanges its children in its first forward would else have calls of modules without a path.
    """
    before = list(model.modules())
    observed = _trace(model, arguments, operators)
    return observed if list(model.modules()) == before else _trace(model, arguments, operators)


def _trace(model: nn.Module, arguments: CallArguments, operators: bool) -> ObservedRun:
    compiler_was_there = _compiler_is_there()
    try:
        return _trace_once(model, arguments, operators)
    except InputError:
        if compiler_was_there or not _compiler_is_there():
            raise
    # The run itself brought the compiler in (control-flow operators do), and it tried to compile the recording too.
    return _trace_once(model, arguments, operators)


def _trace_once(model: nn.Module, arguments: CallArguments, operators: bool) -> ObservedRun:
    own = arguments.copy_tensors()
    with preserve_model(model), _record_calls(model) as calls:
        recorder = OpRecorder(own.tensors, state_tensors(model), calls.current) if operators else None
        with nullcontext() if recorder is None else recorder.recording():
            outputs = call_model(model, own)
    hierarchy = Hierarchy.of(read_modules(model), calls.calls)
    return ObservedRun(hierarchy, outputs, None if recorder is None else recorder.trace())


def run_model(model: nn.Module, arguments: CallArguments) -> Any:
    """Run a model once, leaving it as it was."""
    with preserve_model(model):
        return call_model(model, arguments.copy_tensors())


def state_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter and buffer, under every name that it has."""
    named = (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    return {name: tensor for pairs in named for name, tensor in pairs}


_NO_KERNEL = "not implemented for"


def call_model(model: nn.Module, arguments: CallArguments) -> Any:
    """Call a model as written; one that refuses its inputs is an error that lists them."""
    mode = fake_mode_of(model)
    if mode is not None:
        fakes = {name: mode.from_tensor(tensor, static_shapes=True) for name, tensor in arguments.tensors.items()}
        arguments = arguments.with_tensors(fakes)
    with _without_compiler(), mode or nullcontext():
        try:
            return model(*arguments.args, **arguments.kwargs)
        except Exception as error:
            # torch: "addmm_impl_cpu_" not implemented for 'Half'
            missing_type = isinstance(error, NotImplementedError | RuntimeError) and _NO_KERNEL in str(error)
            hint = f"Check names, shapes and types of the inputs: {describe_tensors(arguments)}"
            raise InputError(
                f"{type(model).__name__} does not run on these inputs: {type(error).__name__}: {error}",
                "PyTorch cannot compute in this type here: --dtype float32." if missing_type else hint,
            ) from error


def read_modules(model: nn.Module) -> Iterator[Module]:
    """The module tree, without running anything: preorder, each module once, under the first of its paths."""
    aliases: dict[nn.Module, list[str]] = {}
    names: dict[int, list[str]] = {}
    for path, part in model.named_modules(remove_duplicate=False):
        aliases.setdefault(part, []).append(path)
    for path, part in model.named_modules():
        for name, tensor in (*part._parameters.items(), *part._buffers.items()):
            names.setdefault(id(tensor), []).append(join(path, name))
    for path, part in model.named_modules():
        yield Module(
            path=path,
            class_name=type(part).__name__,
            package=type(part).__module__,
            parameters=_tensors(path, part._parameters, names),
            buffers=_tensors(path, part._buffers, names),
            arguments=_arguments(part),
            aliases=tuple(alias for alias in aliases[part] if alias != path),
            # A module without a forward of its own only holds others, as a list does; scripted ones have it elsewhere.
            container=isinstance(part, _CONTAINERS)
            or (not isinstance(part, torch.jit.ScriptModule) and type(part).forward is nn.Module.forward),
        )


def describe_tensors(arguments: CallArguments) -> str:
    return ", ".join(
        f"{name}: {'x'.join(map(str, tensor.shape)) or 'scalar'} {_dtype(tensor)}"
        for name, tensor in arguments.tensors.items()
    )


def _compiler_is_there() -> bool:
    return "torch._dynamo" in sys.modules


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Compiled submodules run as written, so that the modules inside of them are seen."""
    # Importing the compiler is slow; where nobody did, nothing is compiled yet.
    if not _compiler_is_there():
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def _record_calls(model: nn.Module) -> Iterator[_CallRecorder]:
    """Records the calls of the model's modules. The hooks are global ones, so that none can be left on the model."""
    recorder = _CallRecorder(model)
    # The handle of a hook is a context manager that removes it.
    with (
        module_hooks.register_module_forward_pre_hook(recorder.enter),
        module_hooks.register_module_forward_hook(recorder.leave, with_kwargs=True, always_call=True),
    ):
        yield recorder


class _CallRecorder:
    """Each call with the call that it happened in; `a@1` is the second call of module `a`."""

    def __init__(self, model: nn.Module) -> None:
        self.calls: list[CallSite] = []
        self._paths = {part: path for path, part in model.named_modules()}
        self._counts: defaultdict[str, Iterator[int]] = defaultdict(count)
        self._open: list[int] = []
        self._thread = threading.get_ident()

    def current(self) -> ModuleCall | None:
        return self.calls[self._open[-1]].call if self._open else None

    def enter(self, module: nn.Module, _args: object) -> None:
        path = self._path(module)
        if path is None:
            return
        self.calls.append(CallSite(ModuleCall(path, next(self._counts[path])), self.current()))
        self._open.append(len(self.calls) - 1)

    def leave(self, module: nn.Module, args: tuple[object, ...], *rest: Any) -> None:
        """`rest` are the keywords and what was returned; after a failure, torch leaves the keywords out."""
        if self._path(module) is None:
            return
        index = self._open.pop()
        *keywords, output = rest
        arguments = [*args, *(value for by_name in keywords for value in by_name.values())]
        if isinstance(output, torch.Tensor) and any(argument is output for argument in arguments):
            self.calls[index] = replace(self.calls[index], through=output.dim())

    def _path(self, module: nn.Module) -> str | None:
        # Other threads may be running other models, or this one.
        return self._paths.get(module) if threading.get_ident() == self._thread else None


def _tensors(
    path: str, tensors: Mapping[str, torch.Tensor | None], names: Mapping[int, list[str]]
) -> tuple[TensorInfo, ...]:
    """The tensors that a module holds itself. `names` are all names of a tensor, by its identity."""
    infos: list[TensorInfo] = []
    for name, tensor in tensors.items():
        if tensor is not None:
            tied = tuple(alias for alias in names[id(tensor)] if alias != join(path, name))
            nbytes = tensor.numel() * tensor.element_size()
            infos.append(TensorInfo(name, tuple(tensor.shape), _dtype(tensor), nbytes, tied))
    return tuple(infos)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _arguments(part: nn.Module) -> tuple[str, ...]:
    if isinstance(part, torch.jit.ScriptModule):
        # Its forward is compiled: it has a schema in the place of a signature.
        schema = getattr(getattr(part, "forward", None), "schema", None)
        return () if schema is None else tuple(argument.name for argument in schema.arguments[1:])
    return _signature(type(part).forward)


@lru_cache(maxsize=1024)
def _signature(forward: Callable[..., object]) -> tuple[str, ...]:
    return tuple(inspect.signature(forward).parameters)[1:]


_NAME = "_trace_module_map"
_SEPARATOR = "::"  # between the class and the name in a scope


def read_scope_names(model: torch.nn.Module) -> dict[str, str]:
    """While the exporter traces: module paths, mapped to the part of a scope that names them. Empty if unreadable."""
    module_map = getattr(_map_holder(), _NAME, None)
    if not isinstance(module_map, dict):
        return {}
    scopes = {path: module_map.get(part) for path, part in model.named_modules() if path}
    if not all(isinstance(scope, str) and _SEPARATOR in scope for scope in scopes.values()):
        return {}
    return {path: str(scope).partition(_SEPARATOR)[2] for path, scope in scopes.items()}


@contextmanager
def name_scopes(names: Mapping[torch.nn.Module, str]) -> Iterator[None]:
    """While this is open, a trace gives these names to its scopes."""
    holder = _map_holder()
    before = getattr(holder, _NAME, None)
    setattr(holder, _NAME, dict(names))
    try:
        yield
    finally:
        setattr(holder, _NAME, before)


def _map_holder() -> object:
    return getattr(torch.jit, "_trace", None)
