"""What lies behind wrong numbers is judged by itself: networks that exporters write wrongly, and files that were changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

import modelexport as mx
from modelexport.record.results.verification import NodeProof, Verdict

X = torch.linspace(-2, 2, 192).sin().reshape(2, 12, 8)
both = pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])


class Windows(nn.Module):
    """Windows cut from the memory of a transposed tensor: both exporters take it to lie in order."""

    def forward(self, x: Tensor) -> Tensor:
        turned = x.transpose(0, 1)
        step, row, item = turned.stride()
        return turned.as_strided((6, 2, 2, 8), (2 * step, step, row, item))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(8, 8)
        self.windows = Windows()
        self.behind = nn.Linear(8, 8)
        self.act = nn.GELU()
        self.norm = nn.LayerNorm(8, eps=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        windows = self.act(self.behind(self.windows(self.before(x))))
        return self.norm(windows.mean(1).transpose(0, 1).repeat(1, 2, 1) + x)


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.blocks(x))


@cache
def blocks() -> nn.Module:
    torch.manual_seed(0)
    return Blocks().eval()


@pytest.fixture(scope="module", params=["dynamo", "torchscript"])
def wrong(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wrong") / "m.onnx"
    mx.export(blocks(), path, inputs=X, exporter=request.param, no_check=True)
    return path


def proved(path: Path) -> dict[str, NodeProof]:
    verification = mx.verify(path, blocks(), inputs=X)
    assert not verification.numbers_agree
    assert verification.proof is not None
    return {node.key: node for node in verification.proof.nodes}


def test_what_lies_behind_a_wrong_value_is_shown(wrong: Path) -> None:
    nodes = proved(wrong)
    assert not [node for node in nodes.values() if node.verdict is Verdict.CONTRADICTED]
    for node in nodes.values():
        print(node.key, node.op_type, node.verdict, node.shown_by, node.reason, node.claimed)
    assert 0
