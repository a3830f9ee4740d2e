"""Package: an opened folder of ONNX files that make one model together. No torch, no run, no weight is read.

    package = open_package("qwen3/")
    package.files                                                  every file, modelexport.json among them
    package["decoder"].attribution("node_MatMul_54").module        'model.layers.0.self_attn.q_proj'
    package.provenance.components_of("model.layers.0")             ('decoder',)

Every component is a file like any other: all that takes a file takes `package["decoder"].path`. What joins them is in
`package.info`: links, cache pairs, digests, modules that are in no file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from modelexport.api.opening import open_file
from modelexport.errors import UnknownName, UserError

# Every verb asks whether it was given a package, and most were given a file.
if TYPE_CHECKING:
    from modelexport.graph.file.tagged_file import TaggedFile
    from modelexport.record.package import ComponentInfo, PackageInfo
    from modelexport.record.package_provenance import PackageProvenance
    from modelexport.record.provenance import Attribution, Provenance
    from modelexport.record.results.files import ExportResult


@dataclass(frozen=True, eq=False)
class Component:
    """One file of a package, opened when it is first asked.

    info    what the package says of it: its inputs, outputs and cache pairs
    folder  that of the package
    """

    info: ComponentInfo
    folder: Path

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def path(self) -> Path:
        """Of the .onnx file."""
        from modelexport.graph.file.package import find_file

        return find_file(self.folder, self.info.file)

    @cached_property
    def file(self) -> TaggedFile:
        return open_file(self.path)

    @property
    def provenance(self) -> Provenance:
        """What is known about the file, for exactly the nodes that it has."""
        return self.file.provenance_with_edges

    def attribution(self, name_or_key: str) -> Attribution:
        return self.provenance.attribution(name_or_key)

    def __fspath__(self) -> str:
        """That of the .onnx file, for everything that takes a file."""
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, eq=False)
class Package:
    """A folder with `modelexport.json` whose models, weights and records are there in their recorded sizes.

    exported  by component: what its export had to say; empty for a package that was opened
    """

    folder: Path
    info: PackageInfo
    exported: Mapping[str, ExportResult] = field(default_factory=dict)

    @cached_property
    def components(self) -> Mapping[str, Component]:
        """By name, in the order in which the package lists them."""
        return {item.name: Component(item, self.folder) for item in self.info.components}

    @property
    def files(self) -> tuple[Path, ...]:
        """All files of the package, its description first."""
        from modelexport.graph.file.package import find_file
        from modelexport.record.package import PACKAGE_FILE

        return (self.folder / PACKAGE_FILE, *(find_file(self.folder, name) for name in self.info.files))

    def __getitem__(self, name: str) -> Component:
        if name not in self.components:
            raise UnknownName("component", name, self.components)
        return self.components[name]

    def __fspath__(self) -> str:
        """The folder, for everything that takes a path."""
        return str(self.folder)

    def __iter__(self) -> Iterator[str]:
        return iter(self.components)

    def __len__(self) -> int:
        return len(self.components)

    def __contains__(self, name: object) -> bool:
        return name in self.components

    @cached_property
    def provenance(self) -> PackageProvenance:
        """One module tree over all components, and which of them have nodes of a module."""
        from modelexport.record.package_provenance import PackageProvenance

        records = {name: component.provenance for name, component in self.components.items()}
        return PackageProvenance(records, self.info.absent)


def ensure_packages(left: str | Path | Package, right: str | Path | Package) -> tuple[Package, Package]:
    """Raise UserError unless both are packages: a file has no components to be compared with."""
    if isinstance(left, Package) and isinstance(right, Package):
        return left, right
    folder, file = (left.folder, right) if isinstance(left, Package) else (getattr(right, "folder", right), left)
    raise UserError(f"{folder} is a package, and {file} is not", "Give two packages, or two files.")


def not_a_package(file: str | Path | Package, component: str) -> UserError:
    return UserError(f"{os.fspath(file)} is not a package: it has no component {component!r}", "Leave --component out.")


def open_package(folder: str | Path) -> Package:
    """Open a folder with `modelexport.json`. A model that is missing, exchanged or truncated is FileUnreadable.

    Sizes are looked at; `validate` also compares digests, for which it reads every file. Files beside the models
    (configuration, tokenizer) may have been edited: `validate` says so.
    """
    from modelexport.graph.file.package import read_package

    path = Path(folder)
    return Package(path, read_package(path))


def open_files(package: Package) -> dict[str, TaggedFile]:
    """The files of a package, by component."""
    return {name: component.file for name, component in package.components.items()}


def find_package(path: str | Path | Package) -> Package | None:
    """The package in a folder, or itself; None for anything else, which is a file or an error of whoever reads it."""
    if isinstance(path, Package):
        return path
    if not Path(path).is_dir():
        return None
    from modelexport.graph.file.package import is_package

    return open_package(path) if is_package(Path(path)) else None


def find_one_file(path: str | Path | Package | Component) -> Path:
    """The path of a file, for verbs that take one: that of a package if it has no other."""
    package = None if isinstance(path, Component) else find_package(path)
    if package is None:
        return Path(path)
    if len(package) == 1:
        return next(iter(package.components.values())).path
    from modelexport.graph.file.package import explain_folder

    raise explain_folder(package.folder)


def refuse_for_file(file: str | Path | Package, options: str, hint: str) -> UserError:
    """Why options about packages cannot be followed: it is one file, or a folder that is no package."""
    path = Path(file)
    if path.is_dir():
        from modelexport.graph.file.package import explain_folder

        return explain_folder(path)
    return UserError(f"{path} is one file, and {options} are about packages", hint)


def refuse_for_folder(folder: str | Path | Package, option: str, value: object) -> None:
    """UserError if an option was given that is about one file."""
    if value is not None:
        raise UserError(f"{option} is for one file, and {Path(folder)} is a folder", f"Leave {option} out.")


def find_packages(left: str | Path | Package, right: str | Path | Package) -> tuple[Package, Package] | None:
    """Two packages; None if neither is one. One alone is an error."""
    packages = find_package(left), find_package(right)
    return ensure_packages(packages[0] or left, packages[1] or right) if any(p is not None for p in packages) else None
