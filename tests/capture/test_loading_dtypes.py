from __future__ import annotations

import importlib
import json
import os
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from modelexport.capture.export import PreparedModel, prepare_model
from modelexport.capture.loading.dtypes import convert_module, stated_dtype, stored_dtype
from modelexport.capture.loading.models import load_model
from modelexport.capture.loading.third_party import LoadedModel
from modelexport.errors import ModelUnloadable, UnknownName
from modelexport.record.model_source import ModelSource

transformers: Any = importlib.import_module("transformers")

TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 40}


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("half")
    transformers.utils.logging.disable_progress_bar()
    transformers.BertModel(transformers.BertConfig(**TINY)).half().save_pretrained(folder)
    transformers.utils.logging.enable_progress_bar()
    return folder


def load(source: Path | str, **options: Any) -> LoadedModel:
    return load_model(str(source), ModelSource(**options))


def prepare(model: torch.nn.Module | str, **options: Any) -> PreparedModel:
    return prepare_model(ModelSource(model, **options), lambda _step: nullcontext())


def dtype_of(module: torch.nn.Module) -> torch.dtype:
    return next(module.parameters()).dtype


@pytest.mark.parametrize(
    ("options", "dtype", "noted"),
    [
        ({}, torch.float32, True),
        ({"dtype": "float32"}, torch.float32, False),
        ({"dtype": "auto"}, torch.float16, False),
        ({"dtype": "bfloat16"}, torch.bfloat16, False),
        ({"file_dtype": "float16"}, torch.float16, False),
        ({"file_dtype": "float16", "dtype": "float64"}, torch.float64, False),
    ],
)
def test_the_type_of_a_folder(half: Path, options: dict[str, str], dtype: torch.dtype, noted: bool) -> None:
    loaded = load(half, **options)
    assert dtype_of(loaded.module) is dtype
    assert any("the weights are float16; --dtype float16 keeps" in note for note in loaded.notes) == noted


def edited(half: Path, folder: Path, **changes: object) -> Path:
    for file in half.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    content = json.loads((half / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
    return folder


def test_weights_say_their_type_where_the_configuration_does_not(half: Path, tmp_path: Path) -> None:
    folder = edited(half, tmp_path, dtype=None)
    assert stored_dtype(folder) == "float16"
    assert dtype_of(load(folder, dtype="auto").module) is torch.float16
    assert any("float16" in note for note in load(folder).notes)


def test_weights_are_believed_more_than_the_configuration(half: Path, tmp_path: Path) -> None:
    assert any("weights are float16" in note for note in load(edited(half, tmp_path, dtype="bfloat16")).notes)


def test_a_configuration_alone(half: Path, tmp_path: Path) -> None:
    edited(half, tmp_path, dtype=None, torch_dtype="bfloat16")
    (tmp_path / "model.safetensors").unlink()
    assert dtype_of(load(tmp_path).module) is torch.float32
    assert dtype_of(load(tmp_path, dtype="auto").module) is torch.bfloat16
    assert dtype_of(load(tmp_path / "config.json").module) is torch.float32


def test_what_configurations_say() -> None:
    assert stated_dtype({"torch_dtype": "torch.float16"}) == "float16"
    assert stated_dtype({"text_config": {"dtype": "bfloat16"}, "vision_config": {}}) == "bfloat16"
    assert stated_dtype({"hidden_size": 4}) is None


def _checkpoint(header: object) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 16,
        b"\x02" + bytes(7) + b"[]",
        b"\x03" + bytes(7) + b"{]}",
        _checkpoint({"w": {"dtype": "F16", "data_offsets": []}}),
        _checkpoint({"w": {"dtype": "F16", "data_offsets": ["0", "4"]}}),
        _checkpoint({"w": {"dtype": ["F16"], "data_offsets": [0, 4]}, "v": 3}),
    ],
)
def test_a_file_that_is_no_checkpoint_has_no_type(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert stored_dtype(tmp_path) is None


def test_an_unknown_type(half: Path) -> None:
    with pytest.raises(UnknownName, match="float64"):
        load(half, dtype="float61")


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.fc(x) * scale
        return result


INPUTS = {"x": torch.ones(3, 4), "scale": torch.ones(3, 1, dtype=torch.int64)}


@pytest.mark.parametrize("dtype", [None, "auto"])
def test_a_live_module_keeps_its_type(dtype: str | None) -> None:
    module = Scaled().double()
    given = {**INPUTS, "x": INPUTS["x"].double()}
    assert prepare(module, inputs=given, dtype=dtype).module is module
    assert dtype_of(module) is torch.float64


def test_a_live_module_is_copied_to_be_converted() -> None:
    module = Scaled()
    prepared = prepare(module, inputs=INPUTS, dtype="float16")
    assert dtype_of(module) is torch.float32
    assert dtype_of(prepared.module) is torch.float16
    assert {name: tensor.dtype for name, tensor in prepared.inputs.tensors.items()} == {
        "x": torch.float16,
        "scale": torch.int64,
    }
    assert prepare(module, inputs=INPUTS, dtype="float32").module is module, "nothing to convert, nothing to copy"


def test_a_module_that_cannot_be_copied() -> None:
    module = Scaled()
    module.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(ModelUnloadable, match=r"cannot be copied(.|\n)*Convert it yourself"):
        convert_module(module, torch.float16, own=False)


def test_arrays_of_a_file_are_converted_as_well(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((3, 4)), scale=np.ones((3, 1), np.int64))
    prepared = prepare(Scaled(), inputs=tmp_path / "x.npz", dtype="float16")
    assert prepared.inputs.tensors["x"].dtype is torch.float16
    assert prepared.inputs.tensors["scale"].dtype is torch.int64


def test_what_a_callable_builds_keeps_its_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_nets.py").write_text(
        "import torch\ndef build(): return torch.nn.Linear(4, 2).half(), {'input': torch.ones(3, 4).half()}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert dtype_of(load("half_nets.py:build").module) is torch.float16
    assert dtype_of(load("half_nets.py:build", file_dtype="float32").module) is torch.float16
    prepared = prepare("half_nets.py:build", dtype="float32")
    assert dtype_of(prepared.module) is prepared.inputs.tensors["input"].dtype is torch.float32


def test_a_loaded_source_is_converted_no_more() -> None:
    module = Scaled()
    module.fc.bias.data = module.fc.bias.data.half()
    again = ModelSource("folder", dtype="float16").with_module(module)
    prepared = prepare_model(ModelSource(module, INPUTS, file_dtype=again.file_dtype), lambda _step: nullcontext())
    assert (again.model, again.dtype, again.file_dtype) == (module, None, "float16")
    assert prepared.module is module
    assert prepared.inputs.tensors["x"].dtype is torch.float16


def test_a_pipe_beside_the_weights_is_not_waited_for(half: Path, tmp_path: Path) -> None:
    edited(half, tmp_path)
    os.mkfifo(tmp_path / "other.safetensors")
    assert stored_dtype(tmp_path) == "float16"
