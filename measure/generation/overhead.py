"""Time that tags add to an export by transformers' exporter: Llama of 12 layers, `OnnxExporter.export` against ours.

Both write a file, with the same axes; ours without the check of outputs, which the other one has not. Processor time,
in one process and by turns: a busy machine slows both down.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import modelexport as mx
from measure.generation.targets import Target
from measure.pages import Table

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LAYERS, RUNS, LIMIT = 12, 5, 1.10
_TITLE = "Time of an export with tags"
_TEXT = (
    f"Llama of {LAYERS} layers of width 64, one forward pass: `export --exporter transformers` against transformers' "
    f"`OnnxExporter.export`, in one process and by turns, {RUNS} runs of each after one of a single layer. Processor "
    "time; both write a file, and outputs are not checked."
)


def measure_part(folder: Path) -> tuple[Table, tuple[Target, ...]]:
    plain, tagged = time_exports(LAYERS, RUNS, folder)
    ratio = statistics.median(tagged) / statistics.median(plain)
    rows = [
        (label, *(f"{seconds:.2f}" for seconds in times), f"{statistics.median(times):.2f}")
        for label, times in (("`OnnxExporter.export`", plain), ("with tags", tagged))
    ]
    columns = ("export", *(f"run {number}, s" for number in range(1, RUNS + 1)), "median, s")
    what = f"time of an export of Llama with tags, in parts of `OnnxExporter.export` alone, median of {RUNS}"
    target = Target(what, f"at most {LIMIT:.2f}", f"{ratio:.2f}", ratio <= LIMIT)
    return Table(_TITLE, _TEXT, columns, tuple(rows), target.holds), (target,)


def time_exports(layers: int, runs: int, folder: Path) -> tuple[list[float], list[float]]:
    """Seconds of plain and of tagged exports."""
    _time_round(1, folder)  # fills caches of torch
    rounds = [_time_round(layers, folder) for _ in range(runs)]
    return [plain for plain, _ in rounds], [tagged for _, tagged in rounds]


def _time_round(layers: int, folder: Path) -> tuple[float, float]:
    model, inputs = make_llama(layers)
    plain = _time(partial(export_plainly, model, inputs, folder / "plain.onnx"))
    return plain, _time(partial(export_tagged, model, inputs, folder / "tagged.onnx"))


def make_llama(layers: int) -> tuple[PreTrainedModel, dict[str, torch.Tensor]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
        tokens = torch.randint(0, 128, (2, 16))
    return model, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def export_plainly(model: PreTrainedModel, inputs: dict[str, torch.Tensor], path: Path) -> None:
    from transformers.exporters.configs import OnnxConfig
    from transformers.exporters.exporter_onnx import OnnxExporter

    axes = {name: dict.fromkeys(range(tensor.ndim), torch.export.Dim.AUTO) for name, tensor in inputs.items()}
    OnnxExporter().export(model, {**inputs, "use_cache": False}, OnnxConfig(dynamic_shapes=axes, output_path=path))


def export_tagged(model: PreTrainedModel, inputs: dict[str, torch.Tensor], path: Path) -> None:
    mx.export(model, path, inputs=inputs, exporter="transformers", no_check=True)


def _time(export: Callable[[], object]) -> float:
    gc.collect()
    start = time.process_time()
    export()
    return time.process_time() - start
