"""The exporters of the Python API: what they pass on, which way they go, and what they say about it."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest
import torch
from tests.support import nets
from tests.support.architectures import build
from torch import Tensor, nn

import modelexport as mx
from modelexport.api.options import EXPORTERS
from modelexport.errors import ExportFailed, ExtraMissing, UnknownName

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Deciding(nn.Module):
    """Which branch it takes depends on the values: torch.export refuses that, TorchScript keeps the branch taken."""

    def __init__(self) -> None:
        super().__init__()
        self.yes = nn.Linear(4, 4)
        self.no = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.yes(x).tanh() if x.sum() > 0 else self.no(x)


class Unexportable(Deciding):
    """Nor has TorchScript an operator for what it does."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.linalg.eigvals(x.T @ x).real)


def tag_steps(result: mx.ExportResult) -> set[str]:
    found = result.provenance
    return {found.tag(entry.attribution).rpartition("/")[2] for entry in found.nodes.values()}


def test_a_model_with_its_mapper(tmp_path: Path) -> None:
    net = nets.perturbed(nets.Repeated())
    proto, mapper = mx.export_hf_model_with_semantics(net, X, tmp_path / "net.onnx")
    assert proto == onnx.load(tmp_path / "net.onnx")
    assert all(tensor.HasField("raw_data") for tensor in proto.graph.initializer)
    assert mapper.result is not None
    assert mapper.result.path == tmp_path / "net.onnx"
    linear = [item for item in proto.graph.node if item.op_type == "Gemm"]
    owners = [mapper.get_hf_module_for_onnx_node(item) for item in linear]
    paths = ("blk.fc", "blk.fc", "blk.net.0", "blk.kinds.p")
    assert owners == 3 * [net.get_submodule(path) for path in paths]
    assert [mapper.get_node_attribution(item).module for item in linear[::4]] == ["blk.fc", "blk.fc#2", "blk.fc#4"]


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("strategy", ["htp", "usage_based"])
def test_a_mapper_answers_from_the_strategy_of_the_export(tmp_path: Path, exporter: str, strategy: str) -> None:
    net = nets.perturbed(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)))
    _, mapper = mx.export_hf_model_with_semantics(net, X, tmp_path / "n.onnx", exporter=exporter, strategy=strategy)
    origin = mapper.provenance.origin
    assert (origin.strategy, origin.exporter) == (strategy, exporter)
    # Not a word of evidence comes from what the exporter wrote, as it would if the mapper judged again.
    kinds = {item.kind.value for answer in mapper.map_all_nodes().values() for item in answer.evidence}
    assert kinds
    assert "scope" not in kinds


def test_live_modules_need_a_live_model(tmp_path: Path) -> None:
    with pytest.raises(mx.UserError, match="not a live model"):
        mx.export_hf_model_with_semantics("some/folder", X, tmp_path / "n.onnx")  # type: ignore[arg-type]


def test_torch_nn_exceptions_replace_the_default_ones(tmp_path: Path) -> None:
    net = nets.perturbed(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU()))
    steps = {
        name: tag_steps(mx.HierarchyExporter(torch_nn_exceptions=names).export(net, X, tmp_path / f"{name}.onnx"))
        for name, names in {
            "default": None,
            "replaced": ["Linear", "ReLU"],
            "added": [*mx.TORCH_NN_EXCEPTIONS, "Linear"],
            "none": [],
        }.items()
    }
    assert steps == {
        "default": {"Sequential", "LayerNorm.1"},
        "replaced": {"Sequential", "Linear.0", "ReLU.2"},
        "added": {"Sequential", "Linear.0", "LayerNorm.1"},
        "none": {"Sequential"},
    }


def test_an_exporter_does_what_it_was_made_for(tmp_path: Path) -> None:
    exporter = mx.HierarchyExporter(strategy="htp", exporter="torchscript", opset=17)
    for name, net in {"one": nets.Repeated(), "two": nets.CalledThrice()}.items():
        result = exporter.export(nets.perturbed(net), X, tmp_path / f"{name}.onnx")
        origin = result.provenance.origin
        assert (result.strategy, origin.exporter) == ("htp", "torchscript")
        assert [item.version for item in onnx.load(result.path).opset_import if not item.domain] == [17]


def test_wrong_options_are_told_before_anything_runs() -> None:
    with pytest.raises(UnknownName, match="strategy 'magic'"):
        mx.HierarchyExporter(strategy="magic")
    with pytest.raises(UnknownName, match="exporter 'jit'"):
        mx.HierarchyExporter(exporter="jit")
    with pytest.raises(mx.UserError, match=r"Give \['Linear'\]"):
        mx.HierarchyExporter(torch_nn_exceptions="Linear")


def test_wrong_options_of_the_universal_exporter() -> None:
    with pytest.raises(UnknownName, match="jit"):
        mx.UniversalHierarchyExporter(exporter="jit")
    with pytest.raises(mx.UserError, match=r"Give \['Linear'\]"):
        mx.UniversalHierarchyExporter("Linear")


@pytest.mark.parametrize("exporter", [None, *EXPORTERS])
def test_fx_first(tmp_path: Path, exporter: str | None) -> None:
    net = nets.perturbed(nets.CalledThrice())
    result = mx.UniversalHierarchyExporter(["Linear"], exporter).export(net, X, tmp_path / "net.onnx")
    assert result.strategy == "fx_graph"
    assert result.provenance.origin.exporter == (exporter or "dynamo")
    assert not any("htp" in note or "torchscript" in note for note in result.notes)
    linear = [entry for entry in result.provenance.nodes.values() if entry.op_type == "Gemm"]
    assert [entry.attribution.module for entry in linear] == ["lin", "lin#1", "lin#2"]
    assert "Linear" in tag_steps(result)


@pytest.mark.parametrize("exporter", [None, "torchscript"])
def test_htp_where_fx_cannot_and_why(tmp_path: Path, exporter: str | None) -> None:
    net = nets.perturbed(Deciding())
    result = mx.UniversalHierarchyExporter(exporter=exporter).export(net, X.abs(), tmp_path / "net.onnx")
    assert result.strategy == mx.load(result.path).origin.strategy == "htp"
    assert [entry.attribution.module for entry in result.provenance.nodes.values()] == ["yes", ""]
    reasons = [note for note in result.notes if note.endswith("attributed by htp")]
    assert len(reasons) == 1
    assert "data-dependent" in reasons[0]
    refusals = [note for note in result.notes if note.startswith("exported by torchscript: ")]
    assert len(refusals) == (exporter is None)
    assert all("dynamo" in note and "data-dependent" in note for note in refusals)


def test_an_exporter_that_was_asked_for_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(ExportFailed, match="dynamo exporter"):
        mx.UniversalHierarchyExporter(exporter="dynamo").export(nets.perturbed(Deciding()), X, tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


class Running(nn.Module):
    """torch has no ONNX for the greatest so far; transformers has."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cummax(self.fc(x), dim=1)[0]


def test_transformers_before_torchscript(tmp_path: Path) -> None:
    result = mx.UniversalHierarchyExporter().export(nets.perturbed(Running()), X, tmp_path / "net.onnx")
    assert result.provenance.origin.exporter == "transformers"
    assert result.notes[0].startswith("exported by transformers: torch cannot export Running with the dynamo exporter")
    assert result.check is not None
    assert result.check.ok


def test_without_transformers_there_is_one_exporter_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.exporters.exporter_onnx", None)
    net = nets.perturbed(Deciding())
    result = mx.UniversalHierarchyExporter().export(net, X.abs(), tmp_path / "net.onnx")
    assert result.provenance.origin.exporter == "torchscript"
    with pytest.raises(ExtraMissing, match="transformers exporter"):
        mx.UniversalHierarchyExporter(exporter="transformers").export(net, X, tmp_path / "other.onnx")


def test_a_refusal_of_a_hugging_face_model_proposes_transformers(tmp_path: Path) -> None:
    bert = build("bert")
    plain = nn.Sequential(nn.Embedding(4, 4), Running())
    for net, proposed in ((plain, "torchscript"), (Wrapping(bert), "transformers, then torchscript")):
        with pytest.raises(ExportFailed) as caught:
            mx.export(net, tmp_path / "net.onnx", inputs=torch.ones(1, 4, dtype=torch.long))
        assert caught.value.hint == f"Try --exporter {proposed}."


class Wrapping(nn.Module):
    """A Hugging Face model with something of its own around it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return torch.cummax(self.inner(input_ids=x).last_hidden_state, dim=1)[0]


def test_where_no_exporter_can_all_reasons_are_told(tmp_path: Path) -> None:
    net = nets.perturbed(Unexportable())
    with pytest.raises(ExportFailed) as caught:
        mx.UniversalHierarchyExporter().export(net, torch.rand(4, 4) + 1, tmp_path / "net.onnx")
    assert "dynamo exporter" in caught.value.message
    assert "transformers exporter" in caught.value.message
    assert "torchscript exporter" in caught.value.message
    assert not list(tmp_path.iterdir())


class Splitting(nn.Module):
    """Cuts by a size that is an axis: onnxscript's folding of constants takes it for a number that it knows."""

    def forward(self, x: Tensor) -> Tensor:
        first, second = torch.cat([x, x + 1]).split(x.shape[0])  # type: ignore[no-untyped-call]
        return first * second


def test_what_torchs_optimizer_raises_is_no_fault_of_ours(tmp_path: Path) -> None:
    with pytest.raises(ExportFailed, match="Splitting with the dynamo exporter: its optimizer fails: ") as failed:
        mx.export(Splitting(), tmp_path / "net.onnx", inputs=X, exporter="dynamo")
    assert failed.value.hint == "Try --exporter torchscript, or --static."
    mx.export(Splitting(), tmp_path / "net.onnx", inputs=X, exporter="dynamo", static=True)


def test_advice_about_exporters_does_not_go_in_a_circle(tmp_path: Path) -> None:
    hints = []
    for exporter in ("dynamo", "torchscript"):
        with pytest.raises(ExportFailed) as failed:
            mx.export(Unexportable(), tmp_path / "net.onnx", inputs=X, exporter=exporter)
        hints.append(failed.value.hint)
    last = "Try --exporter dynamo; if that refused the model as well, change the model where the message says."
    assert hints == ["Try --exporter torchscript.", last]
