"""Convert: a file as another viewer shows it (Model Explorer, GraphML, DOT, Mermaid, CSV, Netron).

The file is drawn once, as nested boxes (`show/formats/draw`); a format writes that drawing. Model Explorer gets further
files beside it: node data for overlays, and the pairs of nodes in which two panes follow each other.
https://github.com/google-ai-edge/model-explorer/wiki
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from modelexport.api.opening import note_source, open_file
from modelexport.api.package import Component, Package, find_packages
from modelexport.api.package_reading import share_overlay_paths
from modelexport.api.package_writing import WrittenFolder, ensure_apart_from, place_files, rewrite_package
from modelexport.api.writing import ensure_apart, ensure_spared, write_tagged
from modelexport.errors import UserError
from modelexport.graph.file.atomic import ensure_writable, staging
from modelexport.graph.file.external import data_files
from modelexport.graph.file.folder import staged_folder
from modelexport.graph.file.metadata import EmbedOptions, Names
from modelexport.graph.file.tagged_file import TaggedFile, tagged_ancestor
from modelexport.graph.file.writing import ensure_model_target
from modelexport.show.formats.catalogue import NETRON, ensure_format, picture
from modelexport.show.formats.draw import draw
from modelexport.show.formats.drawing import Drawing

_EXPLORER = "model-explorer"
# Of the files that a package is written as, one for each component.
_ENDINGS = {_EXPLORER: "json", "graphml": "graphml", "dot": "dot", "mermaid": "mmd", "csv": "csv"}


@dataclass(frozen=True)
class Converted:
    """
    path   the file that was asked for
    files  all that were written, it among them
    notes  what there is to say about them
    """

    path: Path
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ConvertedText:
    """A format as text, part by part: that of a large model is not to be in memory as a whole."""

    parts: Iterator[str]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _DrawnFile:
    opened: TaggedFile
    drawing: Drawing
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _PackageOptions:
    """How deep modules are shown, what is laid over them, and the package that they are shown beside."""

    depth: int | None = None
    overlays: Sequence[Path] = ()
    against: Package | None = None


@dataclass(frozen=True)
class _SideFile:
    path: Path
    text: str
    notes: tuple[str, ...] = ()


@overload
def convert(
    source: str | Path,
    output: str | Path,
    to: str,
    *,
    depth: int | None = None,
    overlays: Sequence[str | Path] = (),
    against: str | Path | None = None,
    force: bool = False,
) -> Converted | Any: ...
@overload
def convert(
    source: Package,
    output: str | Path,
    to: str,
    *,
    depth: int | None = None,
    overlays: Sequence[str | Path] = (),
    against: str | Path | Package | None = None,
    force: bool = False,
) -> WrittenFolder: ...
def convert(  # noqa: PLR0913 - the keywords are the command line's options
    source: str | Path | Package,
    output: str | Path,
    to: str,
    *,
    depth: int | None = None,
    overlays: Sequence[str | Path] = (),
    against: str | Path | Package | None = None,
    force: bool = False,
) -> Converted | WrittenFolder:
    """Write a file as `model-explorer`, `graphml`, `dot`, `mermaid`, `csv` or `netron` shows it.

    Of a package, every file is written, into a folder.

    depth     show modules to this depth instead of nodes; for dot and mermaid
    overlays  what `profile` and `verify` wrote as JSON; Model Explorer colours nodes by it
    against   another file or package, in which Model Explorer follows what is selected in this one
    force     for a package: write into a folder that is not empty
    """
    ensure_format(to)
    if (packages := find_packages(source, source if against is None else against)) is not None:
        options = _PackageOptions(depth, tuple(map(Path, overlays)), None if against is None else packages[1])
        return _convert_package(packages[0], Path(output), to, options, force=force)
    path, target = Path(source), Path(output)
    overlay_paths = list(map(Path, overlays))
    compared = [] if against is None else [Path(against)]
    if to != _EXPLORER and (overlay_paths or compared):
        raise UserError(f"{to} has no overlays and nothing to compare with", f"Use them with --to {_EXPLORER}.")
    inputs = [path, *overlay_paths, *compared]
    # Checked twice: before anything is read, and again once the names of side files and weights are known.
    ensure_spared([target], inputs)
    if to == NETRON:
        return _write_netron(path, target, depth)
    ensure_writable(target)
    drawn = _draw_file(path)
    beside = list(map(_draw_file, compared))
    shown = picture(drawn.drawing, to, depth)
    extras = [
        *_node_data(drawn, overlay_paths, target),
        *(_sync_file(drawn, counterpart, target) for counterpart in beside),
    ]
    weights = [file for item in (drawn, *beside) for file in data_files(item.opened.proto, item.opened.path.parent)]
    ensure_spared([target, *(extra.path for extra in extras)], [*inputs, *weights])
    with staging() as stage:
        file = stage.open(target)
        for part in shown.parts:  # one by one: the text as a whole may be larger than the model
            file.write(part.encode())
        for extra in extras:
            stage.write(extra.path, extra.text)
    side_notes = (note for extra in extras for note in extra.notes)
    return Converted(target, (target, *(extra.path for extra in extras)), (*drawn.notes, *shown.notes, *side_notes))


def _convert_package(
    package: Package, output: Path, to: str, options: _PackageOptions, *, force: bool
) -> WrittenFolder:
    """One file for each component, named after it; for netron, a package whose nodes are named after their modules."""
    if to == NETRON:
        return _write_netron_package(package, output, options, force=force)
    ensure_apart_from(package.folder, output)
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
    return WrittenFolder(output, place_files(names, output), notes=tuple(notes))


def _write_netron_package(package: Package, output: Path, options: _PackageOptions, *, force: bool) -> WrittenFolder:
    if options.overlays or options.against is not None:
        raise UserError(f"{NETRON} has no overlays and nothing to compare with", "Use them with --to model-explorer.")
    notes: list[str] = []

    def write(component: Component, target: Path) -> None:
        notes.extend(convert(component.path, target, NETRON, depth=options.depth).notes)

    written = rewrite_package(package, output, write, force=force)
    files = {name: (component.path,) for name, component in written.components.items()}
    return WrittenFolder(output, files, notes=tuple(notes))


def convert_text(source: str | Path, to: str, *, depth: int | None = None) -> ConvertedText:
    ensure_format(to)
    if to == NETRON:
        raise UserError("netron opens a copy of the model, which is no text", "Name the file to write: -o FILE.onnx.")
    drawn = _draw_file(Path(source))
    shown = picture(drawn.drawing, to, depth)
    return ConvertedText(shown.parts, drawn.notes + shown.notes)


def _draw_file(path: Path) -> _DrawnFile:
    """A file without a record is drawn as well, and flat if it tells of no modules: viewers are used on any file."""
    opened, name = open_file(path), path.stem or path.name
    record = opened.provenance
    grouped = opened.believed is None or len(record.hierarchy.modules) > 1
    flat = () if grouped else ("nothing is grouped",)
    return _DrawnFile(opened, draw(opened, record if grouped else None, name), (*flat, *note_source(opened)))


def _write_netron(path: Path, target: Path, depth: int | None) -> Converted:
    """The model with the path of its module in the name of every node, and all that is known in its metadata."""
    if depth is not None:
        raise UserError("netron shows every node, not modules to a depth", "Leave --depth out.")
    ensure_apart(target, path)
    ensure_model_target(target)
    opened = open_file(path)
    written = write_tagged(opened, opened.provenance, target, EmbedOptions(names=Names.HIERARCHICAL))
    return Converted(target, written.files, note_source(opened))


def _node_data(drawn: _DrawnFile, overlays: Iterable[Path], target: Path) -> Iterator[_SideFile]:
    """Colours for Model Explorer, one file for each colouring of an overlay: it loads them beside the graph."""
    from modelexport.show.data.overlays import read_overlay
    from modelexport.show.formats.node_data import node_data

    for path in overlays:
        overlay = read_overlay(path, drawn.opened.provenance.hierarchy)
        for colouring in node_data(overlay, drawn.drawing):
            # bert.profile.json beside bert.json gives bert.profile.node-data.json, without the name twice.
            name = path.stem.removeprefix(f"{target.stem}.")
            extra = target.with_name(f"{target.stem}.{name}{colouring.suffix}.node-data.json")
            yield _SideFile(extra, colouring.text(drawn.drawing), colouring.notes)


def _sync_file(left: _DrawnFile, right: _DrawnFile, target: Path) -> _SideFile:
    """Pairs of nodes for the two panes of Model Explorer: what is selected on the left shows on the right."""
    from modelexport.show.formats.model_explorer import sync_navigation

    sources, notes = _find_sources(left.opened, right.opened)
    # Without a common origin nodes are paired by module and operator.
    text = sync_navigation(left.drawing, right.drawing, sources)
    return _SideFile(target.with_name(f"{target.stem}.{right.opened.path.stem}.sync.json"), text, right.notes + notes)


def _find_sources(left: TaggedFile, right: TaggedFile) -> tuple[dict[str, tuple[str, ...]] | None, tuple[str, ...]]:
    """By the key of a node or weight on the right: what it was made from. None if it comes from elsewhere.

    left   MatMul_1, Add_1     right   Gemm_1     ─►   {"Gemm_1": ("MatMul_1", "Add_1")}
    """
    from modelexport.api.relink import relink_graph

    relinked = relink_graph(tagged_ancestor(left), right, "convert")
    if not relinked.related:
        return None, (f"{right.path} was not made from {left.path}: nodes are matched by module and operator",)
    lineage = relinked.lineage
    links = (*lineage.nodes.items(), *lineage.initializers.items())
    return {**{key: link.sources for key, link in links}, **lineage.stands_for}, ()
