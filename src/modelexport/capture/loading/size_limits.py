"""Size limits: a model that cannot be in memory is refused before it is built, with the size that it would have.

    {"model_type": "gpt2", "n_layer": 1000000}     a million layers: 28.4 TB of weights

A configuration is built on torch's `meta` device first, where tensors have shapes and no content. What takes time there
are modules, and so a build with very many is stopped. Its size follows from small ones: a number of the configuration
that counts modules makes them grow evenly, whatever its name is, and several that do so are a multilinear function.

    n_layer = 1    13 + 6 modules        n_layer = 2    13 + 13 + 6        n_layer = N    13 N + 6

Libraries make lists of numbers as soon as they read them (names of labels, types of layers, the steps of a scheduler):
how long these would be is found in the same way, before a configuration is read.

https://docs.pytorch.org/docs/stable/meta.html
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as registration

from modelexport.capture.memory import available_memory
from modelexport.capture.silence import SharedSetting
from modelexport.errors import ModelExportError, ModelUnloadable
from modelexport.record.amounts import format_bytes

# A second of building has about 1,400 modules. DeepSeek-V3, an expert a module, has 62,000; most models some hundred.
_QUICKLY_BUILT, _MOST_MODULES = 4_000, 100_000
# What Python holds of a module beside its weights: Linear 3,300, LayerNorm 1,900.
_MODULE_BYTES = 2_500
# Numbers of a configuration that are tried, the largest first, and how many of them may count modules: each doubles the
# number of small builds.
_TRIED, _MOST_COUNTS = 8, 4
# Whole numbers from here on are tried before a configuration is read. A million labels are two million entries: reading
# them takes 3.4 seconds and 680 MB, and a copy 0.8. Tables of real models have some 100,000 labels.
_ENUMERATED, _MOST_ENTRIES = 100_000, 2_000_000

Configuration = Mapping[str, object]
Build = Callable[[Configuration], nn.Module]
Read = Callable[[Configuration], object]
_Path = tuple[str | int, ...]
_Number = tuple[_Path, int]


@dataclass(frozen=True)
class ModelSize:
    modules: int
    weights: int

    @property
    def total(self) -> int:
        return self.weights + self.modules * _MODULE_BYTES


class _TooManyModules(Exception):
    """A build with more modules than were allowed."""


def ensure_readable(configuration: Configuration, read: Read, source: str) -> None:
    """Raise ModelUnloadable for a configuration with a number of which the library would make a list without end.

    read  what the library makes of the configuration, or of one with other numbers
    """

    def count(changed: Configuration) -> ModelSize:
        return ModelSize(_count_entries(read(changed)), 0)

    numbers = [item for item in _find_largest(configuration) if item[1] >= _ENUMERATED]
    small = _with_numbers(configuration, numbers, 1)
    try:
        counts = list(islice(_find_enumerated(count, small, numbers), _MOST_COUNTS))
        entries = _extrapolate(count, small, counts).modules if counts else 0
    except Exception:  # noqa: BLE001 - what is wrong with it is said when it is read
        return
    if entries > _MOST_ENTRIES:
        raise ModelUnloadable(
            f"the configuration of {source!r} itself would have {entries:,} entries ({_describe_numbers(counts)})",
            "Check the numbers of the configuration.",
        )


def _find_enumerated(
    measure: Callable[[Configuration], ModelSize], small: Configuration, numbers: Sequence[_Number]
) -> Iterator[_Number]:
    """By halves: a table of labels has a number for each of them, and none of these makes a list."""
    if numbers and measure(_with_numbers(small, numbers, 2)).modules > measure(small).modules:
        if len(numbers) == 1:
            yield numbers[0]
            return
        middle = len(numbers) // 2
        yield from _find_enumerated(measure, small, numbers[:middle])
        yield from _find_enumerated(measure, small, numbers[middle:])


def _count_entries(value: object) -> int:
    """Of dictionaries, lists, tensors and the fields of objects, all the way down."""
    count, waiting, visited = 0, [value], set()
    while waiting:
        parent = waiting.pop()
        if isinstance(parent, torch.Tensor | np.ndarray):
            count += math.prod(parent.shape)
            continue
        if isinstance(parent, Mapping):
            children = [*parent.values()]
        elif isinstance(parent, list | tuple | set):
            children = [*parent]
        else:
            children = [*getattr(parent, "__dict__", {}).values()]
        if children and id(parent) not in visited:
            visited.add(id(parent))
            count += len(children)
            waiting += children
    return count


def ensure_buildable(configuration: Configuration, build: Build, source: str, *, in_memory: bool = True) -> None:
    """Raise ModelUnloadable for a configuration whose model memory does not hold, or that nobody could wait for.

    build      a model from the configuration, or from one with other numbers; called on the `meta` device
    in_memory  False: its weights will never be there
    """
    try:
        size = _measure(build, configuration)
    except _TooManyModules:
        counts, small = _find_counts(build, configuration)
        if not counts:
            return  # the build itself is counted: see `limit_construction`
        try:
            size = _extrapolate(lambda changed: _measure(build, changed), small, counts)
        except Exception:  # noqa: BLE001 - two numbers that do not go with each other
            return
        _refuse_size(size, source, in_memory, f" ({_describe_numbers(counts)})")
    except Exception:  # noqa: BLE001 - a model that needs content to be built says what is wrong when it is
        return
    else:
        _refuse_size(size, source, in_memory)


def _refuse_size(size: ModelSize, source: str, in_memory: bool, reason: str = "") -> None:
    available = available_memory() if in_memory else None
    is_too_large = available is not None and size.total > available
    if not is_too_large and size.modules <= _MOST_MODULES:
        return
    free = f"; {format_bytes(available)} of memory are free" if available is not None and is_too_large else ""
    raise ModelUnloadable(
        f"the configuration of {source!r} is of a model with {size.modules:,} modules and "
        f"{format_bytes(size.weights)} of weights{reason}{free}",
        "Check the numbers in config.json, or use a machine with more memory.",
    )


def _measure(build: Build, configuration: Configuration) -> ModelSize:
    with torch.device("meta"), _count(_Counter(_QUICKLY_BUILT, _TooManyModules), is_trial=True):
        model = build(configuration)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))
    return ModelSize(sum(1 for _ in model.modules()), weights)


def _find_counts(build: Build, configuration: Configuration) -> tuple[list[_Number], Configuration]:
    """The numbers that count modules and are to blame, if any, and the configuration with each of them 1."""

    def measure(changed: Configuration) -> ModelSize:
        return _measure(build, changed)

    shrunk: list[_Number] = []
    small = configuration
    for item in _find_largest(configuration)[:_TRIED]:
        candidate = _with_number(small, item[0], 1)
        try:
            measure(candidate)
        except _TooManyModules:
            pass  # another one is to blame as well
        except Exception:  # noqa: BLE001 - others would have to go with it
            continue
        else:
            counts = [other for other in (*shrunk, item) if _is_count(measure, candidate, other[0])]
            # Those that count no modules are as they were: a width times a depth is the size.
            for path, number in shrunk:
                if (path, number) not in counts:
                    candidate = _with_number(candidate, path, number)
            return counts[:_MOST_COUNTS], candidate
        small = candidate
        shrunk.append(item)
    return [], configuration


def _is_count(measure: Callable[[Configuration], ModelSize], small: Configuration, path: _Path) -> bool:
    try:
        single, double = (measure(_with_number(small, path, count)).modules for count in (1, 2))
    except Exception:  # noqa: BLE001 - it does not count modules alone, or two others have to go with it
        return False
    return double > single


def _extrapolate(
    measure: Callable[[Configuration], ModelSize], small: Configuration, counts: Sequence[_Number]
) -> ModelSize:
    """The size with these numbers, from those with each of them 1 and 2."""
    if not counts:
        return measure(small)
    (path, number), *others = counts
    single, double = (_extrapolate(measure, _with_number(small, path, count), others) for count in (1, 2))
    return ModelSize(
        single.modules + (number - 1) * (double.modules - single.modules),
        single.weights + (number - 1) * (double.weights - single.weights),
    )


def _describe_numbers(counts: Sequence[_Number]) -> str:
    return ", ".join(f"{'.'.join(map(str, path))} is {number}" for path, number in counts)


def _find_largest(configuration: Configuration) -> list[_Number]:
    return sorted(_find_numbers(configuration), key=lambda item: -item[1])


def _find_numbers(value: object, path: _Path = ()) -> Iterator[_Number]:
    """Those of sections and lists as well: `text_config.num_layers`, `depths.2`."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield path, value
    elif isinstance(value, Mapping | list):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, item in items:
            yield from _find_numbers(item, (*path, name))


def _with_number(configuration: Configuration, path: _Path, number: int) -> Configuration:
    return _with_numbers(configuration, [(path, number)], number)


def _with_numbers(configuration: Configuration, numbers: Sequence[_Number], replacement: int) -> Configuration:
    """All of these numbers replaced by one."""
    changed: dict[str, Any] = copy.deepcopy(dict(configuration))
    for path, _ in numbers:
        section: Any = changed
        for name in path[:-1]:
            section = section[name]
        section[path[-1]] = replacement
    return changed


@contextmanager
def limit_construction(source: str) -> Iterator[None]:
    """While this is open, a model that grows beyond all limits is stopped; with any kind of source."""

    def explain(counter: _Counter) -> ModelExportError:
        return ModelUnloadable(
            f"{source!r} is a model with more than {counter.modules:,} modules and {format_bytes(counter.bytes)} of "
            "weights, of which building was stopped",
            "Check its configuration, or use a machine with more memory.",
        )

    with _count(_Counter(_MOST_MODULES, explain, available_memory())):
        yield


class _Counter:
    """Modules and bytes of parameters of this thread. A weight that several modules share counts once."""

    def __init__(
        self, most: int, error: Callable[[_Counter], Exception] | type[_TooManyModules], memory: int | None = None
    ) -> None:
        self.modules, self.bytes = 0, 0
        self._most, self._error, self._memory = most, error, memory
        self._storages: set[int] = set()

    def add_module(self) -> None:
        self.modules += 1
        self._check()

    def add_parameter(self, parameter: nn.Parameter | None) -> None:
        # Fake, lazy and meta tensors take nothing.
        if self._memory is None or type(parameter) is not nn.Parameter or parameter.device.type != "cpu":
            return
        storage = parameter.untyped_storage()
        if storage.data_ptr() not in self._storages:
            self._storages.add(storage.data_ptr())
            self.bytes += storage.nbytes()
            self._check()

    def _check(self) -> None:
        if self.modules > self._most or (self._memory is not None and self.bytes > self._memory):
            raise self._error(self)


class _Counters(threading.local):
    """Those that are open in a thread, each of which counts."""

    def __init__(self) -> None:
        self.open: tuple[_Counter, ...] = ()


_COUNTERS = _Counters()


def _watch_modules() -> Callable[[], object]:
    """Constructors and registrations of parameters, until what is returned is called.

    Not registrations of modules: a list of a million layers is complete before any of them is registered.
    """
    construct = nn.Module.__init__

    def construct_counted(module: nn.Module, *arguments: Any, **keywords: Any) -> None:
        for counter in _COUNTERS.open:
            counter.add_module()
        construct(module, *arguments, **keywords)

    def count_parameter(_: nn.Module, __: str, parameter: nn.Parameter | None) -> None:
        for counter in _COUNTERS.open:
            counter.add_parameter(parameter)

    handle = registration.register_module_parameter_registration_hook(count_parameter)
    nn.Module.__init__ = construct_counted  # type: ignore[method-assign, assignment]

    def undo() -> None:
        nn.Module.__init__ = construct  # type: ignore[method-assign]
        handle.remove()

    return undo


_WATCHED_MODULES = SharedSetting(_watch_modules)


@contextmanager
def _count(counter: _Counter, is_trial: bool = False) -> Iterator[None]:
    """is_trial: what is built inside is thrown away, and does not count for the model around."""
    before = _COUNTERS.open
    with _WATCHED_MODULES.hold():
        _COUNTERS.open = (counter,) if is_trial else (*before, counter)
        try:
            yield
        finally:
            _COUNTERS.open = before
