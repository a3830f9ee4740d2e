"""Export with tags against plain `torch.onnx.export`: same process, alternating, median of several runs.

The output check is off, because plain export has none. Ratios compare runs of the same minute on the same machine, so
they mean something even where the machine is noisy; seconds are for orientation only.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

import modelexport as mx
from measure.bench.report import Table
from modelexport.capture.arguments import CallArguments
from modelexport.capture.state import quiet, undisturbed
from modelexport.capture.torchscript import called_by_position

LIMITS = {"dynamo": 1.10, "torchscript": 1.30}
WIDTHS = (64, 768)
Inputs = Mapping[str, torch.Tensor | bool]


def measure(runs: int = 5) -> Table:
    rows = []
    holds = True
    for width in WIDTHS:
        for name, (model, inputs) in models(width).items():
            for exporter, limit in LIMITS.items():
                plain_time, tagged_time = medians(model, inputs, exporter, runs)
                ratio = tagged_time / plain_time
                holds &= ratio <= limit
                seconds = (f"{plain_time:.2f}", f"{tagged_time:.2f}")
                rows.append((f"{name}, 12 layers of {width}", exporter, *seconds, f"{ratio:.2f}", f"{limit:.2f}"))
    columns = ("model", "exporter", "plain s", "tagged s", "ratio", "limit")
    return Table("Cost of an export", __doc__.strip() if __doc__ else "", columns, tuple(rows), holds)


def models(width: int) -> dict[str, tuple[PreTrainedModel, Inputs]]:
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


def medians(model: torch.nn.Module, inputs: Inputs, exporter: str, runs: int) -> tuple[float, float]:
    """Seconds of a plain and of a tagged export."""
    times: dict[str, list[float]] = {"plain": [], "tagged": []}
    exports = {"plain": plain, "tagged": tagged}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        for run in range(runs + 1):
            for kind, export in exports.items():
                spent = _seconds(export, model, inputs, path, exporter)
                if run:  # the first round warms caches up
                    times[kind].append(spent)
    return statistics.median(times["plain"]), statistics.median(times["tagged"])


def plain(model: torch.nn.Module, inputs: Inputs, path: Path, exporter: str) -> None:
    """What a user without this tool would write."""
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    with quiet(), undisturbed(model):
        if exporter == "dynamo":
            shapes = {name: {0: Dim.AUTO, 1: Dim.AUTO} if name in tensors else None for name in inputs}
            torch.onnx.export(
                model,
                (),
                path,
                kwargs=dict(inputs),
                dynamo=True,
                verbose=False,
                dynamic_shapes=shapes,
                external_data=False,
            )
            return
        with called_by_position(model, CallArguments(inputs)):
            torch.onnx.export(
                model,
                tuple(tensors.values()),
                str(path),
                dynamo=False,
                input_names=list(tensors),
                dynamic_axes={name: {0: "batch", 1: "sequence"} for name in tensors},
            )


def tagged(model: torch.nn.Module, inputs: Inputs, path: Path, exporter: str) -> None:
    mx.export(model, path, inputs=inputs, exporter=exporter, no_check=True)


def _seconds(
    export: Callable[[torch.nn.Module, Inputs, Path, str], None],
    model: torch.nn.Module,
    inputs: Inputs,
    path: Path,
    exporter: str,
) -> float:
    gc.collect()
    start = time.perf_counter()
    export(model, inputs, path, exporter)
    return time.perf_counter() - start
