"""`usage_based` claims little, and nothing that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support import nets
from tests.support.building import graph, node, tree
from tests.support.reruns import Rerun, Reruns, rerun_of
from torch import Tensor, nn

import modelexport as mx
from modelexport.attribute.strategies import GraphClaims, usage_based
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Claim, Confidence, EvidenceKind
from modelexport.record.signals import Signals

BOTH = pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
X = torch.linspace(-1, 1, 8).reshape(2, 4)


def exported(model: nn.Module, inputs: Tensor, exporter: str, folder: Path) -> Rerun:
    path = folder / "m.onnx"
    return rerun_of(model, inputs, mx.export(model, path, inputs=inputs, exporter=exporter, no_check=True))


def said(rerun: Rerun) -> dict[str, tuple[str, str]]:
    """The claims on nodes: what kind of node it is, and whose."""
    claims = usage_based(rerun.graph, rerun.hierarchy, rerun.signals).nodes
    return {key: (rerun.graph.by_key[key].op_type, str(claim.owners[0])) for key, claim in claims.items()}


def wrong(claims: GraphClaims, rerun: Rerun) -> list[str]:
    """What the exporter says otherwise. A weight is a module's, not a call's."""
    entries = rerun.provenance.nodes
    nodes = [
        key for key, claim in claims.nodes.items() if not set(claim.owners) <= set(entries[key].attribution.owners)
    ]
    holders = {name: {call.path for call in found.owners} for name, found in rerun.provenance.initializers.items()}
    return nodes + [name for name, claim in claims.initializers.items() if not _paths(claim) <= holders[name]]


def _paths(claim: Claim) -> set[str]:
    return {call.path for call in claim.owners}


@BOTH
@pytest.mark.parametrize(("name", "least"), [("bert", 30), ("gpt2", 15), ("t5", 40), ("albert", 6), ("resnet", 0)])
def test_no_claim_is_wrong(reruns: Reruns, name: str, least: int, exporter: str) -> None:
    rerun = reruns(name, exporter)
    claims = usage_based(rerun.graph, rerun.hierarchy, rerun.signals)
    assert wrong(claims, rerun) == []
    assert len(claims.nodes) >= least
    assert {claim.confidence for claim in claims.nodes.values()} <= {Confidence.EXACT}


@BOTH
def test_every_projection_of_every_layer_is_claimed(reruns: Reruns, exporter: str) -> None:
    claimed = {owner for _, owner in said(reruns("bert", exporter)).values()}
    for layer in ("encoder.layer.0", "encoder.layer.1"):
        for part in ("attention.self.query", "attention.self.key", "attention.self.value", "output.dense"):
            assert f"{layer}.{part}" in claimed


@BOTH
def test_equal_weights_of_several_modules_say_nothing(tmp_path: Path, exporter: str) -> None:
    rerun = exported(nets.EqualWeights().eval(), torch.linspace(-1, 1, 32).reshape(2, 16), exporter, tmp_path)
    claims = usage_based(rerun.graph, rerun.hierarchy, rerun.signals)
    assert claims == GraphClaims({}, {})


class Copies(nn.Module):
    """Copies of one layer, equal to the last bit."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.parts[1].load_state_dict(self.parts[0].state_dict())
        self.own = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.own(self.parts[1](torch.tanh(self.parts[0](x))))


@BOTH
def test_copies_of_a_layer_say_nothing_and_others_do(tmp_path: Path, exporter: str) -> None:
    rerun = exported(Copies().eval(), X, exporter, tmp_path)
    assert {owner for _, owner in said(rerun).values()} == {"own"}
    assert set(usage_based(rerun.graph, rerun.hierarchy, rerun.signals).initializers) <= {
        name for name, found in rerun.provenance.initializers.items() if found.owners == (ModuleCall("own"),)
    }


@BOTH
def test_a_weight_belongs_to_its_holder_and_the_node_to_its_user(tmp_path: Path, exporter: str) -> None:
    """torch's attention uses the weight of its child `out_proj` without calling it."""
    rerun = exported(nets.perturbed(nets.Attending()), torch.linspace(-1, 1, 48).reshape(2, 3, 8), exporter, tmp_path)
    claims = usage_based(rerun.graph, rerun.hierarchy, rerun.signals)
    users = {owner for _, owner in said(rerun).values()}
    assert "encoder.layers.0.self_attn" in users
    assert not any(owner.endswith("out_proj") for owner in users)
    holders = {path for claim in claims.initializers.values() for path in _paths(claim)}
    assert "encoder.layers.0.linear1" in holders
    assert [key for key in wrong(claims, rerun) if key in claims.nodes] == []


@BOTH
def test_a_tied_weight_says_nothing(tmp_path: Path, exporter: str) -> None:
    rerun = exported(nets.perturbed(nets.Functional()), torch.tensor([[1, 2, 3]]), exporter, tmp_path)
    found = said(rerun)
    assert "Gather" not in {operator for operator, _ in found.values()}
    assert set(found.values()) <= {("Mul", ""), ("MatMul", "")}
    assert wrong(usage_based(rerun.graph, rerun.hierarchy, rerun.signals), rerun) == []


@BOTH
def test_a_module_that_is_called_again_says_nothing(tmp_path: Path, exporter: str) -> None:
    rerun = exported(nets.perturbed(nets.CalledThrice()), X, exporter, tmp_path)
    assert said(rerun) == {}
    assert set(usage_based(rerun.graph, rerun.hierarchy, rerun.signals).initializers) == set(rerun.graph.initializers)


@BOTH
def test_a_table_that_was_folded_is_used_by_who_adds_it(tmp_path: Path, exporter: str) -> None:
    rerun = exported(nets.perturbed(nets.ConstantTable()), torch.linspace(-1, 1, 20).reshape(5, 4), exporter, tmp_path)
    assert set(said(rerun).values()) <= {("Add", ""), ("Gather", "position")}


class Scaling(nn.Module):
    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        self.scale = nn.Parameter(scale)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Halving(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x) * 0.5


class Ranging(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x) * torch.tensor([1.0, 2.0, 3.0, 4.0])


@BOTH
@pytest.mark.parametrize(
    ("scale", "other"), [(torch.tensor(0.5), Halving()), (torch.tensor([1.0, 2.0, 3.0, 4.0]), Ranging())]
)
def test_a_constant_like_a_weight_says_nothing(tmp_path: Path, exporter: str, scale: Tensor, other: nn.Module) -> None:
    """Exporters keep one tensor for both: a node that reads the weight may be somebody else's."""
    rerun = exported(nn.Sequential(Scaling(scale), nn.Tanh(), other).eval(), X, exporter, tmp_path)
    claims = usage_based(rerun.graph, rerun.hierarchy, rerun.signals)
    assert claims == GraphClaims({}, {})


class Gated(nn.Module):
    """One call that uses two weights, with work of its own in between."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.rand(4, 6))
        self.down = nn.Parameter(torch.rand(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(torch.tanh(x @ self.up)) @ self.down


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gated = Gated()

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.gated(torch.cos(x)))


@BOTH
def test_what_lies_inside_of_one_call_is_that_calls(tmp_path: Path, exporter: str) -> None:
    rerun = exported(Around().eval(), X, exporter, tmp_path)
    assert sorted(said(rerun).values()) == [
        ("MatMul", "gated"),
        ("MatMul", "gated"),
        ("Sigmoid", "gated"),
        ("Tanh", "gated"),
    ]
    claims = usage_based(rerun.graph, rerun.hierarchy, rerun.signals).nodes
    kinds = {rerun.graph.by_key[key].op_type: claim.evidence[0].kind for key, claim in claims.items()}
    assert kinds["MatMul"] is EvidenceKind.PARAMETER
    assert kinds["Tanh"] is EvidenceKind.DATAFLOW


class Calling(Gated):
    """The same, with another module in between."""

    def __init__(self) -> None:
        super().__init__()
        self.between = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.between(x @ self.up)) @ self.down


def test_what_another_module_may_have_done_is_not_claimed(tmp_path: Path) -> None:
    rerun = exported(Calling().eval(), X, "torchscript", tmp_path)
    assert sorted(said(rerun).values()) == [("MatMul", ""), ("MatMul", "")]


def test_without_a_run_nothing_is_said() -> None:
    assert usage_based(graph(node("Sin", "x", "y")), tree({"": "Net"}), Signals()) == GraphClaims({}, {})
