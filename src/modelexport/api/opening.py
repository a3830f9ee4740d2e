"""Opening a file for a question: with its record, or with what the file itself says of its modules.

    bert.onnx, tagged          its record
    yolo.onnx, by any tool     the hierarchy that its names and metadata tell of (`attribute/sources`), in memory

Nothing is written into a file that is opened. A record that is damaged or another model's is an error as ever, and no
reason to guess. Verbs that must know whether there is a record (`validate`, `relink AFTER`) use `open_tagged`.
"""

from __future__ import annotations

from pathlib import Path

from modelexport.graph.arity import ensure_arity
from modelexport.graph.file.tagged_file import TaggedFile, open_tagged
from modelexport.graph.soundness import ensure_sound
from modelexport.record.provenance import Origin, Provenance


def open_file(path: Path) -> TaggedFile:
    """The file with its record; where there is none, with the one that `read_hierarchy` makes of it."""
    file = open_tagged(path)
    return file if file.is_recorded else file.believing(read_hierarchy(file))


def read_hierarchy(file: TaggedFile) -> Provenance:
    """What the file itself says of its modules, as a record that is stored nowhere."""
    # Only needed for a file without a record.
    from modelexport.attribute.sources.find import find_hierarchy

    # Values that nobody makes, or a cycle: what is read from the rest would be about no model.
    ensure_sound(file.proto, file.graph, str(file.path))
    ensure_arity(file.proto, file.graph, str(file.path))
    return find_hierarchy(file.graph)


def note_source(*files: TaggedFile) -> tuple[str, ...]:
    """For each file without a record: one line that says where its modules come from, and how to know more."""
    read = [(file.believed.origin, str(file.path)) for file in files if file.believed is not None]
    return tuple(dict.fromkeys(advise_attaching(origin, path) for origin, path in read if origin.is_file))


def advise_attaching(origin: Origin, path: str) -> str:
    """`no record in yolo.onnx: modules are read from TorchScript node names; …`: all verbs say it in these words."""
    gain = "proves them by values" if origin.exporter else "finds them by values"
    return f"no record in {path}: {origin.source_text}; `modelexport attach {path} -m MODEL -o FILE` {gain}"
