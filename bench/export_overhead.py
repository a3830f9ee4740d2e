"""Export with tags against plain `torch.onnx.export`: same process, alternating, median of several runs.

The output check is off, because plain export has none. Ratios compare runs of the same minute on the same machine, so
they mean something even where the machine is noisy; seconds are printed for orientation only.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path

import torch
from torch.export import Dim
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

import modelexport as mx
from modelexport.capture.arguments import CallArguments
from modelexport.capture.state import quiet, undisturbed
from modelexport.capture.torchscript import called_by_position

LIMITS = {"dynamo": 1.10, "torchscript": 1.30}
Inputs = Mapping[str, torch.Tensor | bool]


def models(hidden: int) -> dict[str, tuple[PreTrainedModel, Inputs]]:
    """12 layers each; `hidden` is the width."""
    ids = torch.randint(5, 900, (2, 16))
    mask = torch.ones_like(ids)
    size = {
        "hidden_size": hidden,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "intermediate_size": 4 * hidden,
    }
    bert = BertModel(BertConfig(**size, vocab_size=30522)).eval()
    llama = LlamaForCausalLM(LlamaConfig(**size, vocab_size=32000)).eval()
    return {
        "bert": (bert, {"input_ids": ids, "attention_mask": mask}),
        "llama": (llama, {"input_ids": ids, "attention_mask": mask, "use_cache": False}),
    }


def plain(model: torch.nn.Module, inputs: Inputs, path: Path, exporter: str) -> None:
    """What a user without this tool would write."""
    axes = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    with quiet(), undisturbed(model):
        if exporter == "dynamo":
            shapes = {name: {0: Dim.AUTO, 1: Dim.AUTO} if name in axes else None for name in inputs}
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
                tuple(axes.values()),
                str(path),
                dynamo=False,
                input_names=list(axes),
                dynamic_axes={name: {0: "batch", 1: "sequence"} for name in axes},
            )


def tagged(model: torch.nn.Module, inputs: Inputs, path: Path, exporter: str) -> None:
    mx.export(model, path, inputs=inputs, exporter=exporter, check=False)


def seconds(call: Callable[[], None]) -> float:
    gc.collect()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(name: str, model: torch.nn.Module, inputs: Inputs, exporter: str, runs: int) -> dict[str, object]:
    times: dict[str, list[float]] = {"plain": [], "tagged": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        for run in range(runs + 1):
            for kind, export in (("plain", plain), ("tagged", tagged)):
                spent = seconds(lambda export=export: export(model, inputs, path, exporter))  # type: ignore[misc]
                if run:  # the first round warms caches up
                    times[kind].append(spent)
    medians = {kind: statistics.median(values) for kind, values in times.items()}
    return {
        "model": name,
        "exporter": exporter,
        "plain_seconds": round(medians["plain"], 3),
        "tagged_seconds": round(medians["tagged"], 3),
        "ratio": round(medians["tagged"] / medians["plain"], 3),
        "limit": LIMITS[exporter],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--exporter", choices=sorted(LIMITS))
    arguments = parser.parse_args()
    with nullcontext():
        torch.manual_seed(0)
        rows = [
            measure(name, model, inputs, exporter, arguments.runs)
            for exporter in ([arguments.exporter] if arguments.exporter else ["torchscript", "dynamo"])
            for name, (model, inputs) in models(arguments.hidden).items()
        ]
    sys.stdout.write("".join(json.dumps(row) + "\n" for row in rows))
    return 0 if all(row["ratio"] <= row["limit"] for row in rows) else 1  # type: ignore[operator]


if __name__ == "__main__":
    sys.exit(main())
