"""Types of an export: the check and `verify` follow them, and ONNX Runtime need not have them."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch

import modelexport as mx
from modelexport.api.prepare_file import fit_dtype
from modelexport.graph.file.tagged_file import open_tagged
from modelexport.record.model_source import ModelSource

NETS = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, 64)
        self.norm = torch.nn.LayerNorm(64)
        self.fc = torch.nn.Linear(64, 64)

    def forward(self, ids):
        return self.fc(self.norm(self.table(ids) * 3)).float()

def build():
    return Net(), {"ids": torch.arange(10).reshape(2, 5)}
"""


@pytest.fixture
def net(tmp_path: Path) -> str:
    (tmp_path / "nets.py").write_text(NETS)
    return f"{tmp_path / 'nets.py'}:build"


def types_of(path: Path) -> set[int]:
    return {tensor.data_type for tensor in onnx.load(path).graph.initializer}


def test_what_is_computed_in_float16_is_as_exact_as_that(tmp_path: Path, net: str) -> None:
    """It is returned in float32, so that the type of the output alone would not tell."""
    result = mx.export(net, tmp_path / "net.onnx", dtype="float16")
    assert result.check is not None
    assert result.check.max_abs_diff > 1e-4
    assert result.check.ok
    assert onnx.TensorProto.FLOAT16 in types_of(result.path)
    assert mx.verify(result.path, net, dtype="float16").ok


def test_tolerances_that_were_asked_for_hold_for_every_type(tmp_path: Path, net: str) -> None:
    check = mx.export(net, tmp_path / "net.onnx", dtype="float16", atol=1e-5, rtol=1e-5).check
    assert check is not None
    assert not check.ok
    assert "1e-05 + 1e-05 ×" in check.message


def test_a_type_that_onnx_runtime_does_not_have(tmp_path: Path, net: str) -> None:
    result = mx.export(net, tmp_path / "net.onnx", dtype="bfloat16")
    assert result.check is None
    assert result.path.is_file()
    assert any("ONNX Runtime has no" in note and "--dtype float32" in note for note in result.notes), result.notes
    for run in (lambda: mx.verify(result.path, net, dtype="bfloat16"), lambda: mx.profile(result.path)):
        with pytest.raises(mx.UserError, match=r"no \w+ for bfloat16 on this machine(.|\n)*--dtype float32") as caught:
            run()
        assert caught.value.exit_code == 2


def test_a_model_is_loaded_in_the_type_that_it_had(tmp_path: Path, net: str) -> None:
    written = mx.export(net, tmp_path / "half.onnx", dtype="float16").path
    source = ModelSource("folder")
    assert fit_dtype(open_tagged(written), source).file_dtype == "float16"
    mx.strip(written, tmp_path / "bare.onnx")
    assert fit_dtype(open_tagged(tmp_path / "bare.onnx"), source).file_dtype == "float16", "by its weights"
    assert fit_dtype(open_tagged(written), ModelSource("folder", dtype="auto")).file_dtype is None
    assert fit_dtype(open_tagged(written), ModelSource(torch.nn.Linear(2, 2))).file_dtype is None


def test_a_record_says_more_than_what_a_tool_made_of_the_file(tmp_path: Path, net: str) -> None:
    mx.export(net, tmp_path / "net.onnx")
    mx.run_tool(tmp_path / "net.onnx", "fp16", tmp_path / "half.onnx")
    assert onnx.TensorProto.FLOAT16 in types_of(tmp_path / "half.onnx")
    assert fit_dtype(open_tagged(tmp_path / "half.onnx"), ModelSource("folder")).file_dtype == "float32"
