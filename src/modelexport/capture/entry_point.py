"""Entry point: one way to call a model, as a function of named tensors.

A model that generates is called in several ways: the encoder alone, the decoder with an empty cache, the decoder with a
cache. Each of them becomes one ONNX file. All are calls of the *whole* model, so that module paths, which exporters and
hooks count from the root, mean the same module in every file:

    with entered(model, EntryPoint("encoder", lambda input_ids: {"last_hidden_state": …})):
        trace_model(model, …); export_traced(…)          encoder.block.0, not block.0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch.utils import _pytree as pytree

from modelexport.capture.arguments import CallArguments, output_tensors
from modelexport.record.package import CachePair


@dataclass(frozen=True)
class EntryPoint:
    """
    forward  takes the tensors of `inputs` by keyword, returns tensors by the names that the graph's outputs get
    inputs   a sample, in the order of the graph's inputs
    axes     dynamic axes of the inputs, by name
    cache    inputs that the next call gets from outputs of this one
    others   further samples, in other sizes
    notes    what a user should know of it
    prompt   inputs of `generate` that it is right for; empty if it is for padded batches too
    """

    name: str
    forward: Callable[..., Mapping[str, torch.Tensor]]
    inputs: Mapping[str, torch.Tensor]
    axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    cache: tuple[CachePair, ...] = ()
    others: tuple[Mapping[str, torch.Tensor], ...] = ()
    notes: tuple[str, ...] = ()
    prompt: Mapping[str, torch.Tensor] = field(default_factory=dict)


def rename_entry(entry: EntryPoint, rename: Callable[[str], str], axes: Mapping[str, str]) -> EntryPoint:
    """The same entry point with other names of inputs, outputs and axes."""
    own = {rename(name): name for name in entry.inputs}

    def forward(**tensors: torch.Tensor) -> Mapping[str, torch.Tensor]:
        outputs = entry.forward(**{own[name]: tensor for name, tensor in tensors.items()})
        return {rename(name): tensor for name, tensor in outputs.items()}

    def renamed(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {rename(name): tensor for name, tensor in tensors.items()}

    return EntryPoint(
        entry.name,
        forward,
        renamed(entry.inputs),
        {rename(n): {axis: axes.get(what, what) for axis, what in by.items()} for n, by in entry.axes.items()},
        tuple(replace(pair, past=rename(pair.past), present=rename(pair.present)) for pair in entry.cache),
        tuple(map(renamed, entry.others)),
        entry.notes,
        entry.prompt,
    )


@contextmanager
def entered(model: torch.nn.Module, entry: EntryPoint) -> Iterator[None]:
    """While this is open, calling the model calls the entry point; afterwards its own `forward` again.

    Names such as `past_key_values.0.key` are no parameters of a Python function, so tensors are `**tensors`.
    """

    def forward(**tensors: torch.Tensor) -> Mapping[str, torch.Tensor]:
        return entry.forward(**tensors)

    with replace_forward(model, forward):
        yield


@contextmanager
def call_by_position(
    model: torch.nn.Module, arguments: CallArguments, at_call: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """While this is open, the model takes and returns nothing but tensors, by position: for exporters.

        model(input_ids=a, past=[k, v], use_cache=False)  ->  model(a, k, v)

    The original is called as `arguments` say. `at_call` is told whenever the model is called.
    """
    leaves, structure = pytree.tree_flatten((arguments.args, dict(arguments.kwargs)))
    positions = [position for position, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    original = model.forward

    def forward(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        at_call()
        filled = list(leaves)
        for position, tensor in zip(positions, tensors, strict=True):
            filled[position] = tensor
        args, kwargs = pytree.tree_unflatten(filled, structure)
        model.forward = original  # a model that calls itself does so as it is written
        try:
            return tuple(output_tensors(original(*args, **kwargs)).values())
        finally:
            model.forward = forward

    with replace_forward(model, forward):
        yield


@contextmanager
def replace_forward(model: torch.nn.Module, forward: Callable[..., object]) -> Iterator[None]:
    """On the instance, not in a wrapping module: paths of modules and names of parameters stay as they are."""
    own = vars(model).get("forward")
    model.forward = forward
    try:
        yield
    finally:
        if own is None:
            del model.forward
        else:
            model.forward = own
