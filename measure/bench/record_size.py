"""The embedded record alone (`--embed lean`) against the graph without weights and exporter metadata: 12-layer BERT."""

from __future__ import annotations

import tempfile
from pathlib import Path

import modelexport as mx
from measure.bench.export_overhead import models
from measure.bench.report import Table
from modelexport.graph.embed import OUTLINE_KEY, RECORD_KEY
from modelexport.graph.model_file import open_model

LIMIT = 0.20


def measure() -> Table:
    rows = []
    shares = []
    model, inputs = models(64)["BERT"]
    for exporter in ("dynamo", "torchscript"):
        graph, record = _sizes(model, inputs, exporter)
        shares.append(record / graph)
        rows.append((exporter, f"{graph:,}", f"{record:,}", f"{record / graph:.1%}"))
    text = f"{__doc__ or ''}\nThe limit is {LIMIT:.0%}."
    return Table(
        "Size of the record",
        text,
        ("exporter", "graph bytes", "record bytes", "share"),
        tuple(rows),
        max(shares) <= LIMIT,
    )


def _sizes(model: object, inputs: object, exporter: str) -> tuple[int, int]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bert.onnx"
        mx.export(
            model,  # type: ignore[arg-type]
            path,
            inputs=inputs,
            exporter=exporter,
            embed="lean",
            strip_exporter_metadata=True,
            no_check=True,
        )
        proto = open_model(path).proto
    size = sum(entry.ByteSize() for entry in proto.metadata_props if entry.key in (RECORD_KEY, OUTLINE_KEY))
    # Small constants are part of the graph, but weights below the size that is left in place are weights.
    for tensor in proto.graph.initializer:
        for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data"):
            tensor.ClearField(field)
    return proto.ByteSize() - size, size
