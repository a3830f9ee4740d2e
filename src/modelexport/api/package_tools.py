"""Tools on packages: what a tool makes of each component is a package again, with one description.

    change_package(package, PackageTarget(Path("int4")), lambda file, path: quantize(file, path, weight_type="int4"))
    change_package(package, PackageTarget(Path("fast"), ("decoder",)), lambda file, path: run_tool(file, "ort", path))
    relink_package("optimized", PackageTarget(Path("tagged")), before="qwen3")

The configuration of the consumer, the tokenizer, links and cache pairs stay; sizes, digests and data files are listed
anew. Everything is written, or nothing: also if what came out of one component does not come from it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from modelexport.api.package import Component, Package, open_package
from modelexport.api.package_writing import copy_component, describe_component, find_target, rewrite_package
from modelexport.api.relink import relink
from modelexport.errors import FileUnreadable, UnknownName, UserError
from modelexport.graph.file.folder import ensure_folder_target
from modelexport.graph.file.metadata import sidecar_path
from modelexport.graph.file.package import explain_folder, find_file, is_package, read_description
from modelexport.inspect.query.answer import answer_queries
from modelexport.record.package import PACKAGE_FILE, StoredFile
from modelexport.record.results.files import PackageChange, QuantizeResult, RelinkResult

_Made = TypeVar("_Made", RelinkResult, QuantizeResult)


@dataclass(frozen=True)
class PackageTarget:
    """What is written.

    output       the folder
    only         names of the components that are changed; all if it is empty, else the others are copied
    number_type  of the weights afterwards, for consumers that name files by it; empty if it stays
    force        whether the folder may hold something
    """

    output: Path
    only: tuple[str, ...] = ()
    number_type: str = ""
    force: bool = False


class _Unrelated(Exception):
    """What came out of a component does not come from it; nothing is written."""


def change_package(
    package: Package, target: PackageTarget, change: Callable[[Path, Path], _Made]
) -> PackageChange[_Made]:
    """A package whose components are what `change` makes of them; it is given the file of one and the path to write to.

    It is a package for the same consumer: its configuration stays, and files are called as it wants them.
    """
    chosen = choose_components(package, target.only)
    contract = find_target(package)
    files = {name: contract.name_variant(package[name].info.file, target.number_type) for name in chosen}
    made: dict[str, _Made] = {}

    def write(component: Component, path: Path) -> None:
        if component.name not in chosen:
            _copy_tagged(component, path)
            return
        made[component.name] = change(component.path, path)
        if made[component.name].path is None:
            raise _Unrelated

    try:
        written = rewrite_package(package, target.output, write, files=files, force=target.force)
    except _Unrelated:
        return PackageChange(None, made)
    placed = {name: result.moved_to(*_list_files(written[name])) for name, result in made.items()}
    return PackageChange(target.output, placed, tuple(name for name in package if name not in chosen))


def choose_components(package: Package, only: Sequence[str]) -> tuple[str, ...]:
    """Names of the components that a tool is to run on, in the order of the package."""
    for name in only:
        if name not in package:
            raise UnknownName("component", name, package.components)
    return tuple(name for name in package if not only or name in only)


def _copy_tagged(component: Component, path: Path) -> None:
    copy_component(component, path)
    beside = sidecar_path(component.path)
    if beside.is_file():
        shutil.copyfile(beside, sidecar_path(path))


def _list_files(component: Component) -> tuple[Path, ...]:
    """The file of a component, its weights, and its record."""
    path = component.path
    data = (find_file(component.folder, name) for name in component.info.data)
    return tuple(file for file in (path, *data, sidecar_path(path)) if file.is_file())


def relink_package(
    after: str | Path,
    target: PackageTarget | None = None,
    *,
    before: str | Path | None = None,
    tool: str = "",
    embed: str = "full",
) -> PackageChange[RelinkResult]:
    """Find out which module each node of a folder belongs to that tools made of a package, component by component.

    after   a folder; its files are called as those of `before`, or as its own description says
    target  the package to write; nothing is written if it is left out
    before  the package; if it is left out, what is planted in the files takes its place
    """
    tagged = None if before is None else open_package(before)
    if target is not None:
        ensure_folder_target(target.output, force=target.force)
    package = _open_made(Path(after), tagged)
    chosen = choose_components(package, () if target is None else target.only)
    sources = {} if tagged is None else {package[name].path: tagged[name].path for name in chosen}

    def trace(file: Path, path: Path | None) -> RelinkResult:
        return relink(file, path, before=sources.get(file), tool=tool, embed=embed)

    if target is None:
        return PackageChange(None, {name: trace(package[name].path, None) for name in chosen})
    return change_package(package, target, trace)


def _open_made(folder: Path, tagged: Package | None) -> Package:
    """A folder that tools have written to: its description, if it has one, knows the sizes of other files."""
    if not folder.is_dir():
        raise FileUnreadable(f"{folder} is not a folder", "Give the folder that the tool wrote.")
    if is_package(folder):
        info = read_description(folder)
    elif tagged is not None:
        info = tagged.info
    else:
        raise explain_folder(folder)
    for component in info.components:
        if not find_file(folder, component.file).is_file():
            raise FileUnreadable(
                f"{folder} has no {component.file}, the file of {component.name}",
                "Give files of the same names as in the package that they were made from, or relink them one by one.",
            )
        if tagged is not None and component.name not in tagged:
            raise UnknownName(f"component of {tagged.folder}", component.name, tagged.components)
    components = tuple(describe_component(component, folder) for component in info.components)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    # Sizes and digests are taken anew when the package is written.
    files = {name: StoredFile(find_file(folder, name).stat().st_size, "") for name in names if name != PACKAGE_FILE}
    return Package(folder, replace(info, components=components, files=files))


@dataclass(frozen=True)
class ToolOptions:
    """What a tool is told about parts of a model; of a package, each component is told what is about it.

    exclude, include  queries
    op_types          names of operators
    input             NAME=SHAPE, for inputs that are made
    """

    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()
    input: tuple[str, ...] = ()


def run_on_package(
    package: Package,
    target: PackageTarget,
    options: ToolOptions,
    change: Callable[[Path, Path, ToolOptions], _Made],
) -> PackageChange[_Made]:
    """`change_package` for a tool that is told about parts of the model. What no component has is a UserError.

    A component that has none of what is included is copied.
    """
    chosen = choose_components(package, target.only)
    component_options = {package[name].path: _tell_component(package, chosen, name, options) for name in chosen}
    meant = tuple(name for name in chosen if _is_meant(component_options[package[name].path], options))
    narrowed = replace(target, only=meant)
    return change_package(package, narrowed, lambda file, path: change(file, path, component_options[file]))


def _is_meant(of_component: ToolOptions, options: ToolOptions) -> bool:
    has_included = bool(of_component.include or not options.include)
    return has_included and bool(of_component.op_types or not options.op_types)


def _tell_component(package: Package, chosen: Sequence[str], name: str, options: ToolOptions) -> ToolOptions:
    inputs = {item: set(package[item].info.inputs) for item in chosen} if options.input else {}
    operators = {item: _find_operators(package[item]) for item in chosen} if options.op_types else {}
    given = {text: text.rpartition("=")[0] for text in options.input}
    return ToolOptions(
        _select_queries(package, chosen, name, options.exclude),
        _select_queries(package, chosen, name, options.include),
        _select_names("operator of the package", {op_type: op_type for op_type in options.op_types}, operators, name),
        _select_names("input", given, inputs, name),
    )


def _find_operators(component: Component) -> set[str]:
    return {node.op_type for node in component.file.graph.nodes}


def _select_names(
    what: str, wanted: Mapping[str, str], known: Mapping[str, set[str]], component: str
) -> tuple[str, ...]:
    """Of options, by what each of them names, those that name something in a component."""
    for name in wanted.values():
        if not any(name in names for names in known.values()):
            raise UnknownName(what, name, sorted(set().union(*known.values())))
    return tuple(option for option, name in wanted.items() if name in known[component])


def _select_queries(package: Package, chosen: Sequence[str], component: str, queries: Sequence[str]) -> tuple[str, ...]:
    """Those that select a node of a component. One that selects nothing in any of them is a UserError."""
    selecting: list[str] = []
    for text in queries:
        answers = dict(
            zip(
                chosen,
                answer_queries(text, [package[name].provenance for name in chosen], whole_modules=True),
                strict=True,
            )
        )
        if not any(answer.nodes for answer in answers.values()):
            remarks = dict.fromkeys(remark for answer in answers.values() for remark in answer.remarks)
            hint = "; ".join(remarks) + ". Try it with `modelexport query`."
            raise UserError(f"the query selects nothing: {text}", hint)
        selecting += [text] if answers[component].nodes else []
    return tuple(selecting)


def find_number_type(tool: str) -> str:
    """The type that a chain of tools gives to weights: `onnxslim+int4` makes them int4; empty if they stay."""
    from modelexport.transform.tools.catalogue import parse_chain

    types = [step.number_type for step, _ in parse_chain(tool) if step.number_type]
    return types[-1] if types else ""
