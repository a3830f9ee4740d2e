"""The effect of a module's noise at the outputs: held against files in which that module alone is noisy."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from tests.support.command_line import run
from torch import Tensor, nn

import modelexport as mx
from modelexport.api import output_effects
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.results.verification import CallNumbers, Difference, Status, Tolerance, Verification
from modelexport.show.text.console import as_text
from modelexport.show.text.verification import verification_tables
from modelexport.show.text.verification_rows import Shown

_IDS = np.arange(16).reshape(2, 8) % 10


class Block(nn.Module):
    def __init__(self, weight: float) -> None:
        super().__init__()
        self.up, self.down, self.weight = nn.Linear(8, 16), nn.Linear(16, 8), weight

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight * self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    """Blocks that matter little and much, whatever decibels they lose: the first is noisy and hardly counts."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(10, 8)
        self.blocks = nn.ModuleList([Block(0.01), Block(1.0), Block(3.0)])
        self.head = nn.Linear(8, 4)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


_NOISE = {"blocks.0.up": 0.2, "blocks.1.up": 0.02, "blocks.2.down": 0.02, "head": 0.001, "emb": 0.01}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("effects") / "plain.onnx"
    mx.export(Net().eval(), path, inputs=torch.tensor(_IDS), no_check=True, static=True)
    return path


def _disturb(plain: Path, target: Path, *modules: str) -> Path:
    """Noise on the weights of some modules."""
    model, record = onnx.load(plain), mx.load(plain).initializers
    random = np.random.default_rng(1)
    for tensor in model.graph.initializer:
        module, array = record[tensor.name].module, numpy_helper.to_array(tensor)
        if array.dtype.kind != "f" or array.ndim < 2:
            continue
        noise = random.standard_normal(array.shape) * np.abs(array).mean()
        if module is not None and module in modules:
            tensor.CopyFrom(numpy_helper.from_array((array + _NOISE[module] * noise).astype(np.float32), tensor.name))
    onnx.save(model, target)
    return target


def _output_decibels(plain: Path, other: Path) -> float:
    import onnxruntime

    expected, seen = (onnxruntime.InferenceSession(path).run(None, {"ids": _IDS})[0] for path in (plain, other))
    return float(-10 * math.log10(np.square(seen - expected).sum() / np.square(expected).sum()))


def _effects(found: Verification) -> dict[str, float]:
    return {item.call.path: item.effect for item in found.calls if item.effect is not None}


@pytest.fixture(scope="module")
def compared(plain: Path) -> Verification:
    noisy = _disturb(plain, plain.with_name("noisy.onnx"), *_NOISE)
    return mx.verify(noisy, against=plain, inputs={"ids": _IDS})


def test_an_effect_is_that_of_a_file_in_which_the_module_alone_is_noisy(plain: Path, compared: Verification) -> None:
    effects = _effects(compared)
    for module in _NOISE:
        alone = _output_decibels(plain, _disturb(plain, plain.with_name(f"{module}.onnx"), module))
        assert effects[module] == pytest.approx(alone, abs=3), module


def test_modules_are_ranked_by_it_and_not_by_what_they_lose(compared: Verification) -> None:
    ranked = [item.call.path for item in compared.ranked() if item.call.path in _NOISE]
    effects = _effects(compared)
    assert ranked[:-1] == sorted(ranked[:-1], key=effects.__getitem__)
    assert ranked[-1] == "emb"  # its inputs are no numbers that could be compared: it is not ranked
    by_loss = max((item for item in compared.calls if item.call.path in _NOISE), key=lambda item: item.lost or 0.0)
    assert by_loss.call.path == "blocks.0.up"  # which has the smallest effect of all
    assert ranked.index("blocks.0.up") == len(ranked) - 2


def test_modules_that_add_nothing_have_no_effect(compared: Verification) -> None:
    """Noise goes through them, and it is not theirs."""
    effects = _effects(compared)
    for module in ("blocks.0.down", "blocks.1.down", "blocks.2.up"):
        assert effects[module] > 100


def test_what_is_not_ranked_is_marked(compared: Verification) -> None:
    (embedding,) = [item for item in compared.calls if item.call.path == "emb"]
    assert embedding.lost is None
    text = as_text(verification_tables(compared, Shown(by_loss=True)))
    rows = [line.split() for line in text.splitlines()]
    (row,) = [row for row in rows if row[:1] == ["emb"] and "?" in row]
    assert row[3] == "?"
    assert "? no floats go in that could be compared: not ranked" in text
    assert "effect at outputs" in text


def test_json_has_it(plain: Path, compared: Verification, tmp_path: Path) -> None:
    noisy = plain.with_name("noisy.onnx")
    np.savez(tmp_path / "ids.npz", ids=_IDS)
    out = tmp_path / "v.json"
    arguments = ("--inputs", tmp_path / "ids.npz", "--format", "json", "-o", out)
    assert run("verify", noisy, "--against", plain, *arguments) == 1
    calls = {item["path"]: item for item in json.loads(out.read_text())["calls"]}
    assert calls["emb"]["lost"] is None
    assert calls["head"]["effect"] == pytest.approx(_effects(compared)["head"], abs=0.1)


def test_equal_files_cost_nothing(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_effects, "_measure_calls", lambda *_: pytest.fail("nothing is noisy"))
    assert not _effects(mx.verify(plain, against=plain, inputs={"ids": _IDS}))


def test_a_budget_is_kept_and_said(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_effects, "_MOST_CALLS", 2)
    found = mx.verify(plain.with_name("noisy.onnx"), against=plain, inputs={"ids": _IDS})
    assert len(_effects(found)) == 2
    assert any(note.startswith("the effect at the outputs was measured of 2 of ") for note in found.notes)


def test_the_order_of_calls() -> None:
    def call(path: str, given: float | None, made: float, effect: float | None = None) -> CallNumbers:
        inputs, outputs = (None if sqnr is None else Difference(0, 0, sqnr, 1, 0, True) for sqnr in (given, made))
        return CallNumbers(ModuleCall(path), "M", inputs, outputs, Status.OK, effect=effect)

    calls = (
        call("unknown", None, 1.0, 1.0),
        call("lossy", 140, 20.0),
        call("harmless", 140, 10.0, 90.0),
        call("bad", 30, 30.0, 20.0),
        call("lossless", 140, 140.0),
    )
    found = Verification("a", "b", 1, Tolerance(), calls, {})
    assert [item.call.path for item in found.ranked()] == ["bad", "harmless", "lossy", "lossless", "unknown"]
