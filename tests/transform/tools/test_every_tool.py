"""Every tool of the catalogue, called for real: what it makes is understood, or what it says is handed on."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

import modelexport as mx
from modelexport.errors import ToolFailed
from modelexport.transform.tools.catalogue import TOOLS

pytestmark = pytest.mark.slow

# Each tool with each option that is listed.
NAMES = [f"{tool.name}:{option}" for tool in TOOLS.values() for option in tool.options]
NAMES += [tool.name for tool in TOOLS.values() if not tool.options]
MODULES = frozenset({"conv", "norm", "act", "query", "key", "scale", "out"})
# Operators that show that a tool has done its work.
SIGNS = {
    "ort:all": frozenset({"BiasGelu"}),
    "ort:extended": frozenset({"BiasGelu"}),
    "int8": frozenset({"MatMulInteger", "ConvInteger"}),
    "qdq": frozenset({"QuantizeLinear", "DequantizeLinear"}),
    "qoperator": frozenset({"QLinearConv"}),
    "int4": frozenset({"MatMulNBits"}),
    "fp16": frozenset({"Cast"}),
    "fp16_common": frozenset({"Cast"}),
}


class Network(nn.Module):
    """Something for everybody: a convolution with its norm, attention-like products, a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.act = nn.ReLU()
        self.query = nn.Linear(36, 32)
        self.key = nn.Linear(36, 32)
        self.scale = nn.LayerNorm(32)
        self.out = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.act(self.norm(self.conv(x))).flatten(2)
        weights = torch.softmax(self.query(rows) @ self.key(rows).transpose(1, 2), -1)
        return torch.nn.functional.gelu(self.out(self.scale(weights @ self.query(rows))))


@pytest.fixture(scope="module", params=["dynamo", "torchscript"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp(request.param) / "net.onnx"
    mx.export(Network().eval(), path, inputs=torch.randn(1, 3, 8, 8), exporter=request.param, no_check=True)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_what_it_makes_is_understood(exported: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "out.onnx"
    found = mx.run_tool(exported, name, target, samples=2)
    assert found.ok
    assert all(link.sources for link in found.lineage.nodes.values())
    assert [entry.key for entry in found.provenance.nodes.values() if not entry.attribution.owners] == []
    # No module is lost on the way, whatever was fused or folded.
    assert {path for entry in found.provenance.nodes.values() for path in entry.attribution.modules} >= MODULES
    assert found.provenance.absent == {}
    assert mx.load(target).nodes == found.provenance.nodes
    assert SIGNS.get(name, frozenset()) <= {entry.op_type for entry in found.provenance.nodes.values()}


@pytest.mark.parametrize("name", NAMES)
def test_weights_in_a_file_of_their_own(exported: Path, tmp_path: Path, name: str) -> None:
    """What a tool makes must not refer to a file that is somewhere else."""
    source, target = tmp_path / "in" / "net.onnx", tmp_path / "out" / "net.onnx"
    source.parent.mkdir()
    target.parent.mkdir()
    model = onnx.load(exported)
    onnx.save(model, source, save_as_external_data=True, location="weights", size_threshold=64)
    found = mx.run_tool(source, name, target, samples=1)
    assert found.ok
    assert sorted(path.name for path in source.parent.iterdir()) == ["net.onnx", "weights"]
    (source.parent / "weights").unlink()
    onnx.load(target)
    assert mx.load(target).nodes == found.provenance.nodes


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("opset:21")])
def test_a_converter_gives_the_opset_that_was_asked_for(exported: Path, tmp_path: Path, name: str) -> None:
    mx.run_tool(exported, name, tmp_path / "out.onnx", samples=1)
    versions = {entry.domain: entry.version for entry in onnx.load(tmp_path / "out.onnx").opset_import}
    assert versions[""] == 21


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_cannot_be_run(exported: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool itself says so, or what it made is tried; nothing is written either way."""
    monkeypatch.chdir(tmp_path)  # some tools leave files of their own where they are called
    model = onnx.load(exported)
    strange = next(node for node in model.graph.node if node.op_type == "Softmax")
    strange.op_type = "Relic"
    source = tmp_path / "strange.onnx"
    onnx.save(model, source)
    tool = name.partition(":")[0]
    with pytest.raises(ToolFailed, match=rf"^({tool} failed|ONNX Runtime cannot run what {name} made): \S+"):
        mx.run_tool(source, name, tmp_path / "out.onnx", samples=1)
    assert list(tmp_path.iterdir()) == [source]
