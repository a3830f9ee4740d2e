"""Which kind of source the user wrote, in the order that surprises least: what exists on disk comes first.

`package.module:callable` and `path/to/file.py:callable`: any torch.nn.Module that Python can build.

Turn what the user wrote (a folder, a config.json, a hub id, `package.module:callable`) into a module.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch

from modelexport.capture.loading.options import LoadedModel, explain_failure, seed_torch, summarize_error, torch_dtype
from modelexport.capture.loading.pretrained import load_config_file, load_folder, load_hub
from modelexport.errors import ModelNotFound, ModelUnloadable, UnknownName
from modelexport.record.model_source import ModelSource

_ENTRY_POINT = re.compile(r"(?P<place>[^:]+):(?P<name>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)")


def is_entry_point(source: str) -> bool:
    return _ENTRY_POINT.fullmatch(source) is not None


def load_entry_point(source: str, options: ModelSource) -> LoadedModel:
    matched = _ENTRY_POINT.fullmatch(source)
    assert matched is not None
    place, name = matched["place"], matched["name"]
    folder = Path(place).resolve().parent if place.endswith(".py") else Path.cwd()
    with _on_path(folder):
        # Seeded apart: a module is imported once, so importing must not change what the callable draws.
        with seed_torch(options.seed):
            found = _resolve_attribute(_import(place), name, source)
        with seed_torch(options.seed):
            made = _call_builder(found, source)
    module, inputs = _split_result(made, source)
    dtype = torch_dtype(options.dtype)
    return LoadedModel(module if dtype is None else module.to(dtype), source, inputs=inputs)


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    """Put a folder first on sys.path; it goes away again even when the callable changed the path itself."""
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _import(place: str) -> ModuleType:
    return _import_file(Path(place)) if place.endswith(".py") else _import_name(place)


def _import_name(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        # A package that exists but lacks one of its own dependencies is a different mistake.
        if name != missing and not name.startswith(f"{missing}."):
            raise ModelUnloadable(
                f"importing {name!r} failed: {summarize_error(error)}", f"Install {missing!r} in this environment."
            ) from error
        raise ModelNotFound(
            f"there is no Python module {missing!r} (looked in {str(Path.cwd())!r} and on sys.path)",
            "Run from the folder that holds it, or give path/to/file.py:callable.",
        ) from error
    except Exception as error:
        raise ModelUnloadable(f"importing {name!r} failed: {summarize_error(error)}") from error


def _import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ModelNotFound(f"there is no file {str(path)!r}", "Give path/to/file.py:callable.")
    module = importlib.util.module_from_spec(spec)
    with explain_failure(f"running {str(path)!r} failed"):
        spec.loader.exec_module(module)
    return module


def _resolve_attribute(place: ModuleType, name: str, source: str) -> object:
    found: object = place
    for part in name.split("."):
        if not hasattr(found, part):
            raise ModelNotFound(f"{source!r}: {part!r} is not in it", _proposal(part, found))
        found = getattr(found, part)
    return found


def _proposal(name: str, place: object) -> str:
    """What could have been meant: models, and what may return one, that are made there; not what is imported."""
    usable = {one: value for one, value in _members(place) if not one.startswith("_") and callable(value)}
    own = [one for one, value in usable.items() if isinstance(value, torch.nn.Module) or _is_made_in(value, place)]
    known = own or list(usable)
    return UnknownName("name", name, known).hint if known else "There is nothing in it that could be a model."


def _members(place: object) -> Iterator[tuple[str, object]]:
    return ((name, getattr(place, name, None)) for name in dir(place))


def _is_made_in(value: object, place: object) -> bool:
    if not isinstance(place, ModuleType):
        return True
    made_in = getattr(value, "__module__", None)
    return isinstance(made_in, str) and (made_in == place.__name__ or made_in.startswith(f"{place.__name__}."))


def _call_builder(found: object, source: str) -> object:
    if isinstance(found, torch.nn.Module):
        return found
    if not callable(found):
        raise ModelUnloadable(
            f"{source!r} is a {type(found).__name__}, which cannot be called",
            "Name a function that returns the module, or a torch.nn.Module class.",
        )
    with explain_failure(f"calling {source!r} failed", "The callable is called without arguments."):
        return found()


def _split_result(made: object, source: str) -> tuple[torch.nn.Module, Mapping[str, object] | None]:
    if isinstance(made, torch.nn.Module):
        return made, None
    match made:
        case (torch.nn.Module() as module, dict() as inputs) if all(isinstance(name, str) for name in inputs):
            return module, inputs
    raise ModelUnloadable(
        f"{source!r} returned {_shape_of(made)}, not a module",
        "Return a torch.nn.Module, or a tuple of the module and a dictionary of its keyword inputs.",
    )


def _shape_of(made: object) -> str:
    if isinstance(made, tuple):
        return f"a tuple of {', '.join(type(item).__name__ for item in made) or 'nothing'}"
    return f"a {type(made).__name__}"


_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


def load_model(source: str, options: ModelSource) -> LoadedModel:
    """Load a folder, a config.json, a hub id or `package.module:callable`; the module comes in eval mode."""
    torch_dtype(options.dtype)
    loaded = _load(source, options)
    with explain_failure(f"the model cannot be moved to device {options.device!r}", "Try --device cpu."):
        module = loaded.module.to(options.device)
    return replace(loaded, module=module.eval())


def _load(source: str, options: ModelSource) -> LoadedModel:
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


def _load_file(source: str, path: Path, options: ModelSource) -> LoadedModel:
    if path.suffix == ".json":
        return load_config_file(source, path, options)
    hint = (
        f"Add the function that builds the model: {source}:build"
        if path.suffix == ".py"
        else ("Give the folder that holds config.json and the weights.")
    )
    raise ModelUnloadable(f"{source!r} is a {path.suffix or 'plain'} file, not a model folder", hint)
