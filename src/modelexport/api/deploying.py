"""The graph that ONNX Runtime makes of a file before it runs it, with the record that it inherits."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modelexport.analysis.analyze import Subject
from modelexport.api.observing import Opened, with_crossings
from modelexport.api.opening import open_file
from modelexport.api.relink import ancestor_of, relinked
from modelexport.graph.folded import ensure_flat

_TOOL = "ort:all"


@contextmanager
def as_deployed(opened: Opened) -> Iterator[Opened]:
    """What runs in the place of a file, all optimizations on, on the CPU; valid inside of the block."""
    from modelexport.tools.optimizers import save_optimized

    # ONNX Runtime puts functions in the places of their calls, and the modules inside are lost.
    ensure_flat(opened.source.file.proto, str(opened.source.path))
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "optimized.onnx"
        save_optimized(opened.source.path, target)
        made = open_file(target)
        record = relinked(ancestor_of(opened.source), made, _TOOL).provenance
        yield with_crossings(made, Subject(opened.source.path, made.file.proto, made.graph, record))
