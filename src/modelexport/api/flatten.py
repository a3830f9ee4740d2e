"""Files without functions. Nothing here needs torch, runs a model or reads a weight."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from modelexport.api.opening import OpenedFile, open_file
from modelexport.api.writing import ensure_apart, write_tagged
from modelexport.errors import RecordMismatch, RecordMissing, RecordUnreadable
from modelexport.folding.flatten import restore_model
from modelexport.folding.inlining import inline_functions
from modelexport.graph.atomic import staging
from modelexport.graph.embed import EmbedOptions, level_of, read_record, sidecar_path
from modelexport.graph.folded import ensure_whole
from modelexport.graph.index import function_id
from modelexport.graph.opened import ModelFile
from modelexport.graph.saving import ensure_model_target, stage_model
from modelexport.graph.soundness import ensure_sound
from modelexport.record.document import write_document
from modelexport.record.evidence import unattributed
from modelexport.record.folding import Flattening
from modelexport.record.packed import unpack
from modelexport.record.provenance import NodeEntry, Provenance


@dataclass(frozen=True)
class FlattenResult:
    """The files that were written, the record as it is in them (None if there is none), and how it was done."""

    path: Path
    files: tuple[Path, ...]
    provenance: Provenance | None
    flattening: Flattening


def flatten(path: str | Path, output: str | Path) -> FlattenResult:
    """Write a file without functions: what `fold` made of it becomes exactly what it was before.

    Other functions are put in the place of their calls.
    """
    source, target = Path(path), Path(output)
    ensure_model_target(target)
    opened = open_file(source)
    ensure_apart(target, source)
    ensure_sound(opened.file.proto, opened.graph, str(source))
    ensure_whole(opened.file.proto, str(source))
    found = restore_model(opened.file.proto)
    if found.model is None:
        return _inlined(opened, target, found.note)
    file = replace(opened.file, proto=found.model)
    packed = read_record(found.model) or found.record
    provenance = unpack(packed) if packed else None
    gone = [function_id(one) for one in opened.file.proto.functions]
    left = {function_id(one) for one in found.model.functions}
    flattening = Flattening(
        len(opened.graph.nodes), len(file.graph.nodes), True, tuple(name for name in gone if name not in left)
    )
    return FlattenResult(target, _written(file, provenance, target), provenance, flattening)


def _inlined(opened: OpenedFile, target: Path, note: str) -> FlattenResult:
    record = _record(opened)
    before = len(opened.graph.nodes)
    if not opened.file.proto.functions:
        stored = record and opened.record
        return FlattenResult(
            target, _written(opened.file, stored, target), stored, Flattening(before, before, True, note=note)
        )
    inlining = inline_functions(opened.file.proto, record)
    file = replace(opened.file, proto=inlining.model)
    flattening = Flattening(before, len(file.graph.nodes), False, inlining.inlined, inlining.kept, note)
    if record is None:
        return FlattenResult(target, _written(file, None, target), None, flattening)
    missing = unattributed("not in the record")
    nodes = {
        node.key: NodeEntry(node.key, node.name, node.op_type, inlining.attributions.get(node.key, missing))
        for node in file.graph.nodes
    }
    provenance = replace(record, nodes=nodes, origin=replace(record.origin, graph=file.graph.fingerprint))
    written = write_tagged(file, provenance, target, EmbedOptions(level_of(opened.file.proto)))
    return FlattenResult(target, written.files, written.provenance, flattening)


def _record(opened: OpenedFile) -> Provenance | None:
    """A file that nothing is known about can be flattened like any other."""
    try:
        return opened.subject.provenance
    except (RecordMissing, RecordUnreadable, RecordMismatch):
        return None


def _written(file: ModelFile, provenance: Provenance | None, target: Path) -> tuple[Path, ...]:
    with staging() as stage:
        files = stage_model(stage, file, target)
        if provenance is None:
            return files
        stage.write(sidecar_path(target), write_document(provenance))
    return (*files, sidecar_path(target))
