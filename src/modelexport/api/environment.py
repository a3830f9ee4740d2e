"""Environment: installed tools, their versions, and a clock for the steps of a verb.

    clock = Clock(progress)
    with clock.step("trace"):   # progress is told "trace", and clock.seconds["trace"] has the time afterwards
        ...

Versions go into the record (`Origin.tools`): which torch named a value decides what its name means.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import metadata

from modelexport.errors import ExtraMissing

Progress = Callable[[str], None]

# Those whose version decides what a name or a scope means.
_TOOLS = ("modelexport", "torch", "transformers", "onnx", "onnx-ir", "onnxscript")


class Clock:
    """Tells which step is running and remembers how long each one took."""

    def __init__(self, progress: Progress | None) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Announce and time a step. A name that comes again adds to its time: a verb may load or run in turns."""
        if self._progress is not None:
            self._progress(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def need_torch(purpose: str) -> None:
    """Say what to install, in the place of an ImportError from deep inside of a verb."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        remedy = "Install it with: pip install 'modelexport[export]'"
        raise ExtraMissing.of_import(purpose, "torch", error, remedy) from error


@cache
def tool_versions() -> Mapping[str, str]:
    """Of those that are installed: a file can be read and relinked without most of them."""
    versions: dict[str, str] = {}
    for name in _TOOLS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
