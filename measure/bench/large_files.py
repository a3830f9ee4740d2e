"""Large files: memory and time of exporting 2 GB of float32 weights, with tags and the output check, and plainly.

A model of the size of Qwen2.5-0.5B with random weights is saved as a folder once. Each row is a process of its own that
loads it and exports it with dynamo. *Peak* is the most memory that the process had at any time (VmHWM), with the pages
of mapped files that were in memory then: the weights of the folder, and those of the written file when ONNX Runtime
runs it. They can be read again at any time, so a machine with less memory needs less. *CPU s* is from the folder to the
file, all threads together, without imports.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim

import modelexport as mx
from measure.bench.trace_memory import peak_memory
from measure.pages import Table
from measure.workers import run_alone

GB = 1_000_000_000
# Peak memory with the check: so many times the weights, and what torch and the graph take; CPU time without it.
SHARE, BESIDE = 1.15, 1 * GB
CPU_LIMIT = 1.0
COLUMNS = ("export", "peak GB", "limit GB", "CPU s", "of plain")
PLAIN, UNCHECKED, CHECKED = "plain", "unchecked", "checked"
ROWS: Mapping[str, str] = {
    PLAIN: "plain `torch.onnx.export`",
    UNCHECKED: "with tags, `--no-check`",
    CHECKED: "with tags and output check",
}
_SIZES: Mapping[str, Any] = {
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
_AXES = {0: Dim.AUTO, 1: Dim.AUTO}


@dataclass(frozen=True)
class Cost:
    """Bytes at the peak, CPU seconds, and what the output check says."""

    peak: int
    seconds: float
    ok: bool = True


def measure_large_files() -> Table:
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        run_alone(__name__, "build", str(model), environment={})
        weights = sum(path.stat().st_size for path in model.glob("*.safetensors"))
        costs = {kind: _measure_alone(kind, model, Path(folder)) for kind in ROWS}
    limit = SHARE * weights + BESIDE
    plain, unchecked, checked = (costs[kind] for kind in ROWS)
    holds = checked.ok and checked.peak <= limit and unchecked.seconds <= CPU_LIMIT * plain.seconds
    rows = tuple(
        (
            label,
            f"{costs[kind].peak / GB:.2f}",
            f"{limit / GB:.2f}" if kind == CHECKED else "",
            f"{costs[kind].seconds:.1f}",
            f"{costs[kind].seconds / plain.seconds:.2f}",
        )
        for kind, label in ROWS.items()
    )
    text = (
        f"{(__doc__ or '').strip()}\n\n{weights / GB:.2f} GB of weights. The limit is {SHARE} times the weights and "
        f"{BESIDE / GB:.0f} GB; without the check, CPU time is to be at most {CPU_LIMIT:.1f} of plain export."
    )
    return Table("Large files", text, COLUMNS, rows, holds)


def _measure_alone(kind: str, model: Path, folder: Path) -> Cost:
    sys.stderr.write(f"large files: {kind}\n")
    with tempfile.TemporaryDirectory(dir=folder) as written:
        printed = run_alone(__name__, kind, str(model), str(Path(written) / "model.onnx"), environment={})
    return Cost(**json.loads(printed.splitlines()[-1]))


def _build(folder: Path) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(**_SIZES)).eval().save_pretrained(folder)


def _export(kind: str, model: Path, target: Path) -> Cost:
    from transformers import Qwen2ForCausalLM  # imported before the clock starts

    start = time.process_time()
    ok = True
    if kind == PLAIN:
        _export_plainly(Qwen2ForCausalLM.from_pretrained(model), target)
    else:
        result: Any = mx.export(model, target, exporter="dynamo", no_check=kind == UNCHECKED)
        ok = result.check is None or result.check.ok
    return Cost(peak_memory(), time.process_time() - start, ok)


def _export_plainly(model: torch.nn.Module, target: Path) -> None:
    ids = torch.arange(16).reshape(2, 8)
    with torch.no_grad():
        torch.onnx.export(
            model.eval(),
            (),
            target,
            kwargs={"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False},
            dynamo=True,
            verbose=False,
            dynamic_shapes={"input_ids": _AXES, "attention_mask": _AXES, "use_cache": None},
        )


if __name__ == "__main__":
    _kind, _model, *_target = sys.argv[1:]
    if _kind == "build":
        _build(Path(_model))
    else:
        sys.stdout.write(f"\n{json.dumps(asdict(_export(_kind, Path(_model), Path(_target[0]))))}\n")
