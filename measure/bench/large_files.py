"""Large files: memory and time of what is done with 2 GB of float32 weights.

A model of the size of Qwen2.5-0.5B with random weights is saved as a folder once. Each row is a process of its own. It
exports the model with dynamo, plainly or with tags; the file that was made last is then verified and quantized. *Peak*
is the most memory that the process had at any time (VmHWM), with the pages of mapped files that were in memory then:
the weights of the folder, and those of the written file when ONNX Runtime runs it. They can be read again at any time,
so a machine with less memory needs less. *CPU s* is that of all threads together, without most imports.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import modelexport as mx
from measure.pages import Table
from measure.workers import peak_memory, run_alone

GB = 1_000_000_000
# Peak memory with the check: so many times the weights, and what torch and the graph take; CPU time without it.
SHARE, BESIDE = 1.15, 1 * GB
CPU_LIMIT = 1.0
# What `verify` is told, and half of the weights.
VERIFIED_LIMIT, QUANTIZED_LIMIT = 2 * GB, 1 * GB
COLUMNS = ("", "peak GB", "limit GB", "CPU s", "of plain export")
PLAIN, UNCHECKED, CHECKED, VERIFIED, QUANTIZED = "plain", "unchecked", "checked", "verified", "quantized"
EXPORTS = {
    PLAIN: "plain `torch.onnx.export`",
    UNCHECKED: "with tags, `--no-check`",
    CHECKED: "with tags and output check",
}
ROWS = EXPORTS | {VERIFIED: "`verify --memory 2GB`", QUANTIZED: "`quantize --weight-type int4 --no-check`"}
_SIZES: Mapping[str, Any] = {
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class Cost:
    """Bytes at the peak, CPU seconds, and whether nothing was found wrong."""

    peak: int
    seconds: float
    ok: bool = True


def measure_large_files() -> Table:
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        run_alone(__name__, "build", str(model), environment={})
        weights = sum(path.stat().st_size for path in model.glob("*.safetensors"))
        costs = {kind: _measure_alone(kind, model, Path(folder) / "written") for kind in ROWS}
    limits = {CHECKED: SHARE * weights + BESIDE, VERIFIED: VERIFIED_LIMIT, QUANTIZED: QUANTIZED_LIMIT}
    plain = costs[PLAIN].seconds
    holds = all(costs[kind].ok and costs[kind].peak <= limit for kind, limit in limits.items())
    holds &= costs[UNCHECKED].seconds <= CPU_LIMIT * plain
    rows = tuple(
        (
            label,
            f"{costs[kind].peak / GB:.2f}",
            f"{limits[kind] / GB:.2f}" if kind in limits else "",
            f"{costs[kind].seconds:.1f}",
            f"{costs[kind].seconds / plain:.2f}" if kind in EXPORTS else "",
        )
        for kind, label in ROWS.items()
    )
    text = (
        f"{(__doc__ or '').strip()}\n\n{weights / GB:.2f} GB of weights. The limit of an export is {SHARE} times the "
        f"weights and {BESIDE / GB:.0f} GB; without the check, CPU time is to be at most {CPU_LIMIT:.1f} of plain "
        "export."
    )
    return Table("Large files", text, COLUMNS, rows, holds)


def _measure_alone(kind: str, model: Path, written: Path) -> Cost:
    sys.stderr.write(f"large files: {kind}\n")
    if kind in EXPORTS:
        shutil.rmtree(written, ignore_errors=True)
        written.mkdir()
    printed = run_alone(__name__, kind, str(model), str(written / "model.onnx"), environment={})
    return Cost(**json.loads(printed.splitlines()[-1]))


def _build(folder: Path) -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(**_SIZES)).eval().save_pretrained(folder)


def _run(kind: str, model: Path, path: Path) -> Cost:
    if kind in EXPORTS:
        import transformers.models.qwen2.modeling_qwen2  # noqa: F401 - before the clock starts

    start = time.process_time()
    ok = True
    if kind == PLAIN:
        _export_plainly(model, path)
    elif kind == VERIFIED:
        ok = mx.verify(path, model, memory=VERIFIED_LIMIT).ok
    elif kind == QUANTIZED:
        mx.quantize(path, path.with_name("int4.onnx"), weight_type="int4", check=False)
    else:
        result: Any = mx.export(model, path, exporter="dynamo", no_check=kind == UNCHECKED)
        ok = result.check is None or result.check.ok
    return Cost(peak_memory(), time.process_time() - start, ok)


def _export_plainly(folder: Path, target: Path) -> None:
    import torch
    from torch.export import Dim
    from transformers import Qwen2ForCausalLM

    model: Any = Qwen2ForCausalLM.from_pretrained(folder)
    axes = {0: Dim.AUTO, 1: Dim.AUTO}
    ids = torch.arange(16).reshape(2, 8)
    with torch.no_grad():
        torch.onnx.export(
            model.eval(),
            (),
            target,
            kwargs={"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False},
            dynamo=True,
            verbose=False,
            dynamic_shapes={"input_ids": axes, "attention_mask": axes, "use_cache": None},
        )


if __name__ == "__main__":
    _kind, _model, *_target = sys.argv[1:]
    if _kind == "build":
        _build(Path(_model))
    else:
        sys.stdout.write(f"\n{json.dumps(asdict(_run(_kind, Path(_model), Path(_target[0]))))}\n")
