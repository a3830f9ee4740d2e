"""How much of the time that ONNX Runtime spends in kernels is charged to modules, all optimizations on.

`attributed` is the share of kernel time of nodes that belong to some module; `in parts` is what the modules are charged
with in all runs, against what ONNX Runtime's trace adds up to by itself. Both must be all of it. `shared` is what
kernels do for several modules at once, which is charged to none of them alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import modelexport as mx
from measure.bench.report import Table
from measure.corpus.building import build, inputs_of
from measure.corpus.manifest import read_rows
from modelexport.errors import ExportFailed, ToolFailed
from modelexport.record.profile import Profile

ROWS = ("bert", "llama", "t5", "vit", "resnet", "whisper", "branching", "long-short-term")
EXPORTERS = ("dynamo", "torchscript")
_RUNS = 5


def measure() -> Table:
    rows, holds = [], True
    for name, exporter, kind, profile in _profiles():
        if isinstance(profile, str):
            rows.append((name, exporter, kind, "", profile, "", ""))
            continue
        parts = profile.check.charged / profile.check.trace
        shared = sum(node.time for node in profile.nodes if node.sharers) / profile.time
        holds &= profile.attributed == 1.0 and profile.check.holds
        figures = (f"{profile.attributed:.1%}", f"{parts:.6f}", f"{shared:.1%}")
        rows.append((name, exporter, kind, str(len(profile.nodes)), *figures))
    columns = ("model", "exporter", "weights", "nodes", "attributed", "in parts", "shared")
    return Table("Time by module", (__doc__ or "").strip(), columns, tuple(rows), holds)


def _profiles() -> Iterator[tuple[str, str, str, Profile | str]]:
    """With a reason in the place of a profile where torch or the quantizer refuses the model."""
    rows = {row.name: row for row in read_rows()}
    for name in ROWS:
        model = build(rows[name])
        inputs = inputs_of(rows[name], model)
        for exporter in EXPORTERS:
            with tempfile.TemporaryDirectory() as folder:
                plain, small = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
                try:
                    mx.export(model, plain, inputs=inputs, exporter=exporter, no_check=True)
                    yield name, exporter, "float", mx.profile(plain, runs=_RUNS, warmup=1)
                    mx.run_tool(plain, "int8", small)
                    yield name, exporter, "int8", mx.profile(small, runs=_RUNS, warmup=1)
                except (ExportFailed, ToolFailed) as error:
                    yield name, exporter, "int8" if plain.exists() else "any", error.message.splitlines()[0]
