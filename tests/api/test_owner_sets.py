"""Sets of owners are as wide as the truth: what optimizers merge and fold, and what exporters see too late."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest
import torch
from measure.corpus.networks import owners
from measure.corpus.networks.network import Network
from torch import Tensor, nn

import modelexport as mx
from modelexport.graph.index import MAIN, Graph, index_model
from modelexport.record.provenance import Attribution, Confidence

EXPORTERS = ["dynamo", "torchscript"]


class Exported:
    """A network, exported: the attribution of each node, and the graph."""

    def __init__(self, network: Network, folder: Path, exporter: str) -> None:
        network.make_equal()
        path = folder / "net.onnx"
        self.record = mx.export(
            network.eval(), path, inputs=network.example(), exporter=exporter, no_check=True
        ).provenance
        self.graph: Graph = index_model(onnx.load(path))

    @property
    def answers(self) -> Mapping[str, Attribution]:
        return {key: entry.attribution for key, entry in self.record.nodes.items()}

    def modules_of(self, *operators: str) -> list[set[str]]:
        """The owners of the nodes with these operators, in the order of the file."""
        nodes = [node for node in self.graph.nodes if node.op_type in operators and node.graph == MAIN]
        return [{call.path for call in self.answers[node.key].owners} for node in nodes]


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_merged_node_belongs_to_those_who_made_its_value_alone(tmp_path: Path, exporter: str) -> None:
    """The mask of the third layer has fewer positions: it is not the one that the other two make."""
    exported = Exported(owners.MergedMasks(), tmp_path, exporter)
    first_two, third = {"layers.0", "layers.1"}, {"layers.2"}
    made = exported.modules_of("Sub")
    # One Sub stands for two. TorchScript merges as well, and does not say what: the first one's scope is left.
    assert made == [first_two if exporter == "dynamo" else {"layers.0"}, third]
    assert all(len(modules) == 1 for modules in exported.modules_of("Softmax", "MatMul", "Slice"))


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_who_reads_a_constant_that_several_folded_is_told_by_its_operator(tmp_path: Path, exporter: str) -> None:
    exported = Exported(owners.FoldedTables(), tmp_path, exporter)
    looked_up = exported.modules_of("Gather", "GatherND")
    assert looked_up == [{"layers.0"}, {"layers.1"}, {"layers.2"}]
    assert all(len(answer.owners) == 1 for key, answer in exported.answers.items() if key in exported.graph.computed)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_who_adds_a_bias_that_torch_merged_is_told_by_the_operator(tmp_path: Path, exporter: str) -> None:
    exported = Exported(owners.EqualBiases(), tmp_path, exporter)
    assert exported.modules_of("Add") == [{"first"}, {"second"}]
    if exporter == "dynamo":
        merged = [answer.owners for answer in exported.record.initializers.values() if len(answer.owners) > 1]
        assert [{call.path for call in calls} for calls in merged] == [{"first", "second"}]  # the weight is both's


def test_a_node_in_a_body_belongs_to_whoever_runs_the_body(tmp_path: Path) -> None:
    """Constants of the branches are those of the model as well, and nothing in a scripted function has a scope."""
    exported = Exported(owners.ScriptedBranches(), tmp_path, "torchscript")
    graph, answers = exported.graph, exported.answers
    branching = [node for node in graph.nodes if node.op_type == "If"]
    assert [answers[node.key].module for node in branching] == ["first", "second"]
    assert {answers[node.key].confidence for node in branching} == {mx.Confidence.EXACT}  # values tell, not dataflow
    for node in graph.nodes:
        if node.graph != MAIN:
            runner = answers[graph.body_owner[node.graph]].ancestor
            assert runner is not None
            assert all(runner in exported.record.hierarchy.stack(call) for call in answers[node.key].owners), node.key


def test_an_element_belongs_to_whoever_took_it(tmp_path: Path) -> None:
    """torch takes the elements again inside of the modules that read them; the evidence says what was refuted."""
    exported = Exported(owners.TakenAgain(), tmp_path, "dynamo")
    assert {frozenset(modules) for modules in exported.modules_of("SplitToSequence", "SequenceAt")} == {frozenset({""})}
    details = {item.detail for answer in exported.answers.values() for item in answer.evidence}
    assert {"Python frames refute left.0", "Python frames refute right"} <= details


def test_views_stay_with_the_module_that_takes_them(tmp_path: Path) -> None:
    exported = Exported(owners.ViewsInForward(), tmp_path, "dynamo")
    moved = exported.modules_of("Transpose")
    assert {"first"} in moved
    assert {"second"} in moved
    assert {""} not in moved


def _distances(x: Tensor) -> Tensor:
    places = torch.arange(x.size(0))
    return places[:, None] - places[None, :]


def _gate(x: Tensor, weight: Tensor) -> Tensor:
    if bool(x.sum() > 0):
        return torch.tanh(x @ weight)
    return x @ weight.t()


with warnings.catch_warnings():
    # torch is about to drop scripts; models that have some are exported all the same.
    warnings.simplefilter("ignore", DeprecationWarning)
    distances_of = torch.jit.script(_distances)
    gate_of = torch.jit.script(_gate)


class _Biased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor, distances: Tensor) -> Tensor:
        scores = torch.softmax(self.fc(x) @ x.transpose(0, 1) - distances.abs() * 0.1, dim=-1)
        return scores @ x


class HandedTable(Network):
    """A table of distances is made by a scripted function, which leaves no scope, and handed to one layer alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = _Around()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)

    def example(self) -> tuple[Tensor, ...]:
        return (torch.linspace(-1, 1, 64).reshape(16, 4),)


class _Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = _Biased()

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x, distances_of(x))
        return made


def test_a_table_without_a_scope_belongs_to_who_made_it_and_not_to_its_only_reader(tmp_path: Path) -> None:
    exported = Exported(HandedTable(), tmp_path, "torchscript")
    tables = [key for key in exported.graph.tables if "layer" not in key]
    assert {exported.graph.by_key[key].op_type for key in tables} >= {"Range", "Sub"}
    assert {str(exported.answers[key].ancestor) for key in tables} == {"inner"}
    sizes = exported.modules_of("Shape")
    assert {"inner"} in sizes


class Called(Network):
    """The first call leaves nothing in the graph, and the names say nothing of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = self.a

    def forward(self, x: Tensor) -> Tensor:
        self.b(x + 1)
        return self.a(torch.relu(self.b(x)))

    def example(self) -> tuple[Tensor, ...]:
        return (torch.linspace(-1, 1, 64).reshape(16, 4),)


def test_calls_that_scopes_leave_open_are_told_by_values(tmp_path: Path) -> None:
    exported = Exported(Called(), tmp_path, "dynamo")
    products = [node.key for node in exported.graph.nodes if node.op_type == "Gemm"]
    assert [str(exported.answers[key].ancestor) for key in products] == ["a#1", "a#2"]


class _Gate(nn.Module):
    """Reads the weight of a module that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = gate_of(x, self.step.weight)
        return made


class GatedByWeight(Network):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.gate = _Gate()

    def forward(self, x: Tensor) -> Tensor:
        return self.gate(self.fc(x))

    def example(self) -> tuple[Tensor, ...]:
        return (torch.linspace(-1, 1, 64).reshape(16, 4),)


def test_who_branches_asks_and_does_the_work_whosever_weight_it_reads(tmp_path: Path) -> None:
    network = GatedByWeight()
    exported = Exported(network, tmp_path, "torchscript")
    graph, answers = exported.graph, exported.answers
    assert exported.modules_of("ReduceSum", "Greater", "If") == [{"gate"}] * 3
    products = [node.key for node in graph.nodes if node.op_type == "MatMul" and node.graph != MAIN]
    assert len(products) == 2
    # One of both branches ran. Of the other one nothing but the weight that it reads can tell, which is a guess.
    assert "gate" in {str(answers[key].ancestor) for key in products}
    assert all(str(answers[key].ancestor) in ("gate", "gate.step") for key in products)
    assert all(answers[key].confidence <= Confidence.INFERRED for key in products if answers[key].module != "gate")
    proof = mx.verify(tmp_path / "net.onnx", network, inputs=network.example()).proof
    assert proof is not None
    assert not proof.contradicted


class Chosen(Network):
    """Of two modules, the example runs one."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = nn.Linear(4, 4)
        self.left = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        asked = self.asked(x)
        made: Tensor = torch.cond(asked.sum() > 1e6, lambda y: self.left(y).relu(), self.right, (asked,))
        return made

    def example(self) -> tuple[Tensor, ...]:
        return (torch.linspace(-1, 1, 64).reshape(16, 4),)


def test_a_branch_that_did_not_run_belongs_to_the_module_whose_weight_it_reads(tmp_path: Path) -> None:
    exported = Exported(Chosen(), tmp_path, "dynamo")
    products = [node.key for node in exported.graph.nodes if node.op_type == "Gemm"]
    assert {str(exported.answers[key].ancestor) for key in products} == {"asked", "left", "right"}
