"""Source of a hierarchy that no model was run for: what a user is told about it, in one place.

Origin(strategy="file", exporter="TorchScript node names")      read from the file itself
no record in yolo.onnx: modules are read from TorchScript node names; `modelexport attach …` proves them by values
"""

from __future__ import annotations

from modelexport.record.provenance import Origin

# The strategy of a record that was read from the file itself.
FROM_FILE = "file"


def is_from_file(origin: Origin) -> bool:
    return origin.strategy == FROM_FILE


def describe_source(origin: Origin) -> str:
    """`modules are read from TorchScript node names`; for a record that was read from the file itself."""
    return f"modules are read from {origin.exporter}" if origin.exporter else "nothing in it tells of modules"


def advise_attaching(origin: Origin, path: str) -> str:
    """One line: where the modules of a file without a record come from, and how to know more."""
    gain = "proves them by values" if origin.exporter else "finds them by values"
    return f"no record in {path}: {describe_source(origin)}; `modelexport attach {path} -m MODEL -o FILE` {gain}"
