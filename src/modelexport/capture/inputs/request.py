"""What the user may say about inputs, and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class InputSpec:
    """One tensor to make. `dtype` None: the usual one for this name. `bounds`: lowest and highest value."""

    name: str
    shape: tuple[int, ...]
    dtype: str | None = None
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class InputRequest:
    """Where inputs come from; whatever is not said here is made from the model's configuration.

    `static` keeps axes of size 1 as written: without it they are made with size 2, because torch takes
    an axis of size 1 for one that is broadcast and never grows.
    """

    text: str | None = None
    image: Path | None = None
    shapes: tuple[InputSpec, ...] = ()
    specs_file: Path | None = None
    arrays_file: Path | None = None
    seed: int = 0
    static: bool = False


@dataclass(frozen=True)
class ModelInputs:
    """Keyword arguments for `forward`, in its order, and which of their axes should be dynamic."""

    values: Mapping[str, Any]
    axes: Mapping[str, Mapping[int, str]]
    notes: tuple[str, ...] = ()
