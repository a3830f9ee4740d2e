"""What `verify` costs: BERT with 12 layers as it comes (110 million parameters), one text of 128 tokens.

Start-up is what anybody pays before the first run: reading the file and its record, and making an ONNX Runtime session.
The ratio is that of the rest to one plain run of the model and one of the file. In a round everything is measured once,
one after the other; each figure is the fastest of 12 rounds, what other processes of the machine disturbed least.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from transformers import BertConfig, BertModel

import modelexport as mx
from measure.bench.report import Table
from measure.corpus.building import perturbed

TOKENS, ROUNDS = 128, 12
LIMIT = 3.0
EXPORTERS = ("dynamo", "torchscript")


@dataclass(frozen=True)
class Round:
    """Seconds."""

    model: float
    file: float
    start_up: float
    verify: float

    @property
    def ratio(self) -> float:
        return (self.verify - self.start_up) / (self.model + self.file)


def measure() -> Table:
    rows, ratios = [], []
    for exporter in EXPORTERS:
        best = _fastest(_rounds(exporter))
        ratios.append(best.ratio)
        times = (best.model, best.file, best.start_up, best.verify)
        rows.append((exporter, *(f"{seconds * 1000:.0f} ms" for seconds in times), f"{best.ratio:.1f}"))
    columns = ("exporter", "model", "file", "start-up", "verify", "ratio")
    text = f"{(__doc__ or '').strip()}\n\nThe limit is {LIMIT:.0f}."
    return Table("Cost of verify", text, columns, tuple(rows), max(ratios) <= LIMIT)


def _fastest(rounds: Sequence[Round]) -> Round:
    return Round(
        model=min(one.model for one in rounds),
        file=min(one.file for one in rounds),
        start_up=min(one.start_up for one in rounds),
        verify=min(one.verify for one in rounds),
    )


def _rounds(exporter: str) -> list[Round]:
    torch.manual_seed(0)
    model = perturbed(BertModel(BertConfig())).eval()
    inputs = {"input_ids": torch.randint(0, 1000, (1, TOKENS)), "attention_mask": torch.ones(1, TOKENS).long()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bert.onnx"
        mx.export(model, path, inputs=inputs, exporter=exporter, no_check=True)
        return [_round(model, path, inputs) for _ in range(ROUNDS + 1)][1:]


def _round(model: torch.nn.Module, path: Path, inputs: Mapping[str, torch.Tensor]) -> Round:
    started = time.perf_counter()
    mx.load(path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    start_up = time.perf_counter() - started
    feed: dict[str, np.ndarray] = {value.name: inputs[value.name].numpy() for value in session.get_inputs()}
    with torch.no_grad():
        return Round(
            model=_seconds(lambda: model(**inputs)),
            file=_seconds(lambda: session.run(None, feed)),
            start_up=start_up,
            verify=_seconds(lambda: mx.verify(path, model, inputs=inputs)),
        )


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
