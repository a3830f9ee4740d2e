"""Models that transformers loads: a local folder, a configuration alone, a hub id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from modelexport.capture.loading.auto_class import model_class, refuse_remote_code
from modelexport.capture.loading.checkpoint import CONFIG, open_checkpoint, read_config
from modelexport.capture.loading.loaded import LoadedModel, LoadOptions
from modelexport.capture.loading.third_party import explained, hub_answers, library, quiet, reason, seeded
from modelexport.errors import ModelNotFound, ModelUnloadable
from modelexport.record.wording import some_of

_SHOWN_KEYS = 3


@dataclass(frozen=True)
class _Blueprint:
    """A configuration and the class that it asks for, before any weights."""

    source: str
    origin: str | Path
    config: Any
    builder: Any
    notes: tuple[str, ...]


def load_folder(source: str, folder: Path, options: LoadOptions) -> LoadedModel:
    checkpoint = open_checkpoint(folder, options.allow_pickle)
    with quiet():
        blueprint = _draw(source, folder, checkpoint.config, options)
        if checkpoint.weights is None:
            module, notes = _build_random(blueprint, options)
        else:
            module, notes = _load_weights(blueprint, options, checkpoint.weights == "safetensors")
    return LoadedModel(module, source, folder, notes=notes, processing=folder)


def load_config_file(source: str, path: Path, options: LoadOptions) -> LoadedModel:
    """Random weights, even if trained ones lie beside the file: the user named the configuration alone."""
    raw = read_config(path)
    with quiet():
        module, notes = _build_random(_draw(source, path, raw, options), options)
    return LoadedModel(module, source, path.parent, notes=notes, processing=path.parent)


def load_hub(source: str, options: LoadOptions) -> LoadedModel:
    with quiet():
        offline = not hub_answers()
        raw = read_config(_fetch_config(source, options, offline))
        blueprint = _draw(source, source, raw, options, offline)
        module, notes = _load_weights(blueprint, options, not options.allow_pickle, offline)
    return LoadedModel(module, source, notes=notes, processing=source)


def _fetch_config(source: str, options: LoadOptions, offline: bool) -> Path:
    try:
        found = library("transformers.utils").cached_file(
            source, CONFIG, revision=options.revision, local_files_only=offline
        )
    except Exception as error:
        raise _not_found(source, offline, error) from error
    return Path(str(found))


def _not_found(source: str, offline: bool, error: Exception) -> ModelNotFound:
    if offline:
        return ModelNotFound(
            f"{source!r} is not a local folder, and the Hugging Face hub cannot be reached (offline); "
            "the model is not in the local cache either",
            "Download the model where there is a network, then give its folder: -m ./folder-with-config.json",
        )
    return ModelNotFound(
        f"{source!r} is neither a local folder nor a model on the Hugging Face hub: {reason(error)}",
        "Check the spelling, or log in with `hf auth login` if the model is private.",
    )


def _draw(
    source: str, origin: str | Path, raw: Mapping[str, object], options: LoadOptions, offline: bool = False
) -> _Blueprint:
    refuse_remote_code(raw, source, options)
    with explained(f"transformers cannot read the configuration of {source!r}", "Is config.json complete?"):
        config = library("transformers").AutoConfig.from_pretrained(
            origin,
            trust_remote_code=options.trust_remote_code,
            revision=options.revision or "main",
            local_files_only=offline,
        )
    builder = model_class(config, raw, options)
    return _Blueprint(source, origin, config, builder, _code_note(raw, options))


def _code_note(raw: Mapping[str, object], options: LoadOptions) -> tuple[str, ...]:
    if not raw.get("auto_map") or options.trust_remote_code:
        return ()
    return ("the checkpoint's own code (auto_map) was not used; transformers has this architecture",)


def _build_random(blueprint: _Blueprint, options: LoadOptions) -> tuple[torch.nn.Module, tuple[str, ...]]:
    builder, config = blueprint.builder, blueprint.config
    with explained(f"transformers cannot build a model from the configuration of {blueprint.source!r}"):
        dtype = {"dtype": options.torch_dtype()} if options.dtype else {}
        with seeded(options.seed):
            if hasattr(builder, "from_config"):
                module = builder.from_config(config, trust_remote_code=options.trust_remote_code, **dtype)
            else:
                module = builder._from_config(config, **dtype)
    note = f"random weights (config.json without weights), seed {options.seed}"
    return module, (*blueprint.notes, note)


def _load_weights(
    blueprint: _Blueprint, options: LoadOptions, safetensors_only: bool, offline: bool = False
) -> tuple[torch.nn.Module, tuple[str, ...]]:
    hint = "" if options.allow_pickle else "If the weights are a pickle that you trust, pass --allow-pickle."
    with explained(f"transformers cannot load {blueprint.source!r}", hint), seeded(options.seed):
        module, report = blueprint.builder.from_pretrained(
            blueprint.origin,
            config=blueprint.config,
            dtype=options.torch_dtype() or "auto",
            use_safetensors=True if safetensors_only else None,
            trust_remote_code=options.trust_remote_code,
            revision=options.revision or "main",
            local_files_only=offline,
            # Asked for so that the mismatch is in the report, with its shapes, instead of in a log.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    _refuse_foreign_weights(blueprint, module, report)
    return module, (*blueprint.notes, *_missing_note(report["missing_keys"], options.seed))


def _refuse_foreign_weights(blueprint: _Blueprint, module: torch.nn.Module, report: Mapping[str, Any]) -> None:
    mismatched = sorted(report["mismatched_keys"])
    if mismatched:
        name, found, expected = mismatched[0]
        raise ModelUnloadable(
            f"{len(mismatched)} weights of {blueprint.source!r} do not fit its configuration; "
            f"{name!r} is {tuple(found)} in the file and {tuple(expected)} in the model",
            "Use the config.json that was saved with these weights.",
        )
    parameters = {name for name, _ in module.named_parameters()}
    if parameters and parameters <= set(report["missing_keys"]):
        raise ModelUnloadable(
            f"the weights of {blueprint.source!r} belong to another model: none of the {len(parameters)} "
            f"parameters of {type(module).__name__} is in the file",
            "Use the config.json that was saved with these weights, or another --task.",
        )


def _missing_note(missing: set[str], seed: int) -> tuple[str, ...]:
    if not missing:
        return ()
    shown = some_of(sorted(missing), _SHOWN_KEYS)
    return (f"not in the checkpoint, so random from seed {seed}: {shown}",)
