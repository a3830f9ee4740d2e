"""Exports: nodes by confidence, and the cost of tags in time and in bytes."""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from tests.support.architectures import NAMES, build
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

import modelexport as mx
from measure.corpus.rows import EXPORTERS
from measure.pages import Table
from measure.strategies.judged_exports import export_plainly
from modelexport.graph.file.metadata import OUTLINE_KEY, RECORD_KEY
from modelexport.graph.file.reading import open_model

_COVERAGE_TEXT = """\
Every architecture of the tests, by both exporters: nodes by confidence, and what must not occur.

`empty` counts executed modules with parameters that own neither a node nor an initializer. `difference` is the largest
absolute difference between the file in ONNX Runtime and PyTorch."""
_COVERAGE_COLUMNS = (
    "model",
    "exporter",
    "nodes",
    "exact",
    "strong",
    "inferred",
    "fallback",
    "none",
    "empty",
    "difference",
)


def measure_coverage() -> Table:
    rows = []
    holds = True
    for name in NAMES:
        for exporter in EXPORTERS:
            row, good = _coverage_row(name, exporter)
            rows.append(row)
            holds &= good
    return Table("Coverage", _COVERAGE_TEXT, _COVERAGE_COLUMNS, tuple(rows), holds)


def _coverage_row(name: str, exporter: str) -> tuple[tuple[str, ...], bool]:
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


_OVERHEAD_TEXT = """\
Export with tags against plain `torch.onnx.export`: processor time, same process, alternating, median of several runs.

The output check is off, because plain export has none. Ratios compare runs of the same minute on the same machine, so
they mean something even where the machine is noisy; seconds are for orientation only."""
RATIO_LIMITS = {"dynamo": 1.10, "torchscript": 1.10}
WIDTHS = (64, 768)
Inputs = Mapping[str, torch.Tensor | bool]


def measure_export_overhead(runs: int = 5) -> Table:
    rows = []
    holds = True
    for width in WIDTHS:
        for name, (model, inputs) in _models_of_width(width).items():
            for exporter, limit in RATIO_LIMITS.items():
                plain_time, tagged_time = _median_seconds(model, inputs, exporter, runs)
                ratio = tagged_time / plain_time
                holds &= ratio <= limit
                seconds = (f"{plain_time:.2f}", f"{tagged_time:.2f}")
                rows.append((f"{name}, 12 layers of {width}", exporter, *seconds, f"{ratio:.2f}", f"{limit:.2f}"))
    columns = ("model", "exporter", "plain s", "tagged s", "ratio", "limit")
    return Table("Cost of an export", _OVERHEAD_TEXT, columns, tuple(rows), holds)


def _models_of_width(width: int) -> dict[str, tuple[PreTrainedModel, Inputs]]:
    torch.manual_seed(0)
    ids = torch.randint(5, 900, (2, 16))
    mask = torch.ones_like(ids)
    size: dict[str, Any] = {
        "hidden_size": width,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "intermediate_size": 4 * width,
    }
    bert = BertModel(BertConfig(**size, vocab_size=30522)).eval()
    llama = LlamaForCausalLM(LlamaConfig(**size, vocab_size=32000)).eval()
    return {
        "BERT": (bert, {"input_ids": ids, "attention_mask": mask}),
        "Llama": (llama, {"input_ids": ids, "attention_mask": mask, "use_cache": False}),
    }


def _median_seconds(model: torch.nn.Module, inputs: Inputs, exporter: str, runs: int) -> tuple[float, float]:
    """Seconds of a plain and of a tagged export."""
    times: dict[str, list[float]] = {"plain": [], "tagged": []}
    exports = {"plain": _export_plainly, "tagged": _export_tagged}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        for run in range(runs + 1):
            for kind, export in exports.items():
                spent = _seconds_of_export(export, model, inputs, path, exporter)
                if run:  # the first round warms caches up
                    times[kind].append(spent)
    return statistics.median(times["plain"]), statistics.median(times["tagged"])


def _export_plainly(model: torch.nn.Module, inputs: Inputs, path: Path, exporter: str) -> None:
    names = [name for name, value in inputs.items() if isinstance(value, torch.Tensor)]
    export_plainly(model, inputs, path, exporter, {name: {0: "batch", 1: "sequence"} for name in names})


def _export_tagged(model: torch.nn.Module, inputs: Inputs, path: Path, exporter: str) -> None:
    mx.export(model, path, inputs=inputs, exporter=exporter, no_check=True)


def _seconds_of_export(
    export: Callable[[torch.nn.Module, Inputs, Path, str], None],
    model: torch.nn.Module,
    inputs: Inputs,
    path: Path,
    exporter: str,
) -> float:
    gc.collect()
    start = time.process_time()
    export(model, inputs, path, exporter)
    return time.process_time() - start


_RECORD_SIZE_TEXT = """\
The embedded record alone (`--embed lean`) against the graph without weights and exporter metadata: 12-layer BERT."""
SHARE_LIMIT = 0.10


def measure_record_size() -> Table:
    rows = []
    shares = []
    model, inputs = _models_of_width(64)["BERT"]
    for exporter in EXPORTERS:
        graph, record = _graph_and_record_bytes(model, inputs, exporter)
        shares.append(record / graph)
        rows.append((exporter, f"{graph:,}", f"{record:,}", f"{record / graph:.1%}"))
    text = f"{_RECORD_SIZE_TEXT}\nThe limit is {SHARE_LIMIT:.0%}."
    return Table(
        "Size of the record",
        text,
        ("exporter", "graph bytes", "record bytes", "share"),
        tuple(rows),
        max(shares) <= SHARE_LIMIT,
    )


def _graph_and_record_bytes(model: object, inputs: object, exporter: str) -> tuple[int, int]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bert.onnx"
        mx.export(  # type: ignore[call-overload]
            model,
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
