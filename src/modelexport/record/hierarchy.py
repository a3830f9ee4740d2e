"""The modules of a model and the calls that were made to them.

A hierarchy is what remains of a PyTorch model once torch is gone. It is recorded once, by `capture`, and everything
that later asks "which module?" is answered from it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from types import MappingProxyType
from typing import TypeVar

_Frame = TypeVar("_Frame")
ROOT = ""
# How the root is written where nothing at all would be hard to see, and how it may be asked for.
ROOT_NAME = "(model)"
_MOST_DIGITS = 9


@dataclass(frozen=True, order=True, slots=True)
class ModuleCall:
    """The n-th time that a module ran. The first call is written as the bare path."""

    path: str
    index: int = 0

    def __str__(self) -> str:
        # A path that itself ends like a numbered call keeps its `#0`, so that what is written can be read back.
        return f"{self.path}#{self.index}" if self.index or _is_numbered(self.path) else self.path

    @classmethod
    def parse(cls, text: str) -> ModuleCall:
        path, _, index = text.rpartition("#")
        return cls(path, int(index)) if _is_numbered(text) else cls(text)


def _is_numbered(text: str) -> bool:
    _, mark, index = text.rpartition("#")
    # No module is called so often that the number has more digits, and Python refuses to read very long ones.
    return bool(mark) and index.isdecimal() and len(index) <= _MOST_DIGITS


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A parameter or buffer, by its name inside its module; `tied` are its full names in other modules."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    tied: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Module:
    """One `nn.Module` object.

    path       its first name in `named_modules()`; `""` is the root
    class_name where a file does not tell it, what the nodes do (`Linear-like`), or nothing
    package    the Python module that defines the class
    arguments  the names that its `forward` takes
    aliases    further paths under which the same object can be reached
    container  it only holds other modules (ModuleList, ModuleDict, Sequential)
    """

    path: str
    class_name: str
    package: str
    parameters: tuple[TensorInfo, ...] = ()
    buffers: tuple[TensorInfo, ...] = ()
    arguments: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    container: bool = False

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        return self.parameters + self.buffers

    @property
    def is_class_known(self) -> bool:
        """False where `class_name` describes what the nodes do, or is empty. No description is an identifier."""
        return bool(self.package) or self.class_name.isidentifier()


@dataclass(frozen=True, slots=True)
class CallSite:
    """A module call and the call from inside of which it was made (None for the root).

    through  number of axes of the tensor that it returned just as it was given; None if there is none, or nobody looked
    """

    call: ModuleCall
    parent: ModuleCall | None
    through: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Hierarchy:
    """Modules by path, in definition order, and their calls in the order in which they began."""

    modules: Mapping[str, Module]
    calls: tuple[CallSite, ...] = ()

    @classmethod
    def of(cls, modules: Iterable[Module], calls: Iterable[CallSite] = ()) -> Hierarchy:
        return cls(MappingProxyType({module.path: module for module in modules}), tuple(calls))

    @cached_property
    def canonical(self) -> Mapping[str, str]:
        """Every path under which a module can be reached, mapped to its own path."""
        paths = {path: path for path in self.modules}
        for module in self.modules.values():
            paths.update(dict.fromkeys(module.aliases, module.path))
        return paths

    def path_of(self, name: str) -> str | None:
        return self.canonical.get(name, ROOT if name == ROOT_NAME else None)

    @cached_property
    def call_counts(self) -> Mapping[str, int]:
        return Counter(site.call.path for site in self.calls)

    @cached_property
    def tensor_owners(self) -> Mapping[str, tuple[str, ...]]:
        """Full parameter and buffer names (aliases included), mapped to the modules that hold them."""
        holders: dict[str, str] = {}
        ties: dict[str, tuple[str, ...]] = {}
        for module in self.modules.values():
            for path in (module.path, *module.aliases):
                for tensor in module.tensors:
                    name = join(path, tensor.name)
                    holders[name], ties[name] = module.path, tensor.tied
        return {
            name: tuple(dict.fromkeys([path, *(holders[other] for other in ties[name] if other in holders)]))
            for name, path in holders.items()
        }

    @cached_property
    def parameter_owners(self) -> Mapping[str, tuple[str, ...]]:
        buffers = {
            join(path, tensor.name)
            for module in self.modules.values()
            for path in (module.path, *module.aliases)
            for tensor in module.buffers
        }
        return {name: paths for name, paths in self.tensor_owners.items() if name not in buffers}

    def calls_of(self, path: str) -> tuple[ModuleCall, ...]:
        return tuple(ModuleCall(path, index) for index in range(self.call_counts.get(path, 0)))

    @cached_property
    def call_order(self) -> Mapping[ModuleCall, int]:
        return {site.call: index for index, site in enumerate(self.calls)}

    @cached_property
    def stacks(self) -> Mapping[ModuleCall, tuple[ModuleCall, ...]]:
        """For each recorded call, the calls that were open while it ran, root first, itself last."""
        # Calls are listed as they began, so the stack of a parent is always there first.
        stacks: dict[ModuleCall, tuple[ModuleCall, ...]] = {}
        for site in self.calls:
            above = () if site.parent is None else stacks[site.parent]
            stacks[site.call] = (*above, site.call)
        return stacks

    def stack(self, call: ModuleCall) -> tuple[ModuleCall, ...]:
        """The calls that were open while `call` ran; by path where the call was never recorded."""
        if call in self.stacks or call.path == ROOT:
            return self.stacks.get(call, (call,))
        return (*map(ModuleCall, lineage_of(parent_path(call.path))), call)

    def ran_inside(self, call: ModuleCall, around: Collection[ModuleCall], *, in_any_call: bool = False) -> bool:
        """Whether a call was made inside of one of these, or is one; of a module that never ran, by path.

        in_any_call  of those around, too, another call will do
        """
        if call in self.stacks and not in_any_call:
            return any(outer in around for outer in self.stacks[call])
        paths = {outer.path for outer in around}
        return any(outer.path in paths for outer in self.stack(call))

    def common_ancestor(self, calls: Iterable[ModuleCall]) -> ModuleCall | None:
        # Nearly every node has one owner, and a record may hold thousands of them.
        distinct = set(calls)
        if len(distinct) < 2:
            return next(iter(distinct), None)
        return next(iter(common_prefix(map(self.stack, distinct))[-1:]), None)

    def common_module(self, owners: Iterable[ModuleCall]) -> str | None:
        """Path of the innermost module around all owners: for several calls of one module, that module."""
        calls = tuple(owners)
        if len(calls) == 1:
            return calls[0].path
        stacks = [[call.path for call in self.stack(inner)] for inner in calls]
        shared = [path for path in stacks[0] if all(path in stack for stack in stacks)] if stacks else []
        return shared[-1] if shared else None

    def children(self, path: str) -> tuple[str, ...]:
        return tuple(self._children.get(path, ()))

    @cached_property
    def _children(self) -> Mapping[str, list[str]]:
        children: dict[str, list[str]] = {}
        for path in self.modules:
            # The root would be its own parent.
            if path != ROOT:
                children.setdefault(parent_path(path), []).append(path)
        return children


def common_prefix(stacks: Iterable[Sequence[_Frame]]) -> tuple[_Frame, ...]:
    """What all stacks start with: (model, encoder) for (model, encoder, layer.0) and (model, encoder, layer.1)."""
    levels = zip(*stacks, strict=False)
    return tuple(level[0] for level in takewhile(lambda level: all(frame == level[0] for frame in level), levels))


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def parent_path(path: str) -> str:
    return path.rpartition(".")[0]


def lineage_of(path: str) -> Iterator[str]:
    """The path and all paths above it, root first."""
    yield ROOT
    if path:
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            yield ".".join(parts[:end])
