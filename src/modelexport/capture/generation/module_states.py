"""Module states: tensors of generation that a model keeps in attributes of its modules, and what states hold at first.

    class Recurrence(nn.Module):
        def forward(self, x):
            self.hidden = self.decay * self.hidden + x      read and assigned in every step: a state like any other

    read_module_tensors(model)        {"layers.0.hidden": 2x32}         by the path of the attribute
    with hold_module_states(model, {"layers.0.hidden": …}) as read:     the attribute while this is open
        model(…); read()                                                what the call left there

Parameters and buffers are no states: they are the same in every step. A state is zeros before the first token unless
the model is seen to begin with something else (`observe_first_states`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from modelexport.capture.generation.cache import Path, cache_tensors

# The name that module states have among the arguments of a call.
MODULE_STATES = "module_states"


def read_module_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Tensors in plain attributes of modules, by path: neither parameters nor buffers."""
    return {
        f"{path}.{name}" if path else name: value
        for path, part in model.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, torch.Tensor)
    }


@contextmanager
def preserve_attributes(model: torch.nn.Module) -> Iterator[None]:
    """Tensors in plain attributes are afterwards those of before; what had none has what it had."""
    held = [(part, dict(vars(part))) for part in model.modules()]
    try:
        yield
    finally:
        for part, before in held:
            now = vars(part)
            for name in {**before, **now}:
                if now.get(name) is before.get(name) or not _is_any_tensor(now.get(name), before.get(name)):
                    continue
                if name in before:
                    setattr(part, name, before[name])
                else:
                    delattr(part, name)


def _is_any_tensor(*values: object) -> bool:
    return any(isinstance(value, torch.Tensor) for value in values)


@contextmanager
def hold_module_states(
    model: torch.nn.Module, states: Mapping[str, torch.Tensor]
) -> Iterator[Callable[[], dict[str, torch.Tensor]]]:
    """While this is open, attributes of modules have these values, by path; afterwards they are what they were.

    It gives a function that reads them as they are then.
    """
    with preserve_attributes(model):
        for path, tensor in states.items():
            part, _, name = path.rpartition(".")
            setattr(model.get_submodule(part), name, tensor)

        def read() -> dict[str, torch.Tensor]:
            tensors = read_module_tensors(model)
            return {path: tensors[path] for path in states}

        yield read


class StateRecorder:
    """Module states before each call of a run; only what some step changes is a state.

    recorder.note()                     before each call
    recorder.list_states()              for each call: {"layers.0.hidden": …}; empty where there are none
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._seen: list[dict[str, tuple[torch.Tensor, int, torch.Tensor]]] = []

    def note(self) -> None:
        before = self._seen[-1] if self._seen else {}
        noted = {}
        for path, tensor in read_module_tensors(self._model).items():
            known = before.get(path)
            same = known is not None and known[0] is tensor and known[1] == tensor._version
            # Copied: a state may be changed in place. What stays is kept once.
            noted[path] = known if same and known is not None else (tensor, tensor._version, tensor.detach().clone())
        self._seen.append(noted)

    def list_states(self) -> list[dict[str, torch.Tensor]]:
        changing = {
            path
            for earlier, later in zip(self._seen, self._seen[1:], strict=False)
            for path, (_, _, copied) in later.items()
            if path not in earlier or not _are_equal(earlier[path][2], copied)
        }
        return [{path: item[2] for path, item in noted.items() if path in changing} for noted in self._seen]


def _are_equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return tensor is other or (tensor.shape == other.shape and torch.equal(tensor, other))


def observe_first_states(
    model: torch.nn.Module, call: Callable[[], object], paths: Mapping[str, Path], shapes: Mapping[str, torch.Size]
) -> dict[str, torch.Tensor]:
    """Of a cache that a model makes by itself in its first call: what it holds before anything is written into it.

    The model hands it to its modules. The first module that is given a value with tensors at these paths, of these
    shapes, sees it as it was made. A cache that is filled layer by layer is never seen whole: nothing is known of it.
    """
    observed: dict[str, torch.Tensor] = {}
    # The values are kept: a number that identifies one would be given to another.
    incomplete: dict[int, object] = {}

    def look(_: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        for value in (*args, *kwargs.values()) if not observed else ():
            tensors = {} if isinstance(value, torch.Tensor) else cache_tensors(value)
            if {path for path in paths.values() if path in tensors} != set(paths.values()):
                incomplete[id(value)] = value
            elif id(value) not in incomplete and all(tensors[paths[name]].shape == shapes[name] for name in paths):
                observed.update({name: tensors[path].clone() for name, path in paths.items()})

    parts = [part for part in model.modules() if part is not model]
    handles = [part.register_forward_pre_hook(look, with_kwargs=True) for part in parts]
    try:
        with preserve_attributes(model), torch.no_grad():
            call()
    finally:
        for handle in handles:
            handle.remove()
    return observed
