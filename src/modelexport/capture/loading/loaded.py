"""What loading is asked, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from modelexport.errors import UnknownName

DTYPES = ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True)
class LoadOptions:
    """How to load; `dtype` None keeps the dtype of the checkpoint."""

    task: str | None = None
    dtype: str | None = None
    device: str = "cpu"
    seed: int = 0
    trust_remote_code: bool = False
    allow_pickle: bool = False
    revision: str | None = None

    def torch_dtype(self) -> torch.dtype | None:
        if self.dtype is None:
            return None
        if self.dtype not in DTYPES:
            raise UnknownName("dtype", self.dtype, DTYPES)
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype


@dataclass(frozen=True)
class LoadedModel:
    """A module in eval mode.

    `folder` is the local folder, None for hub ids and callables; `processing` is where a tokenizer or a
    processor may be found: the folder or the hub id. `inputs` are the keyword inputs that a callable returned
    with its module. `notes` are what the user should know, such as random weights.
    """

    module: torch.nn.Module
    source: str
    folder: Path | None = None
    inputs: Mapping[str, object] | None = None
    notes: tuple[str, ...] = ()
    processing: str | Path | None = None
