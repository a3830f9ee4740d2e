"""View of a package: one page with the files of all components, and a switch between them.

    {"components": [{"name": "encoder", "data": {…}}, {"name": "decoder", "data": {…}}]}

What is opened is a module path, which means the same module in every file: the switch keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from modelexport.api.package import Component, Package
from modelexport.api.package_reading import ensure_package_axes
from modelexport.api.view import Page, describe_subject, fit_page, subject_data
from modelexport.errors import UserError
from modelexport.inspect.package.cost import count_package
from modelexport.record.results.cost import Cost
from modelexport.show.data.overlays import Overlay, read_overlay
from modelexport.show.page.data import PageSubject
from modelexport.show.page.html import page_html
from modelexport.show.page.nodes import Json


def make_package_page(
    package: Package, overlays: Sequence[Path], against: Package | None, at: Mapping[str, int]
) -> Page:
    """The page of a package; `against` is another one, compared component by component."""
    files = {name: component.file for name, component in package.components.items()}
    # Without sizes, as in the page of a file; names of axes are checked over all files.
    counted = count_package(str(package.folder), package.info, files, {})
    ensure_package_axes(counted, at)
    laid = share_overlays(package, overlays)
    notes = tuple(_note_absent(package))
    subjects = {}
    for name, component in package.components.items():
        subject = _describe(component, counted.components[name], at, laid.get(name, ()), against)
        subjects[name] = replace(subject, notes=(*notes, *subject.notes))

    def write(nodes: bool, notes: Sequence[str]) -> str:
        return page_html(package.folder.resolve().name, _join_data(subjects, nodes, notes))

    return fit_page(list(subjects.values()), write)


def _join_data(subjects: Mapping[str, PageSubject], nodes: bool, notes: Sequence[str]) -> Json:
    data = ((name, subject_data(subject, nodes, notes)) for name, subject in subjects.items())
    return {"components": [{"name": name, "data": document} for name, document in data]}


def _describe(
    component: Component, cost: Cost, at: Mapping[str, int], overlays: Sequence[Overlay], other: Package | None
) -> PageSubject:
    names = {axis.name for axis in cost.axes}
    sizes = {name: size for name, size in at.items() if name in names}
    against = other[component.name].path if other is not None and component.name in other else None
    return describe_subject(component.file, cost, sizes, overlays, against)


def share_overlays(package: Package, paths: Sequence[Path]) -> Mapping[str, list[Overlay]]:
    """By component: what was measured of its file."""
    return {
        name: [read_overlay(path, package[name].provenance.hierarchy) for path in own]
        for name, own in share_overlay_paths(package, paths).items()
    }


def share_overlay_paths(package: Package, paths: Sequence[Path]) -> Mapping[str, list[Path]]:
    """By component: the overlays that are about its file, by what they say themselves."""
    shared: dict[str, list[Path]] = {}
    by_file = {component.path.name: component for component in package.components.values()}
    for path in paths:
        about = read_overlay(path, package.provenance.hierarchy).file
        component = by_file.get(Path(about).name)
        if component is None:
            hint = f"It is about {about}; those are {', '.join(by_file)}."
            raise UserError(f"{path} is about none of the files of {package.folder}", hint)
        shared.setdefault(component.name, []).append(path)
    return shared


def _note_absent(package: Package) -> Iterator[str]:
    for module in package.info.absent:
        yield f"{module.path or '(model)'} ({module.class_name}) is in no file of the package: {module.reason}."
