"""Modules as ONNX functions. Nothing here needs torch, runs a model or reads a weight."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from modelexport.api.opening import OpenedFile, open_file
from modelexport.api.writing import ensure_apart
from modelexport.errors import RecordUnreadable
from modelexport.folding.fold import Folded, fold_model
from modelexport.folding.recipe import write_recipe
from modelexport.graph.atomic import staging
from modelexport.graph.embed import (
    Level,
    embed_record,
    level_of,
    read_outline,
    read_record,
    sidecar_path,
    write_node_keys,
)
from modelexport.graph.folded import ensure_flat, ensure_whole
from modelexport.graph.outline import outlined
from modelexport.graph.saving import ensure_model_target, stage_model
from modelexport.graph.sketch import sketches_of
from modelexport.graph.soundness import ensure_sound
from modelexport.record.document import write_document
from modelexport.record.folding import Folding
from modelexport.record.outline import Outline
from modelexport.record.packed import pack
from modelexport.record.packed_outline import unpack_outline
from modelexport.record.provenance import Provenance


@dataclass(frozen=True)
class FoldResult:
    """The files that were written, the record as it is in them, and what became of the modules."""

    path: Path
    files: tuple[Path, ...]
    provenance: Provenance
    folding: Folding


def fold(path: str | Path, output: str | Path, *, classes: Iterable[str] = ()) -> FoldResult:
    """Write a file with its repeated modules as functions: one body for all calls that do the same.

    classes  the modules that become functions, by class, also if they are called once; all that repeat if left out
    """
    source, target = Path(path), Path(output)
    ensure_model_target(target)
    opened = open_file(source)
    ensure_apart(target, source)
    ensure_flat(opened.file.proto, str(source))
    ensure_whole(opened.file.proto, str(source))
    ensure_sound(opened.file.proto, opened.graph, str(source))
    model = opened.file.proto
    beside = pack(opened.record) if read_record(model) is None else ""
    folded = fold_model(model, opened.subject.provenance, tuple(dict.fromkeys(classes)), str(source), beside)
    folding = replace(folded.folding, note="; ".join(filter(None, (_staleness(opened), _loss(folded.folding)))))
    if folded.recipe is None:
        folded = replace(folded, provenance=opened.record)
    else:
        _write_record(opened, folded)
        write_recipe(folded.model, folded.recipe)
    file = replace(opened.file, proto=folded.model)
    with staging() as stage:
        files = stage_model(stage, file, target)
        stage.write(sidecar_path(target), write_document(folded.provenance))
    return FoldResult(target, (*files, sidecar_path(target)), folded.provenance, folding)


def _loss(folding: Folding) -> str:
    if not folding.functions or folding.after < folding.before:
        return ""
    return f"folding does not pay here: there are no fewer nodes than before ({folding.before}, now {folding.after})"


def _staleness(opened: OpenedFile) -> str:
    if opened.is_up_to_date:
        return ""
    entries = opened.subject.provenance.nodes.values()
    lost = sum(not entry.attribution.owners for entry in entries)
    return (
        f"the graph was changed after its record was made, and {lost} of its {len(entries)} nodes have no module: "
        "`modelexport relink` first, and fold what it writes"
    )


def _write_record(opened: OpenedFile, folded: Folded) -> None:
    """What the flat file says of itself, for the folded one: as much as it says, and no more."""
    if level_of(opened.file.proto) is Level.FULL:
        write_node_keys(folded.model, folded.provenance, folded.keys)
    if read_record(opened.file.proto) is not None:
        embed_record(folded.model, folded.provenance, _outline(opened, folded))


def _outline(opened: OpenedFile, folded: Folded) -> Outline | None:
    """The outline of the folded graph. What it says of weights is taken from the flat one's, and none is read."""
    packed = read_outline(opened.file.proto)
    if packed is None:
        return None
    try:
        known = unpack_outline(packed, opened.record).sketches
    except RecordUnreadable:
        return None
    graph = folded.graph
    constants = sketches_of(replace(opened.file, proto=folded.model))
    return outlined(graph, lambda name: known.get(name) if name in graph.initializers else constants(name))
