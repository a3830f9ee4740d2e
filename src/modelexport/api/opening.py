"""Opening a file for a question: with its record, or with what the file itself says of its modules.

    bert.onnx, tagged          its record
    yolo.onnx, by any tool     the hierarchy that its names and metadata tell of (`attribute/sources`), in memory

Nothing is written into a file that is opened. A record that is damaged or another model's is an error as ever, and no
reason to guess. Verbs that must know whether there is a record (`validate`, `relink AFTER`) use `open_tagged`.
"""

from __future__ import annotations

from pathlib import Path

from modelexport.errors import quote_argument
from modelexport.graph.file.declared import ensure_weights
from modelexport.graph.file.tagged_file import TaggedFile, open_tagged
from modelexport.graph.inference import ensure_inferable
from modelexport.record.provenance import Origin, Provenance


def open_file(path: Path) -> TaggedFile:
    """The file with its record; where there is none, with the one that `read_hierarchy` makes of it."""
    file = open_tagged(path)
    return file if file.is_recorded else file.believing(read_hierarchy(file))


def read_hierarchy(file: TaggedFile) -> Provenance:
    """What the file itself says of its modules, as a record that is stored nowhere."""
    # Only needed for a file without a record.
    from modelexport.attribute.sources.find import find_hierarchy
    from modelexport.graph.arity import ensure_arity
    from modelexport.graph.soundness import ensure_sound

    # Values that nobody makes, or a cycle: what is read from the rest would be about no model.
    ensure_sound(file.proto, file.graph, str(file.path))
    ensure_arity(file.proto, file.graph, str(file.path))
    return find_hierarchy(file.graph)


def ensure_runnable(file: TaggedFile) -> None:
    """Raise UserError for a file that runtimes would not return from, or that has no numbers to run with."""
    ensure_inferable(file.proto, str(file.path))
    ensure_weights(file, file.path)


def ensure_record(file: TaggedFile) -> None:
    """Raise RecordMissing or RecordUnreadable if the file has no record that can be read: before a model is loaded."""
    _ = file.record


def note_source(*files: TaggedFile) -> tuple[str, ...]:
    """For each file without a record: one line that says where its modules come from, and how to know more."""
    read = [(file, file.believed.origin) for file in files if file.believed is not None]
    lines = (
        advise_attaching(origin, str(file.path), is_empty=not file.graph.nodes)
        for file, origin in read
        if origin.is_file
    )
    return tuple(dict.fromkeys(lines))


def advise_attaching(origin: Origin, path: str, *, is_empty: bool = False) -> str:
    """`no record in yolo.onnx: modules are read from TorchScript node names; …`: all verbs say it in these words.

    A model is proposed as a matter of course if the names are PyTorch's. Other files may have been made from anything.
    """
    missing = f"no record in {path}: {origin.source_text}"
    if is_empty:
        return missing
    attach = f"`modelexport attach {quote_argument(path)} -m MODEL -o FILE`"
    if _is_from_torch(origin):
        return f"{missing}; {attach} proves them by values"
    return f"{missing}; if it was exported from PyTorch, {attach} finds them by values"


def _is_from_torch(origin: Origin) -> bool:
    """Whether every source of the modules is one that comes from a PyTorch model."""
    from modelexport.attribute.sources.exporter_metadata import DYNAMO, WINML
    from modelexport.attribute.sources.node_names import TORCHSCRIPT
    from modelexport.attribute.sources.parameter_names import PARAMETERS

    sources = origin.exporter.split(", ") if origin.exporter else []
    return bool(sources) and all(source.startswith((DYNAMO, WINML, TORCHSCRIPT, PARAMETERS)) for source in sources)
