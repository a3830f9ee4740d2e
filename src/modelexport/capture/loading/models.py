"""Model sources: turn what the user wrote into a module, by the kind of source that it is.

    ./bert-base            a folder written by save_pretrained      pretrained.load_folder
    ./config.json          a configuration: random weights          pretrained.load_config_file
    nets.py:build          a callable in a file or an installed     load_entry_point
    package.module:Net     package; any torch.nn.Module
    org/name               a model on the Hugging Face hub          pretrained.load_hub

What exists on disk comes first: the order that surprises least. A new loader is a function
`load_KIND(source, options) -> LoadedModel` here or in pretrained.py, and a branch in `_load` that recognizes what it
takes. `options` are those of the command line (--task, --dtype, --seed, …); errors are ModelNotFound and
ModelUnloadable, with what to do next.

Entry point: the callable is called without arguments, and returns the module, or the module and its keyword inputs, or
several of these by name, which become one model with these children (`parts.py`).
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch

from modelexport.capture.isolation import seed_torch
from modelexport.capture.loading.dtypes import convert_module, torch_dtype
from modelexport.capture.loading.parts import Parts, join_parts
from modelexport.capture.loading.pipelines import is_pipeline_folder, load_pipeline
from modelexport.capture.loading.pretrained import load_config_file, load_folder, load_hub
from modelexport.capture.loading.sentences import is_sentence_folder, load_sentences
from modelexport.capture.loading.size_limits import limit_construction
from modelexport.capture.loading.structure import load_structure
from modelexport.capture.loading.third_party import LoadedModel, explain_exit, explain_failure, summarize_error
from modelexport.errors import ModelNotFound, ModelUnloadable, UnknownName, with_article
from modelexport.record.model_source import ModelSource

_ENTRY_POINT = re.compile(r"(?P<home>[^:]+):(?P<name>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)")


def load_entry_point(source: str, options: ModelSource) -> LoadedModel:
    """Import `home` (a module's name or a path to a .py file) and call what `name` is in it."""
    matched = _ENTRY_POINT.fullmatch(source)
    assert matched is not None
    home, name = matched["home"], matched["name"]
    folder = Path(home).resolve().parent if home.endswith(".py") else Path.cwd()
    with _on_path(folder):
        # Seeded apart: a module is imported once, so importing must not change what the callable draws.
        with seed_torch(options.seed):
            imported = _import_file(Path(home)) if home.endswith(".py") else _import_name(home)
            builder = _resolve_attribute(imported, name, source)
        with seed_torch(options.seed):
            result = _call_builder(builder, source)
    dtype = torch_dtype(options.dtype)
    if (parts := _read_parts(result)) is not None:
        module: torch.nn.Module = join_parts(parts)
        loaded = LoadedModel(module, source, dtype=dtype, parts={name: inputs for name, (_, inputs) in parts.items()})
    else:
        module, inputs = _split_result(result, source)
        loaded = LoadedModel(module, source, inputs=inputs, dtype=dtype)
    return loaded if dtype is None else replace(loaded, module=convert_module(module, dtype, own=True))


def adopt_module(module: torch.nn.Module, options: ModelSource) -> LoadedModel:
    """A live module of the user's, as it is; a converted copy where a type is named."""
    dtype = torch_dtype(options.dtype)
    if dtype is not None:
        module = convert_module(module, dtype, own=False)
    return LoadedModel(module, type(module).__name__, dtype=dtype or torch_dtype(options.file_dtype))


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


def _import_name(name: str) -> ModuleType:
    try:
        with explain_exit(f"importing {name!r} failed"):
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


def _resolve_attribute(imported: ModuleType, name: str, source: str) -> object:
    owner: object = imported
    for part in name.split("."):
        if not hasattr(owner, part):
            raise ModelNotFound(f"{source!r}: {part!r} is not in it", _proposal(part, owner))
        owner = getattr(owner, part)
    return owner


def _proposal(name: str, owner: object) -> str:
    """What could have been meant: models, and what may return one, that are defined there; not what is imported."""
    members = {member: getattr(owner, member, None) for member in dir(owner) if not member.startswith("_")}
    usable = {member: value for member, value in members.items() if callable(value)}
    own = [key for key, value in usable.items() if isinstance(value, torch.nn.Module) or _is_defined_in(value, owner)]
    known = own or list(usable)
    return UnknownName("name", name, known).hint if known else "There is nothing in it that could be a model."


def _is_defined_in(value: object, owner: object) -> bool:
    if not isinstance(owner, ModuleType):
        return True
    home = getattr(value, "__module__", None)
    return isinstance(home, str) and (home == owner.__name__ or home.startswith(f"{owner.__name__}."))


def _call_builder(builder: object, source: str) -> object:
    if isinstance(builder, torch.nn.Module):
        return builder
    if not callable(builder):
        raise ModelUnloadable(
            f"{source!r} is {with_article(type(builder).__name__)}, which cannot be called",
            "Name a function that returns the module, or a torch.nn.Module class.",
        )
    with explain_failure(f"calling {source!r} failed", _explain_call):
        return builder()


def _explain_call(error: Exception) -> str:
    """Where it was raised: in the innermost line outside of installed packages. Nowhere, if the call did not fit."""
    frames = list(traceback.extract_tb(error.__traceback__))
    frames = frames[max(depth for depth, frame in enumerate(frames) if frame.filename == __file__) + 1 :]
    if not frames:
        return "The callable is called without arguments." if isinstance(error, TypeError) else ""
    own = [frame for frame in frames if not _is_installed(frame.filename)] or frames
    return f"It was raised at {own[-1].filename}:{own[-1].lineno}, in {own[-1].name}."


def _is_installed(filename: str) -> bool:
    return bool({"site-packages", "dist-packages"} & {*Path(filename).parts}) or not Path(filename).is_file()


def _read_parts(result: object) -> Parts | None:
    """Several modules, each with its inputs, by name; None for anything else."""
    if not isinstance(result, dict) or not result:
        return None
    for name, part in result.items():
        match name, part:
            case str(), (torch.nn.Module(), dict() as inputs) if all(isinstance(key, str) for key in inputs):
                continue
        return None
    return result


def _split_result(result: object, source: str) -> tuple[torch.nn.Module, Mapping[str, object] | None]:
    match result:
        case torch.nn.Module():
            return result, None
        case (torch.nn.Module() as module, dict() as inputs) if all(isinstance(name, str) for name in inputs):
            return module, inputs
        case tuple():
            returned = f"a tuple of {', '.join(type(item).__name__ for item in result) or 'nothing'}"
        case _:
            returned = with_article(type(result).__name__)
    raise ModelUnloadable(
        f"{source!r} returned {returned}, not a module",
        "Return a torch.nn.Module, or a tuple of the module and a dictionary of its keyword inputs, or a dictionary of "
        "such tuples by name.",
    )


_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


def load_model(source: str, options: ModelSource) -> LoadedModel:
    """Load a folder, a config.json, a hub id or `package.module:callable`; the module comes in eval mode."""
    torch_dtype(options.dtype)  # a wrong --dtype is an error before anything is loaded
    with limit_construction(source):
        if not options.weights:
            return load_structure(source, Path(source).expanduser(), options)
        loaded = _load(source, options)
    with explain_failure(f"the model cannot be moved to device {options.device!r}", "Try --device cpu."):
        module = loaded.module.to(options.device)
    return replace(loaded, module=module.eval())


def _load(source: str, options: ModelSource) -> LoadedModel:
    path = Path(source).expanduser()
    if source and path.is_dir():
        if is_pipeline_folder(path):
            return load_pipeline(source, path, options)
        if is_sentence_folder(path, options):
            return load_sentences(source, path, options)
        return load_folder(source, path, options)
    if path.is_file() and path.suffix == ".json":
        return load_config_file(source, path, options)
    if path.is_file():
        hint = "Give the folder that holds config.json and the weights."
        if path.suffix == ".py":
            hint = f"Add the function that builds the model: {source}:build"
        raise ModelUnloadable(f"{source!r} is a {path.suffix or 'plain'} file, not a model folder", hint)
    if _ENTRY_POINT.fullmatch(source):
        return load_entry_point(source, options)
    if _HUB_ID.fullmatch(source) and path.suffix not in {".json", ".py"}:
        return load_hub(source, options)
    raise ModelNotFound(
        f"there is no folder or file {source!r}",
        "Give a model folder, a config.json, a hub id (org/name), or package.module:callable.",
    )
