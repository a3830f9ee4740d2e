"""Pages of mapped files are given back, and nothing but them; large weights are mapped and not copied."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

import modelexport as mx
from modelexport.api import export_run, writing
from modelexport.capture import output_check
from modelexport.capture.memory import running_within
from modelexport.capture.onnx_program import tensor_bytes
from modelexport.capture.onnxruntime import session
from modelexport.errors import UserError
from modelexport.graph.file import writing as saving
from modelexport.graph.file.external import is_external
from modelexport.graph.file.mapped_memory import (
    limit_memory,
    release_mapped,
    room_for_weights,
    stay_within_limit,
)
from modelexport.graph.file.reading import open_model

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="mappings are told by /proc")

ELEMENTS = 1 << 18
X = torch.linspace(-1, 1, 8).reshape(2, 4)


def _weights(folder: Path) -> Path:
    path = folder / "weights.bin"
    np.arange(ELEMENTS, dtype=np.float32).tofile(path)
    return path


def _mapped(path: Path) -> torch.Tensor:
    """As safetensors gives a tensor: private, so that it can be written into."""
    return torch.from_file(str(path), shared=False, size=ELEMENTS, dtype=torch.float32)


def _resident(path: Path) -> int:
    """kB of a file that are in the memory of this process."""
    sizes, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            sizes += int(line.split()[1])
    return sizes


@on_linux
class TestRelease:
    @pytest.mark.parametrize("by", ["file", "address"])
    def test_pages_go_and_numbers_stay(self, tmp_path: Path, by: str) -> None:
        path = _weights(tmp_path)
        tensor = _mapped(path)
        total = tensor.sum()
        assert _resident(path) >= 1000
        if by == "file":
            release_mapped([path])
        else:
            release_mapped(addresses=[tensor[ELEMENTS // 2 :].data_ptr()])
        assert _resident(path) == 0
        assert tensor.sum() == total

    def test_other_files_stay(self, tmp_path: Path) -> None:
        path = _weights(tmp_path)
        tensor = _mapped(path)
        tensor.sum()
        release_mapped([tmp_path / "other.bin"], addresses=[torch.zeros(4).data_ptr()])
        assert _resident(path) >= 1000

    def test_what_was_written_into_a_private_mapping_is_not_lost(self, tmp_path: Path) -> None:
        path = _weights(tmp_path)
        tensor = _mapped(path)
        tensor[5] = -1.0
        release_mapped([path], addresses=[tensor.data_ptr()])
        assert tensor[5] == -1.0


class TestTensorBytes:
    def test_they_are_those_of_torch_where_they_lie_in_order(self) -> None:
        held = torch.arange(6.0).reshape(2, 3)
        data = tensor_bytes(ir.tensor(held))
        held[0, 0] = 7.0
        assert bytes(data) == held.numpy().tobytes()

    @pytest.mark.parametrize(
        "held",
        [
            torch.arange(6.0).reshape(2, 3).T,
            torch.arange(6.0, dtype=torch.bfloat16)[::2],
            torch.tensor([1 + 2j, 3j]).conj(),
            torch.tensor(3.5, dtype=torch.float64),
            torch.arange(5, dtype=torch.bfloat16),
        ],
        ids=["transposed", "every other", "conjugate", "scalar", "bfloat16"],
    )
    def test_they_are_those_that_onnx_ir_gives(self, held: torch.Tensor) -> None:
        tensor = ir.tensor(held)
        assert bytes(tensor_bytes(tensor)) == tensor.tobytes()


def _export(folder: Path, **options: Any) -> mx.ExportResult:
    torch.manual_seed(0)
    # Tensors of less than 1 KB stay in the model.
    net = nn.Sequential(nn.Linear(4, 300), nn.Linear(300, 4))
    return mx.export(net, folder / "net.onnx", inputs=X, **options)


class TestLargeWeights:
    @pytest.fixture(autouse=True)
    def _everything_is_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(saving, "OUTSIDE_ABOVE", 0)
        monkeypatch.setattr(output_check, "MAPPED_ABOVE", 1)

    def test_they_go_into_a_file_of_their_own_unless_told_otherwise(self, tmp_path: Path) -> None:
        result = _export(tmp_path)
        assert [path.name for path in result.files][:2] == ["net.onnx", "net.onnx.data"]
        inside = _export(tmp_path, external_data=False)
        assert not any(map(is_external, open_model(inside.path).proto.graph.initializer))

    def test_the_check_runs_the_file_with_mapped_weights(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        opened: list[bool] = []
        released: list[list[object]] = []

        def open_session(path: Path, *, mapped: bool) -> Any:
            opened.append(mapped)
            return session.open_session(path, mapped=mapped)

        def release(files: Iterable[Path] = (), addresses: Iterable[int] = ()) -> None:
            released.append([*files, *addresses])

        monkeypatch.setattr(output_check, "open_session", open_session)
        monkeypatch.setattr(output_check, "release_mapped", release)
        result = _export(tmp_path, external_data=True)
        assert result.check is not None
        assert result.check.ok
        assert opened == [True]
        # In turns: the model's weights before the file runs, and the file's after.
        assert [tmp_path / "net.onnx.data"] in released[1::2]
        assert [tmp_path / "net.onnx.data"] not in released[0::2]

    def test_the_check_finds_wrong_weights_in_the_data_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def damage(*arguments: Any, **options: Any) -> Any:
            result = writing.write_tagged(*arguments, **options)
            data = tmp_path / "net.onnx.data"
            data.write_bytes(bytes(data.stat().st_size))
            return result

        monkeypatch.setattr(export_run, "write_tagged", damage)
        result = _export(tmp_path, external_data=True)
        assert result.check is not None
        assert not result.check.ok


@on_linux
class TestLimit:
    def test_pages_go_where_there_are_too_many(self, tmp_path: Path) -> None:
        path = _weights(tmp_path)
        tensor = _mapped(path)
        with limit_memory(1 << 40, 1000) as use:
            tensor.sum()
            stay_within_limit()
            assert _resident(path) >= 1000
            use.limit = 1  # more than that is in memory
            stay_within_limit()
            assert _resident(path) == 0
        assert use.peak > 1 << 20
        assert len(use.notes) == 1
        assert "more than 1 bytes" in use.notes[0]

    def test_a_limit_that_is_kept_is_no_news(self) -> None:
        with limit_memory(1 << 40, 0) as use:
            stay_within_limit()
        assert use.peak > 0
        assert use.notes == ()

    def test_no_limit_releases_nothing(self, tmp_path: Path) -> None:
        path = _weights(tmp_path)
        tensor = _mapped(path)
        tensor.sum()
        with limit_memory(None, 1 << 40) as use:
            stay_within_limit()
            assert room_for_weights() is None
        assert _resident(path) >= 1000
        assert use.notes == ()

    def test_what_cannot_be_is_said_at_once(self) -> None:
        with (
            pytest.raises(UserError, match=r"a memory of 100 MB is too little: .* the largest weight takes 5 GB"),
            limit_memory(10**8, 5 * 10**9),
        ):
            raise AssertionError("nothing is run")

    def test_a_limit_ends_with_its_block(self) -> None:
        with limit_memory(1 << 40, 1000):
            assert room_for_weights() is not None
        assert room_for_weights() is None

    def test_module_calls_are_followed_by_a_look(self, monkeypatch: pytest.MonkeyPatch) -> None:
        looks: list[int] = []
        monkeypatch.setattr("modelexport.capture.memory.stay_within_limit", lambda: looks.append(1))
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        with running_within(1 << 40, 0):
            net(X)
        assert len(looks) == 3
        net(X)
        assert len(looks) == 3


@on_linux
class TestVerbs:
    @pytest.fixture
    def net(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 300), nn.Tanh(), nn.Linear(300, 300), nn.Linear(300, 4))

    def test_verify_finds_the_same(self, net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = mx.export(net, tmp_path / "net.onnx", inputs=X, external_data=True).path
        # So low that mapped pages go after every module and every piece.
        monkeypatch.setattr("modelexport.graph.file.mapped_memory.resident_memory", lambda: 1 << 30)
        plain = mx.verify(path, net, inputs=X)
        limited = mx.verify(path, net, inputs=X, memory="1.3GB", branches=False)
        assert plain.ok
        assert limited.calls == plain.calls
        assert limited.proof == plain.proof

    def test_verify_against_a_file(self, net: nn.Module, tmp_path: Path) -> None:
        path = mx.export(net, tmp_path / "net.onnx", inputs=X, external_data=True).path
        assert mx.verify(path, against=path, memory="64GB").ok

    def test_what_takes_the_whole_file_is_left_out_and_told(
        self, net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = mx.export(net, tmp_path / "net.onnx", inputs=X).path
        monkeypatch.setattr("modelexport.api.verify_model.resident_memory", lambda: 64 * 10**9)
        notes = mx.verify(path, net, inputs=X, memory="64GB").notes
        assert any("other branches were not searched for" in note for note in notes)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"memory": "much"}, "--memory is 'much', which is no size"),
            ({"memory": "1MB"}, "a memory of 1 MB is too little"),
            ({"memory": "4GB", "as_deployed": True}, "--as-deployed"),
        ],
    )
    def test_verify_refuses(self, net: nn.Module, tmp_path: Path, options: dict[str, Any], message: str) -> None:
        path = mx.export(net, tmp_path / "net.onnx", inputs=X, no_check=True).path
        with pytest.raises(UserError, match=message):
            mx.verify(path, net, inputs=X, **options)

    def test_attach_says_the_same(self, net: nn.Module, tmp_path: Path) -> None:
        path = mx.export(net, tmp_path / "net.onnx", inputs=X, external_data=True, embed="none").path
        plain = mx.attach(path, net, tmp_path / "plain.onnx", inputs=X)
        limited = mx.attach(path, net, tmp_path / "limited.onnx", inputs=X, memory="64GB")
        assert limited.provenance.nodes == plain.provenance.nodes
