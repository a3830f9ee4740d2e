"""Every architecture of the tests, by both exporters: nodes by confidence, and what must not occur.

`empty` counts executed modules with parameters that own neither a node nor an initializer. `difference` is the largest
absolute difference between the file in ONNX Runtime and PyTorch.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.architectures import NAMES, build

import modelexport as mx
from measure.bench.report import Table

COLUMNS = ("model", "exporter", "nodes", "exact", "strong", "inferred", "fallback", "none", "empty", "difference")


def measure() -> Table:
    rows = []
    holds = True
    for name in NAMES:
        for exporter in ("dynamo", "torchscript"):
            row, good = _row(name, exporter)
            rows.append(row)
            holds &= good
    return Table("Coverage", (__doc__ or "").strip(), COLUMNS, tuple(rows), holds)


def _row(name: str, exporter: str) -> tuple[tuple[str, ...], bool]:
    sys.stderr.write(f"coverage: {name}, {exporter}\n")
    with tempfile.TemporaryDirectory() as folder:
        result = mx.export(build(name), Path(folder) / "model.onnx", exporter=exporter)
    found = result.provenance
    counts = Counter(entry.attribution.confidence for entry in found.nodes.values())
    empty = sum(bool(found.hierarchy.modules[path].parameters) for path in found.absent)
    assert result.check is not None
    by_confidence = [str(counts[level]) for level in sorted(mx.Confidence, reverse=True)]
    row = (name, exporter, str(len(found.nodes)), *by_confidence, str(empty), f"{result.check.max_abs_diff:.1e}")
    bad = counts[mx.Confidence.NONE] + counts[mx.Confidence.FALLBACK] + empty
    return row, result.check.ok and not bad
