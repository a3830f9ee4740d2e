"""What a tool is, for whoever runs one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Feed = Mapping[str, np.ndarray]

_EXTRAS = {"onnxruntime": "runtime", "onnxscript": "export"}


@dataclass(frozen=True)
class Job:
    """One run of a tool.

    source    the file that it takes; it is left as it is
    target    the file that it is to write
    option    what stands behind the colon of its name: `all` of `ort:all`
    feeds     inputs of the model, for quantizers that want to see it run
    """

    source: Path
    target: Path
    option: str
    feeds: tuple[Feed, ...]


@dataclass(frozen=True)
class Tool:
    """
    does        in a few words
    package     the one that it comes from
    options     what may stand behind the colon; the first one is meant if nothing does
    any_option  whether the tool itself knows what may stand there
    calibrates  whether it looks at the model while it runs, and so needs inputs
    remedy      what to try where it fails; empty if nothing is known of that
    """

    name: str
    does: str
    package: str
    run: Callable[[Job], None]
    options: tuple[str, ...] = ()
    any_option: bool = False
    calibrates: bool = False
    remedy: str = ""

    @property
    def extra(self) -> str:
        """The part of modelexport's own dependencies that brings the package."""
        return _EXTRAS.get(self.package, "tools")
