"""Calls that names leave open are decided by values; further runs of `verify` have other sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support import nets

import modelexport as mx
from modelexport.api.prove_attributions import _other_size


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


@pytest.mark.parametrize(
    ("size", "part", "sizes"),
    [
        (512, 8, [65, 66]),
        (65, 8, [9, 10]),
        (512, 2, [257, 258]),
        (64, 8, [33, 34]),
        (64, 2, [33, 34]),
        (2, 8, [1, 2]),
        (1, 8, [2, 3]),
    ],
)
def test_further_runs_are_shorter_and_long_axes_much_shorter(size: int, part: int, sizes: list[int]) -> None:
    assert [_other_size(size, part, number) for number in (1, 2)] == sizes
