"""A file without what was put into it. Nothing here needs torch, runs a model or reads a weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from modelexport.api.choices import several
from modelexport.api.opening import model_path
from modelexport.api.writing import ensure_apart
from modelexport.errors import UserError
from modelexport.graph.embed import (
    MODEL_KEYS,
    NODE_KEYS,
    PREFIX,
    own_keys,
    strip_exporter_metadata,
    strip_own_metadata,
)
from modelexport.graph.index import walk_nodes
from modelexport.graph.model_file import open_model
from modelexport.graph.saving import ensure_model_target, save_model

_KEYS = (*NODE_KEYS, *MODEL_KEYS)


@dataclass(frozen=True)
class Stripped:
    """What was written, how many entries of metadata it has no more, and keys to be kept that it never had."""

    files: tuple[Path, ...]
    removed: int
    absent: tuple[str, ...] = ()


def strip(
    source: str | Path, output: str | Path, *, keep: Sequence[str] = (), exporter_metadata: bool = False
) -> Stripped:
    """Write a file without the record and the keys on its nodes; all else is as it was.

    keep               keys that stay, with or without their prefix: tag, module, …, record
    exporter_metadata  also remove what torch writes on nodes
    """
    target = Path(output)
    kept = frozenset(_key(name) for name in several(keep))
    path = model_path(Path(source))
    ensure_model_target(target)
    ensure_apart(target, path)
    model = open_model(path)
    there = own_keys(model.proto, *(node for _, node in walk_nodes(model.proto)))
    removed = strip_own_metadata(model.proto, kept)
    if exporter_metadata:
        strip_exporter_metadata(model.proto)
    absent = tuple(key.removeprefix(PREFIX) for key in _KEYS if key in kept - there)
    return Stripped(save_model(model, target), removed, absent)


def _key(name: str) -> str:
    key = name if name.startswith(PREFIX) else PREFIX + name
    if key not in _KEYS:
        known = ", ".join(one.removeprefix(PREFIX) for one in _KEYS)
        raise UserError(f"there is no key {name!r}", f"These can be kept: {known}.")
    return key
