"""Fold, flatten, strip: modules as ONNX functions, functions put back in place, and files without their record.

    flat     layer.0: MatMul, Add     layer.1: MatMul, Add
    folded   layer.0: call Layer      layer.1: call Layer      function Layer: MatMul, Add

`flatten` gives back exactly the file that was folded, because `fold` stores the recipe. Functions of other tools are
inlined. Nothing here needs torch, runs a model or reads a weight. https://onnx.ai/onnx/repo-docs/IR.html#functions
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

from modelexport.api.opening import note_source, open_file
from modelexport.api.options import as_sequence
from modelexport.api.package import Component, Package, find_one_file, find_package
from modelexport.api.package_writing import copy_component, rewrite_package
from modelexport.api.writing import ensure_apart, write_tagged
from modelexport.errors import RecordMismatch, RecordUnreadable, UserError
from modelexport.graph.file import metadata
from modelexport.graph.file.atomic import staging
from modelexport.graph.file.metadata import PREFIX, EmbedOptions, Level, level_of, read_record, sidecar_path
from modelexport.graph.file.reading import ModelFile
from modelexport.graph.file.tagged_file import TaggedFile, open_tagged
from modelexport.graph.file.writing import ensure_model_target, save_model, stage_model
from modelexport.graph.index import function_id
from modelexport.graph.outline import outlined, sketches_of
from modelexport.graph.soundness import ensure_sound
from modelexport.record.document import write_document
from modelexport.record.outline import Outline
from modelexport.record.packed import pack, unpack
from modelexport.record.provenance import NodeEntry, Provenance, unattributed
from modelexport.record.results.files import Flattening, FlattenResult, Folding, FoldResult
from modelexport.transform.fold.fold import FoldedModel, fold_model, restore_model
from modelexport.transform.fold.inlining import inline_functions
from modelexport.transform.fold.recipe import write_recipe

_KEYS = (*metadata.NODE_KEYS, *metadata.MODEL_KEYS)


def fold(path: str | Path | Package | Component, output: str | Path, *, classes: Iterable[str] = ()) -> FoldResult:
    """Write a file with its repeated modules as functions: one body for all calls that do the same.

    classes  the modules that become functions, by class, also if they are called once; all that repeat if left out
    """
    source, target = find_one_file(path), Path(output)
    ensure_model_target(target)
    opened = open_file(source)
    ensure_apart(target, source)
    metadata.ensure_flat(opened.proto, str(source))
    metadata.ensure_whole(opened.proto, str(source))
    ensure_sound(opened.proto, opened.graph, str(source))
    # A record that lies beside the file goes into the recipe, so that flattening can give it back.
    beside = pack(opened.record) if read_record(opened.proto) is None else ""
    folded = fold_model(opened.proto, opened.provenance, tuple(dict.fromkeys(classes)), str(source), beside)
    notes = (_note_staleness(opened), _note_loss(folded.folding))
    folding = replace(folded.folding, note="; ".join(filter(None, notes)))
    if folded.recipe is None:
        folded = replace(folded, provenance=opened.record)
        if opened.believed is not None:
            _write_record(opened, folded)
    else:
        _write_record(opened, folded)
        write_recipe(folded.model, folded.recipe)
    files = _write_files(replace(opened, proto=folded.model), folded.provenance, target)
    return FoldResult(target, files, folded.provenance, folding, note_source(opened))


def _note_loss(folding: Folding) -> str:
    """A function that is called once costs a node for its call, and saves none."""
    if not folding.functions or folding.after < folding.before:
        return ""
    if folding.after > folding.before:
        return f"folding made the file larger: {folding.after} nodes, {folding.before} before"
    return f"folding does not pay here: there are no fewer nodes than before ({folding.before}, now {folding.after})"


def _note_staleness(opened: TaggedFile) -> str:
    if opened.is_up_to_date:
        return ""
    entries = opened.provenance.nodes.values()
    lost = sum(not entry.attribution.owners for entry in entries)
    return (
        f"the graph was changed after its record was made, and {lost} of its {len(entries)} nodes have no module: "
        "`modelexport relink` first, and fold what it writes"
    )


def _write_record(opened: TaggedFile, folded: FoldedModel) -> None:
    """What the flat file says of itself, for the folded one: as much as it says, and no more.

    Who embedded nothing, or only the record without keys on nodes, did so on purpose. What was read from a file
    without a record goes into the folded one: the names that it was read from are not all there any more.
    """
    if opened.believed is not None:
        constants = sketches_of(replace(opened, proto=folded.model))
        metadata.embed_record(folded.model, folded.provenance, outlined(folded.graph, constants))
        return
    if level_of(opened.proto) is Level.FULL:
        metadata.write_node_keys(folded.model, folded.provenance, folded.keys)
    if read_record(opened.proto) is not None:
        metadata.embed_record(folded.model, folded.provenance, _outline_folded(opened, folded))


def _outline_folded(opened: TaggedFile, folded: FoldedModel) -> Outline | None:
    """The outline of the folded graph. What it says of weights is taken from the flat one's, and none is read."""
    try:
        outline = opened.outline
    except RecordUnreadable:  # of a newer version, perhaps; folding does not need it
        outline = None
    if outline is None:
        return None
    graph = folded.graph
    constants = sketches_of(replace(opened, proto=folded.model))
    return outlined(graph, lambda name: outline.sketches.get(name) if name in graph.initializers else constants(name))


def flatten(path: str | Path | Package | Component, output: str | Path) -> FlattenResult:
    """Write a file without functions: what `fold` made becomes exactly what it was, other functions are inlined."""
    source, target = find_one_file(path), Path(output)
    ensure_model_target(target)
    opened = open_file(source)
    ensure_apart(target, source)
    ensure_sound(opened.proto, opened.graph, str(source))
    metadata.ensure_whole(opened.proto, str(source))
    # A recipe gives back the very file; inlining the functions of other tools has to invent names.
    restored = restore_model(opened.proto)
    if restored.model is None:
        return _inline_calls(opened, target, restored.note)
    file = replace(opened, proto=restored.model)
    packed = read_record(restored.model) or restored.record
    provenance = unpack(packed) if packed else None
    gone = [function_id(function) for function in opened.proto.functions]
    left = {function_id(function) for function in restored.model.functions}
    inlined = tuple(name for name in gone if name not in left)
    flattening = Flattening(len(opened.graph.nodes), len(file.graph.nodes), True, inlined)
    return FlattenResult(target, _write_files(file, provenance, target), provenance, flattening)


def _inline_calls(opened: TaggedFile, target: Path, note: str) -> FlattenResult:
    """Put the body of each function in the place of every call, as ONNX Runtime does before it runs a model."""
    try:
        record = opened.provenance
    except (RecordUnreadable, RecordMismatch):
        record = None
    before = len(opened.graph.nodes)
    if not opened.proto.functions:
        unchanged = Flattening(before, before, True, note=note)
        if record is not None and opened.believed is not None:
            written = write_tagged(opened, record, target, EmbedOptions())
            return FlattenResult(target, written.files, record, unchanged, note_source(opened))
        stored = record and opened.record
        return FlattenResult(target, _write_files(opened, stored, target), stored, unchanged)
    inlining = inline_functions(opened.proto, record)
    file = replace(opened, proto=inlining.model)
    flattening = Flattening(before, len(file.graph.nodes), False, inlining.inlined, inlining.kept, note)
    if record is None:
        return FlattenResult(target, _write_files(file, None, target), None, flattening)
    missing = unattributed("not in the record")
    nodes = {
        node.key: NodeEntry(node.key, node.name, node.op_type, inlining.attributions.get(node.key, missing))
        for node in file.graph.nodes
    }
    provenance = replace(record, nodes=nodes, origin=replace(record.origin, graph=file.graph.fingerprint))
    level = level_of(opened.proto) if opened.believed is None else Level.FULL
    written = write_tagged(file, provenance, target, EmbedOptions(level))
    return FlattenResult(target, written.files, written.provenance, flattening, note_source(opened))


def _write_files(file: ModelFile, provenance: Provenance | None, target: Path) -> tuple[Path, ...]:
    """The model as it is, unlike `write_tagged`, which embeds the record anew, and the record beside it."""
    with staging() as stage:
        files = stage_model(stage, file, target)
        if provenance is None:
            return files
        stage.write(sidecar_path(target), write_document(provenance))
    return (*files, sidecar_path(target))


@dataclass(frozen=True)
class Stripped:
    """What was written, how many entries of metadata it has no more, and keys to be kept that it never had."""

    files: tuple[Path, ...]
    removed: int
    absent: tuple[str, ...] = ()


@dataclass(frozen=True)
class StrippedPackage:
    """The package that was written, and by component what was removed from its file."""

    package: Package
    components: Mapping[str, Stripped]


@overload
def strip(
    source: str | Path,
    output: str | Path,
    *,
    keep: Sequence[str] = (),
    exporter_metadata: bool = False,
    force: bool = False,
) -> Stripped | Any: ...
@overload
def strip(
    source: Package,
    output: str | Path,
    *,
    keep: Sequence[str] = (),
    exporter_metadata: bool = False,
    force: bool = False,
) -> StrippedPackage: ...
def strip(
    source: str | Path | Package,
    output: str | Path,
    *,
    keep: Sequence[str] = (),
    exporter_metadata: bool = False,
    force: bool = False,
) -> Stripped | StrippedPackage:
    """Write a file, or all files of a package, without the record and the keys on nodes; all else is as it was.

    keep               keys that stay, with or without their prefix: tag, module, …, record
    exporter_metadata  also remove what torch writes on nodes
    force              for a package: write into a folder that is not empty
    """
    if (package := find_package(source)) is not None:
        return _strip_package(package, Path(output), keep=keep, exporter_metadata=exporter_metadata, force=force)
    target = Path(output)
    kept = parse_kept_keys(keep)
    ensure_model_target(target)
    ensure_apart(target, Path(source))
    model = open_tagged(Path(source))
    stripped = strip_model(model, kept, exporter_metadata=exporter_metadata)
    return replace(stripped, files=save_model(model, target))


def _strip_package(
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


def strip_model(model: TaggedFile, kept: frozenset[str], *, exporter_metadata: bool = False) -> Stripped:
    """The same in memory: nothing is written yet."""
    # Read first: what was never there is worth a note, and afterwards it is gone either way.
    there = metadata.own_keys(model.proto, *model.protos.values())
    removed = metadata.strip_own_metadata(model.proto, kept)
    if exporter_metadata:
        metadata.strip_exporter_metadata(model.proto)
    return Stripped((), removed, tuple(key.removeprefix(PREFIX) for key in _KEYS if key in kept - there))


def parse_kept_keys(keep: Sequence[str]) -> frozenset[str]:
    return frozenset(_full_key(name) for name in as_sequence(keep, "keep"))


def _full_key(name: str) -> str:
    """`tag` as well as `pkg.modelexport.tag`: what the user sees in a viewer is the long one."""
    key = name if name.startswith(PREFIX) else PREFIX + name
    if key not in _KEYS:
        known = ", ".join(key.removeprefix(PREFIX) for key in _KEYS)
        raise UserError(f"there is no key {name!r}", f"These can be kept: {known}.")
    return key
