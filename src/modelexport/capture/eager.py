"""Eager witness: one run of a model, with every operator, the module call that issued it, and what crosses each call.

`verify` holds attributions against this run. So it is separate from the recorder that strategies judge by
(op_trace.py), and relies on nothing but torch's own forward hooks and dispatch modes: an error in one of the two does
not hide in the other. The two share how tensors are found in arguments and where their memory is, nothing else.

    y = block(x); y.add_(1)        values  0: x   1: block's product   2: y after the write
                                   ops     aten.mm.default   by block@0    reads 0, …  makes 1
                                           aten.add_.Tensor  by the model  reads 1     makes 2
                                   calls   block@0           inputs 0      outputs 1

Values that cross a call are kept to be compared, in memory or on disk (tensor_spill.py).

Dispatch modes: https://github.com/pytorch/pytorch/blob/main/torch/utils/_python_dispatch.py
"""

from __future__ import annotations

import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._ops import HigherOrderOperator
from torch.nn.modules import module as module_hooks
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from modelexport.capture.arguments import CallArguments, output_tensors, storage_pointer, tensors_in
from modelexport.capture.hierarchy import call_model
from modelexport.capture.isolation import EXPORT_LOCK, find_memos, preserve_model
from modelexport.capture.tensor_spill import TensorSpill
from modelexport.errors import InputError
from modelexport.graph.sample import LOOSEST, Sample, sample, unseen
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.signals import CallTensors, EagerRun, IssuedOp

_WIDENED = (torch.bfloat16,)


@dataclass(frozen=True)
class WatchedRun:
    """A run, and a sample of each of its values by number."""

    run: EagerRun
    samples: tuple[Sample, ...]


def watch_run(
    model: nn.Module,
    arguments: CallArguments,
    spill: TensorSpill | None,
    seed: int = 0,
    *,
    traced: bool = False,
    wanted: Collection[int] = (),
) -> WatchedRun:
    """Run a model once; what crosses a module call goes into the spill, if there is one.

    seed    of torch's random numbers
    traced  while torch traces it: models leave out no work then, and sizes are tensors, computed by operators
    wanted  values that go into the spill as well, by the numbers that they had in an earlier run
    """
    own = arguments.copy_tensors()
    values = _ValueNumbers(spill, wanted)
    inputs = {name: values.add(tensor, computed=True) for name, tensor in own.tensors.items()}
    calls = _CallWatcher(model, values)
    with EXPORT_LOCK, preserve_model(model), calls.watching():
        torch.manual_seed(seed)
        with _OperatorWatcher(values, calls):
            outputs = _call_traced(model, own) if traced else call_model(model, own)
    returned = {name: values.number(tensor) for name, tensor in output_tensors(outputs).items()}
    for name, tensor in output_tensors(outputs).items():
        values.keep(returned[name], tensor)
    parts = model.named_modules()
    run = EagerRun(
        ops=tuple(values.ops),
        calls=tuple(calls.ended),
        inputs=inputs,
        outputs=returned,
        computed=frozenset(values.computed),
        given=_with_views(inputs.values(), values.ops),
        # A hook of the user's may exchange what a call returns after it was seen: `verify` must know.
        hooked=frozenset(path for path, part in parts if part._forward_hooks or part._forward_pre_hooks),
    )
    return WatchedRun(run, tuple(values.samples))


def _call_traced(model: nn.Module, arguments: CallArguments) -> object:
    """Call a model while torch traces it. What torch makes of that is of no interest, nor whether it can."""
    names, returned = list(arguments.tensors), []

    def call(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        returned.append(call_model(model, arguments.with_tensors(dict(zip(names, tensors, strict=True)))))
        return tuple(output_tensors(returned[0]).values())

    try:
        with _without_gradients(model), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is deprecated, and every size that is compared is worth a warning
            examples = tuple(arguments.tensors.values())
            torch.jit.trace(call, examples, check_trace=False, strict=False)  # type: ignore[no-untyped-call]
    except InputError:
        raise
    except Exception as error:
        if not returned:
            raise InputError(f"torch cannot trace {type(model).__name__}: {error}", "Run it as it is.") from error
    return returned[0]


@contextmanager
def _without_gradients(model: nn.Module) -> Iterator[None]:
    """A trace takes parameters for constants, and refuses those that want gradients."""
    wanting = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in wanting:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in wanting:
            parameter.requires_grad_(True)


def _with_views(numbers: Iterable[int], ops: Iterable[IssuedOp]) -> frozenset[int]:
    """These values and all views of them, views of views included: operators are in the order of the run."""
    views = set(numbers)
    for op in ops:
        if op.view and not views.isdisjoint(op.reads):
            views.update(op.makes)
    return frozenset(views)


@dataclass(frozen=True, slots=True)
class _LatestWrite:
    """The latest operator that wrote into some memory: how many there were, and the values that it made."""

    count: int
    op: IssuedOp


class _ValueNumbers:
    """Value numbering of a run: each content that a tensor has had is one value.

    A tensor that is written into gets another number, and so does every view of the same memory when it is next met:

        v = x[0]; x.zero_(); v + 1        the value that `+` reads was made by zero_, not by the slice
    """

    def __init__(self, spill: TensorSpill | None, wanted: Collection[int] = ()) -> None:
        self.samples: list[Sample] = []
        self.computed: set[int] = set()
        self.ops: list[IssuedOp] = []
        self._spill, self._wanted = spill, wanted
        # Weak keys: watching must not keep tensors alive that the model has let go.
        self._numbers: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._before: dict[int, int] = {}  # the number that a tensor had before the one it has
        self._writes: dict[int, _LatestWrite] = {}  # by the address of the memory

    def add(self, tensor: torch.Tensor, *, computed: bool, reads: Collection[int] = (), is_sound: bool = False) -> int:
        """A new number for what the tensor holds now.

        computed  it depends on the inputs of the run; constants and weights do not
        reads     what it was made from: a value made of one that is not finite is no news
        is_sound  known to be finite without looking
        """
        number = len(self.samples)
        self.samples.append(_sample(tensor, is_sound).made_from(self.samples[read] for read in reads))
        if computed:
            self.computed.add(number)
        earlier = self._numbers.get(tensor)  # type: ignore[no-untyped-call]
        if earlier is not None:
            self._before[number] = earlier[0]
        self._numbers[tensor] = (number, self._writes_into(tensor))
        if number in self._wanted:
            self.keep(number, tensor)
        return number

    def number(self, tensor: torch.Tensor) -> int:
        """The number of what a tensor holds: a known one, or a new one if it is new or its memory was written into."""
        known = self._numbers.get(tensor)  # type: ignore[no-untyped-call]
        if known is None:
            return self.add(tensor, computed=False, is_sound=isinstance(tensor, nn.Parameter))
        number, writes = known
        if writes == self._writes_into(tensor):
            return int(number)
        # Something else that looks at the same memory was written into: the writer made this value as well.
        writer = self._writes[storage_pointer(tensor)].op
        before = (number, *writer.makes)
        new = self.add(tensor, computed=not self.computed.isdisjoint(before), reads=before)
        self.ops.append(IssuedOp(writer.name, writer.call, (number, *writer.reads), (new,)))
        return new

    def meet(self, tensor: torch.Tensor, *, computed: bool) -> None:
        """A tensor that no operator was seen to make gets a number; one that has a number keeps it."""
        if self._numbers.get(tensor) is None:  # type: ignore[no-untyped-call]
            self.add(tensor, computed=computed)

    def number_below(self, number: int, limit: int) -> int | None:
        """What a tensor held when there were fewer values than `limit`, if it was there; `number` is what it holds."""
        now: int | None = number
        while now is not None and now >= limit:
            now = self._before.get(now)
        return now

    def note_write(self, tensor: torch.Tensor, op: IssuedOp) -> None:
        """An operator wrote into this tensor: it has its new number, other views of the memory get theirs when met."""
        self._writes[storage_pointer(tensor)] = _LatestWrite(self._writes_into(tensor) + 1, op)
        number, _ = self._numbers[tensor]
        self._numbers[tensor] = (number, self._writes_into(tensor))

    def keep(self, number: int, tensor: torch.Tensor) -> None:
        if self._spill is not None and number not in self._spill and self.samples[number].kind != "other":
            self._spill.put(number, _array(tensor))

    def _writes_into(self, tensor: torch.Tensor) -> int:
        # An empty dictionary is the usual case, and asking a tensor for its memory is not free.
        latest = self._writes.get(storage_pointer(tensor)) if self._writes else None
        return 0 if latest is None else latest.count


@dataclass(frozen=True, slots=True)
class _OpenCall:
    """A call that is open, what it was given by position, and how many values there were."""

    call: ModuleCall
    arguments: tuple[int, ...]
    values: int


class _CallWatcher:
    """Forward hooks: which module call is open, and what each one was given and returned.

    Global ones, so none is left on the model: https://github.com/pytorch/pytorch/blob/main/torch/nn/modules/module.py
    """

    def __init__(self, model: nn.Module, values: _ValueNumbers) -> None:
        self.ended: list[CallTensors] = []
        self._paths = {part: path for path, part in model.named_modules()}
        self._counts: defaultdict[str, Iterator[int]] = defaultdict(count)
        self._open: list[_OpenCall] = []
        self._values = values
        self._thread = threading.get_ident()
        self._memos = find_memos(model)

    @property
    def current(self) -> ModuleCall | None:
        return self._open[-1].call if self._open and threading.get_ident() == self._thread else None

    @contextmanager
    def watching(self) -> Iterator[None]:
        with (
            module_hooks.register_module_forward_pre_hook(self._enter),
            module_hooks.register_module_forward_hook(self._leave, with_kwargs=True, always_call=True),
        ):
            yield

    def _enter(self, module: nn.Module, args: object) -> None:
        if not self._is_watched(module):
            return
        path = self._paths[module]
        # What an earlier call left in a cache, this one computes as well in a graph that was traced.
        for forget in self._memos:
            forget()
        arguments = self._keep_tensors(args)  # now, because a module may write into what it is given
        self._open.append(_OpenCall(ModuleCall(path, next(self._counts[path])), arguments, len(self._values.samples)))

    def _leave(self, module: nn.Module, _args: object, *rest: object) -> None:
        """`rest` is what torch tells of a call: keyword arguments and result, or nothing but None if it failed.

        Torch tells of keyword arguments when all is over. What the call wrote into is no longer what it was given:
        that has its number, and nothing that could be compared.
        """
        if not self._is_watched(module):
            return
        opened = self._open.pop()
        *by_keyword, output = rest
        before = (self._values.number_below(number, opened.values) for number in self._keep_tensors(by_keyword))
        inputs = dict.fromkeys((*opened.arguments, *(number for number in before if number is not None)))
        self.ended.append(CallTensors(opened.call, tuple(inputs), self._keep_tensors(output)))

    def _keep_tensors(self, value: object) -> tuple[int, ...]:
        with _disable_current_modes():  # looking at a tensor is no operator of the model's
            tensors = {self._values.number(tensor): tensor for tensor in tensors_in(value)}
            for number, tensor in tensors.items():
                self._values.keep(number, tensor)
        return tuple(tensors)

    def _is_watched(self, module: nn.Module) -> bool:
        # Other threads may be running other models, or this one.
        return module in self._paths and threading.get_ident() == self._thread


class _OperatorWatcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode: torch hands it every operator that is really computed, after autograd and broadcasting."""

    supports_higher_order_operators = True  # else torch refuses to run cond and while_loop under the mode

    def __init__(self, values: _ValueNumbers, calls: _CallWatcher) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._values = values
        self._calls = calls

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        call = self._calls.current
        reads = tuple(self._values.number(tensor) for tensor in _plain_tensors((*args, *kwargs.values())))
        inside = len(self._values.ops)
        if isinstance(func, HigherOrderOperator):
            computed = not self._values.computed.isdisjoint(reads)
            args = tuple(self._watch_function(given, computed) if callable(given) else given for given in args)
        result = func(*args, **kwargs)
        # What functions inside of a cond or scan made is what it is made of.
        reads += tuple(number for op in self._values.ops[inside:] for number in op.makes)
        written = _mutated_tensors(func, args, kwargs)
        results = {id(tensor): tensor for tensor in (*_plain_tensors((result,)), *written)}
        computed = not self._values.computed.isdisjoint(reads)
        is_view = not written and _is_view(func)
        # A view of finite numbers needs no second look at them.
        is_sound = is_view and not any(self._values.samples[read].trouble for read in reads)
        makes = tuple(
            self._values.add(tensor, computed=computed, reads=reads, is_sound=is_sound) for tensor in results.values()
        )
        if call is not None and makes:
            op = IssuedOp(str(func), call, reads, makes, view=is_view)
            self._values.ops.append(op)
            for tensor in written:
                self._values.note_write(tensor, op)
        return result

    def _watch_function(self, function: Callable[..., object], computed: bool) -> Callable[..., object]:
        """A function that is given to an operator such as cond: torch runs it outside of the mode.

        computed  what the operator reads depends on the inputs: so does what it makes of that for the function, as a
                  scan takes one element after the other
        """

        def run(*args: object, **kwargs: object) -> object:
            for tensor in _plain_tensors((*args, *kwargs.values())):
                self._values.meet(tensor, computed=computed)
            with self:
                return function(*args, **kwargs)

        return run


def _mutated_tensors(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    arguments = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | dict(kwargs)
    # The schema marks what is written with an exclamation mark: aten::add_.Tensor(Tensor(a!) self, Tensor other, …).
    writes = [spec.name for spec in schema.arguments if spec.alias_info is not None and spec.alias_info.is_write]
    return tensors_in([arguments.get(name) for name in writes])


def _is_view(func: Any) -> bool:
    """Whether an operator says of itself that what it returns is what it was given, looked at in another way."""
    schema = getattr(func, "_schema", None)
    return schema is not None and bool(schema.returns) and all(spec.alias_info is not None for spec in schema.returns)


def _plain_tensors(values: Iterable[object]) -> Iterator[torch.Tensor]:
    """The tensors among an operator's arguments or results. `tensors_in` takes five times as long (26, 5 µs)."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _plain_tensors(value)


def _sample(tensor: torch.Tensor, is_sound: bool) -> Sample:
    if tensor.is_nested:
        return unseen(())
    visible = tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type != "meta"
    if not visible:
        return unseen(tuple(tensor.shape))
    try:
        seen = sample(_array(tensor), is_sound=is_sound)
    except (TypeError, RuntimeError):  # no such type in numpy; a tensor that only stands for one
        return unseen(tuple(tensor.shape))
    return replace(seen, grain=LOOSEST) if tensor.dtype in _WIDENED else seen


def _array(tensor: torch.Tensor) -> np.ndarray:
    """The tensor as ONNX Runtime would have it, with whatever strides it has."""
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    array: np.ndarray = (tensor.float() if tensor.dtype in _WIDENED else tensor).numpy()
    return array
