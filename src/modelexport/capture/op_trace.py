"""Recording every operator of a run: who issued it, from what, and a fingerprint of what came out.

Torch hands each operator that is really computed to the dispatch mode on top, so nothing has to be patched. Tensors are
known by number and held by weak references only: memory grows with the number of operators, not with what they make.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from modelexport.capture.arrays import print_of
from modelexport.capture.operators import onnx_operators
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.signals import Fingerprint, Trace, TracedOp

SOURCE = "hooks"


class OpRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, records the operators of this thread. `current` says which module call is open."""

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
        self._thread = threading.get_ident()

    def trace(self) -> Trace:
        names = {op.name for op in self._ops}
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
        made = tuple(self._values.add(tensor) for tensor in _tensors_in(result))
        if made and call is not None:
            self._ops.append(TracedOp(func._schema.name, call, read, made))
        return result


class _Values:
    """Numbers of tensors, and their fingerprints by number."""

    def __init__(self) -> None:
        self.prints: list[Fingerprint] = []
        # A tensor that is gone leaves its id to another one: the weak reference tells them apart.
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}

    def add(self, tensor: torch.Tensor) -> int:
        """A new number: the tensor was just made, or written into."""
        number = len(self.prints)
        self.prints.append(print_of(tensor))
        self._known[id(tensor)] = (weakref.ref(tensor), number)
        return number

    def number(self, tensor: torch.Tensor) -> int:
        reference, number = self._known.get(id(tensor), (None, -1))
        return number if reference is not None and reference() is tensor else self.add(tensor)


def _tensors_in(value: object) -> Iterable[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
