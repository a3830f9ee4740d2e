"""Writing verbs on packages: a folder from a package, with what the verb makes of each file.

    strip_package(package, Path("plain"))            a package from a package: every file of it, the files changed
    convert_package(package, Path("graphs"), "dot")  graphs/encoder.dot, graphs/decoder.dot

`rewrite_package` is for verbs whose result is a package again: it copies what is not a component (configuration,
tokenizer, …), has each component written, and describes the folder anew. All of it appears at once, or nothing does.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from modelexport.api.convert import convert
from modelexport.api.fold import Stripped, parse_kept_keys, strip_model
from modelexport.api.options import as_sequence
from modelexport.api.package import Component, Package, open_package
from modelexport.api.package_reading import answer_package
from modelexport.api.package_view import share_overlay_paths
from modelexport.api.select import Selected, select
from modelexport.errors import FileUnwritable, UserError
from modelexport.graph.file.external import data_files
from modelexport.graph.file.folder import staged_folder
from modelexport.graph.file.metadata import sidecar_path
from modelexport.graph.file.package import write_package
from modelexport.graph.file.reading import open_model
from modelexport.graph.file.tagged_file import open_tagged
from modelexport.graph.file.writing import save_model
from modelexport.record.package import ComponentInfo, PackageInfo
from modelexport.show.formats.catalogue import NETRON
from modelexport.transform.select.dialect import Settings

WriteComponent = Callable[[Component, Path], object]


def rewrite_package(package: Package, output: Path, write: WriteComponent, *, force: bool = False) -> Package:
    """A package whose components are what `write` makes of them; it is given a component and the path to write to.

    Files that belong to no component are copied as they are, those that only the old components used are left out.
    """
    ensure_apart_from(package, output)
    with staged_folder(output, force=force) as folder:
        for name in _other_files(package):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(package.folder / name, target)
        for component in package.components.values():
            target = folder / component.info.file
            target.parent.mkdir(parents=True, exist_ok=True)
            write(component, target)
        write_package(folder, _describe_written(package.info, folder))
    return open_package(output)


def ensure_apart_from(package: Package, output: Path) -> None:
    """Raise if a folder is that of the package, inside of it, or around it: what is read would be lost."""
    source, target = package.folder.resolve(), output.resolve()
    if target == source or source in target.parents or target in source.parents:
        raise FileUnwritable(
            f"cannot write {output}: the package {package.folder} is read here", "Write to a folder beside it."
        )


def _other_files(package: Package) -> list[str]:
    """Everything but models, their weights and their records."""
    owned: set[str] = set()
    for component in package.info.components:
        sidecar = sidecar_path(Path(component.file)).as_posix()
        owned |= {component.file, sidecar, *component.data}
    return [name for name in package.info.files if name not in owned]


def _describe_written(info: PackageInfo, folder: Path) -> PackageInfo:
    """The description with the ends and data files that components have now, without pairs and links that are gone."""
    components = tuple(_describe_component(component, folder) for component in info.components)
    by_name = {component.name: component for component in components}
    links = tuple(
        link
        for link in info.links
        if link.output in by_name[link.source].outputs and link.input in by_name[link.target].inputs
    )
    return replace(info, components=components, links=links)


def _describe_component(component: ComponentInfo, folder: Path) -> ComponentInfo:
    path = folder / component.file
    model = open_model(path)
    graph = model.graph
    inputs = tuple(name for name in graph.inputs if name not in graph.initializers)
    data = sorted(file.relative_to(folder).as_posix() for file in data_files(model.proto, path.parent))
    cache = tuple(pair for pair in component.cache if pair.past in inputs and pair.present in graph.outputs)
    return replace(component, inputs=inputs, outputs=graph.outputs, cache=cache, data=tuple(data))


def copy_component(component: Component, target: Path) -> None:
    """A component with its weights, under the same names: what only changes metadata then goes on with the copy.

    Weights that several components share stay one file.
    """
    folder = target.parents[len(Path(component.info.file).parts) - 1]
    shutil.copyfile(component.path, target)
    for name in component.info.data:
        if not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(component.folder / name, folder / name)


@dataclass(frozen=True)
class StrippedPackage:
    """The package that was written, and by component what was removed from its file."""

    package: Package
    components: Mapping[str, Stripped]


def strip_package(
    package: Package, output: Path, *, keep: Sequence[str] = (), exporter_metadata: bool = False, force: bool = False
) -> StrippedPackage:
    """Every file without the record and the keys on its nodes; the rest of the package as it was."""
    kept = parse_kept_keys(keep)
    stripped: dict[str, Stripped] = {}

    def write(component: Component, target: Path) -> None:
        copy_component(component, target)
        model = open_tagged(target)
        removal = strip_model(model, kept, exporter_metadata=exporter_metadata)
        save_model(model, target)
        stripped[component.name] = removal

    written = rewrite_package(package, output, write, force=force)
    components = {name: replace(item, files=(written[name].path,)) for name, item in stripped.items()}
    return StrippedPackage(written, components)


@dataclass(frozen=True)
class WrittenFolder:
    """A folder with what a verb made of every component.

    files  by component; components of which nothing was written are left out
    text   what was selected, if it is about one component and went to no folder
    notes  what there is to say about them
    """

    folder: Path | None
    files: Mapping[str, tuple[Path, ...]]
    text: str = ""
    notes: tuple[str, ...] = ()


# What other programs know a format by.
_ENDINGS = {"model-explorer": "json", "graphml": "graphml", "dot": "dot", "mermaid": "mmd", "csv": "csv"}


@dataclass(frozen=True)
class ConvertOptions:
    """Those of `convert`: how deep modules are shown, what is laid over them, what they are compared with."""

    depth: int | None = None
    overlays: Sequence[Path] = ()
    against: Package | None = None


def convert_package(
    package: Package, output: Path, to: str, options: ConvertOptions, *, force: bool = False
) -> WrittenFolder:
    """One file for each component, named after it; for netron, a package whose nodes are named after their modules."""
    if to == NETRON:
        return _write_netron_package(package, output, options, force=force)
    ensure_apart_from(package, output)
    laid, against = share_overlay_paths(package, options.overlays), options.against
    names: dict[str, list[str]] = {}
    notes: list[str] = []
    with staged_folder(output, force=force) as folder:
        for name, component in package.components.items():
            other = against[name].path if against is not None and name in against else None
            target = folder / f"{name}.{_ENDINGS[to]}"
            overlays = laid.get(name, ())
            converted = convert(component.path, target, to, depth=options.depth, overlays=overlays, against=other)
            notes += [f"{name}: {note}" for note in converted.notes]
            names[name] = [path.name for path in converted.files]
    return WrittenFolder(output, _place(names, output), notes=tuple(notes))


def _write_netron_package(package: Package, output: Path, options: ConvertOptions, *, force: bool) -> WrittenFolder:
    if options.overlays or options.against is not None:
        raise UserError(f"{NETRON} has no overlays and nothing to compare with", "Use them with --to model-explorer.")
    notes: list[str] = []

    def write(component: Component, target: Path) -> None:
        notes.extend(convert(component.path, target, NETRON, depth=options.depth).notes)

    written = rewrite_package(package, output, write, force=force)
    files = {name: (component.path,) for name, component in written.components.items()}
    return WrittenFolder(output, files, notes=tuple(notes))


_SELECTION_ENDINGS = {"ort-exclude": "json", "olive-split": "json", "modelopt": "json", "layer-ann": "onnx"}


_SELECTION_ENDINGS = {"ort-exclude": "json", "olive-split": "json", "modelopt": "json", "layer-ann": "onnx"}


def select_package(
    package: Package,
    query: str | Sequence[str],
    dialect: str,
    settings: Settings,
    output: Path | None = None,
    *,
    force: bool = False,
) -> WrittenFolder:
    """What another tool is told about every component in which the queries select something.

    Several components are several files in a folder; the selection of a single one can do without.
    """
    chosen = _find_selected(package, as_sequence(query))
    if output is None and len(chosen) > 1:
        raise UserError(
            f"the query selects nodes of {', '.join(chosen)}, and a tool is told about one file at a time",
            "Say which folder the lists go to: -o FOLDER; or give one of the .onnx files.",
        )

    def select_in(name: str, target: Path | None) -> Selected:
        path, device, label = package[name].path, settings.devices, settings.labels
        precision = settings.precision
        return select(path, query, dialect, output=target, precision=precision, device=device, label=label)

    notes = [f"nothing is selected in {name}" for name in package if name not in chosen]
    if output is None:
        selected = select_in(chosen[0], None)
        return WrittenFolder(None, {}, selected.text, (*notes, *selected.notes))
    ensure_apart_from(package, output)
    names: dict[str, list[str]] = {}
    with staged_folder(output, force=force) as folder:
        for name in chosen:
            selected = select_in(name, folder / f"{name}.{_SELECTION_ENDINGS.get(dialect, 'txt')}")
            names[name] = [path.name for path in selected.files]
            notes += [f"{name}: {note}" for note in (*selected.notes, f"{len(selected.nodes)} nodes selected")]
    return WrittenFolder(output, _place(names, output), notes=tuple(notes))


def _find_selected(package: Package, queries: Sequence[str]) -> list[str]:
    """Components in which every query means something. A name must be that of something in one of the files."""
    if not queries:
        raise UserError("there is no query", "Give one, such as op=MatMul.")
    answers = [answer_package(package, text) for text in queries]
    chosen = [name for name in package if all(answer.components[name].nodes for answer in answers)]
    if not chosen:
        texts = ", ".join(answer.query for answer in answers)
        reasons = dict.fromkeys(remark for answer in answers for remark in answer.remarks)
        hint = "; ".join(reasons) or "No file has nodes for all of the queries."
        raise UserError(f"nothing is selected in any file of {package.folder}: {texts}", hint)
    return chosen


def _place(names: Mapping[str, Sequence[str]], folder: Path) -> dict[str, tuple[Path, ...]]:
    return {component: tuple(folder / name for name in files) for component, files in names.items()}
