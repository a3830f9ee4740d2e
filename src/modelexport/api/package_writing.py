"""Writing from packages: a folder with what a verb makes of each component, complete or not there at all.

    rewrite_package(package, Path("plain"), write)   a package again: `write` is given a component and a path

It copies what is not a component (configuration, tokenizer, …), has each component written, and describes the folder
anew. Verbs whose result is no package stage a folder themselves (`staged_folder`) and return a `WrittenFolder`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from modelexport.api.package import Component, Package, open_package
from modelexport.errors import FileUnreadable, FileUnwritable, UserError
from modelexport.graph.file.external import own_data_files
from modelexport.graph.file.folder import copy_beside, staged_folder
from modelexport.graph.file.metadata import sidecar_path
from modelexport.graph.file.package import (
    digest_file,
    find_changed_files,
    find_file,
    list_files_beside,
    write_description,
    write_package,
)
from modelexport.graph.file.reading import ModelFile, open_model
from modelexport.graph.file.sharing import rename_data, share_data
from modelexport.graph.file.tagged_file import open_tagged
from modelexport.graph.file.writing import save_model
from modelexport.record.json_reading import read_json
from modelexport.record.package import ComponentInfo, PackageInfo
from modelexport.targets.catalogue import TARGETS, find_contract
from modelexport.targets.contract import CONFIG, Contract, write_json

WriteComponent = Callable[[Component, Path], object]


def rewrite_package(
    package: Package,
    output: Path,
    write: WriteComponent,
    *,
    files: Mapping[str, str] = MappingProxyType({}),
    force: bool = False,
) -> Package:
    """A package whose components are what `write` makes of them; it is given a component and the path to write to.

    Files that belong to no component are copied as they are, those that only the old components used are left out.

    files  by component, where it is to be called differently from before
    """
    components = tuple(replace(item, file=files.get(item.name, item.file)) for item in package.info.components)
    info, contract = replace(package.info, components=components), find_target(package)
    ensure_apart_from(package.folder, output)
    with staged_folder(output, force=force) as folder:
        for name in list_files_beside(package.info):
            _copy_listed(package, name, folder / name)
        for item in components:
            target = folder / item.file
            target.parent.mkdir(parents=True, exist_ok=True)
            write(package[item.name], target)
        settle_data(folder, [item.file for item in components], contract)
        described = _describe_written(info, folder)
        _list_external(folder, described, contract)
        write_package(folder, described)
    return open_package(output)


@dataclass(frozen=True)
class RepairedPackage:
    """A package after a repair.

    nodes    by component: how many were given other keys
    renewed  files beside the models that were edited since, and are listed now as they are
    """

    package: Package
    nodes: Mapping[str, int]
    renewed: tuple[str, ...]


def repair_package(package: Package, output: Path | None = None) -> RepairedPackage:
    """The keys on nodes written anew from the records, and edited files beside them listed anew.

    In place, a model that is not the one of the package is left alone: its digest would say that it is.
    """
    from modelexport.inspect.validate import repair_keys

    repaired = {name: repair_keys(open_tagged(component.path)) for name, component in package.components.items()}
    changed = {name: count for name, count in repaired.items() if count}

    def write(component: Component, target: Path) -> None:
        copy_tagged(component, target)
        file = open_tagged(target)
        repair_keys(file)
        save_model(file, target)

    beside = {name: package.info.files[name] for name in list_files_beside(package.info)}
    renewed = tuple(find_changed_files(package.folder, replace(package.info, files=beside)))
    if output is not None:
        return RepairedPackage(rewrite_package(package, output, write), repaired, renewed)
    # All files are looked at before the first is written: either the package is repaired or it is as it was.
    for name in changed:
        path, listed = package[name].path, package.info.files[package[name].info.file]
        if digest_file(path) != listed:
            raise UserError(
                f"{path} is not the file that the package was written with",
                "Repair into a new package, which lists it as it is: -o FOLDER.",
            )
    for name in changed:
        file = open_tagged(package[name].path)
        repair_keys(file)
        save_model(file, file.path)
    if not changed and not renewed:
        return RepairedPackage(package, {}, ())
    names = (*(package[name].info.file for name in changed), *renewed)
    # Not all digests: another model may have been put there by somebody else, and `validate` has to say so.
    files = {name: digest_file(find_file(package.folder, name)) for name in names}
    info = replace(package.info, files={**package.info.files, **files})
    write_description(package.folder, info)
    return RepairedPackage(open_package(package.folder), changed, renewed)


def ensure_apart_from(folder: Path, output: Path) -> None:
    """Raise if the output is the folder that is read, inside of it, or around it: what is read would be lost."""
    source, target = folder.resolve(), output.resolve()
    if target == source or source in target.parents or target in source.parents:
        raise FileUnwritable(f"cannot write {output}: {folder} is read here", "Write to a folder beside it.")


def _copy_listed(package: Package, name: str, target: Path) -> None:
    source = find_file(package.folder, name)
    if not source.is_file():
        raise FileUnreadable(
            f"{package.folder} has no {name}, which is part of the package", "Put the file back: it is copied."
        )
    copy_beside(source, package.folder, target)


def _describe_written(info: PackageInfo, folder: Path) -> PackageInfo:
    """The description with the ends and data files that components have now, without pairs and links that are gone."""
    components = tuple(describe_component(component, folder) for component in info.components)
    by_name = {component.name: component for component in components}
    links = tuple(
        link
        for link in info.links
        if link.output in by_name[link.source].outputs and link.input in by_name[link.target].inputs
    )
    return replace(info, components=components, links=links)


def settle_data(folder: Path, files: Sequence[str], contract: Contract) -> None:
    """Weights of these files as the consumer has them: once where files may share them, under the names it looks for.

    To be called before the folder is described.
    """
    if contract.shares_data:
        share_data((folder / file for file in files), contract.data_file("shared.onnx"))
    for file in files:
        rename_data(folder / file, contract.data_file(Path(file).name))


def _list_external(folder: Path, info: PackageInfo, contract: Contract) -> None:
    """Bring config.json up to date where the consumer reads there which files have weights beside them."""
    path = folder / CONFIG
    try:
        before = read_json(path)
    except (OSError, ValueError):  # it is not the consumer's, and was copied as it is
        return
    external = frozenset(item.file for item in info.components if item.data)
    after = contract.list_external(before, external) if isinstance(before, dict) else before
    if after != before:
        path.write_text(write_json(after), encoding="utf-8")


def find_target(package: Package) -> Contract:
    """The contract of the consumer that a package is for; a package from elsewhere may name one that is not known."""
    target = package.info.target
    return find_contract(target if target in TARGETS else "")


def list_data(model: ModelFile, path: Path, folder: Path) -> tuple[str, ...]:
    """Files with weights that a model refers to, relative to the folder of the package."""
    return tuple(sorted(file.relative_to(folder).as_posix() for file in own_data_files(model.proto, path.parent)))


def describe_component(component: ComponentInfo, folder: Path) -> ComponentInfo:
    """The component with what its file is given, returns and refers to, without cache pairs that it does not have."""
    path = folder / component.file
    model = open_model(path)
    graph = model.graph
    inputs = graph.fed_inputs
    cache = tuple(pair for pair in component.cache if pair.past in inputs and pair.present in graph.outputs)
    return replace(component, inputs=inputs, outputs=graph.outputs, cache=cache, data=list_data(model, path, folder))


def copy_component(component: Component, target: Path) -> None:
    """A component with its weights, under the same names: what only changes metadata then goes on with the copy.

    Weights that several components share stay one file. The record beside it is not copied.
    """
    folder = target.parents[len(Path(component.info.file).parts) - 1]
    shutil.copyfile(component.path, target)
    for name in component.info.data:
        if not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(component.folder / name, folder / name)


def copy_tagged(component: Component, path: Path) -> None:
    copy_component(component, path)
    beside = sidecar_path(component.path)
    if beside.is_file():
        shutil.copyfile(beside, sidecar_path(path))


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


def place_files(names: Mapping[str, Sequence[str]], folder: Path) -> dict[str, tuple[Path, ...]]:
    return {component: tuple(folder / name for name in files) for component, files in names.items()}
