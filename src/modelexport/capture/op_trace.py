"""Dispatch-mode trace: every operator of a run, who issued it, from what, and a fingerprint of what came out.

Torch hands each operator that is really computed to the dispatch mode on top, so nothing has to be patched; a function
mode sees the functions that programs call and torch breaks down. Strategies judge by this trace:

    layer_norm(x)      TracedOp("aten::native_layer_norm", encoder.norm@0, reads (3, 4, 5), makes (9, 10, 11),
                                function "aten::layer_norm")

Tensors are known by number and held by weak references only: memory grows with the number of operators, not with what
they make.

Operator registry: which ONNX operators an operator of torch can become. Both exporters keep one function for each
operator, and what a function can emit is written in its code: dynamo's calls `op.MatMul(...)`, TorchScript's
`g.op("MatMul", ...)`. So the names of ONNX operators that a function's code mentions, or the code of functions that it
calls, are the answer; it stays right when torch changes its mind.

    onnx_operators(["aten::addmm"])    {"aten::addmm": {"Gemm", "MatMul", "Add", "Mul", …}}

https://github.com/pytorch/pytorch/blob/main/torch/onnx/_internal/exporter/_registration.py
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import CodeType
from typing import Any

import onnx
import torch
from torch.onnx import _constants
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from modelexport.capture.arguments import fingerprint_tensor, storage_pointer, tensors_in
from modelexport.capture.silence import quiet
from modelexport.graph.file.mapped_memory import stay_within_limit
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.signals import Fingerprint, Trace, TracedOp

# Code outside of these emits no ONNX operators.
_EXPORTERS = ("torch.onnx", "onnxscript")


def onnx_operators(names: Iterable[str]) -> dict[str, frozenset[str]]:
    """For each operator (`aten::addmm`) that an exporter knows, the ONNX operators that it can become."""
    with quiet():
        functions = {name: [*_dynamo_functions(name), *_torchscript_functions(name)] for name in set(names)}
        mentioned = {name: _mentioned_operators(candidates) for name, candidates in functions.items()}
    return {name: operators for name, operators in mentioned.items() if operators}


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


def _mentioned_operators(functions: Iterable[Callable[..., Any]]) -> frozenset[str]:
    """Backward through the calls: names of ONNX operators in the code of these functions and of those they call."""
    operators: set[str] = set()
    seen: set[CodeType] = set()
    waiting = list(functions)
    while waiting:
        function = inspect.unwrap(getattr(waiting[-1], "func", waiting.pop()))
        code = getattr(function, "__code__", None)
        if code is not None and code not in seen:
            seen.add(code)
            words = _code_words(code)
            operators |= words & _onnx_names()
            waiting += _called_functions(words, function.__globals__)
    return frozenset(operators)


def _called_functions(words: Iterable[str], known: Mapping[str, Any]) -> Iterator[Callable[..., Any]]:
    """Functions that a function's code may call: by their own name, or as part of a module that it names."""
    modules = [known[word] for word in words if inspect.ismodule(known.get(word))]
    homes = [known, *(vars(module) for module in modules if module.__name__.startswith(_EXPORTERS))]
    for home in homes:
        yield from (home[word] for word in words if inspect.isfunction(inspect.unwrap(home.get(word))))


def _code_words(code: CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    own = {*code.co_names, *(constant for constant in code.co_consts if isinstance(constant, str))}
    return own.union(*map(_code_words, inner))


@cache
def _onnx_names() -> frozenset[str]:
    return frozenset(schema.name for schema in onnx.defs.get_all_schemas())


SOURCE = "hooks"


class OpRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While `recording`, records this thread's operators; `current` gives the innermost module call that is open."""

    supports_higher_order_operators = True  # else torch refuses to run cond and while_loop under the mode

    def __init__(
        self,
        inputs: Mapping[str, torch.Tensor],
        tensors: Mapping[str, torch.Tensor],
        current: Callable[[], ModuleCall | None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._values = _TensorNumbers()
        self._inputs = {name: self._values.add(tensor) for name, tensor in inputs.items()}
        self._tensors = {name: self._values.number(tensor) for name, tensor in tensors.items()}
        self._ops: list[TracedOp] = []
        self._current = current
        self._functions = _CalledFunctions()
        self._thread = threading.get_ident()

    @contextmanager
    def recording(self) -> Iterator[None]:
        with self._functions, self:
            yield

    def trace(self) -> Trace:
        names = {name for op in self._ops for name in (op.name, op.function) if name}
        prints = tuple(self._values.prints)
        return Trace(SOURCE, tuple(self._ops), prints, self._inputs, self._tensors, onnx_operators(names))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # An operator may write into what it reads: its inputs are numbered before it runs.
        reads = tuple(self._values.number(tensor) for tensor in tensors_in((args, kwargs)))
        inside = len(self._ops)
        if isinstance(func, torch._ops.HigherOrderOperator):
            args = tuple(self._watch_function(given) if callable(given) else given for given in args)
        result = func(*args, **kwargs)
        # What functions inside of a cond or scan made is what it is made of.
        reads += tuple(number for op in self._ops[inside:] for number in op.outputs)
        call = self._current() if threading.get_ident() == self._thread else None
        written = _written_tensors(func, args, kwargs)
        changed = {id(tensor): tensor for tensor in [*tensors_in(result), *written]}
        makes = [self._values.add(tensor) for tensor in changed.values()]
        makes += [number for tensor in written for number in self._values.change(tensor)]
        if makes and call is not None:
            # Control flow is one operator whatever happens inside; it has a name and no schema.
            is_control_flow = isinstance(func, torch._ops.HigherOrderOperator)
            name = f"higher_order::{func}" if is_control_flow else str(func._schema.name)
            self._ops.append(TracedOp(name, call, reads, tuple(makes), self._functions.current))
        return result

    def _watch_function(self, function: Callable[..., object]) -> Callable[..., object]:
        """A function that is given to an operator such as cond: torch runs it outside of the mode."""

        def run(*args: object, **kwargs: object) -> object:
            with self:
                return function(*args, **kwargs)

        return run


class _CalledFunctions(TorchFunctionMode):
    """Function mode: which of torch's functions was called that is an operator by name; not what that one calls itself.

    `torch.nn.functional.layer_norm` reaches the dispatcher as `aten::native_layer_norm`; exporters know it by the
    name that the program used.
    """

    def __init__(self) -> None:
        super().__init__()
        self.current = ""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        outer = self.current
        self.current = _aten_operator(getattr(func, "__name__", "")) or outer
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.current = outer


@cache
def _aten_operator(name: str) -> str:
    # Python's own operators (`__getitem__`) stand for whatever their operands make of them.
    return f"aten::{name}" if not name.startswith("__") and hasattr(torch.ops.aten, name) else ""


class _TensorNumbers:
    """Value numbering: a number for each content that a tensor has had, and its fingerprint.

    A write into one tensor changes all that look at the same memory: each of them gets a new number at once, because
    a fingerprint can be taken only while the content is there.
    """

    def __init__(self) -> None:
        self.prints: list[Fingerprint] = []
        # A tensor that is gone leaves its id to another one: the weak reference tells them apart.
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._sharing: dict[int, list[weakref.ref[torch.Tensor]]] = {}

    def add(self, tensor: torch.Tensor) -> int:
        """A new number: the tensor was just made, or written into."""
        number = len(self.prints)
        self.prints.append(fingerprint_tensor(tensor))
        stay_within_limit()
        reference = weakref.ref(tensor)
        self._known[id(tensor)] = (reference, number)
        self._sharing.setdefault(storage_pointer(tensor), []).append(reference)
        return number

    def change(self, tensor: torch.Tensor) -> list[int]:
        """New numbers for the tensors that look at the memory of this one, which was written into."""
        address = storage_pointer(tensor)
        views = [view for reference in self._sharing.get(address, ()) if (view := reference()) is not None]
        # A tensor may have moved to other memory since (`.data =`), and address 0 says nothing.
        alive = {
            id(view): view for view in views if address and view is not tensor and storage_pointer(view) == address
        }
        # Without those that are gone; those that are alive come back just below.
        self._sharing[address] = [weakref.ref(tensor)]
        return [self.add(view) for view in alive.values()]

    def number(self, tensor: torch.Tensor) -> int:
        reference, number = self._known.get(id(tensor), (None, -1))
        return number if reference is not None and reference() is tensor else self.add(tensor)


def _written_tensors(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterable[torch.Tensor]:
    if isinstance(func, torch._ops.HigherOrderOperator) or not func._schema.is_mutable:
        return []
    specs = func._schema.arguments
    arguments = {**{spec.name: value for spec, value in zip(specs, args, strict=False)}, **kwargs}
    return tensors_in([arguments.get(spec.name) for spec in specs if spec.alias_info and spec.alias_info.is_write])
