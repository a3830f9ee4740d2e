"""Batch normalization that exporters fold into what a model returns: nothing reads it, and torch names it anew."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support import nets
from torch import Tensor, nn

import modelexport as mx
from modelexport.record.results.verification import Fault, Verdict

pytestmark = pytest.mark.slow

both_exporters = pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
LINE, IMAGE = torch.linspace(-1, 1, 2 * 3 * 9).reshape(2, 3, 9), torch.linspace(-1, 1, 2 * 3 * 49).reshape(2, 3, 7, 7)


class Returned(nn.Module):
    """What two branches return, and something that was not folded."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.wide_norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.up, self.up_norm = nn.ConvTranspose2d(3, 4, 2), nn.BatchNorm2d(4)
        self.plain, self.plain_norm = nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4, affine=False)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        plain = self.plain_norm(self.plain(x))
        return self.wide_norm(self.wide(x)), x.relu(), self.up_norm(self.up(x)), plain


def export(net: nn.Module, x: Tensor, folder: Path, exporter: str) -> mx.ExportResult:
    return mx.export(nets.perturbed(net), folder / "net.onnx", inputs=x, exporter=exporter)


def owner_sets(result: mx.ExportResult) -> list[tuple[str, set[str]]]:
    entries = result.provenance.nodes.values()
    return [(entry.op_type, set(entry.attribution.modules)) for entry in entries]


@both_exporters
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("layer", "norm", "x"),
    [
        (nn.Conv1d, nn.BatchNorm1d, LINE),
        (nn.Conv2d, nn.BatchNorm2d, IMAGE),
        (nn.ConvTranspose2d, nn.BatchNorm2d, IMAGE),
    ],
)
def test_a_norm_that_is_the_output_is_not_lost(
    layer: type[nn.Module], norm: type[nn.Module], x: Tensor, bias: bool, exporter: str, tmp_path: Path
) -> None:
    net = nn.Sequential(layer(3, 4, 2, bias=bias), norm(4))
    result = export(net, x, tmp_path, exporter)
    found = owner_sets(result)
    folded = len(found) == 1
    assert folded or layer is nn.ConvTranspose2d
    operator = layer.__name__.rstrip("12d")
    assert found == ([(operator, {"0", "1"})] if folded else [(operator, {"0"}), ("BatchNormalization", {"1"})])
    assert "1" not in result.provenance.absent
    weights = [set(answer.modules) for answer in result.provenance.initializers.values()]
    assert not folded or weights == [{"0", "1"}] * 2
    proof = mx.verify(result.path, net, inputs=x).proof
    assert proof is not None
    assert {node.verdict for node in proof.nodes} == {Verdict.PROVED}


@both_exporters
def test_a_norm_behind_a_linear_layer(exporter: str, tmp_path: Path) -> None:
    found = owner_sets(export(nn.Sequential(nn.Linear(9, 4), nn.BatchNorm1d(4)), LINE[:, 0], tmp_path, exporter))
    assert found in ([("Gemm", {"0", "1"})], [("Gemm", {"0"}), ("BatchNormalization", {"1"})])


@both_exporters
def test_norms_among_several_outputs(exporter: str, tmp_path: Path) -> None:
    result = export(Returned(), IMAGE, tmp_path, exporter)
    owners = {frozenset(paths) for operator, paths in owner_sets(result) if operator in ("Conv", "ConvTranspose")}
    assert frozenset({"wide", "wide_norm"}) in owners
    assert frozenset({"plain", "plain_norm"}) in owners
    assert not set(result.provenance.absent) & {"wide_norm", "up_norm", "plain_norm"}
    assert [paths for operator, paths in owner_sets(result) if operator == "Relu"] == [{""}]


class CalledTwice(nn.Module):
    """One norm for two values: a convolution can take in the first call alone."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 2), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.norm(self.conv(x)), self.norm(x.relu())


@both_exporters
def test_a_norm_of_which_one_call_is_folded(exporter: str, tmp_path: Path) -> None:
    net = CalledTwice()
    result = export(net, IMAGE, tmp_path, exporter)
    owners = dict(owner_sets(result))
    assert owners["Conv"] == {"conv", "norm"}
    assert owners["BatchNormalization"] == {"norm#1"}
    proof = mx.verify(result.path, net, inputs=IMAGE).proof
    assert proof is not None
    assert {node.verdict for node in proof.nodes} == {Verdict.PROVED}


def test_a_norm_that_is_not_named_is_missed(tmp_path: Path) -> None:
    """`universal` repeats what the exporter wrote: the convolution alone, though its value is the norm's."""
    net = nets.perturbed(nn.Sequential(nn.Conv2d(3, 4, 2, bias=False), nn.BatchNorm2d(4)))
    path = tmp_path / "net.onnx"
    mx.export(net, path, inputs=IMAGE, exporter="torchscript", strategy="universal")
    proof = mx.verify(path, net, inputs=IMAGE).proof
    assert proof is not None
    (node,) = proof.nodes
    assert (node.verdict, node.fault) == (Verdict.CONTRADICTED, Fault.TOO_NARROW)
    assert [str(call) for call in node.issued] == ["0", "1"]
