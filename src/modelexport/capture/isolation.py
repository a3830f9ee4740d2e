"""Isolation: running a model without leaving a trace on it.

Every run of a model in this room happens inside of these context managers:

    with EXPORT_LOCK, quiet(), preserve_model(model), exportable_moe(model):   (`isolate_model` is all four)
        ...                  eval mode, no gradients; experts in the one form that exporters understand
                             afterwards training flags, buffers and random state are as they were

The same file tells what training mode changes about a model, for a comparison that would not hold otherwise, and makes
one message of an exporter's exception (`export_failed`).
"""

from __future__ import annotations

import gc
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from traceback import walk_tb
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from modelexport.capture.silence import quiet
from modelexport.errors import ExportFailed

# torch's exporters and dispatch modes keep state in globals: one of them at a time in a process.
EXPORT_LOCK = threading.RLock()
# An attribute of something, and what makes its replacement from the original.
Patch = tuple[Any, str, Callable[[Any], Any]]


@contextmanager
def isolate_model(model: nn.Module, verbose: bool = False) -> Iterator[None]:
    """All that an export or a trace needs: the lock, silence, the model preserved, and experts that can be exported."""
    with EXPORT_LOCK, quiet(verbose), preserve_model(model), exportable_moe(model):
        yield


# More collections of younger objects than there ever are: 10 is Python's own.
_NEVER = 1_000_000


@contextmanager
def without_full_collections() -> Iterator[None]:
    """Garbage is looked for among young objects alone; only while the lock is held, for the setting is the process's.

    An export makes millions of objects that stay, and each full collection looks at them all. What goes soon, goes
    without one.

    https://docs.python.org/3/library/gc.html#gc.set_threshold
    """
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def preserve_model(module: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; training flags, buffers and random state are put back afterwards.

    Parameters need no care: without gradients nothing in a forward pass writes into them.
    """
    modes = {part: part.training for part in module.modules()}
    with torch.random.fork_rng(devices=[]), torch.no_grad(), _without_attention_fastpath(), _preserve_buffers(module):
        try:
            module.eval()
            yield
        finally:
            for part, training in modes.items():
                part.training = training


@contextmanager
def _preserve_buffers(module: torch.nn.Module) -> Iterator[None]:
    """A run may write into a module's buffers, or put others in their place."""
    # Buffers of a compiled module cannot be exchanged.
    own = [part for part in module.modules() if not isinstance(part, torch.jit.ScriptModule)]
    held = {part: dict(part._buffers) for part in own}
    # The version counts writes, so that only what was written into is copied back.
    saved = [(buffer, buffer._version, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for part, buffers in held.items():
            part._buffers.update(buffers)
        for buffer, version, copy in saved:
            if buffer._version != version:
                buffer.copy_(copy)


def find_memos(model: nn.Module) -> tuple[Callable[[], None], ...]:
    """What empties the caches of memoized functions and methods (`functools.lru_cache`) that a model's files define.

    A cached tensor is handed on by a call that issues no operator, so what is in a trace would depend on who ran
    before. Caches may be inside of other decorators:
    https://github.com/huggingface/transformers/blob/main/src/transformers/pytorch_utils.py
    """
    classes = {base for part in model.modules() for base in type(part).__mro__ if base.__module__ != "builtins"}
    files = {cls.__module__ for cls in classes} & sys.modules.keys()
    scopes = [*map(vars, classes), *(vars(sys.modules[name]) for name in files)]
    functions = {id(function): function for scope in scopes for held in scope.values() for function in _unwrap(held)}
    memos = (function for function in functions.values() if callable(_clearer(function)))
    return tuple(memo.cache_clear for memo in memos if memo.__module__ in files)


def _unwrap(held: object) -> Iterator[Any]:
    """A function, and those that its decorators hold."""
    waiting, seen = [getattr(held, "__func__", held)], set[int]()
    while waiting:
        function = waiting.pop()
        if id(function) in seen or not (inspect.isfunction(function) or callable(_clearer(function))):
            continue
        seen.add(id(function))
        yield function
        closure = getattr(function, "__closure__", None) or ()
        with suppress(ValueError):  # a cell may be empty
            waiting += [cell.cell_contents for cell in closure]


def _clearer(function: object) -> object:
    return inspect.getattr_static(type(function), "cache_clear", None)


@contextmanager
def _without_attention_fastpath() -> Iterator[None]:
    """Without gradients torch runs attention layers in one fused operator that calls no submodule and has no ONNX.

    https://github.com/pytorch/pytorch/blob/main/torch/nn/modules/activation.py (MultiheadAttention, fast path)
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def seed_torch(seed: int) -> Iterator[None]:
    """Random numbers from `seed` inside; the global state of torch is what it was afterwards.

    The state is that of all threads, so that only one of them at a time may draw from it.
    """
    with EXPORT_LOCK, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def replace_attributes(patches: Iterable[Patch]) -> Iterator[None]:
    """Put `factory(original)` in the place of attributes, and afterwards everything back as it was.

        replace_attributes([(torch.Tensor, "unsqueeze", lambda original: mended)])

    An attribute that was inherited is inherited again. transformers' own function of this kind would leave
    `unsqueeze` in torch.Tensor, and the last patch in its place if it is interrupted at the wrong moment.
    """
    replaced: list[tuple[Any, str, bool, Any]] = []
    try:
        for owner, name, factory in patches:
            replaced.append((owner, name, name in vars(owner), vars(owner).get(name)))
            setattr(owner, name, factory(getattr(owner, name)))
        yield
    finally:
        for owner, name, own, original in reversed(replaced):
            if own:
                setattr(owner, name, original)
            elif name in vars(owner):
                delattr(owner, name)


def random_layers_in_training(model: nn.Module) -> tuple[str, ...]:
    """Paths of torch's own layers that draw random numbers because they are in training mode; no functions."""
    return _modules_in_training(model, _draws_random_numbers)


def running_norms_in_training(model: nn.Module) -> tuple[str, ...]:
    """Paths of the norms that, being in training mode, use the statistics of the input instead of the stored ones."""
    return _modules_in_training(model, lambda module: isinstance(module, _NormBase) and module.track_running_stats)


def _modules_in_training(model: nn.Module, concerns: Callable[[nn.Module], bool]) -> tuple[str, ...]:
    return tuple(path for path, module in model.named_modules() if module.training and concerns(module))


def _draws_random_numbers(module: nn.Module) -> bool:
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RReLU):
        return module.lower < module.upper
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1  # between layers, of which there must be two
    return isinstance(module, nn.MultiheadAttention) and module.dropout > 0


# transformers has several ways to run experts; only this one is free of operators that ONNX lacks:
# https://github.com/huggingface/transformers/blob/main/src/transformers/integrations/moe.py
_EXPORTABLE = "batched_mm"
_PLAIN = "eager"


@contextmanager
def exportable_moe(model: torch.nn.Module) -> Iterator[None]:
    """Mixture of experts: while this is open, experts run as batched matrix products; afterwards as they did before.

    A loop over the experts that a token was sent to depends on data; grouped products have no ONNX operator.
    """
    getter, setter = (getattr(model, f"{verb}_experts_implementation", None) for verb in ("get", "set"))
    before = getter() if callable(getter) and callable(setter) else {}
    if not callable(setter) or all(name == _PLAIN for name in before.values()):
        # Models without experts say so too.
        yield
        return
    setter(_EXPORTABLE)
    try:
        yield
    finally:
        setter(before)


def holds_pretrained_model(model: torch.nn.Module) -> bool:
    """Whether any part of a model is one of transformers; transformers is not imported to find out."""
    modeling = sys.modules.get("transformers.modeling_utils")
    return modeling is not None and any(isinstance(part, modeling.PreTrainedModel) for part in model.modules())


# Torch's messages begin with what is wrong; then follow graphs, user stacks and advice, often hundreds of lines.
_LINES_KEPT = 6


def export_failed(model: torch.nn.Module, exporter: str, error: BaseException, next_step: str) -> ExportFailed:
    """The one error for whatever an exporter raises: neither of them has a class of its own for "cannot export"."""
    return ExportFailed(
        f"torch cannot export {type(model).__name__} with the {exporter} exporter: {root_cause(error)}", next_step
    )


@contextmanager
def explain_optimizer(model: torch.nn.Module, exporter: str, next_step: str) -> Iterator[None]:
    """ExportFailed for what torch's optimizer raises; errors of our own code inside of it stay what they are."""
    try:
        yield
    except Exception as error:
        if _is_raised_here(error):
            raise
        raise ExportFailed(
            f"torch cannot export {type(model).__name__} with the {exporter} exporter: its optimizer fails: "
            f"{root_cause(error)}",
            next_step,
        ) from error


def _is_raised_here(error: BaseException) -> bool:
    """Whether the innermost frame of the innermost cause is one of this package."""
    names = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(_innermost(error).__traceback__)]
    return bool(names) and names[-1].partition(".")[0] == __name__.partition(".")[0]


def _innermost(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def root_cause(error: BaseException, lines: int = _LINES_KEPT) -> str:
    """The innermost cause, in its own words."""
    error = _innermost(error)
    text = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: " + " ".join(text[:lines])
