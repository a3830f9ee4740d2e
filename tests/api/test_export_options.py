"""What the options of an export change, and what they must not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from tests.support import nets
from tests.support.architectures import build
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import modelexport as mx
from modelexport.capture import torchscript
from modelexport.errors import UserError
from modelexport.graph.file.metadata import OUTLINE_KEY, RECORD_KEY, read_node_keys

pytestmark = pytest.mark.slow

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def _bert(folder: Path, **options: Any) -> mx.ExportResult:
    chosen: dict[str, Any] = {"exporter": "torchscript", "no_check": True, **options}
    return mx.export(build("bert"), folder / "bert.onnx", **chosen)


class TestPolicy:
    def test_a_plain_net_has_no_tags_under_the_hf_policy(self, tmp_path: Path) -> None:
        net = nets.perturbed(nets.CalledThrice())
        found = mx.export(net, tmp_path / "n.onnx", inputs=X, tag_policy="hf", no_check=True).provenance
        assert {found.tag(entry.attribution) for entry in found.nodes.values()} == {""}

    def test_exceptions_can_be_replaced(self, tmp_path: Path) -> None:
        found = _bert(tmp_path, torch_nn_exception=["Linear"]).provenance
        tags = set(found.tags.by_path.values())
        layer = "/BertModel/BertEncoder/BertLayer.0"
        assert f"{layer}/BertAttention/BertSelfAttention/Linear.query" in tags
        assert not any("LayerNorm" in tag or "Embedding." in tag for tag in tags)

    @pytest.mark.parametrize(
        "options", [{"torch_nn": "all"}, {"torch_nn": "none"}, {"tag_policy": "hf"}, {"drop": ["BertLayer"]}]
    )
    def test_a_policy_never_changes_an_attribution(self, tmp_path: Path, options: dict[str, Any]) -> None:
        plain = _bert(tmp_path).provenance
        other = _bert(tmp_path, **options).provenance
        assert other.nodes == plain.nodes
        assert other.tags.by_path != plain.tags.by_path or options == {"tag_policy": "hf"}

    def test_keep_and_drop(self, tmp_path: Path) -> None:
        found = _bert(tmp_path, keep=["*.query", "*.key"], drop=["encoder.layer.1.*"]).provenance
        kept = {path for path in found.tags.by_path if path.endswith(("query", "key"))}
        assert kept == {"encoder.layer.0.attention.self.query", "encoder.layer.0.attention.self.key"}


class TestEmbedding:
    def test_full_puts_keys_on_every_node(self, tmp_path: Path) -> None:
        result = _bert(tmp_path)
        model = onnx.load(result.path)
        assert model.ir_version >= 10
        for node in model.graph.node:
            keys = read_node_keys(node)
            assert keys["pkg.modelexport.confidence"] in ("exact", "strong", "inferred")
            assert keys["pkg.modelexport.tag"].startswith("/BertModel")
            assert "pkg.modelexport.module" in keys

    def test_lean_is_the_record_alone(self, tmp_path: Path) -> None:
        result = _bert(tmp_path, embed="lean")
        model = onnx.load(result.path)
        assert not any(read_node_keys(node) for node in model.graph.node)
        assert [entry.key for entry in model.metadata_props] == [RECORD_KEY, OUTLINE_KEY]
        assert model.ir_version < 10
        assert mx.load(result.path) == result.provenance

    def test_none_leaves_the_file_to_the_sidecar(self, tmp_path: Path) -> None:
        result = _bert(tmp_path, embed="none")
        assert not onnx.load(result.path).metadata_props
        assert mx.load(result.path) == result.provenance
        (tmp_path / "bert.hierarchy.json").unlink()
        assert mx.load(result.path).origin.strategy == "file"

    def test_hierarchical_names(self, tmp_path: Path) -> None:
        result = mx.export(build("bert"), tmp_path / "bert.onnx", names="hierarchical", no_check=True)
        names = [node.name for node in onnx.load(result.path).graph.node]
        assert len(set(names)) == len(names)
        name = "/encoder/layer.0/attention/self/query/MatMul"
        assert name in names
        assert result.provenance.attribution(name).module == "encoder.layer.0.attention.self.query"
        assert mx.load(result.path) == result.provenance

    def test_stripped_files_have_no_paths_of_this_machine(self, tmp_path: Path) -> None:
        plain = mx.export(build("bert"), tmp_path / "plain.onnx", no_check=True)
        bare = mx.export(build("bert"), tmp_path / "bare.onnx", strip_exporter_metadata=True, no_check=True)
        source = str(Path(torch.__file__).parent).encode()
        assert source in plain.path.read_bytes()
        assert source not in bare.path.read_bytes()
        assert b"pkg.torch" not in bare.path.read_bytes()
        assert bare.provenance.nodes == plain.provenance.nodes

    def test_external_data(self, tmp_path: Path) -> None:
        result = mx.export(build("bert"), tmp_path / "bert.onnx", exporter="torchscript", external_data=True)
        assert [path.name for path in result.files] == ["bert.onnx", "bert.onnx.data", "bert.hierarchy.json"]
        assert result.check is not None
        assert result.check.ok

    def test_shards(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 600))  # 1.44 MB each
        x = torch.linspace(-1, 1, 1200).reshape(2, 600)
        result = mx.export(net, tmp_path / "net.onnx", inputs=x, shard_size="1.5MB")
        names = ["net.onnx-00001-of-00002.data", "net.onnx-00002-of-00002.data"]
        assert [path.name for path in result.files] == ["net.onnx", *names, "net.hierarchy.json"]
        assert result.check is not None
        assert result.check.ok
        assert mx.verify(result.path, net, inputs=x).ok

    @pytest.mark.parametrize(
        ("output", "options", "message"),
        [
            ("net.onnx", {"shard_size": "2 files"}, "--shard-size is '2 files', which is no size"),
            ("net.onnx", {"shard_size": 1000}, "which is no size of at least 1 MB"),
            ("net.onnx", {"shard_size": "2GB", "external_data": False}, "--no-external-data"),
            ("net", {"shard_size": "2GB"}, "is a folder"),
        ],
    )
    def test_shards_that_cannot_be(self, tmp_path: Path, output: str, options: dict[str, Any], message: str) -> None:
        with pytest.raises(UserError, match=message):
            mx.export(nn.Linear(4, 4), tmp_path / output, inputs=X, **options)

    def test_what_does_not_fit_in_memory_goes_through_files(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torchscript, "_IN_MEMORY", 0)
        monkeypatch.setattr(torchscript.tempfile, "tempdir", str(tmp_path))  # type: ignore[attr-defined]
        result = mx.export(build("bert"), tmp_path / "bert.onnx", exporter="torchscript")
        assert result.check is not None
        assert result.check.ok
        del result
        assert sorted(path.name for path in tmp_path.iterdir()) == ["bert.hierarchy.json", "bert.onnx"]


class Strict(nn.Module):
    """It runs for pairs only."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(2, 2, 2) * 2


class Random(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


class Baked(nn.Module):
    """Tracing writes the length into the graph."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.arange(int(x.shape[0])).unsqueeze(1)


class TestAxes:
    @pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
    def test_batch_and_sequence_are_dynamic_and_named(self, tmp_path: Path, exporter: str) -> None:
        path = _bert(tmp_path, exporter=exporter, no_check=False).path
        dims = {value.name: _dims(value) for value in onnx.load(path).graph.input}
        assert dims["input_ids"] == ["batch", "sequence"]
        assert dims["attention_mask"] == ["batch", "sequence"]

    @pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
    def test_static_fixes_them(self, tmp_path: Path, exporter: str) -> None:
        path = _bert(tmp_path, exporter=exporter, static=True, input=["input_ids=1x5"]).path
        assert _dims(onnx.load(path).graph.input[0]) == [1, 5]

    def test_an_axis_that_torch_fixes_is_reported(self, tmp_path: Path) -> None:
        result = mx.export(Strict(), tmp_path / "s.onnx", inputs=X)
        assert result.notes == ("axis 0 (batch) of x is fixed at 2 by torch",)

    def test_a_refusal_gives_a_static_export_and_says_so(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        export = torch.onnx.export

        def refusing(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dynamic_shapes"):
                for tensor in pytree.tree_leaves((args[1:], kwargs.get("kwargs"))):
                    torch._dynamo.maybe_mark_dynamic(tensor, 0)  # as torch does itself
                raise RuntimeError("no dynamic axes today")
            return export(*args, **kwargs)

        monkeypatch.setattr(torch.onnx, "export", refusing)
        result = mx.export(nets.perturbed(nets.CalledThrice()), tmp_path / "n.onnx", inputs=X)
        assert any("static export" in note and "no dynamic axes today" in note for note in result.notes)
        assert all(isinstance(size, int) for size in _dims(onnx.load(result.path).graph.input[0]))
        with pytest.raises(mx.UserError, match="no dynamic axes today"):
            mx.export(nets.CalledThrice(), tmp_path / "other.onnx", inputs=X, dynamic=True)
        assert not (tmp_path / "other.onnx").exists()

    def test_a_length_written_into_the_graph_is_noticed(self, tmp_path: Path) -> None:
        result = mx.export(Baked(), tmp_path / "b.onnx", inputs=X, exporter="torchscript")
        assert any("traced with" in note for note in result.notes), result.notes

    def test_both_at_once_make_no_sense(self, tmp_path: Path) -> None:
        with pytest.raises(mx.UserError, match="exclude each other"):
            mx.export(Strict(), tmp_path / "s.onnx", inputs=X, static=True, dynamic=True)


def _dims(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


class Choosing(nn.Module):
    """Which way it goes depends on the values."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x * 3


def test_a_decision_that_tracing_took_for_good_is_noticed(tmp_path: Path) -> None:
    result = mx.export(Choosing(), tmp_path / "c.onnx", inputs=X + 1, exporter="torchscript")
    assert result.check is not None
    assert not result.check.ok
    assert "right only for inputs like the sample" in result.check.message
    assert "a tensor was turned into a Python bool" in result.check.message


def test_an_opset_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(mx.UserError, match="there is no opset 999"):
        mx.export(Choosing(), tmp_path / "c.onnx", inputs=X, opset=999)


def test_an_opset_that_torch_cannot_reach_is_reported(tmp_path: Path) -> None:
    result = mx.export(nets.perturbed(nets.CalledThrice()), tmp_path / "n.onnx", inputs=X, opset=3)
    assert any("asked for, 3" in note for note in result.notes), result.notes


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_wrong_numbers_are_noticed(tmp_path: Path, exporter: str) -> None:
    result = mx.export(Random(), tmp_path / "r.onnx", inputs=X, exporter=exporter)
    assert result.check is not None
    assert not result.check.ok
    assert "differs from PyTorch" in result.check.message


def test_a_model_that_cannot_be_exported_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(mx.UserError, match=r"cannot export Checkpointed(.|\n)*--exporter dynamo"):
        mx.export(nets.Checkpointed(), tmp_path / "c.onnx", inputs=X, exporter="torchscript")
    assert list(tmp_path.iterdir()) == []


def test_opset(tmp_path: Path) -> None:
    path = _bert(tmp_path, opset=17).path
    assert onnx.load(path).opset_import[0].version == 17


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"strategy": "enhanced_sematic"}, "enhanced_semantic"),
        ({"exporter": "dinamo"}, "dynamo"),
        ({"embed": "leen"}, "lean"),
        ({"names": "hierarchic"}, "hierarchical"),
        ({"torch_nn": "exception"}, "exceptions"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(tmp_path: Path, options: dict[str, Any], hint: str) -> None:
    with pytest.raises(mx.UserError, match=f"Did you mean '{hint}'"):
        mx.export(Strict(), tmp_path / "s.onnx", inputs=X, **options)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"y": X}, "no input 'y'"),
        ({"x": torch.ones(2, 5)}, "does not run on these inputs"),
        ((X, X), "does not take these 2 inputs"),
    ],
)
def test_wrong_inputs(tmp_path: Path, inputs: object, message: str) -> None:
    with pytest.raises(mx.UserError, match=message):
        mx.export(nets.CalledThrice(), tmp_path / "n.onnx", inputs=inputs)


def test_a_file_of_another_kind_is_not_overwritten(tmp_path: Path) -> None:
    source = tmp_path / "nets.onnx"
    source.write_text("precious = 1\n")
    with pytest.raises(mx.UserError, match="not an ONNX model"):
        mx.export(nets.CalledThrice(), source, inputs=X)
    assert source.read_text() == "precious = 1\n"


@pytest.mark.parametrize("options", [{"atol": -1.0}, {"rtol": float("nan")}])
def test_tolerances_that_make_no_sense(tmp_path: Path, options: dict[str, Any]) -> None:
    name, bound = next(iter(options.items()))
    with pytest.raises(mx.UserError, match=f"^{name} is {bound:g}, which is no tolerance"):
        mx.export(nets.CalledThrice(), tmp_path / "n.onnx", inputs=X, **options)


def test_the_record_of_another_model_is_not_believed(tmp_path: Path) -> None:
    """dynamo names the values of all models alike, so that many node keys of two models coincide."""
    ours = mx.export(build("bert"), tmp_path / "bert.onnx", embed="none", no_check=True)
    mx.export(build("gpt2"), tmp_path / "gpt2.onnx", embed="none", no_check=True)
    (tmp_path / "gpt2.hierarchy.json").replace(tmp_path / "bert.hierarchy.json")
    with pytest.raises(mx.UserError, match="made for another graph"):
        mx.load(ours.path)


def test_public_names() -> None:
    for name in mx.__all__:
        assert getattr(mx, name) is not None
    assert set(mx.__all__) <= set(dir(mx))
