"""Size limits: a model that cannot be in memory is refused before it is built, with the size that it would have.

    {"model_type": "gpt2", "n_layer": 1000000}     a million layers: 28.4 TB of weights

A configuration is built on torch's `meta` device first, where tensors have shapes and no content. What takes time there
are modules, and so a build with very many is stopped. Its size follows from two small ones: a number of the
configuration that counts modules makes them grow evenly, whatever its name is.

    n_layer = 1    13 + 6 modules        n_layer = 2    13 + 13 + 6        n_layer = N    13 N + 6

https://docs.pytorch.org/docs/stable/meta.html
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as registration

from modelexport.capture.memory import available_memory, format_bytes
from modelexport.capture.silence import SharedSetting
from modelexport.errors import ModelExportError, ModelUnloadable

# A second of building has about 1,400 modules. DeepSeek-V3, an expert a module, has 62,000; most models some hundred.
_QUICKLY_BUILT, _MOST_MODULES = 4_000, 100_000
# What Python holds of a module beside its weights: Linear 3,300, LayerNorm 1,900.
_MODULE_BYTES = 2_500
# Numbers of a configuration that are tried, the largest first: those that count modules are not many.
_TRIED = 4

Configuration = Mapping[str, object]
Build = Callable[[Configuration], nn.Module]
_Path = tuple[str | int, ...]


@dataclass(frozen=True)
class ModelSize:
    modules: int
    weights: int

    @property
    def total(self) -> int:
        return self.weights + self.modules * _MODULE_BYTES


class _TooManyModules(Exception):
    """A build with more modules than were allowed."""


def ensure_buildable(configuration: Configuration, build: Build, source: str) -> None:
    """Raise ModelUnloadable for a configuration whose model memory does not hold, or that nobody could wait for.

    build  a model from the configuration, or from one with other numbers; called on the `meta` device
    """
    try:
        size = _measure(build, configuration, _QUICKLY_BUILT)
    except _TooManyModules:
        explained = _extrapolate(build, configuration)
        if explained is None:
            return  # the build itself is counted: see `limit_construction`
        size, reason = explained
        _refuse_size(size, source, f" ({reason})")
    except Exception:  # noqa: BLE001 - a model that needs content to be built says what is wrong when it is
        return
    else:
        _refuse_size(size, source)


def _refuse_size(size: ModelSize, source: str, reason: str = "") -> None:
    available = available_memory()
    is_too_large = available is not None and size.total > available
    if not is_too_large and size.modules <= _MOST_MODULES:
        return
    free = f"; {format_bytes(available)} of memory are free" if available is not None and is_too_large else ""
    raise ModelUnloadable(
        f"the configuration of {source!r} is of a model with {size.modules:,} modules and "
        f"{format_bytes(size.weights)} of weights{reason}{free}",
        "Check the numbers in config.json, or use a machine with more memory.",
    )


def _measure(build: Build, configuration: Configuration, most: int) -> ModelSize:
    with torch.device("meta"), _count(_Counter(most, _TooManyModules), is_trial=True):
        model = build(configuration)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))
    return ModelSize(sum(1 for _ in model.modules()), weights)


def _extrapolate(build: Build, configuration: Configuration) -> tuple[ModelSize, str] | None:
    """The size, and the number that is to blame; None if no number alone is."""
    numbers = sorted(_find_numbers(configuration), key=lambda item: -item[1])
    for path, number in numbers[:_TRIED]:
        try:
            single, double = (
                _measure(build, _with_number(configuration, path, count), _QUICKLY_BUILT) for count in (1, 2)
            )
        except Exception:  # noqa: BLE001 - it does not count modules alone, or two others have to go with it
            continue
        modules, weights = double.modules - single.modules, double.weights - single.weights
        if modules > 0:
            size = ModelSize(single.modules + (number - 1) * modules, single.weights + (number - 1) * weights)
            return size, f"{'.'.join(map(str, path))} is {number}"
    return None


def _find_numbers(value: object, path: _Path = ()) -> Iterator[tuple[_Path, int]]:
    """Those of sections and lists as well: `text_config.num_layers`, `depths.2`."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield path, value
    elif isinstance(value, Mapping | list):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, item in items:
            yield from _find_numbers(item, (*path, name))


def _with_number(configuration: Configuration, path: _Path, number: int) -> Configuration:
    changed: dict[str, Any] = copy.deepcopy(dict(configuration))
    section: Any = changed
    for name in path[:-1]:
        section = section[name]
    section[path[-1]] = number
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
