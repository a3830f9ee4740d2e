"""Reading verbs on packages: each asks every component as it would ask a file, and adds what joins the files.

    analyze_package(open_package("qwen3/")).components["decoder"]     the analysis of one file
    answer_package(package, "role=attention.*").nodes                 ('decoder', node), …
    cost_package(package, {"past_sequence": 4096}).cache_by_module    bytes of the cache, layer by layer

The public verbs hand a `Package` to these; what they return has the results of the files in `components`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from modelexport.api.opening import note_source
from modelexport.api.package import Package, open_files
from modelexport.errors import FileUnreadable, UserError, propose_name
from modelexport.graph.file.tagged_file import TaggedFile, open_tagged
from modelexport.inspect.package.analyze import PackageAnalysis, analyze_package_files
from modelexport.inspect.package.cost import PackageCost, count_package
from modelexport.inspect.package.pairs import HasVerdict, PackagePair, find_joint_differences
from modelexport.inspect.package.validate import OpenedFiles, PackageValidation, check_package
from modelexport.inspect.query.answer import PackageAnswer, answer_queries
from modelexport.show.data.overlays import read_overlay

_Pair = TypeVar("_Pair", bound=HasVerdict)


def analyze_package(package: Package, filter_tag: str | None = None) -> PackageAnalysis:
    files = open_files(package)
    analysis = analyze_package_files(str(package.folder), package.info, files, filter_tag)
    return replace(analysis, notes=(*analysis.notes, *note_source(*files.values())))


def answer_package(package: Package, text: str) -> PackageAnswer:
    """A name must be that of something in one of the files; a file that does not know it has no such nodes."""
    files = open_files(package)
    answers = answer_queries(text, [file.provenance_with_edges for file in files.values()])
    components = dict(zip(files, answers, strict=True))
    stale = [note for file in files.values() for note in file.stale_notes]
    is_empty = not any(answer.nodes for answer in components.values())
    reasons = [remark for answer in components.values() for remark in answer.remarks] if is_empty else []
    remarks = tuple(dict.fromkeys((*reasons, *stale)))
    query = next(answer.query for answer in components.values())
    return PackageAnswer(str(package.folder), query, components, remarks, note_source(*files.values()))


def cost_package(package: Package, at: Mapping[str, int]) -> PackageCost:
    files = open_files(package)
    counted = count_package(str(package.folder), package.info, files, at)
    ensure_package_axes(counted, at)
    stale = dict.fromkeys(note for file in files.values() for note in file.stale_notes)
    return replace(counted, notes=(*stale, *note_source(*files.values())))


def ensure_package_axes(counted: PackageCost, sizes: Mapping[str, int]) -> None:
    """Raise UserError for an axis that no file has: a size for it would change nothing, and look as if it had."""
    names = [axis.name for axis in counted.axes]
    missing = next((name for name in sizes if name not in names), None)
    if missing is not None:
        hint = propose_name(missing, names, "They have")
        raise UserError(f"no file of {counted.folder} has an axis {missing!r}", hint)


def validate_package(
    package: Package, *, check_consistency: bool = False, require_record: bool = False
) -> PackageValidation:
    """Check each file, and whether they fit together. Whatever is wrong is a finding."""
    from modelexport.inspect.validate import run_checks

    files: dict[str, TaggedFile] = {}
    unreadable: dict[str, str] = {}
    for name, component in package.components.items():
        try:
            files[name] = open_tagged(component.path)
        except FileUnreadable as error:
            unreadable[name] = error.message
    checks, findings = check_package(OpenedFiles(package.folder, package.info, files, unreadable))
    components = {
        name: run_checks(file, check_consistency=check_consistency, require_record=require_record)
        for name, file in files.items()
    }
    return PackageValidation(str(package.folder), checks, findings, components)


def pair_packages(
    left: Package, right: Package, compare: Callable[[Path, Path], _Pair], only: Sequence[str] | None = None
) -> PackagePair[_Pair]:
    """Compare two packages component by component; `compare` takes the paths of two files.

    only  components of both that are asked about; then what joins the files is no part of the question
    """
    both = [name for name in left if name in right and (only is None or name in only)]
    if not both:
        raise UserError(
            f"{left.folder} and {right.folder} have no component in common",
            f"The first has {', '.join(left)}, the second {', '.join(right)}: compare their files one by one.",
        )
    return PackagePair(
        str(left.folder),
        str(right.folder),
        {name: compare(left[name].path, right[name].path) for name in both},
        tuple(name for name in left if name not in right) if only is None else (),
        tuple(name for name in right if name not in left) if only is None else (),
        tuple(find_joint_differences(left.info, right.info)) if only is None else (),
    )


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
