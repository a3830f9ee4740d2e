"""Which kind of source the user wrote, in the order that surprises least: what exists on disk comes first."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from modelexport.capture.loading.entry_point import is_entry_point, load_entry_point
from modelexport.capture.loading.loaded import LoadedModel, LoadOptions
from modelexport.capture.loading.pretrained import load_config_file, load_folder, load_hub
from modelexport.capture.loading.third_party import explained
from modelexport.errors import ModelNotFound, ModelUnloadable

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


def load_model(source: str, options: LoadOptions) -> LoadedModel:
    """Load a folder, a config.json, a hub id or `package.module:callable`; the module comes in eval mode."""
    options.torch_dtype()
    loaded = _load(source, options)
    with explained(f"the model cannot be moved to device {options.device!r}", "Try --device cpu."):
        module = loaded.module.to(options.device)
    return replace(loaded, module=module.eval())


def _load(source: str, options: LoadOptions) -> LoadedModel:
    path = Path(source).expanduser()
    if source and path.is_dir():
        return load_folder(source, path, options)
    if path.is_file():
        return _load_file(source, path, options)
    if is_entry_point(source):
        return load_entry_point(source, options)
    if _HUB_ID.fullmatch(source) and path.suffix not in {".json", ".py"}:
        return load_hub(source, options)
    raise ModelNotFound(
        f"there is no folder or file {source!r}",
        "Give a model folder, a config.json, a hub id (org/name), or package.module:callable.",
    )


def _load_file(source: str, path: Path, options: LoadOptions) -> LoadedModel:
    if path.suffix == ".json":
        return load_config_file(source, path, options)
    hint = (
        f"Add the function that builds the model: {source}:build"
        if path.suffix == ".py"
        else ("Give the folder that holds config.json and the weights.")
    )
    raise ModelUnloadable(f"{source!r} is a {path.suffix or 'plain'} file, not a model folder", hint)
