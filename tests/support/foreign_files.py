"""A saved model, and files that plain torch made from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import torch
from tests.support.architectures import build

INPUTS = {
    "input_ids": torch.arange(16).reshape(2, 8) * 7 % 100,
    "attention_mask": torch.ones(2, 8, dtype=torch.int64),
    "token_type_ids": torch.zeros(2, 8, dtype=torch.int64),
}
AXES = {name: {0: "batch", 1: "tokens"} for name in INPUTS}

PlainExports = Callable[..., Path]


class ByPosition(torch.nn.Module):
    """TorchScript calls by position, which this model does not take."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: torch.Tensor) -> Any:
        return tuple(self.model(**dict(zip(INPUTS, tensors, strict=True))).values())


def save_bert(folder: Path) -> Path:
    return _saved(build("bert"), folder)


def save_other_weights(folder: Path) -> Path:
    """The same architecture, trained differently."""
    model = build("bert")
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(99)
        for parameter in model.parameters():
            parameter.copy_(torch.rand_like(parameter) - 0.5)
    return _saved(model, folder)


def export_plainly(path: Path, exporter: str, dynamic: bool) -> Path:
    """A file that `torch.onnx.export` writes."""
    if exporter == "dynamo":
        torch.onnx.export(build("bert"), (), path, kwargs=INPUTS, dynamo=True, external_data=False, verbose=False)
    else:
        axes = AXES if dynamic else None
        arguments = tuple(INPUTS.values())
        torch.onnx.export(
            ByPosition(build("bert")), arguments, path, dynamo=False, input_names=list(INPUTS), dynamic_axes=axes
        )
    return path


def renamed_throughout(path: Path, target: Path) -> Path:
    """No name and no metadata is as it was, inputs and outputs included."""
    model = onnx.load(path)
    names: dict[str, str] = {"": ""}

    def new(name: str) -> str:
        return names.setdefault(name, f"v{len(names)}")

    del model.metadata_props[:], model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        value.name = new(value.name)
    for tensor in model.graph.initializer:
        tensor.name = new(tensor.name)
    for place, node in enumerate(model.graph.node):
        node.name, node.doc_string = f"n{place}", ""
        del node.metadata_props[:]
        node.input[:], node.output[:] = map(new, node.input), map(new, node.output)
    onnx.save(model, target)
    return target


def _saved(model: torch.nn.Module, folder: Path) -> Path:
    save: Callable[[Path], None] = model.save_pretrained  # type: ignore[assignment]
    save(folder)
    return folder
