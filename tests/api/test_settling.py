"""Calls that names leave open are decided by values."""

from __future__ import annotations

from pathlib import Path

import torch
from tests.support import nets

import modelexport as mx


def test_the_call_whose_result_is_used_is_the_one(tmp_path: Path) -> None:
    """The first call of `a` leaves nothing in the graph; TorchScript numbers what is left."""
    found = mx.export(
        nets.perturbed(nets.Silent()),
        tmp_path / "net.onnx",
        inputs=torch.linspace(-1, 1, 8).reshape(2, 4),
        exporter="torchscript",
        no_check=True,
    ).provenance
    last = [entry.attribution for entry in found.nodes.values() if entry.op_type == "Gemm"][-1]
    assert last.module == "a#2"
    assert last.confidence is mx.Confidence.STRONG
    assert any(item.kind == "value" for item in last.evidence)
