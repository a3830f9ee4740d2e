"""What exporters find hard, one network for each: the answers are known by construction."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest
import torch
from tests.support import nets

import modelexport as mx

pytestmark = pytest.mark.slow

X = torch.linspace(-1, 1, 8).reshape(2, 4)
both_exporters = pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])


def export(net: torch.nn.Module, inputs: object, folder: Path, exporter: str) -> mx.Provenance:
    result = mx.export(net, folder / "net.onnx", inputs=inputs, exporter=exporter)
    assert result.check is not None
    assert result.check.ok, result.check.message
    answers = [entry.attribution for entry in result.provenance.nodes.values()]
    assert all(answer.confidence >= mx.Confidence.INFERRED for answer in answers)
    return result.provenance


def modules(provenance: mx.Provenance, *operators: str) -> list[str | None]:
    """The modules of the nodes with these operators, in file order."""
    return [entry.attribution.module for entry in provenance.nodes.values() if entry.op_type in operators]


def owners(provenance: mx.Provenance, operator: str) -> list[set[str]]:
    return [set(entry.attribution.modules) for entry in provenance.nodes.values() if entry.op_type == operator]


@both_exporters
def test_three_calls_of_one_linear(tmp_path: Path, exporter: str) -> None:
    found = export(nets.perturbed(nets.CalledThrice()), X, tmp_path, exporter)
    assert modules(found, "Gemm") == ["lin", "lin#1", "lin#2"]
    assert modules(found, "Sigmoid", "Relu") == ["", ""]


@both_exporters
def test_calls_inside_calls(tmp_path: Path, exporter: str) -> None:
    found = export(nets.perturbed(nets.Repeated()), X, tmp_path, exporter)
    first = ["blk.fc", "blk.fc#1", "blk.net.0", "blk.kinds.p"]
    second = ["blk.fc#2", "blk.fc#3", "blk.net.0#1", "blk.kinds.p#1"]
    third = ["blk.fc#4", "blk.fc#5", "blk.net.0#2", "blk.kinds.p#2"]
    assert modules(found, "Gemm") == first + second + third
    assert modules(found, "Add") == ["blk", "blk#1", "blk#2"]
    assert modules(found, "Relu") == ["blk.net.1", "blk.net.1#1", "blk.net.1#2"]


@both_exporters
def test_one_object_under_two_names(tmp_path: Path, exporter: str) -> None:
    found = export(nets.perturbed(nets.TwoNames()), X, tmp_path, exporter)
    assert modules(found, "Gemm") == ["a", "a#1", "a#2", "a_1"]
    assert found.hierarchy.modules["a"].aliases == ("b",)
    weights = {name: answer.modules for name, answer in found.initializers.items() if name.endswith("weight")}
    assert Counter(weights.values()) == {("a",): 1, ("a_1",): 1}


@both_exporters
def test_forward_called_directly(tmp_path: Path, exporter: str) -> None:
    found = export(nets.perturbed(nets.DirectForward()), X, tmp_path, exporter)
    parts = ["fc", "fc#1", "net.0", "kinds.p"]
    assert modules(found, "Gemm") == [f"{block}.{part}" for block in ("one", "two") for part in parts]


@both_exporters
def test_folded_batch_normalization_belongs_to_both(tmp_path: Path, exporter: str) -> None:
    image = torch.linspace(-1, 1, 2 * 3 * 12 * 12).reshape(2, 3, 12, 12)
    found = export(nets.perturbed(nets.FoldedNorm()), image, tmp_path, exporter)
    assert owners(found, "Conv") == [{"conv", "bn"}, {"wide", "norm"}]
    assert owners(found, "Relu") == [{""}, {""}]
    weights = {frozenset(answer.modules) for answer in found.initializers.values()}
    assert weights == {frozenset({"conv", "bn"}), frozenset({"wide", "norm"})}


def test_weights_that_were_merged_belong_to_all(tmp_path: Path) -> None:
    found = export(nets.EqualWeights().eval(), torch.linspace(-1, 1, 32).reshape(2, 16), tmp_path, "dynamo")
    assert [set(answer.modules) for answer in found.initializers.values()] == [{"norms.0", "norms.1", "norms.2"}] * 2


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(6, 4)
        self.head = torch.nn.Linear(4, 6, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.table(ids)))


@both_exporters
def test_tied_weights_belong_to_both(tmp_path: Path, exporter: str) -> None:
    found = export(Tied().eval(), torch.tensor([[1, 2], [3, 4]]), tmp_path, exporter)
    assert {"table", "head"} in [set(answer.modules) for answer in found.initializers.values()]
    assert modules(found, "Gather", "Tanh", "MatMul") == ["table", "", "head"]


def test_a_shared_node_belongs_to_both_siblings(tmp_path: Path) -> None:
    found = export(nets.Twins(), X, tmp_path, "dynamo")
    assert owners(found, "Relu") == [{"left", "right"}]


def test_torchscript_says_that_a_twin_is_gone(tmp_path: Path) -> None:
    found = export(nets.Twins(), X, tmp_path, "torchscript")
    assert "shared" in found.absent["right"]


@both_exporters
def test_copies_of_equal_weights(tmp_path: Path, exporter: str) -> None:
    found = export(nets.EqualWeights().eval(), torch.linspace(-1, 1, 32).reshape(2, 16), tmp_path, exporter)
    assert modules(found, "LayerNormalization") == ["norms.0", "norms.1", "norms.2"]
    assert set(modules(found, "Identity")) <= {"norms.1", "norms.2"}


@both_exporters
def test_a_module_that_is_folded_away_owns_the_constant(tmp_path: Path, exporter: str) -> None:
    found = export(nets.perturbed(nets.ConstantTable()), torch.ones(2, 5, 4), tmp_path, exporter)
    assert [answer.modules for answer in found.initializers.values()] == [("position",)]
    assert modules(found, "Add") == [""]


@both_exporters
def test_a_parameter_used_without_a_call(tmp_path: Path, exporter: str) -> None:
    found = export(nets.perturbed(nets.Functional()), torch.tensor([[1, 2, 3], [4, 5, 6]]), tmp_path, exporter)
    assert modules(found, "Gather", "Mul", "MatMul") == ["table", "", ""]


@both_exporters
def test_recurrent_and_parametrized_modules(tmp_path: Path, exporter: str) -> None:
    found = export(nets.perturbed(nets.Recurrent()), torch.ones(2, 5, 4), tmp_path, exporter)
    assert modules(found, "LSTM") == ["rnn"]
    assert modules(found, "MatMul") == ["out"]
    assert not [path for path in found.absent if found.hierarchy.modules[path].parameters]


@both_exporters
def test_nested_inputs_and_named_outputs(tmp_path: Path, exporter: str) -> None:
    found = export(nets.perturbed(nets.Nested()), {"xs": [X, X + 1], "extra": {"bias": X}}, tmp_path, exporter)
    assert modules(found, "Gemm") == ["lin", "lin#1"]
    graph = onnx.load(tmp_path / "net.onnx").graph
    assert [value.name for value in graph.input] == ["xs_0", "xs_1", "extra_bias"]
    assert [value.name for value in graph.output] == ["first", "second"]


@both_exporters
def test_names_with_a_meaning_elsewhere(tmp_path: Path, exporter: str) -> None:
    found = export(nets.perturbed(nets.Odd()), X, tmp_path, exporter)
    assert [entry.attribution.owners[0].path for entry in found.nodes.values() if entry.op_type == "Gemm"] == [
        "parts.a/b",
        "parts.c#1",
        "parts.[bold]",
    ]


def test_branches_of_a_condition(tmp_path: Path) -> None:
    found = export(nets.perturbed(nets.Branching()), X + 1, tmp_path, "dynamo")
    assert modules(found, "Gemm") == ["yes", "no"]
    assert modules(found, "Add") == [""]


def _owners_in_bodies(found: mx.Provenance) -> dict[str, set[str]]:
    """By operator: the paths of its owners, of nodes in bodies."""
    inside = [entry for key, entry in found.nodes.items() if "|" in key and "else" not in key]
    operators = {entry.op_type for entry in inside} - {"Constant", "Identity", "MatMul", "Gemm"}
    return {
        operator: {call.path for entry in inside if entry.op_type == operator for call in entry.attribution.owners}
        for operator in operators
    }


def test_modules_without_weights_that_the_body_of_a_scan_calls(tmp_path: Path) -> None:
    net, x = nets.perturbed(nets.GatedScan()), torch.linspace(-1, 1, 24).reshape(3, 2, 4)
    found = export(net, x, tmp_path, "dynamo")
    assert _owners_in_bodies(found) == {
        "Sigmoid": {"cell.gate.0"},
        "Tanh": {"cell.gate.1"},
        "Add": {"cell"},
        "Mul": {"cell", ""},
    }
    sigmoid = next(entry.attribution for entry in found.nodes.values() if entry.op_type == "Sigmoid")
    assert list(map(str, sigmoid.owners)) == ["cell.gate.0", "cell.gate.0#1", "cell.gate.0#2"]
    proof = mx.verify(tmp_path / "net.onnx", net, inputs=x).proof
    assert proof is not None
    assert not proof.counts[mx.Verdict.CONTRADICTED]
    assert proof.compute == proof.compute_shown


def test_modules_that_branches_call_and_one_that_never_runs(tmp_path: Path) -> None:
    net = nets.perturbed(nets.GatedBranch())
    found = export(net, X, tmp_path, "dynamo")
    assert _owners_in_bodies(found) == {
        "Sigmoid": {"inner.choice.cell.gate.0"},
        "Tanh": {"inner.choice.cell.gate.1"},
        "Mul": {"inner.choice.cell"},
        "Add": {"inner.choice.cell"},
        "Sub": {"inner.choice"},
    }
    never = {call.path for key, entry in found.nodes.items() if "else" in key for call in entry.attribution.owners}
    assert never == {"inner.choice.never"}
    proof = mx.verify(tmp_path / "net.onnx", net, inputs=X).proof
    assert proof is not None
    assert not proof.counts[mx.Verdict.CONTRADICTED]


def test_a_checkpoint_that_hides_its_modules(tmp_path: Path) -> None:
    """With gradients on, as plain torch.onnx.export runs, dynamo credits everything to the root."""
    net = nets.perturbed(nets.Checkpointed())
    path = tmp_path / "plain.onnx"
    torch.onnx.export(net, (X.clone().requires_grad_(),), path, dynamo=True, verbose=False)
    mapper = mx.SemanticMapper(onnx.load(path), mx.TracingHierarchyBuilder().trace_model_execution(net, X.detach()))
    found = mapper.provenance
    assert modules(found, "Gemm") == ["inner.0", "inner.2", "last"]
    assert modules(found, "Relu") == ["inner"]
    relu = next(entry.attribution for entry in found.nodes.values() if entry.op_type == "Relu")
    assert relu.confidence is mx.Confidence.INFERRED


@both_exporters
def test_a_file_that_plain_torch_wrote(tmp_path: Path, exporter: str) -> None:
    """The mapper needs the ONNX model and the hierarchy record, and tells calls apart without further help."""
    net = nets.perturbed(nets.Repeated())
    path = tmp_path / "plain.onnx"
    torch.onnx.export(net, (X,), str(path), dynamo=exporter == "dynamo", verbose=False)
    hierarchy = mx.TracingHierarchyBuilder().trace_model_execution(net, X)
    answers = mx.SemanticMapper(onnx.load(path), hierarchy).map_all_nodes()
    assert len(answers) == len(onnx.load(path).graph.node)
    linear = [answer.module for answer in answers.values() if answer.owners[0].path == "blk.fc"]
    assert linear == ["blk.fc", *(f"blk.fc#{number}" for number in range(1, 6))]


@both_exporters
def test_attention_layers_of_torch_itself(tmp_path: Path, exporter: str) -> None:
    found = export(nets.perturbed(nets.Attending()), torch.linspace(-1, 1, 48).reshape(2, 3, 8), tmp_path, exporter)
    assert found.hierarchy.call_counts["encoder.layers.1.self_attn"] == 1
    attended = {entry.attribution.owners[0].path for entry in found.nodes.values() if entry.op_type == "Softmax"}
    assert attended == {"encoder.layers.0.self_attn", "encoder.layers.1.self_attn"}
    assert set(modules(found, "Relu")) == {"encoder.layers.0", "encoder.layers.1"}


@both_exporters
def test_a_division_belongs_to_the_module_that_divides(tmp_path: Path, exporter: str) -> None:
    found = export(nets.perturbed(nets.Divided()), X, tmp_path, exporter)
    assert set(modules(found, "Split", "Slice")) == {"qkv"}
    assert set(modules(found, "Sin", "Cos", "Mul", "Add")) >= {"att"}


@both_exporters
def test_norms_between_convolutions_go_to_the_right_one(tmp_path: Path, exporter: str) -> None:
    image = torch.linspace(-1, 1, 2 * 3 * 5 * 5).reshape(2, 3, 5, 5)
    found = export(nets.perturbed(nets.Bottleneck()), image, tmp_path, exporter)
    assert owners(found, "Conv") == [{"project", "norm"}, {"expand", "last"}]


@both_exporters
def test_a_call_that_leaves_nothing_is_no_reason_for_a_wrong_number(tmp_path: Path, exporter: str) -> None:
    found = export(nets.perturbed(nets.Silent()), X, tmp_path, exporter)
    for entry in found.nodes.values():
        if entry.op_type == "Gemm" and entry.attribution.confidence is mx.Confidence.EXACT:
            last = entry.key == [other for other in found.nodes.values() if other.op_type == "Gemm"][-1].key
            assert entry.attribution.module == ("a#2" if last else "a#1")


@both_exporters
def test_what_a_model_writes_into_is_its_own(tmp_path: Path, exporter: str) -> None:
    net, x = nets.perturbed(nets.Writing()), X.clone()
    before = net.state_dict()["count"].clone()
    result = mx.export(net, tmp_path / "net.onnx", inputs=x, exporter=exporter)
    # TorchScript keeps a buffer that the run replaced as a constant of its own making.
    assert result.check is not None
    assert result.check.ok or exporter == "torchscript"
    assert torch.equal(x, X)
    assert torch.equal(net.state_dict()["count"], before)


@both_exporters
def test_inputs_by_position(tmp_path: Path, exporter: str) -> None:
    export(nets.perturbed(nets.Starred()), (X, X + 1, X + 2), tmp_path, exporter)
    graph = onnx.load(tmp_path / "net.onnx").graph
    assert [value.name for value in graph.input] == ["first", "others_0", "others_1"]
    assert all(value.type.tensor_type.shape.dim[0].dim_param == "batch" for value in graph.input)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_submodule(tmp_path: Path) -> None:
    class Holder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = torch.jit.script(torch.nn.Linear(4, 4))
            self.last = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.part(x))

    hierarchy = mx.TracingHierarchyBuilder().trace_model_execution(Holder().eval(), X)
    assert hierarchy.modules["part"].arguments == ("input",)
    assert hierarchy.call_counts["last"] == 1
    with pytest.raises(mx.UserError, match="torch cannot export Holder"):
        mx.export(Holder().eval(), tmp_path / "h.onnx", inputs=X, exporter="torchscript")


def test_an_input_that_the_graph_does_not_read_is_reported(tmp_path: Path) -> None:
    class Deaf(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
            return x * 2

    notes = mx.export(Deaf(), tmp_path / "d.onnx", inputs=(X, X), exporter="torchscript").notes
    assert notes == ("the graph does not read the input y",)
