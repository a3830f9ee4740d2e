"""Select: nodes chosen by a query, written as another tool wants to be told about them.

    select("bert.onnx", "role=norm", "ort-exclude").text      # the list for nodes_to_exclude of a quantizer

A tool goes by names, and ONNX lets nodes go without: `named` writes a copy in which each has one. Nothing here needs
torch, runs a model or reads a weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, overload

from modelexport.api.opening import note_source, open_file
from modelexport.api.options import as_sequence, ensure_known
from modelexport.api.package import Component, Package, find_package
from modelexport.api.package_reading import answer_package
from modelexport.api.package_writing import WrittenFolder, ensure_apart_from, place_files, rewrite_package
from modelexport.api.writing import ensure_apart, stage_copy
from modelexport.errors import FileUnwritable, UserError
from modelexport.graph.file.atomic import ensure_writable, staging
from modelexport.graph.file.folder import staged_folder
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.file.writing import ensure_model_target
from modelexport.graph.index import Node
from modelexport.inspect.query.answer import Answer, answer_query, find_nodes
from modelexport.record.provenance import NodeEntry
from modelexport.transform.select.catalogue import DIALECTS
from modelexport.transform.select.dialect import Dialect, Selection, Settings, check

# Of the files that a package is written as, one for each component; others are plain text.
_ENDINGS = {"ort-exclude": "json", "olive-split": "json", "modelopt": "json", "layer-ann": "onnx"}


@dataclass(frozen=True)
class Selected:
    """Nodes, and how a tool is told about them.

    queries  as they were understood
    nodes    of all queries, in file order, under the names that they have in the file that the tool is to be given
    text     what the tool reads
    files    what was written
    notes    what is worth knowing about it
    """

    dialect: str
    queries: tuple[str, ...]
    nodes: tuple[NodeEntry, ...]
    text: str
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(entry.name for entry in self.nodes if entry.name))


@overload
def select(
    source: str | Path,
    query: str | Sequence[str],
    dialect: str = "names",
    *,
    output: str | Path | None = None,
    named: str | Path | None = None,
    precision: str = "",
    device: Sequence[str] = (),
    label: Sequence[str] = (),
    force: bool = False,
) -> Selected | Any: ...
@overload
def select(
    source: Package,
    query: str | Sequence[str],
    dialect: str = "names",
    *,
    output: str | Path | None = None,
    named: str | Path | None = None,
    precision: str = "",
    device: Sequence[str] = (),
    label: Sequence[str] = (),
    force: bool = False,
) -> WrittenFolder: ...
def select(  # noqa: PLR0913 - the keywords are the command line's options
    source: str | Path | Package,
    query: str | Sequence[str],
    dialect: str = "names",
    *,
    output: str | Path | None = None,
    named: str | Path | None = None,
    precision: str = "",
    device: Sequence[str] = (),
    label: Sequence[str] = (),
    force: bool = False,
) -> Selected | WrittenFolder:
    """The nodes that a query means, written for another tool; several queries are several groups, where it has groups.

    dialect    ort-exclude, layer-ann, olive-split, modelopt, tensorrt or names
    output     where the text goes; for layer-ann, the annotated model; for a package, a folder with one for each file
    named      where to write a copy of the model in which every node has a name that the tool can be told; of a
               package, a folder
    precision  for tensorrt: fp32 if it is left out
    device     for layer-ann, one for each query or one for all: gpu if it is left out
    label      for layer-ann, one for each query
    force      for a package: write into a folder that is not empty
    """
    chosen = DIALECTS[ensure_known("tool", dialect, list(DIALECTS))]
    settings = Settings(precision, tuple(as_sequence(device, "device")), tuple(as_sequence(label, "label")))
    if (package := find_package(source)) is not None:
        folders = _Folders(None if output is None else Path(output), None if named is None else Path(named), force)
        return _select_in_package(package, query, chosen, settings, folders)
    return _select_nodes(Path(source), query, chosen, settings, output, named)


@dataclass(frozen=True)
class _Folders:
    """Where lists of a package go, and the package whose nodes have names; None for what is not written."""

    output: Path | None
    named: Path | None
    force: bool


def _select_nodes(
    source: Path,
    query: str | Sequence[str],
    chosen: Dialect,
    settings: Settings,
    output: str | Path | None,
    named: str | Path | None,
) -> Selected:
    targets = _targets(chosen, output, named)
    _check_settings(chosen, settings)
    opened = open_file(source)
    for target in targets:
        ensure_apart(target, opened.path)
    queries = as_sequence(query, "query")
    if not queries:
        raise UserError("there is no query", "Give one, such as op=MatMul.")
    answers = [find_nodes(text, opened.provenance_with_edges) for text in queries]
    notes = [note for text, answer in zip(queries, answers, strict=True) for note in _note_inside(text, answer)]
    if named is not None:
        opened, count = opened.with_names(chosen.refuses)
        renamed = f"{count} of {len(opened.graph.nodes)} nodes were given another name"
        notes.append(renamed if count else "every node had a name")
    # Nodes are looked up after they got their names: those are what the tool is told.
    groups = tuple(tuple(opened.graph.by_key[entry.key] for entry in answer.nodes) for answer in answers)
    dtypes = _dtypes(opened, groups) if "precision" in chosen.takes else {}
    selection = Selection(opened.graph, groups, dtypes)
    check(selection, chosen)
    written = chosen.write(selection, settings)
    files: list[Path] = []
    with staging() as stage:
        if named is not None:
            files += stage_copy(stage, opened, Path(named))
        # An annotated model takes the place of a text; annotations are no names, so the named copy goes first.
        if chosen.annotate is not None and output is not None:
            chosen.annotate(opened.proto, selection, settings)
            files += stage_copy(stage, opened, Path(output))
        elif output is not None:
            stage.write(Path(output), written.text)
            files.append(Path(output))
    entries = tuple(opened.provenance.nodes[node.key] for node in selection.nodes)
    asked = tuple(answer.query for answer in answers)
    return Selected(
        chosen.name, asked, entries, written.text, tuple(files), (*notes, *written.notes, *note_source(opened))
    )


def _select_in_package(
    package: Package,
    query: str | Sequence[str],
    dialect: Dialect,
    settings: Settings,
    folders: _Folders,
) -> WrittenFolder:
    """What another tool is told about every component in which the queries select something.

    Several components are several files in a folder; the selection of a single one can do without.
    """
    output, named = folders.output, folders.named
    if output is not None and named is not None and output.resolve() == named.resolve():
        raise FileUnwritable("the lists and the named package would be one folder", "Give each of them its own.")
    chosen = _find_selected(package, as_sequence(query, "query"))
    if output is None and len(chosen) > 1:
        raise UserError(
            f"the query selects nodes of {', '.join(chosen)}, and a tool is told about one file at a time",
            "Say which folder the lists go to: -o FOLDER; or give one of the .onnx files.",
        )

    notes = [f"nothing is selected in {name}" for name in package if name not in chosen]
    if output is None:
        lists: dict[str, Path | None] = {chosen[0]: None}
        selected = _select_components(package, query, dialect, settings, lists, folders)[chosen[0]]
        return WrittenFolder(None, {}, selected.text, (*notes, *selected.notes))
    ensure_apart_from(package.folder, output)
    names: dict[str, list[str]] = {}
    with staged_folder(output, force=folders.force) as folder:
        ending = _ENDINGS.get(dialect.name, "txt")
        lists = {name: folder / f"{name}.{ending}" for name in chosen}
        for name, selected in _select_components(package, query, dialect, settings, lists, folders).items():
            names[name] = [path.name for path in selected.files if path.parent == folder]
            notes += [f"{name}: {note}" for note in (*selected.notes, f"{len(selected.nodes)} nodes selected")]
    return WrittenFolder(output, place_files(names, output), notes=tuple(notes))


def _select_components(
    package: Package,
    query: str | Sequence[str],
    dialect: Dialect,
    settings: Settings,
    lists: Mapping[str, Path | None],
    folders: _Folders,
) -> dict[str, Selected]:
    """What is selected in these components, which are named by where their lists go; and the package with names."""
    selected: dict[str, Selected] = {}

    def select_in(component: Component, copy: Path | None) -> None:
        if component.name in lists:
            output = lists[component.name]
            selected[component.name] = _select_nodes(component.path, query, dialect, settings, output, copy)
        elif copy is not None:
            _write_named(component, dialect, copy)

    if folders.named is not None:
        rewrite_package(package, folders.named, select_in, force=folders.force)
        return selected
    for name in lists:
        select_in(package[name], None)
    return selected


def _write_named(component: Component, dialect: Dialect, target: Path) -> None:
    """A component in which nothing is selected, and which is given names like the others."""
    # Opened anew: names are written into the model that is open.
    renamed, _ = open_file(component.path).with_names(dialect.refuses)
    with staging() as stage:
        stage_copy(stage, renamed, target)


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


def _targets(dialect: Dialect, output: str | Path | None, named: str | Path | None) -> list[Path]:
    if dialect.annotate is not None and output is None:
        raise UserError(f"{dialect.name} is written into a copy of the model", "Say where it goes: -o FILE.onnx.")
    if named is not None and not dialect.by_name:
        raise UserError(f"{dialect.name} needs no names of nodes", "Leave --named out.")
    texts = [Path(output)] if output is not None and dialect.annotate is None else []
    models = [Path(path) for path in (named, output if dialect.annotate is not None else None) if path is not None]
    ensure_writable(*texts)
    for model in models:
        ensure_model_target(model)
    if len({path.resolve() for path in (*texts, *models)}) < len(texts) + len(models):
        raise FileUnwritable("the list and the named model would be one file", "Give each of them its own.")
    return [*texts, *models]


def _check_settings(dialect: Dialect, settings: Settings) -> None:
    """An option that a dialect does not take is an error: ignored, it would look as if it had been obeyed."""
    options = {"precision": "--precision", "devices": "--device", "labels": "--label"}
    for field in fields(settings):
        if getattr(settings, field.name) and field.name not in dialect.takes:
            users = ", ".join(user.name for user in DIALECTS.values() if field.name in user.takes)
            raise UserError(f"{options[field.name]} means nothing for {dialect.name}", f"It is for {users}.")


def _note_inside(text: str, answer: Answer) -> Iterator[str]:
    """Who names a module may well mean everything inside of it, which the query leaves out."""
    wider = answer_query(text, answer.provenance, whole_modules=True)
    more = {entry.key for entry in wider.nodes} - {entry.key for entry in answer.nodes}
    if more:
        yield f"{len(more)} more nodes are inside of the modules that {answer.query} names: {wider.query} is with these"


def _dtypes(opened: TaggedFile, groups: Iterable[Iterable[Node]]) -> dict[str, int]:
    """Of what these nodes make, where it is known: TensorRT refuses a precision for what holds no floats."""
    outputs = (output for nodes in groups for node in nodes for output in node.outputs if output)
    return {output: dtype for output in outputs if (dtype := opened.types.dtype(output))}
