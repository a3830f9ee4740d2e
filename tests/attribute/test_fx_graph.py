"""`fx_graph`: exact where dynamo says of which FX node an ONNX node was made, a projection elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.support import nets
from tests.support.architectures import build
from tests.support.building import graph, node, owners, tree
from torch import Tensor, nn

import modelexport as mx
from modelexport.attribute.strategies import fx_graph
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Confidence, EvidenceKind
from modelexport.record.signals import ExporterScopes, GraphValues, Signals, Trace

X = torch.linspace(-1, 1, 8).reshape(2, 4)
TREE = tree({"": "Net", "a": "Linear", "b": "Linear"})


def exported(net: nn.Module, folder: Path, exporter: str, inputs: object = None, **options: Any) -> mx.ExportResult:
    path = folder / "m.onnx"
    options |= {"strategy": "fx_graph", "no_check": True}
    return mx.export(net, path, target=None, inputs=inputs, exporter=exporter, **options)


def named(result: mx.ExportResult, *operators: str) -> list[str]:
    found = result.provenance.nodes.values()
    return [str(entry.attribution.module) for entry in found if not operators or entry.op_type in operators]


# the judgement itself


def test_an_fx_node_names_the_call() -> None:
    nodes = node("MatMul", "x w", "h", scope=("", "a", "linear")), node("Add", "h b", "y", scope=("", "add"))
    scopes = ExporterScopes(fx_calls={"linear": ModuleCall("a", 1), "add": ModuleCall("b")})
    claims = fx_graph(graph(*nodes, weights=["w", "b"]), TREE, Signals(scopes)).nodes
    assert owners(claims) == {"h": ("a#1",), "y": ("b",)}
    assert {item.confidence for item in claims.values()} == {Confidence.EXACT}
    assert claims["h"].evidence[0].kind is EvidenceKind.FX
    assert claims["h"].evidence[0].detail == "linear"


def test_nodes_that_fx_does_not_explain_are_inferred() -> None:
    first, last = node("Sin", "x", "h", scope=("", "a", "sin")), node("Cos", "k", "y", scope=("", "a", "cos"))
    scopes = ExporterScopes(fx_calls={"sin": ModuleCall("a"), "cos": ModuleCall("a")})
    claims = fx_graph(graph(first, node("Neg", "h", "k"), last), TREE, Signals(scopes)).nodes
    assert owners(claims) == {"h": ("a",), "k": ("a",), "y": ("a",)}
    assert claims["k"].confidence is Confidence.INFERRED


def test_without_anything_nothing_is_claimed_of_a_node_inside() -> None:
    claims = fx_graph(graph(node("Sin", "x", "h"), node("Sin", "h", "y")), TREE, Signals()).nodes
    assert all(item.confidence <= Confidence.INFERRED for item in claims.values())


def test_a_recorded_fx_run_is_projected() -> None:
    empty = Trace("torch.export", (), (), {}, {})
    signals = Signals(fx=empty, values=GraphValues({}))
    claims = fx_graph(graph(node("Sin", "x", "y")), TREE, signals).nodes
    assert all(item.confidence <= Confidence.INFERRED for item in claims.values())


# through the road


def test_dynamo_is_exact_on_a_block_that_is_called_three_times(tmp_path: Path) -> None:
    result = exported(nets.perturbed(nets.Repeated()), tmp_path, "dynamo", X)
    assert named(result, "Gemm", "Relu", "Add") == [
        *("blk.fc", "blk.fc#1", "blk.net.0", "blk.net.1", "blk.kinds.p", "blk"),
        *("blk.fc#2", "blk.fc#3", "blk.net.0#1", "blk.net.1#1", "blk.kinds.p#1", "blk#1"),
        *("blk.fc#4", "blk.fc#5", "blk.net.0#2", "blk.net.1#2", "blk.kinds.p#2", "blk#2"),
    ]
    assert {entry.attribution.confidence for entry in result.provenance.nodes.values()} == {Confidence.EXACT}
    assert result.strategy == "fx_graph"


def test_torchscript_is_projected(tmp_path: Path) -> None:
    result = exported(nets.perturbed(nets.Repeated()), tmp_path, "torchscript", X)
    wanted = ["blk.fc", "blk.fc#1", "blk.net.0", "blk.net.1", "blk.kinds.p", "blk"]
    assert named(result, "Gemm", "Relu", "Add")[:6] == wanted
    assert named(result, "Gemm", "Relu", "Add")[-1] == "blk#2"
    kinds = {item.kind for entry in result.provenance.nodes.values() for item in entry.attribution.evidence}
    assert EvidenceKind.VALUE in kinds
    assert EvidenceKind.SCOPE not in kinds
    assert result.notes == ()


def test_dynamo_tells_the_calls_of_albert_apart(tmp_path: Path) -> None:
    result = exported(build("albert"), tmp_path, "dynamo")
    normal = named(result, "LayerNormalization")
    path = "encoder.albert_layer_groups.0.albert_layers.0"
    after = [f"{path}.attention.LayerNorm", f"{path}.full_layer_layer_norm"]
    assert normal == ["embeddings.LayerNorm", *after, *(f"{name}#{call}" for call in (1, 2) for name in after)]
    compute = [entry for entry in result.provenance.nodes.values() if entry.op_type in ("MatMul", "Gemm", "Softmax")]
    assert {entry.attribution.confidence for entry in compute} == {Confidence.EXACT}


class Deciding(nn.Module):
    """Nothing that torch.export can trace."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x) if bool(x.sum() > -100) else x


def test_what_fx_cannot_trace_is_attributed_by_htp_and_says_why(tmp_path: Path) -> None:
    result = exported(nets.perturbed(Deciding()), tmp_path, "torchscript", X)
    assert result.strategy == "htp"
    (note,) = [note for note in result.notes if "fx_graph" in note]
    assert note.startswith("fx_graph cannot trace this model (")
    assert note.endswith("; attributed by htp")
    assert named(result, "Gemm") == ["lin"]


def test_symbolic_trace_on_request(tmp_path: Path) -> None:
    result = exported(nets.perturbed(nets.CalledThrice()), tmp_path, "torchscript", X, fx_graph="symbolic_trace")
    assert named(result, "Gemm", "Relu", "Sigmoid") == ["lin", "", "lin#1", "", "lin#2"]
    sources = {item.source for entry in result.provenance.nodes.values() for item in entry.attribution.evidence}
    assert "torch.fx" in sources


def test_control_flow_is_attributed(tmp_path: Path) -> None:
    """Operators that no exporter's registry knows are no reason to fail."""
    result = exported(nets.perturbed(nets.Branching()), tmp_path, "dynamo", X, fx_graph="torch_export")
    assert named(result, "If") == [""]
