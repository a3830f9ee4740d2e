"""Relink: carry the record of a tagged file to the file that a tool made of it.

    before   MatMul (fc), Add (fc)   ─► tool ─►   after   FusedGemm: fc

Steps: find the ancestor (the tagged file, or the outline of it inside of the made one), trace every node back to it by
lineage, inherit the attributions, and refuse files that were not made from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack, overload

from modelexport.api.environment import Clock, Progress
from modelexport.api.keywords import RelinkKeywords
from modelexport.api.opening import note_source, open_file
from modelexport.api.options import parse_embedding
from modelexport.api.package import Package, not_a_package, open_package
from modelexport.api.package_tools import PackageTarget, change_package, choose_components
from modelexport.api.package_writing import describe_component
from modelexport.api.writing import ensure_apart, write_tagged
from modelexport.attribute.resolve import explain_absent_modules
from modelexport.errors import FileUnreadable, UnknownName, UserError
from modelexport.graph.file.folder import ensure_folder_target
from modelexport.graph.file.metadata import EmbedOptions
from modelexport.graph.file.package import explain_folder, find_file, is_package, read_description
from modelexport.graph.file.tagged_file import (
    Ancestor,
    TaggedFile,
    find_ancestor,
    open_tagged,
    outlined_ancestor,
    skip_unreadable,
)
from modelexport.graph.file.writing import ensure_model_target
from modelexport.graph.outline import digested, sketches_like, sketches_of
from modelexport.graph.related import WeightComparison, is_made_from
from modelexport.graph.soundness import ensure_sound
from modelexport.lineage.descent import trace_lineage
from modelexport.lineage.inherit import inherit_record
from modelexport.record.package import PACKAGE_FILE, StoredFile
from modelexport.record.provenance import Provenance
from modelexport.record.results.files import PackageChange, RelinkResult


@overload
def relink(
    after: str | Path, output: str | Path | None = None, **options: Unpack[RelinkKeywords]
) -> RelinkResult | Any: ...
@overload
def relink(
    after: Package, output: str | Path | None = None, **options: Unpack[RelinkKeywords]
) -> PackageChange[RelinkResult]: ...
def relink(  # noqa: PLR0913 - the keywords are the command line's options
    after: str | Path | Package,
    output: str | Path | None = None,
    *,
    before: str | Path | Package | None = None,
    tool: str = "",
    embed: str = "full",
    names: str = "torch",
    strip_exporter_metadata: bool = False,
    components: Sequence[str] = (),
    force: bool = False,
    progress: Progress | None = None,
) -> RelinkResult | PackageChange[RelinkResult]:
    """Find out which module each node of a file belongs to that a tool made of a tagged one.

    output  where to write the file with its new record; nothing is written if it is left out
    before  the tagged file; if it is left out, what is planted in `after` takes its place
    tool    who made `after`, for the evidence
    components  of a package, the names of those that are linked; others are copied
    force   of a package: write into a folder that is not empty

    Folders are linked component by component: one that tools made of a package, and the package.
    """
    # Not only packages: what a tool wrote beside a package is a folder without a description.
    if any(Path(path).is_dir() for path in (after, before) if path is not None):
        _ensure_folders(after, before)
        if output is None and components:
            raise UserError(
                "nothing is written, so nothing is copied", "Leave --component out, or say where to: -o FOLDER."
            )
        folder = None if output is None else PackageTarget(Path(output), tuple(components), force=force)
        return relink_package(
            after,
            folder,
            before=before,
            tool=tool,
            embed=embed,
            names=names,
            strip_exporter_metadata=strip_exporter_metadata,
        )
    if components:
        raise not_a_package(after, components[0])
    embedding = parse_embedding(embed, names, strip_exporter_metadata)
    return _relink_file(Path(after), output, before, tool, embedding, Clock(progress))


def _relink_file(
    after: Path,
    output: str | Path | None,
    before: str | Path | Package | None,
    tool: str,
    embedding: EmbedOptions,
    clock: Clock,
) -> RelinkResult:
    target = None if output is None else Path(output)
    if target is not None:
        ensure_model_target(target)
    with clock.step("read"):
        made = open_tagged(after)
        ensure_sound(made.proto, made.graph, str(after))
        tagged = None if before is None else open_file(Path(before))
        ancestor = outlined_ancestor(made) if tagged is None else find_ancestor(tagged)
    if target is not None:
        ensure_apart(target, *(Path(path) for path in (after, before) if path is not None))
    with clock.step("link"):
        result = relink_graph(ancestor, made, tool or "relink")
        result = replace(result, notes=() if tagged is None else note_source(tagged))
    written: tuple[Path, ...] = ()
    if target is not None and result.related:
        with clock.step("write"):
            saved = write_tagged(made, result.provenance, target, embedding)
            written, result = saved.files, replace(result, provenance=saved.provenance)
    return replace(result, after=str(after), path=target if written else None, files=written, seconds=clock.seconds)


def _ensure_folders(after: str | Path | Package, before: str | Path | Package | None) -> None:
    paths = [Path(path) for path in (before, after) if path is not None]
    files = [path for path in paths if not path.is_dir()]
    if files:
        folder = next(path for path in paths if path.is_dir())
        raise UserError(f"{folder} is a folder, and {files[0]} is not", "Give two packages, or two files.")


def relink_graph(ancestor: Ancestor, made: TaggedFile, tool: str) -> RelinkResult:
    """The same in memory: lineage, then the attributions that nodes inherit along it, then whether it is of that file.

    Sketches (shape, type, a few numbers of each weight) tell weights that were renamed, without reading them all.
    """
    graph = made.graph
    before = (ancestor.sketches(name) for name in ancestor.graph.initializers)
    try:
        sketches = sketches_like(made, before)
    except FileUnreadable:  # of those weights, and others may be there
        sketches = sketches_of(made)
    sketches = skip_unreadable(sketches)
    lineage = trace_lineage(ancestor.graph, digested(graph), (ancestor.sketches, sketches))
    record = inherit_record(ancestor.record, lineage, graph, tool)
    record = replace(record, absent=_explain_absent(record, ancestor.record))
    weights = WeightComparison(ancestor.graph, graph, (ancestor.sketches, sketches), lineage)
    related = is_made_from(graph, ancestor.graph, lineage, weights.share)
    return RelinkResult(None, (), ancestor.name, record, lineage, related, weights.differing if related else ())


def _explain_absent(record: Provenance, before: Provenance) -> dict[str, str]:
    """Why modules have no node: what was so before keeps its reason, and what the tool removed gets one."""
    owned = {call.path for entry in record.nodes.values() for call in entry.attribution.owners}
    owned_before = {call.path for entry in before.nodes.values() for call in entry.attribution.owners}
    still_absent = {path: reason for path, reason in before.absent.items() if path not in owned}
    return {**explain_absent_modules(record.hierarchy, owned, owned_before), **still_absent}


def relink_package(  # noqa: PLR0913 - the keywords are those of `relink`
    after: str | Path | Package,
    target: PackageTarget | None = None,
    *,
    before: str | Path | Package | None = None,
    tool: str = "",
    embed: str = "full",
    names: str = "torch",
    strip_exporter_metadata: bool = False,
) -> PackageChange[RelinkResult]:
    """Find out which module each node of a folder belongs to that tools made of a package, component by component.

    after   a folder; its files are called as those of `before`, or as its own description says
    target  the package to write; nothing is written if it is left out
    before  the package; if it is left out, what is planted in the files takes its place
    """
    tagged = before if before is None or isinstance(before, Package) else open_package(before)
    if target is not None:
        ensure_folder_target(target.output, force=target.force)
    package = _open_made(Path(after), tagged)
    chosen = choose_components(package, () if target is None else target.only)
    sources = {} if tagged is None else {package[name].path: tagged[name].path for name in chosen}

    def trace(file: Path, path: Path | None) -> RelinkResult:
        return relink(
            file,
            path,
            before=sources.get(file),
            tool=tool,
            embed=embed,
            names=names,
            strip_exporter_metadata=strip_exporter_metadata,
        )

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
