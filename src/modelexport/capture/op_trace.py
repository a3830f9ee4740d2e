"""Recording every operator of a run: who issued it, from what, and a fingerprint of what came out.

Torch hands each operator that is really computed to the dispatch mode on top, so nothing has to be patched; another
mode sees the functions that programs call and torch breaks down. Tensors are known by number and held by weak
references only: memory grows with the number of operators, not with what they make.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from modelexport.capture.arrays import print_of
from modelexport.capture.operators import onnx_operators
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.signals import Fingerprint, Trace, TracedOp

SOURCE = "hooks"


class OpRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While `recording`, records the operators of this thread. `current` says which module call is open."""

    supports_higher_order_operators = True

    def __init__(
        self,
        inputs: Mapping[str, torch.Tensor],
        tensors: Mapping[str, torch.Tensor],
        current: Callable[[], ModuleCall | None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._values = _Values()
        self._inputs = {name: self._values.add(tensor) for name, tensor in inputs.items()}
        self._tensors = {name: self._values.number(tensor) for name, tensor in tensors.items()}
        self._ops: list[TracedOp] = []
        self._current = current
        self._functions = _Functions()
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
        read = tuple(self._values.number(tensor) for tensor in _tensors_in((args, kwargs)))
        result = func(*args, **kwargs)
        call = self._current() if threading.get_ident() == self._thread else None
        written = _written(func, args, kwargs)
        changed = {id(tensor): tensor for tensor in [*_tensors_in(result), *written]}
        made = [self._values.add(tensor) for tensor in changed.values()]
        made += [number for tensor in written for number in self._values.change(tensor)]
        if made and call is not None:
            self._ops.append(TracedOp(_name(func), call, read, tuple(made), self._functions.current))
        return result


class _Functions(TorchFunctionMode):
    """Knows which of torch's functions was called that is an operator by name; not what that one calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.current = ""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        outer = self.current
        self.current = _operator(getattr(func, "__name__", "")) or outer
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.current = outer


@cache
def _operator(name: str) -> str:
    # Python's own operators (`__getitem__`) stand for whatever their operands make of them.
    return f"aten::{name}" if not name.startswith("__") and hasattr(torch.ops.aten, name) else ""


class _Values:
    """Numbers of tensors, and their fingerprints by number."""

    def __init__(self) -> None:
        self.prints: list[Fingerprint] = []
        # A tensor that is gone leaves its id to another one: the weak reference tells them apart.
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._sharing: dict[int, list[weakref.ref[torch.Tensor]]] = {}

    def add(self, tensor: torch.Tensor) -> int:
        """A new number: the tensor was just made, or written into."""
        number = len(self.prints)
        self.prints.append(print_of(tensor))
        reference = weakref.ref(tensor)
        self._known[id(tensor)] = (reference, number)
        self._sharing.setdefault(_memory(tensor), []).append(reference)
        return number

    def change(self, tensor: torch.Tensor) -> list[int]:
        """New numbers for the tensors that look at the memory of this one, which was written into."""
        others = self._others(tensor)
        self._sharing[_memory(tensor)] = [weakref.ref(tensor)]  # without those that are gone, or come back just now
        return [self.add(other) for other in others]

    def number(self, tensor: torch.Tensor) -> int:
        reference, number = self._known.get(id(tensor), (None, -1))
        return number if reference is not None and reference() is tensor else self.add(tensor)

    def _others(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        memory = _memory(tensor)
        seen = [other for reference in self._sharing.get(memory, ()) if (other := reference()) is not None]
        alive = {id(other): other for other in seen if memory and other is not tensor and _memory(other) == memory}
        return list(alive.values())


def _memory(tensor: torch.Tensor) -> int:
    """Where a tensor's data lies; 0 if it has none, or none that can be seen."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0


def _name(func: Any) -> str:
    """`aten::addmm`; control flow, which is one operator whatever happens inside, is `higher_order::cond`."""
    return f"higher_order::{func}" if isinstance(func, torch._ops.HigherOrderOperator) else str(func._schema.name)


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterable[torch.Tensor]:
    """The tensors that an operator writes into."""
    if isinstance(func, torch._ops.HigherOrderOperator) or not func._schema.is_mutable:
        return []
    known = func._schema.arguments
    given = {**{spec.name: value for spec, value in zip(known, args, strict=False)}, **kwargs}
    return _tensors_in([given.get(spec.name) for spec in known if spec.alias_info and spec.alias_info.is_write])


def _tensors_in(value: object) -> Iterable[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
