"""Attach to a folder: one that another tool made of a model becomes a package.

    builder-out/  model.onnx, model.onnx.data, genai_config.json, tokenizer.json       onnxruntime-genai's builder
    optimum-out/  encoder_model.onnx, decoder_model.onnx, …, config.json               optimum, transformers' exporter

Every .onnx file is attached as a file is (attach.py), the model loaded once. What a file is for is told by the call of
the model that it does the work of; else by its name, as consumers know it. The other files are copied as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from modelexport.api.environment import Clock, need_torch
from modelexport.api.export_package import find_absent, find_links, list_files, move_result
from modelexport.api.package import Package
from modelexport.api.package_writing import describe_component, ensure_apart_from, settle_data
from modelexport.api.prepare_file import fit_dtype, judge_prepared, prepare_for_file
from modelexport.api.writing import write_tagged
from modelexport.errors import FileUnreadable, UserError
from modelexport.graph.file.external import data_files
from modelexport.graph.file.folder import copy_beside, ensure_folder_target, staged_folder
from modelexport.graph.file.metadata import EmbedOptions, sidecar_path
from modelexport.graph.file.package import write_package
from modelexport.graph.file.tagged_file import open_tagged
from modelexport.record.json_reading import read_json
from modelexport.record.model_source import ModelSource
from modelexport.record.package import PACKAGE_FILE, CachePair, ComponentInfo, PackageInfo
from modelexport.record.results.files import ExportResult
from modelexport.record.tags import TagPolicy
from modelexport.targets.catalogue import TARGETS, find_contract

_GENAI_CONFIG = "genai_config.json"
# Sections of genai_config.json that have a file of their own.
_SECTIONS = {"decoder": "decoder", "encoder": "encoder", "vision": "vision_encoder", "embedding": "embedding"}
_SECTIONS |= {"speech": "audio_encoder"}
_MERGES, _LOOKS_UP = "embedding", "embed_tokens"


@dataclass(frozen=True)
class AttachOptions:
    strategy: str
    policy: TagPolicy
    embedding: EmbedOptions
    force: bool = False


@dataclass(frozen=True)
class _Attached:
    """One file of the folder: where it is, its cache, and what was found out."""

    path: Path
    entry: str
    cache: tuple[CachePair, ...]
    result: ExportResult


def attach_package(folder: Path, source: ModelSource, output: Path, options: AttachOptions, clock: Clock) -> Package:
    """Tag every .onnx file of a folder; the package appears as a whole, or nothing does."""
    ensure_folder_target(output, force=options.force)
    models = find_models(folder)
    ensure_apart_from(folder, output)
    need_torch("running a model")
    with staged_folder(output, force=options.force) as staged:
        attached = list(_attach_all(models, folder, staged, source, options, clock))
        _copy_others(folder, staged, models)
        # Attached one by one, each file has weights of its own; the consumer wants them as it knows them.
        files = [item.result.path.relative_to(staged).as_posix() for item in attached]
        settle_data(staged, files, find_contract(_find_target(folder, files)))
        components = _describe(folder, staged, attached)
        records = [item.result.provenance for item in attached]
        info = PackageInfo(
            components,
            target=_find_target(folder, files),
            model=str(source.model) if isinstance(source.model, str | Path) else records[0].origin.model,
            task=source.task or "",
            links=tuple(find_links(components)),
            absent=tuple(find_absent(records)),
        )
        listed = [list_files(item.result, staged) for item in attached]
        info = write_package(staged, info)
    results = (move_result(item, staged, output) for item in listed)
    return Package(output, info, dict(zip((item.name for item in components), results, strict=True)))


def _attach_all(
    models: Iterable[Path], folder: Path, staged: Path, source: ModelSource, options: AttachOptions, clock: Clock
) -> Iterator[_Attached]:
    for path in models:
        file = open_tagged(path)
        prepared = prepare_for_file(file, fit_dtype(file, source), clock)
        verdict = judge_prepared(file, prepared, options.strategy, clock)
        # The other files are of the same model: it is loaded once.
        source = source.with_module(prepared.module)
        target = staged / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        with clock.step("write"):
            provenance = replace(verdict.provenance, policy=options.policy)
            written = write_tagged(file, provenance, target, options.embedding)
        result = ExportResult(target, written.files, written.provenance, None, verdict.notes, clock.seconds)
        entry = prepared.entry
        yield _Attached(path, entry.name if entry else "", entry.cache if entry else (), result)


def find_models(folder: Path) -> list[Path]:
    """The .onnx files of a folder and of those directly in it."""
    models = sorted((*folder.glob("*.onnx"), *folder.glob("*/*.onnx")))
    if not models:
        raise FileUnreadable(f"{folder} has no .onnx file in it", "Give the folder that the exporter wrote.")
    return models


def _copy_others(folder: Path, staged: Path, models: Iterable[Path]) -> None:
    """Everything but models, their weights and their records."""
    left_out = {folder / PACKAGE_FILE}
    for path in models:
        left_out |= {path, sidecar_path(path), *data_files(open_tagged(path).proto, path.parent)}
    for path in sorted(folder.rglob("*")):
        target = staged / path.relative_to(folder)
        if path.is_file() and path not in left_out and not target.exists():
            copy_beside(path, folder, target)


def _describe(folder: Path, staged: Path, attached: Iterable[_Attached]) -> tuple[ComponentInfo, ...]:
    known = name_components(folder)
    components: list[ComponentInfo] = []
    for item in attached:
        name = known.get(item.path.relative_to(folder).as_posix()) or item.entry or item.path.stem
        if any(name == other.name for other in components):
            name = item.path.stem  # two decoders of one folder, in several types, say
        relative = item.result.path.relative_to(staged).as_posix()
        components.append(describe_component(ComponentInfo(name, relative, cache=item.cache), staged))
    return tuple(components)


def name_components(folder: Path) -> dict[str, str]:
    """Files of a folder, mapped to what they are for: by genai_config.json, else by the names that consumers know."""
    named: dict[str, str] = {}
    for target in ("", *TARGETS):
        for files in find_contract(target).files.values():
            for component, file in files.items():
                named.setdefault(file, component)
    # One forward pass and a decoder have the same name: what the file does tells which it is.
    named.pop("model.onnx", None)
    sections = {file: _SECTIONS[section] for section, file in _read_genai_files(folder).items()}
    return named | {file: _tell_embedding(folder / file, name) for file, name in sections.items()}


def _tell_embedding(path: Path, name: str) -> str:
    """The name of a component; of two that embed, the one that does what the file does.

    input_ids                     embed_tokens
    input_ids, image_features     embedding: it puts features in the place of tokens
    """
    if name != _MERGES or not path.is_file():
        return name
    return _MERGES if len(open_tagged(path).graph.fed_inputs) > 1 else _LOOKS_UP


def _read_genai_files(folder: Path) -> Mapping[str, str]:
    """File names of the sections of genai_config.json; none where there is no such file."""
    path = folder / _GENAI_CONFIG
    if not path.is_file():
        return {}
    try:
        model = read_json(path)["model"]
        sections = {section: model[section] for section in _SECTIONS if section in model}
        return {section: str(content["filename"]) for section, content in sections.items() if "filename" in content}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not a configuration of onnxruntime-genai: {error}", "Make the folder again, or remove the file."
        ) from error


def _find_target(folder: Path, files: Iterable[str]) -> str:
    if (folder / _GENAI_CONFIG).is_file():
        return "genai"
    if any(file.startswith("onnx/") for file in files):
        return "transformersjs"
    return "optimum" if (folder / "config.json").is_file() else ""
