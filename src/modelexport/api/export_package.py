"""Export of a package: one file for each entry point of a model, laid out for a consumer, with one description.

    load, run `generate`   ─► entry points     which files the model takes              capture/generation
    contract of a target   ─► names            file names, inputs, outputs, what lies beside    targets
    export each            ─► tagged files     as any other export                      export_run.py
    modelexport.json       ─► links, cache pairs, digests, modules that are in no file  graph/file/package

Everything is written into a folder beside the target first, and appears as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

from modelexport.api.environment import Clock, need_torch
from modelexport.api.export_run import ExportRun
from modelexport.api.options import ExportOptions
from modelexport.api.package import Package
from modelexport.api.package_writing import describe_component, list_data, settle_data
from modelexport.errors import UserError
from modelexport.graph.file.folder import copy_beside, ensure_folder_target, staged_folder
from modelexport.graph.file.package import write_package
from modelexport.graph.file.reading import open_model
from modelexport.record.configuration import ModelConfiguration
from modelexport.record.hierarchy import ROOT, Hierarchy
from modelexport.record.model_source import ModelSource
from modelexport.record.package import AbsentModule, ComponentInfo, ComponentLink, PackageInfo
from modelexport.record.provenance import Provenance
from modelexport.record.results.files import ExportResult
from modelexport.targets.catalogue import find_contract
from modelexport.targets.contract import (
    PIPELINE,
    SINGLE,
    ComponentGraph,
    Contract,
    ModelFacts,
    describe_graph,
    expect_kind,
    find_kind,
    is_side_file,
)

if TYPE_CHECKING:
    from modelexport.capture.entry_point import EntryPoint
    from modelexport.capture.generation.prepare import Components

WITH_PAST = "-with-past"
# What encoders return, by the name that decoders take it under.
_HANDED_ON = {"last_hidden_state": "encoder_hidden_states"}
_ENTRY_TASKS = frozenset({"sentence-similarity"})


@dataclass(frozen=True)
class PackageOptions:
    """
    export         how each file is exported
    target         the consumer that the folder is for; None for none
    force          whether a folder that is not empty may be written into
    any_exporter   nobody chose one: models that generate are exported by the one that is made for them
    """

    export: ExportOptions
    target: str | None = None
    force: bool = False
    any_exporter: bool = True


def is_entry_task(task: str | None) -> bool:
    """Whether a task is another call of the model than its `forward`."""
    return task is not None and (task.endswith(WITH_PAST) or task in _ENTRY_TASKS)


def export_entry(source: ModelSource, path: Path, options: PackageOptions, clock: Clock) -> ExportResult:
    """The only entry point of a model as one file: a decoder with its cache, embeddings of sentences."""
    need_torch("exporting")
    from modelexport.capture.generation.windows import exportable_windows

    with exportable_windows():
        components = _prepare(source, find_contract(""), clock)
        if len(components.entries) > 1:
            names = ", ".join(entry.name for entry in components.entries)
            raise UserError(
                f"{components.source} takes {len(components.entries)} files ({names}), and {path} is one",
                f"Give a folder as output: -o {path.stem}/",
            )
        return _export_entry(components, components.entries[0], path, options, clock)


def export_package(source: ModelSource, folder: Path, options: PackageOptions, clock: Clock) -> Package:
    contract = find_contract(options.target or "")
    if options.export.jit_graph is not None:
        raise UserError(
            f"a package has several graphs, and {options.export.jit_graph} is one file",
            "Leave --jit-graph out, or export one file: -o FILE.onnx.",
        )
    ensure_folder_target(folder, force=options.force)
    need_torch("exporting")
    from modelexport.capture.generation.windows import exportable_windows

    with exportable_windows(forget=contract.forgets), staged_folder(folder, force=options.force) as staged:
        components = _prepare(source, contract, clock)
        kind = components.kind or find_kind(entry.name for entry in components.entries)
        contract.refuse(ModelFacts(components.configuration, kind, tuple(map(_describe_entry, components.entries))))
        results: dict[str, ExportResult] = {}
        for entry in components.entries:
            path = staged / contract.file_of(kind, entry.name)
            path.parent.mkdir(exist_ok=True)
            results[entry.name] = _export_entry(components, entry, path, options, clock)
        with clock.step("write"):
            files = {name: result.path.relative_to(staged).as_posix() for name, result in results.items()}
            settle_data(staged, [*files.values()], contract)
            results = {name: list_files(result, staged) for name, result in results.items()}
            listed = tuple(
                describe_component(ComponentInfo(entry.name, files[entry.name], cache=entry.cache), staged)
                for entry in components.entries
            )
            _write_beside(staged, components, contract, kind, listed)
            info = PackageInfo(
                components=listed,
                target=contract.name,
                model=components.source,
                task=source.task or "",
                links=tuple(find_links(listed, same_names=kind != PIPELINE)),
                absent=tuple(find_absent([result.provenance for result in results.values()])),
            )
            info = write_package(staged, info)
    moved = {name: move_result(result, staged, folder) for name, result in results.items()}
    return Package(folder, info, moved)


def _prepare(source: ModelSource, contract: Contract, clock: Clock) -> Components:
    from modelexport.capture.entry_point import rename_entry
    from modelexport.capture.generation.prepare import prepare_components

    def refuse(configuration: ModelConfiguration, generates: bool) -> None:
        _refuse_request(source, generates)
        contract.refuse(ModelFacts(configuration, expect_kind(configuration) if generates else SINGLE))

    # The suffix is optimum's: the same model, with its cache.
    loaded = replace(source, task=source.task and source.task.removesuffix(WITH_PAST))
    components = prepare_components(
        loaded, clock.step, refuse, merged=contract.merges, encodes_keys=contract.encodes_keys
    )
    entries = [entry for entry in components.entries if entry.name not in contract.unused]
    renamed = tuple(rename_entry(entry, contract.rename, contract.axes) for entry in entries)
    return replace(components, entries=renamed)


def _refuse_request(source: ModelSource, generates: bool) -> None:
    """Raise for what cannot be had of a model, before it is run."""
    task = source.task or ""
    if generates and source.static:
        raise UserError("a cache grows with every token, and --static fixes every axis", "Leave --static out.")
    if not generates and task.endswith(WITH_PAST):
        raise UserError(
            f"the task {task!r} is about a cache, and the model does not generate",
            f"Give a task whose model generates, or {task.removesuffix(WITH_PAST)!r} for one forward pass.",
        )


def _describe_entry(entry: EntryPoint) -> ComponentGraph:
    """What of a graph is known before it is exported: enough to tell what a consumer cannot feed or hand on."""
    shapes = {
        name: tuple(entry.axes.get(name, {}).get(axis, size) for axis, size in enumerate(tensor.shape))
        for name, tensor in entry.inputs.items()
    }
    return ComponentGraph(entry.name, shapes, {}, entry.cache)


def _export_entry(
    components: Components, entry: EntryPoint, path: Path, options: PackageOptions, clock: Clock
) -> ExportResult:
    from modelexport.capture.arguments import CallArguments
    from modelexport.capture.entry_point import entered
    from modelexport.capture.export import PreparedModel

    arguments = CallArguments(dict(entry.inputs))
    prepared = PreparedModel(
        components.module, arguments, entry.axes, components.source, (*components.notes, *entry.notes), entry.others
    )
    chosen = options.export
    if options.any_exporter and any(each.cache for each in components.entries):
        chosen = replace(chosen, exporter="transformers")
    with entered(components.module, entry):
        return ExportRun(prepared, path, chosen, clock).run()


def _write_beside(
    staged: Path, components: Components, contract: Contract, kind: str, listed: Iterable[ComponentInfo]
) -> None:
    """The consumer's configuration, and what the model's folder has for tokens and images."""
    for path in components.beside:
        folder = components.folder or path.parent
        copy_beside(path, folder, staged / path.relative_to(folder))
    if not components.configuration.model:
        return
    graphs = tuple(describe_graph(item.name, open_model(staged / item.file).proto.graph, item.cache) for item in listed)
    external = frozenset(item.file for item in listed if item.data)
    facts = ModelFacts(components.configuration, kind, graphs, external)
    for name, text in contract.write_configuration(facts).items():
        (staged / name).write_text(text, encoding="utf-8")
    if components.folder is None:
        return
    for path in sorted(components.folder.iterdir()):
        if path.is_file() and is_side_file(path.name) and not (staged / path.name).exists():
            copy_beside(path, components.folder, staged / path.name)


def find_links(components: Iterable[ComponentInfo], *, same_names: bool = True) -> Iterator[ComponentLink]:
    """Outputs of one component that another takes: under the same name, as hidden states, or as the past.

    same_names  False where one name means several things: a `sample` of diffusers is an image or what it is made from
    """
    for source, target in permutations(components, 2):
        for output in source.outputs:
            # A decoder of later steps takes what the first step made of the encoder's output, and never returns it.
            past = output.replace("present.", "past_key_values.", 1)
            equal = (output, past) if same_names else ()
            taken = dict.fromkeys((*equal, _HANDED_ON.get(output, "")))
            yield from (
                ComponentLink(source.name, output, target.name, name) for name in taken if name in target.inputs
            )


def find_absent(records: Sequence[Provenance]) -> Iterator[AbsentModule]:
    """Modules with parameters of their own that own neither a node nor an initializer in any file.

    The root runs in every file, so what it owns of nodes says nothing about its parameters: it is absent if it owns no
    initializer.
    """
    owning = {path for record in records for path in record.owning_paths} - {ROOT}
    weights = (attribution for record in records for attribution in record.initializers.values())
    owning |= {ROOT for attribution in weights if any(owner.path == ROOT for owner in attribution.owners)}
    reasons = {path: reason for record in records for path, reason in record.absent.items()}
    reasons[ROOT] = "no file reads the parameters of the model itself"
    hierarchy: Hierarchy = records[0].hierarchy
    for path, module in hierarchy.modules.items():
        # A parameter that the root shares with a module inside of it is in a file with that one.
        parameters = sum(tensor.size for tensor in module.parameters if path != ROOT or not tensor.tied)
        if parameters and path not in owning:
            reason = reasons.get(path, "no entry point of the model runs it")
            yield AbsentModule(path, module.class_name, parameters, reason)


def list_files(result: ExportResult, staged: Path) -> ExportResult:
    """The files of a component, after its data may have gone to others."""
    data = [staged / name for name in list_data(open_model(result.path), result.path, staged)]
    others = [path for path in result.files if path != result.path and path not in data and path.is_file()]
    return replace(result, files=(result.path, *data, *others))


def move_result(result: ExportResult, staged: Path, folder: Path) -> ExportResult:
    files = tuple(folder / path.relative_to(staged) for path in result.files)
    return replace(result, path=folder / result.path.relative_to(staged), files=files)
