"""What lies behind wrong numbers is judged by itself: networks that exporters write wrongly, and changed files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from tests.support.planted_faults import moved_anywhere, moved_to_sibling, swapped_layers
from torch import Tensor, nn

import modelexport as mx
from modelexport.graph.file.tagged_file import open_tagged
from modelexport.record.results.verification import NodeProof, Verdict

X = torch.linspace(-2, 2, 192).sin().reshape(2, 12, 8)


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


def judge(path: Path) -> Mapping[str, NodeProof]:
    verification = mx.verify(path, blocks(), inputs=X)
    assert not verification.numbers_agree
    assert not verification.ok
    assert verification.proof is not None
    return {node.key: node for node in verification.proof.nodes}


@pytest.fixture(scope="module")
def judged(wrong: Path) -> Mapping[str, NodeProof]:
    return judge(wrong)


def modules_of(nodes: Mapping[str, NodeProof], *verdicts: Verdict) -> set[str]:
    return {node.claimed[0].path for node in nodes.values() if node.compute and node.verdict in verdicts}


def test_what_lies_behind_a_wrong_value_is_shown(judged: Mapping[str, NodeProof]) -> None:
    """Also behind the second one: it is given what PyTorch gives to it, and is wrong by itself."""
    open_modules = modules_of(judged, Verdict.NOT_PROVABLE)
    assert open_modules == {"blocks.0.windows", "blocks.1.windows"}
    shown = modules_of(judged, Verdict.PROVED, Verdict.ENCLOSED)
    assert {"blocks.0.behind", "blocks.0.norm", "blocks.1.behind", "blocks.1.norm", "last"} <= shown
    assert not modules_of(judged, Verdict.CONTRADICTED)


def test_the_node_that_makes_a_wrong_value_is_not_proved_by_it(judged: Mapping[str, NodeProof]) -> None:
    gathers = [node for node in judged.values() if node.op_type == "Gather" and node.compute]
    assert len(gathers) == 2
    for node in gathers:
        assert (node.verdict, node.reason) == (Verdict.NOT_PROVABLE, "numbers differ from the model's")


def test_wrong_attributions_behind_a_wrong_value_are_not_shown(
    wrong: Path, judged: Mapping[str, NodeProof], tmp_path: Path
) -> None:
    record = open_tagged(wrong).provenance
    behind = {key for key, node in judged.items() if node.is_shown and node.compute}
    for number, plant in enumerate((swapped_layers, moved_to_sibling)):
        planted = plant(record, behind)
        nodes = judge(planted.write(wrong, tmp_path / f"{number}.onnx"))
        assert planted.nodes
        assert not [key for key in planted.nodes if nodes[key].is_shown]


def test_a_set_that_is_too_wide_is_not_shown(wrong: Path, judged: Mapping[str, NodeProof], tmp_path: Path) -> None:
    record = open_tagged(wrong).provenance
    behind = {key for key, node in judged.items() if node.is_shown and node.compute}
    planted = moved_anywhere(record, behind, keep=True)
    nodes = judge(planted.write(wrong, tmp_path / "m.onnx"))
    assert len(planted.nodes) > 3
    assert not [key for key in planted.nodes if nodes[key].is_shown]


class Normed(nn.Module):
    """Norms in a row: what one makes wrong, the next one reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8, eps=1e-5), nn.Tanh()) for _ in range(3))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@pytest.mark.parametrize("opset", [16, 18])
def test_a_changed_norm_is_the_only_one_that_is_open(opset: int, tmp_path: Path) -> None:
    """With opset 16 it is broken down: what is inside leads to the wrong result, and is not taken for it."""
    torch.manual_seed(0)
    model = Normed().eval()
    path = tmp_path / "m.onnx"
    mx.export(model, path, inputs=X, exporter="torchscript", opset=opset, no_check=True)
    proto = onnx.load(path)
    if opset == 18:
        norm = next(node for node in proto.graph.node if node.op_type == "LayerNormalization")
        next(item for item in norm.attribute if item.name == "epsilon").f = 0.5
    else:
        epsilon = next(
            node
            for node in proto.graph.node
            if node.op_type == "Constant"
            and "layers.0/layers.0.1" in node.output[0]
            and np.isclose(numpy_helper.to_array(node.attribute[0].t), 1e-5).all()
        )
        epsilon.attribute[0].t.CopyFrom(numpy_helper.from_array(np.array(0.5, np.float32)))
    onnx.save(proto, path)
    verification = mx.verify(path, model, inputs=X)
    assert verification.divergence is not None
    assert [call.path for call in verification.divergence.calls] == ["layers.0.1"]
    assert verification.proof is not None
    nodes = {node.key: node for node in verification.proof.nodes}
    assert not verification.proof.contradicted
    assert modules_of(nodes, Verdict.NOT_PROVABLE) <= {"layers.0.1"}
    assert {"layers.1.0", "layers.1.1", "layers.2.2"} <= modules_of(nodes, Verdict.PROVED, Verdict.ENCLOSED)


class Parallel(nn.Module):
    """Two branches of the same work: nothing but its place tells what one of them should have made."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.right = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x)


@pytest.mark.parametrize("turned", [False, True])
def test_wrong_values_that_could_be_either_of_two_contradict_nobody(turned: bool, tmp_path: Path) -> None:
    """The file has other weights. Which of its branches is which is not told by the order of nodes, or guessed."""
    torch.manual_seed(0)
    path = tmp_path / "m.onnx"
    mx.export(Parallel().eval(), path, inputs=X, exporter="dynamo", no_check=True)
    proto = onnx.load(path)
    *branches, last = proto.graph.node
    half = len(branches) // 2
    del proto.graph.node[:]
    proto.graph.node.extend([*branches[half:], *branches[:half], last] if turned else [*branches, last])
    onnx.save(proto, path)
    torch.manual_seed(1)
    verification = mx.verify(path, Parallel().eval(), inputs=X)
    assert not verification.numbers_agree
    assert verification.proof is not None
    assert not verification.proof.contradicted
    activations = [node for node in verification.proof.nodes if node.op_type == "Relu"]
    assert [node.verdict for node in activations] == [Verdict.NOT_PROVABLE] * 2
