"""A package of real exports: several entry points of one model, each exported with its record."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

import modelexport as mx
from modelexport.capture.entry_point import EntryPoint, entered
from modelexport.graph.file.folder import staged_folder
from modelexport.graph.file.package import write_package
from modelexport.record.package import AbsentModule, CachePair, ComponentInfo, ComponentLink, PackageInfo

pytestmark = pytest.mark.slow


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(8, 8)
        self.out = nn.Linear(8, 8)

    def forward(self, hidden: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        present = torch.cat([past, self.key(hidden)], dim=1)
        scores = hidden @ present.transpose(1, 2)
        return hidden + self.out(scores.softmax(-1) @ present), present


class Talker(nn.Module):
    """Encoder and decoder of one model; both use `bridge`, and `vision` is used by neither."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 8)
        self.bridge = nn.Linear(8, 8)
        self.embed = nn.Embedding(16, 8)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(8, 16)
        self.vision = nn.Linear(3, 8)

    def encode(self, features: Tensor) -> dict[str, Tensor]:
        return {"last_hidden_state": self.bridge(self.encoder(features))}

    def decode(self, input_ids: Tensor, states: Tensor, past_0: Tensor, past_1: Tensor) -> dict[str, Tensor]:
        hidden = self.embed(input_ids) + self.bridge(states).mean(1, keepdim=True)
        presents = []
        for layer, past in zip(self.layers, (past_0, past_1), strict=True):
            hidden, present = layer(hidden, past)
            presents.append(present)
        return {"logits": self.head(hidden), "present_0": presents[0], "present_1": presents[1]}


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> mx.Package:
    model, folder = Talker().eval(), tmp_path_factory.mktemp("packages") / "talker"
    past = torch.randn(2, 3, 8)
    decoder_inputs = {
        "input_ids": torch.arange(4).reshape(2, 2),
        "states": torch.randn(2, 5, 8),
        "past_0": past,
        "past_1": past,
    }
    entries = (
        EntryPoint("encoder", model.encode, {"features": torch.randn(2, 5, 4)}),
        EntryPoint("decoder", model.decode, decoder_inputs),
    )
    pairs = tuple(CachePair(f"past_{number}", f"present_{number}") for number in range(2))
    with staged_folder(folder) as stage:
        components = []
        for entry in entries:
            path = stage / f"{entry.name}_model.onnx"
            with entered(model, entry):
                mx.export(model, path, inputs=dict(entry.inputs), static=True)
            graph = onnx.load(path).graph
            ends = ([value.name for value in values] for values in (graph.input, graph.output))
            inputs, outputs = map(tuple, ends)
            cache = pairs if entry.name == "decoder" else ()
            components.append(ComponentInfo(entry.name, path.name, inputs, outputs, cache))
        links = (ComponentLink("encoder", "last_hidden_state", "decoder", "states"),)
        absent = (AbsentModule("vision", "Linear", 32, "no entry point calls it"),)
        write_package(stage, PackageInfo(tuple(components), links=links, absent=absent))
    return mx.open_package(folder)


def test_module_paths_are_those_of_the_whole_model(talker: mx.Package) -> None:
    names = {entry.attribution.module for entry in talker["decoder"].provenance.nodes.values()}
    assert {"layers.0.key", "layers.1.key", "bridge", "head"} <= names
    assert talker.provenance.components_of("bridge") == ("encoder", "decoder")
    assert talker.provenance.components_of("layers.1") == ("decoder",)
    assert len({*talker.provenance.tags_of("layers.0").values()}) == 1


def test_only_what_was_fixed_does_not_fit(talker: mx.Package) -> None:
    """All axes were exported with their sizes: a past of 3 cannot be followed by one of 5."""
    validation = mx.validate(talker, check_consistency=True)
    assert all(component.ok for component in validation.components.values())
    assert [finding.code for finding in validation.findings] == ["cache-shape", "cache-shape", "module-absent"]


def test_the_cache_belongs_to_the_layers(talker: mx.Package) -> None:
    cost = mx.cost(talker)
    assert {row.module for row in cost.cache_by_module} == {"layers.0", "layers.1"}
    assert cost.cache_bytes == {"decoder": 2 * 2 * 3 * 8 * 4}


def test_parameters_are_those_of_the_model_without_what_is_absent(talker: mx.Package) -> None:
    parameters = sum(parameter.numel() for parameter in Talker().parameters())
    root = next(module for module in mx.analyze(talker).modules if not module.path)
    assert root.parameters == parameters - 32


def test_a_stripped_package_computes_the_same(talker: mx.Package, tmp_path: Path) -> None:
    plain = mx.strip(talker, tmp_path / "plain").package
    pair = mx.diff(talker, plain)
    assert pair.identical


SHARING = """
import torch

class Part(torch.nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.shared, self.own = shared, torch.nn.Linear(600, 2)

    def forward(self, x):
        return self.own(self.shared(x))

def build():
    shared, x = torch.nn.Linear(600, 600), torch.ones(2, 600)
    return {"left": (Part(shared), {"x": x}), "right": (Part(shared), {"x": x})}
"""


@pytest.mark.parametrize("external", [None, True])
def test_weights_that_components_share_are_exported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, external: bool | None
) -> None:
    (tmp_path / "sharing_nets.py").write_text(SHARING, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    mx.export("sharing_nets:build", tmp_path / "out", external_data=external)
    package = mx.open_package(tmp_path / "out")
    own = {name: (f"{name}.onnx.data",) if external else () for name in package}
    assert {name: package[name].info.data for name in package} == {
        name: (*own[name], "shared.onnx.data") for name in ("left", "right")
    }
    nbytes = sum(path.stat().st_size for path in package.files)
    assert nbytes < 1.5 * 600 * 600 * 4
    assert mx.validate(package).ok
    for name in package:
        onnx.checker.check_model(str(package[name].path))
