"""Writing a tagged file: the model, its record inside and beside it, and further texts: all files appear, or none.

    bert.onnx                  weights, graph, keys on nodes, the record
    bert.onnx.data             weights, if they are large
    bert.hierarchy.json        the record for people and other programs

Every file is first written under another name in its folder and then renamed (`graph/file/atomic`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from modelexport.errors import FileUnwritable
from modelexport.graph.file.atomic import Stage, staging
from modelexport.graph.file.metadata import EmbedOptions, Level, Names, embed, embed_record, rename_nodes, sidecar_path
from modelexport.graph.file.reading import ModelFile
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.file.writing import STAYS, Storage, stage_model
from modelexport.graph.outline import outlined, sketches_of
from modelexport.record.document import write_document
from modelexport.record.provenance import Provenance
from modelexport.record.regular_files import open_regular


@dataclass(frozen=True)
class WrittenFiles:
    files: tuple[Path, ...]
    provenance: Provenance


def write_tagged(
    model: ModelFile,
    provenance: Provenance,
    path: Path,
    options: EmbedOptions,
    *,
    storage: Storage = STAYS,
    texts: Mapping[Path, str] | None = None,
) -> WrittenFiles:
    """Write the model with its record inside, the record beside it, and further texts.

    storage  where weights go: into the model or files of their own
    texts    graphs that an export was asked for, by path
    """
    if options.names is Names.HIERARCHICAL:
        provenance = _renamed(model, provenance)
    # Taken before keys are written, so that it tells of the graph alone.
    outline = None if options.level is Level.NONE else outlined(model.graph, sketches_of(model))
    embed(model.proto, provenance, options, outline)
    sidecar = sidecar_path(path)
    with staging() as stage:
        files = stage_model(stage, model, path, storage)
        stage.write(sidecar, write_document(provenance))
        for target, text in (texts or {}).items():
            stage.write(target, text)
    return WrittenFiles((*files, sidecar, *(texts or {})), provenance)


def stage_copy(stage: Stage, opened: TaggedFile, path: Path) -> tuple[Path, ...]:
    """A model whose names or metadata were changed, with the record that lies beside it, if one does.

    What was read from a file without a record is written down: the copy may have other names to read it from.
    """
    if opened.believed is not None:
        embed_record(opened.proto, opened.provenance, outlined(opened.graph, sketches_of(opened)))
        files = stage_model(stage, opened, path)
        stage.write(sidecar_path(path), write_document(opened.provenance))
        return (*files, sidecar_path(path))
    files = stage_model(stage, opened, path)
    beside = sidecar_path(opened.path)
    if not beside.is_file():
        return files
    with open_regular(beside) as file:
        stage.write(sidecar_path(path), file.read())
    return (*files, sidecar_path(path))


def ensure_apart(target: Path, *inputs: Path) -> None:
    """A model that is written, with its record, never takes the place of a file that was read for it."""
    ensure_spared((target, sidecar_path(target)), inputs)


def ensure_spared(targets: Iterable[Path], inputs: Iterable[Path]) -> None:
    """What is written never takes the place of a file that was read for it, or of that one's record."""
    named = [path for path in inputs if path.name]  # `.` and `/` are folders, which reading them will say
    read = {path.resolve(): path for path in (*named, *map(sidecar_path, named))}
    for target in targets:
        if target.resolve() in read:
            raise FileUnwritable(
                f"cannot write {target}: {read[target.resolve()]} is read here, and would be lost",
                "Write to a file of another name.",
            )


def _renamed(model: ModelFile, provenance: Provenance) -> Provenance:
    names = rename_nodes(model.proto, {key: entry.attribution for key, entry in provenance.nodes.items()})
    entries = {key: replace(entry, name=names[key]) for key, entry in provenance.nodes.items()}
    return replace(provenance, nodes=entries)
