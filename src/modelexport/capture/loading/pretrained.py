"""Pretrained models: what transformers loads, from a local folder, a configuration alone, or a hub id.

Three steps, each with its own refusals:

    checkpoint   what lies in the folder, checked before any of it is given to transformers: no pickle without
                 --allow-pickle, no shard outside of the folder, no code of its own without --trust-remote-code
    model class  by --task, by `architectures` in config.json, or AutoModel
    weights      loaded, or random from --seed where there is only a configuration; weights of another model are refused

Task: read from transformers' own pipeline registry (`text-classification`). The tasks it no longer lists still have an
Auto class of the same name (`question-answering`, `AutoModelForQuestionAnswering`); those with neither are listed here.
https://huggingface.co/docs/transformers/model_doc/auto
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from modelexport.capture.isolation import seed_torch
from modelexport.capture.loading.dtypes import loading_dtype, note_conversion
from modelexport.capture.loading.size_limits import ensure_buildable, ensure_readable
from modelexport.capture.loading.third_party import (
    LoadedModel,
    explain_failure,
    hub_is_reachable,
    library,
    quiet_transformers,
    summarize_error,
)
from modelexport.errors import ModelNotFound, ModelUnloadable, UnknownName, some_of
from modelexport.record.json_reading import read_json
from modelexport.record.model_source import ModelSource

# Tasks without a pipeline in transformers 5 whose Auto class has another name.
_RENAMED_TASKS = {
    "text2text-generation": "AutoModelForSeq2SeqLM",
    "summarization": "AutoModelForSeq2SeqLM",
    "translation": "AutoModelForSeq2SeqLM",
    "masked-lm": "AutoModelForMaskedLM",
    "audio-xvector": "AutoModelForAudioXVector",
}
_AUTO_PREFIX = "AutoModelFor"
_PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl"})


def model_class(config: Any, raw: Mapping[str, object], options: ModelSource) -> Any:
    """The class that loads this configuration. raw: config.json as it is, with fields that transformers leaves out."""
    if options.task is not None:
        return _class_for_task(config, raw, options.task)
    named = _first_architecture(raw)
    if options.trust_remote_code and (own := _class_from_auto_map(raw, named)) is not None:
        return own
    return library("transformers").AutoModel if named is None else _named_class(named)


def refuse_remote_code(raw: Mapping[str, object], source: str, options: ModelSource) -> None:
    """Stop at a model that only its own Python code can build, unless the user trusts that code."""
    if options.trust_remote_code or not raw.get("auto_map"):
        return
    transformers, named = library("transformers"), _first_architecture(raw)
    # Many checkpoints still carry code for a model that transformers has had since.
    if raw.get("model_type") in transformers.CONFIG_MAPPING and (named is None or hasattr(transformers, named)):
        return
    raise ModelUnloadable(
        f"{source!r} needs Python code of its own (auto_map in config.json), which is not run by default",
        "Read that code, then pass --trust-remote-code.",
    )


def _named_class(name: str) -> Any:
    transformers = library("transformers")
    model_type = getattr(transformers, name, None)
    if isinstance(model_type, type) and issubclass(model_type, transformers.PreTrainedModel):
        return model_type
    raise ModelUnloadable(
        f"transformers {transformers.__version__} has no model class {name!r} (architectures in config.json)",
        "Upgrade transformers, or choose a class it has with --task, for example --task feature-extraction.",
    )


def _first_architecture(raw: Mapping[str, object]) -> str | None:
    listed = raw.get("architectures")
    return str(listed[0]) if isinstance(listed, list) and listed else None


def _class_from_auto_map(raw: Mapping[str, object], named: str | None) -> Any | None:
    auto_map = raw.get("auto_map")
    if not isinstance(auto_map, dict):
        return None
    # {"AutoModelForCausalLM": "modeling_x.XForCausalLM"}: the Auto class that builds the named architecture.
    models = {auto: str(code) for auto, code in auto_map.items() if str(auto).startswith("AutoModel")}
    own = [auto for auto, code in models.items() if code.split(".")[-1] == named] or list(models)
    return getattr(library("transformers"), own[0], None) if own else None


def _class_for_task(config: Any, raw: Mapping[str, object], task: str) -> Any:
    candidates = task_classes(task)
    auto_map = raw.get("auto_map")
    own = auto_map if isinstance(auto_map, dict) else {}
    for candidate in candidates:
        if type(config) in candidate._model_mapping or candidate.__name__ in own:
            return candidate
    names = " or ".join(candidate.__name__ for candidate in candidates)
    raise ModelUnloadable(
        f"a model of type {config.model_type!r} cannot do task {task!r}: {names} has no class for it",
        "Leave --task out to use the architecture named in config.json.",
    )


def task_classes(task: str) -> Sequence[Any]:
    """The Auto classes for a task, in the order transformers would try them."""
    transformers, pipelines = library("transformers"), library("transformers.pipelines")
    known, aliases = pipelines.SUPPORTED_TASKS, pipelines.TASK_ALIASES
    if aliases.get(task, task) in known:
        classes: Sequence[Any] = known[aliases.get(task, task)]["pt"]
        return classes
    by_name = {_task_name(name): name for name in dir(transformers) if name.startswith(_AUTO_PREFIX)}
    name = _RENAMED_TASKS.get(task) or by_name.get(task)
    if name is None:
        raise UnknownName("task", task, [*known, *aliases, *_RENAMED_TASKS, *by_name])
    return (getattr(transformers, name),)


def _task_name(auto_class: str) -> str:
    """`AutoModelForQuestionAnswering` is the class of task `question-answering`."""
    words = auto_class.removeprefix(_AUTO_PREFIX)
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in words).lstrip("-")


CONFIG = "config.json"
_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")  # the index names the shards of a large model
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")  # unpickling runs code


def open_checkpoint(folder: Path, allow_pickle: bool) -> tuple[Mapping[str, object], str | None]:
    """The configuration and the kind of weight file in a folder, if any, refusing what would be unsafe to open."""
    if not (folder / CONFIG).exists():
        seen = some_of(sorted(entry.name for entry in folder.iterdir())) or "nothing"
        raise ModelUnloadable(
            f"no {CONFIG} in {str(folder)!r}; it holds: {seen}",
            "Give a folder written by save_pretrained, or package.module:callable for any other module.",
        )
    return read_config(folder / CONFIG), _find_weights(folder, allow_pickle)


def read_config(path: Path) -> Mapping[str, object]:
    try:
        content = read_json(path)
    except ValueError as error:
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
            _check_index(folder / name, allow_pickle=False)
            return "safetensors"
    pickles = [name for name in _PICKLES if (folder / name).is_file()]
    strays = sorted(path.name for path in folder.glob("*.safetensors"))
    if strays and not pickles:
        # Weights under another name would otherwise be replaced by random ones without a word of why.
        raise ModelUnloadable(
            f"{str(folder)!r} has {strays[0]!r} but neither {_SAFETENSORS[0]!r} nor {_SAFETENSORS[1]!r}",
            "Rename or complete the checkpoint, or give the path of config.json itself for random weights.",
        )
    if not pickles:
        return None
    if not allow_pickle:
        raise _pickle_refused(folder, pickles[0])
    _check_index(folder / pickles[0], allow_pickle)
    return "pickle"


def refuse_pickles(folder: Path, allow_pickle: bool) -> None:
    """Stop at a folder of several models, each in a folder of its own, if the only weights of one are in a pickle."""
    for directory in (folder, *sorted(path for path in folder.iterdir() if path.is_dir())):
        pickles = sorted(path for path in directory.iterdir() if path.suffix in _PICKLE_SUFFIXES)
        if pickles and not allow_pickle and not any(directory.glob("*.safetensors")):
            raise _pickle_refused(directory, pickles[0].name)
        for index in directory.glob("*.index.json"):
            _check_index(index, allow_pickle)


def _pickle_refused(folder: Path, name: str) -> ModelUnloadable:
    return ModelUnloadable(
        f"the only weights in {str(folder)!r} are in {name!r}, a pickle, which can run code",
        "Convert it to safetensors, or pass --allow-pickle if you trust where it comes from.",
    )


def _check_index(path: Path, allow_pickle: bool) -> None:
    """Every shard that an index names must be a file of the folder itself, and no pickle under another's name."""
    if path.suffix != ".json":
        return
    for shard in _read_shards(path):
        _check_shard(path, shard)
        if not allow_pickle:
            _refuse_pickled_shard(path, shard)


def _read_shards(index: Path) -> list[str]:
    shards = read_config(index).get("weight_map")
    if not isinstance(shards, dict):
        raise ModelUnloadable(f"{str(index)!r} has no 'weight_map'", "Write the checkpoint again.")
    return sorted({str(shard) for shard in shards.values()})


def _refuse_pickled_shard(index: Path, shard: str) -> None:
    """Libraries go by the suffix of each shard, whatever the index is called: anything else is unpickled."""
    if not shard.endswith(".safetensors"):
        raise ModelUnloadable(
            f"{str(index)!r} names {shard!r}, which is no safetensors file and would be read as a pickle",
            "Do not use this checkpoint unless you know why it does so.",
        )


def _check_shard(index: Path, shard: str) -> None:
    """Path traversal: an index from elsewhere must not make transformers open files beside the checkpoint."""
    parts = PurePosixPath(shard.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or ":" in shard:
        raise ModelUnloadable(
            f"{str(index)!r} names a file outside its folder: {shard!r}",
            "Do not use this checkpoint unless you know why it does so.",
        )
    if not (index.parent / shard).is_file():
        raise ModelUnloadable(
            f"{str(index)!r} names {shard!r}, which is missing", "Copy or download every shard of the checkpoint."
        )


@dataclass(frozen=True)
class Blueprint:
    """A configuration and the class that it asks for, before any weights. raw: as it is in the file."""

    source: str
    origin: str | Path
    raw: Mapping[str, object]
    config: Any
    builder: Any
    notes: tuple[str, ...]

    def build(self, config: Any, options: ModelSource) -> torch.nn.Module:
        """With random weights, or on the `meta` device without."""
        dtype = loading_dtype(options)
        chosen: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
        if hasattr(self.builder, "from_config"):
            chosen["trust_remote_code"] = options.trust_remote_code
        build = getattr(self.builder, "from_config", None) or self.builder._from_config
        module: torch.nn.Module = build(config, **chosen)
        return module

    def ensure_buildable(self, options: ModelSource) -> None:
        """Before any module is made: a stranger's configuration may ask for a million layers."""

        def build(raw: Mapping[str, object]) -> torch.nn.Module:
            config = self.config if raw is self.raw else type(self.config).from_dict(dict(raw))
            return self.build(copy.deepcopy(config), options)

        ensure_buildable(self.raw, build, self.source, in_memory=options.weights)


def load_folder(source: str, folder: Path, options: ModelSource) -> LoadedModel:
    """A folder written by save_pretrained; random weights, with a note, where it has only a config.json."""
    raw, weights = open_checkpoint(folder, options.allow_pickle)
    with quiet_transformers():
        blueprint = read_blueprint(source, folder, raw, options)
        if weights is None:
            module, notes = _build_random(blueprint, options)
        else:
            module, notes = _load_weights(blueprint, options, weights == "safetensors")
    notes = (*notes, *note_conversion(raw, folder if weights == "safetensors" else None, options))
    return LoadedModel(module, source, folder, notes=notes, processing=folder, dtype=loading_dtype(options))


def load_config_file(source: str, path: Path, options: ModelSource) -> LoadedModel:
    """Random weights, even if trained ones lie beside the file: the user named the configuration alone."""
    raw = read_config(path)
    with quiet_transformers():
        module, notes = _build_random(read_blueprint(source, path, raw, options), options)
    return LoadedModel(module, source, path.parent, None, notes, path.parent, loading_dtype(options))


def load_hub(source: str, options: ModelSource) -> LoadedModel:
    """A model by its hub id; from the local cache where the hub cannot be reached."""
    with quiet_transformers():
        offline = not hub_is_reachable()
        config_path = _fetch_config(source, options, offline)
        raw = read_config(config_path)
        blueprint = read_blueprint(source, source, raw, options, offline)
        if not options.allow_pickle and (index := _cached_file(source, _SAFETENSORS[1], options, offline)):
            for shard in _read_shards(index):
                _refuse_pickled_shard(index, shard)
        module, notes = _load_weights(blueprint, options, not options.allow_pickle, offline)
    notes = (*notes, *note_conversion(raw, config_path.parent, options))
    return LoadedModel(module, source, notes=notes, processing=source, dtype=loading_dtype(options))


def _cached_file(source: str, name: str, options: ModelSource, offline: bool) -> Path | None:
    """A file of a model on the hub; None where it has none of this name."""
    cached_file = library("transformers.utils").cached_file
    path = cached_file(
        source,
        name,
        revision=options.revision,
        local_files_only=offline,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if path is None else Path(str(path))


def _fetch_config(source: str, options: ModelSource, offline: bool) -> Path:
    try:
        cached_file = library("transformers.utils").cached_file
        return Path(str(cached_file(source, CONFIG, revision=options.revision, local_files_only=offline)))
    except Exception as error:
        if offline:
            raise ModelNotFound(
                f"{source!r} is not a local folder, and the Hugging Face hub cannot be reached (offline); "
                "the model is not in the local cache either",
                "Download the model where there is a network, then give its folder: -m ./folder-with-config.json",
            ) from error
        raise ModelNotFound(
            f"{source!r} is neither a local folder nor a model on the Hugging Face hub: {summarize_error(error)}",
            "Check the spelling, or log in with `hf auth login` if the model is private.",
        ) from error


def read_blueprint(
    source: str, origin: str | Path, raw: Mapping[str, object], options: ModelSource, offline: bool = False
) -> Blueprint:
    refuse_remote_code(raw, source, options)
    transformers = library("transformers")
    location: dict[str, Any] = {"revision": options.revision or "main", "local_files_only": offline}
    with explain_failure(f"transformers cannot read the configuration of {source!r}", "Is config.json complete?"):
        # Not `raw`: a configuration can name another file, which is read in its place.
        content, _ = transformers.PreTrainedConfig.get_config_dict(origin, **location)
        if content.get("model_type") in transformers.CONFIG_MAPPING:
            described = transformers.CONFIG_MAPPING[content["model_type"]]
            ensure_readable(content, lambda changed: described.from_dict(dict(changed)), source)
        config = transformers.AutoConfig.from_pretrained(
            origin, trust_remote_code=options.trust_remote_code, **location
        )
    notes: tuple[str, ...] = ()
    if raw.get("auto_map") and not options.trust_remote_code:
        notes = ("the checkpoint's own code (auto_map) was not used; transformers has this architecture",)
    return Blueprint(source, origin, content, config, model_class(config, raw, options), notes)


def _build_random(blueprint: Blueprint, options: ModelSource) -> tuple[torch.nn.Module, tuple[str, ...]]:
    with explain_failure(f"transformers cannot build a model from the configuration of {blueprint.source!r}"):
        blueprint.ensure_buildable(options)
        with seed_torch(options.seed):
            module = blueprint.build(blueprint.config, options)
    note = f"random weights (config.json without weights), seed {options.seed}"
    return module, (*blueprint.notes, note)


def _load_weights(
    blueprint: Blueprint, options: ModelSource, safetensors_only: bool, offline: bool = False
) -> tuple[torch.nn.Module, tuple[str, ...]]:
    hint = "" if options.allow_pickle else "If the weights are a pickle that you trust, pass --allow-pickle."
    with explain_failure(f"transformers cannot load {blueprint.source!r}", hint), seed_torch(options.seed):
        blueprint.ensure_buildable(options)
        module, report = blueprint.builder.from_pretrained(
            blueprint.origin,
            config=blueprint.config,
            dtype=loading_dtype(options) or "auto",
            use_safetensors=True if safetensors_only else None,
            trust_remote_code=options.trust_remote_code,
            revision=options.revision or "main",
            local_files_only=offline,
            # Asked for so that the mismatch is in the report, with its shapes, instead of in a log.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    refuse_foreign_weights(blueprint, module, report)
    return module, (*blueprint.notes, *note_missing(report, options))


def note_missing(report: Mapping[str, Any], options: ModelSource) -> tuple[str, ...]:
    missing = sorted(report["missing_keys"])
    note = f"not in the checkpoint, so random from seed {options.seed}: {some_of(missing)}"
    return (note,) if missing else ()


def refuse_foreign_weights(blueprint: Blueprint, module: torch.nn.Module, report: Mapping[str, Any]) -> None:
    """transformers itself would go on with random weights, and with a log line that nobody sees."""
    mismatched = sorted(report["mismatched_keys"])
    if mismatched:
        name, stored, expected = mismatched[0]
        raise ModelUnloadable(
            f"{len(mismatched)} weights of {blueprint.source!r} do not fit its configuration; "
            f"{name!r} is {tuple(stored)} in the file and {tuple(expected)} in the model",
            "Use the config.json that was saved with these weights.",
        )
    parameters = {name for name, _ in module.named_parameters()}
    if parameters and parameters <= set(report["missing_keys"]):
        raise ModelUnloadable(
            f"the weights of {blueprint.source!r} belong to another model: none of the {len(parameters)} "
            f"parameters of {type(module).__name__} is in the file",
            "Use the config.json that was saved with these weights, or another --task.",
        )
