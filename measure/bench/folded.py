"""Repeated modules as functions, and back: is the file what it was, and how small is it in between?

Each file is folded, made flat again, and compared byte by byte; the record beside it as well. ONNX Runtime runs the
flat and the folded file without optimizations, and the largest difference of their outputs is shown: it must be 0.
`folded` counts every function once. The limit is for BERT with 24 layers.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

import modelexport as mx
from measure.corpus.models import build, inputs_of, rows_by_name
from measure.corpus.rows import EXPORTERS
from measure.pages import Table
from modelexport.record.results.files import Folding

SAMPLE = (
    "bert",
    "albert",
    "gpt2",
    "llama",
    "t5",
    "vit",
    "resnet",
    "whisper",
    "swin",
    "mixtral",
    "mamba",
    "repeated-block",
)
LAYERS = 24
LIMIT = 0.15
COLUMNS = ("model", "exporter", "nodes", "folded", "share", "functions", "same bytes", "difference")


@dataclass(frozen=True)
class Found:
    folding: Folding
    same: bool
    difference: float

    @property
    def holds(self) -> bool:
        return self.same and self.difference == 0.0


def measure_folded() -> Table:
    rows = []
    holds = True
    for name, (model, inputs) in {**_sample(), f"bert, {LAYERS} layers": _deep()}.items():
        for exporter in EXPORTERS:
            sys.stderr.write(f"folded: {name} {exporter}\n")
            found = _round_trip(model, inputs, exporter)
            rows.append(_row(name, exporter, found))
            holds &= found.holds and (str(LAYERS) not in name or found.folding.share <= LIMIT)
    text = f"{(__doc__ or '').strip()}\n\nThe limit is {LIMIT:.0%} of the nodes."
    return Table("Folded and flattened", text, COLUMNS, tuple(rows), holds)


def _row(name: str, exporter: str, found: Found) -> tuple[str, ...]:
    folding = found.folding
    counts = (f"{folding.before:,}", f"{folding.after:,}", f"{folding.share:.1%}", str(len(folding.functions)))
    return (name, exporter, *counts, "yes" if found.same else "no", f"{found.difference:.1g}")


def _sample() -> dict[str, tuple[torch.nn.Module, Mapping[str, Any]]]:
    rows = rows_by_name()
    built = {name: build(rows[name]) for name in SAMPLE}
    return {name: (model, _named(inputs_of(rows[name], model))) for name, model in built.items()}


def _named(inputs: object) -> Mapping[str, Any]:
    """Inputs that have no names are in the order of the graph's."""
    if isinstance(inputs, Mapping):
        return inputs
    assert isinstance(inputs, tuple | list)
    return {str(place): one for place, one in enumerate(inputs)}


def _deep() -> tuple[torch.nn.Module, Mapping[str, Any]]:
    """Weights differ, or torch would store equal ones once and give the copies nodes of their own."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model = BertModel(
        BertConfig(
            num_hidden_layers=LAYERS,
            hidden_size=32,
            num_attention_heads=4,
            intermediate_size=64,
            vocab_size=100,
            max_position_embeddings=64,
        )
    ).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    ids = torch.arange(14).reshape(2, 7)
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _round_trip(model: torch.nn.Module, inputs: Mapping[str, Any], exporter: str) -> Found:
    with tempfile.TemporaryDirectory() as name:
        flat, folded, back = (Path(name) / f"{one}.onnx" for one in ("flat", "folded", "back"))
        given = tuple(inputs.values()) if all(name.isdecimal() for name in inputs) else inputs
        mx.export(model, flat, inputs=given, exporter=exporter, no_check=True)
        folding = mx.fold(flat, folded).folding
        mx.flatten(folded, back)
        pairs = [(one.read_bytes(), other.read_bytes()) for one, other in _files(flat, back)]
        same = all(one == other for one, other in pairs)
        return Found(folding, same, _difference(_outputs(flat, inputs), _outputs(folded, inputs)))


def _files(flat: Path, back: Path) -> list[tuple[Path, Path]]:
    return [(flat, back), (flat.with_suffix(".hierarchy.json"), back.with_suffix(".hierarchy.json"))]


def _outputs(path: Path, inputs: Mapping[str, Any]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given = list(inputs.values())
    fed = {
        one.name: (inputs[one.name] if one.name in inputs else given[place]).numpy()
        for place, one in enumerate(session.get_inputs())
    }
    found: list[np.ndarray] = session.run(None, fed)
    return found


def _difference(flat: list[np.ndarray], folded: list[np.ndarray]) -> float:
    return max(
        (float(np.abs(one.astype(float) - other.astype(float)).max()) for one, other in zip(flat, folded, strict=True)),
        default=0.0,
    )
