"""What lies in a model folder, checked before any of it is given to transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from modelexport.errors import ModelNotFound, ModelUnloadable

CONFIG = "config.json"
_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True)
class Checkpoint:
    """A folder whose config.json could be read; `weights` says what kind of weight file is there, if any."""

    folder: Path
    config: Mapping[str, object]
    weights: str | None


def open_checkpoint(folder: Path, allow_pickle: bool) -> Checkpoint:
    """Read the configuration and find the weights, refusing what would be unsafe to open."""
    if not (folder / CONFIG).is_file():
        seen = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "nothing"
        raise ModelUnloadable(
            f"no {CONFIG} in {str(folder)!r}; it holds: {seen}",
            "Give a folder written by save_pretrained, or package.module:callable for any other module.",
        )
    return Checkpoint(folder, read_config(folder / CONFIG), _find_weights(folder, allow_pickle))


def read_config(path: Path) -> Mapping[str, object]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelUnloadable(
            f"{str(path)!r} is not valid JSON: {error}", "Write it again with save_pretrained."
        ) from error
    except OSError as error:
        raise ModelNotFound(f"cannot read {str(path)!r}: {error.strerror}") from error
    if not isinstance(content, dict):
        raise ModelUnloadable(
            f"{str(path)!r} holds a JSON {type(content).__name__}, not an object",
            "A model's config.json is an object with a 'model_type'.",
        )
    return content


def _find_weights(folder: Path, allow_pickle: bool) -> str | None:
    for name in _SAFETENSORS:
        if (folder / name).is_file():
            _check_index(folder / name)
            return "safetensors"
    pickles = [name for name in _PICKLES if (folder / name).is_file()]
    if not pickles:
        _refuse_unknown_weights(folder)
        return None
    if not allow_pickle:
        raise ModelUnloadable(
            f"the only weights in {str(folder)!r} are in {pickles[0]!r}, a pickle, which can run code",
            "Convert it to safetensors, or pass --allow-pickle if you trust where it comes from.",
        )
    _check_index(folder / pickles[0])
    return "pickle"


def _refuse_unknown_weights(folder: Path) -> None:
    """Weights under another name would otherwise be replaced by random ones without a word of why."""
    strays = sorted(path.name for path in folder.glob("*.safetensors"))
    if strays:
        raise ModelUnloadable(
            f"{str(folder)!r} has {strays[0]!r} but neither {_SAFETENSORS[0]!r} nor {_SAFETENSORS[1]!r}",
            "Rename or complete the checkpoint, or give the path of config.json itself for random weights.",
        )


def _check_index(path: Path) -> None:
    """Every shard that an index names must be a file of the folder itself."""
    if path.suffix != ".json":
        return
    shards = read_config(path).get("weight_map")
    if not isinstance(shards, dict):
        raise ModelUnloadable(f"{str(path)!r} has no 'weight_map'", "Write the checkpoint again.")
    for shard in sorted({str(shard) for shard in shards.values()}):
        _check_shard(path, shard)


def _check_shard(index: Path, shard: str) -> None:
    parts = PurePosixPath(shard.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or ":" in shard:
        raise ModelUnloadable(
            f"{str(index)!r} names a file outside its folder: {shard!r}",
            "Do not use this checkpoint unless you know why it does so.",
        )
    if not (index.parent / shard).is_file():
        raise ModelUnloadable(
            f"{str(index)!r} names {shard!r}, which is missing",
            "Copy or download every shard of the checkpoint.",
        )
