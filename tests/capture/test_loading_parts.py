from __future__ import annotations

from pathlib import Path

import pytest
import torch

import modelexport as mx
from modelexport.capture.arguments import bind_arguments
from modelexport.capture.entry_point import entered
from modelexport.capture.export import trace_model
from modelexport.capture.loading.models import load_model
from modelexport.capture.loading.parts import find_part_entries, join_parts
from modelexport.capture.loading.third_party import LoadedModel
from modelexport.errors import ModelUnloadable
from modelexport.record.model_source import ModelSource

NETS = """
import torch

class Encoder(torch.nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.fc, self.shared = torch.nn.Linear(4, 4), shared

    def forward(self, x):
        return {"hidden": self.shared(self.fc(x))}

class Decoder(torch.nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.shared, self.head = shared, torch.nn.Linear(4, 2)

    def forward(self, hidden, scale=2.0):
        return self.head(self.shared(hidden)) * scale

def build():
    shared = torch.nn.Linear(4, 4)
    x = torch.ones(2, 4)
    return {"encoder": (Encoder(shared), {"x": x}), "decoder": (Decoder(shared), {"hidden": x, "scale": 3.0})}

def without_inputs():
    return {"encoder": torch.nn.Linear(2, 2)}
"""


@pytest.fixture
def nets(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(NETS)
    return path


def load(source: str, **options: str) -> LoadedModel:
    return load_model(source, ModelSource(**options))  # type: ignore[arg-type]


def test_parts_are_children_of_one_model(nets: Path) -> None:
    loaded = load(f"{nets}:build")
    paths = [path for path, _ in loaded.module.named_modules()]
    assert paths == ["", "encoder", "encoder.fc", "encoder.shared", "decoder", "decoder.head"]
    assert list(loaded.parts) == ["encoder", "decoder"]
    assert not any(module.training for module in loaded.module.modules())


def test_each_part_is_an_entry_point_of_the_whole(nets: Path) -> None:
    loaded = load(f"{nets}:build")
    encoder, decoder = find_part_entries(loaded)
    assert (encoder.name, list(encoder.inputs), encoder.axes) == ("encoder", ["x"], {"x": {0: "batch"}})
    with entered(loaded.module, decoder):
        run = trace_model(loaded.module, bind_arguments(loaded.module, dict(decoder.inputs)))
    called = {site.call.path for site in run.hierarchy.calls}
    assert called == {"", "decoder", "decoder.head", "encoder.shared"}, "what is shared has one path"
    module = loaded.module.get_submodule("decoder")
    assert torch.equal(run.outputs["output"], module(decoder.inputs["hidden"], scale=3.0))


def test_parts_are_converted_with_their_inputs(nets: Path) -> None:
    loaded = load(f"{nets}:build", dtype="float64")
    assert {parameter.dtype for parameter in loaded.module.parameters()} == {torch.float64}
    assert find_part_entries(loaded)[0].inputs["x"].dtype is torch.float64


def test_one_file_has_one_module(nets: Path, tmp_path: Path) -> None:
    with pytest.raises(mx.UserError, match=r"several modules \(encoder, decoder\)(.|\n)*a folder as output") as caught:
        mx.export(f"{nets}:build", tmp_path / "both.onnx")
    assert caught.value.exit_code == 2
    assert not (tmp_path / "both.onnx").exists()


@pytest.mark.parametrize("name", ["a.b", "", "../up", "forward", "größe", "a" * 101])
def test_names_that_no_part_can_have(name: str) -> None:
    with pytest.raises(ModelUnloadable, match="a part cannot be called"):
        join_parts({name: (torch.nn.Linear(2, 2), {})})


def test_parts_need_inputs(nets: Path) -> None:
    with pytest.raises(ModelUnloadable, match="returned a dict"):
        load(f"{nets}:without_inputs")
