"""The transformers exporter: its graph, names, axes and scopes, and that whatever it patched is put back."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnxruntime import InferenceSession
from tests.support.architectures import build
from torch import Tensor, nn

from modelexport.capture.arguments import Exported, ExportRequest
from modelexport.capture.entry_point import EntryPoint, entered
from modelexport.capture.export import TracedRun, export_traced, trace_model
from modelexport.capture.isolation import replace_attributes
from modelexport.capture.transformers_exporter import patched_transformers
from modelexport.errors import ExportFailed, ExtraMissing

IDS = torch.arange(10).reshape(2, 5)
INPUTS = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
AXES = {name: {0: "batch", 1: "sequence"} for name in INPUTS}
# Whatever transformers replaces is in one of these.
WATCHED = (torch, torch.Tensor, torch.nn.functional, torch.masked, torch.fft, torch.nn.RMSNorm)


def shapes_of(values: Any) -> dict[str, list[str | int]]:
    return {item.name: [dim.dim_param or dim.dim_value for dim in item.type.tensor_type.shape.dim] for item in values}


def run_file(exported: Exported, inputs: Mapping[str, Tensor]) -> list[np.ndarray]:
    proto = onnx.ModelProto()
    proto.CopyFrom(exported.model.proto)
    for tensor in proto.graph.initializer:
        if tensor.name in exported.model.weights:
            tensor.raw_data = bytes(exported.model.weights[tensor.name].raw())
    session = InferenceSession(proto.SerializeToString())
    outputs: list[np.ndarray] = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    return outputs


@contextmanager
def unchanged() -> Iterator[None]:
    before = [dict(vars(owner)) for owner in WATCHED]
    try:
        yield
    finally:
        for owner, attributes in zip(WATCHED, before, strict=True):
            assert dict(vars(owner)) == attributes


@pytest.fixture(scope="module")
def llama() -> tuple[TracedRun, Exported]:
    run = trace_model(build("llama").eval(), INPUTS)
    return run, export_traced(run, "transformers", ExportRequest(AXES))


def test_names_and_axes_are_those_of_the_other_exporters(llama: tuple[TracedRun, Exported]) -> None:
    _, exported = llama
    graph = exported.model.proto.graph
    assert exported.exporter == "transformers"
    assert shapes_of(graph.input) == {name: ["batch", "sequence"] for name in INPUTS}
    assert shapes_of(graph.output) == {"logits": ["batch", "sequence", 100]}


def test_numbers_at_other_sizes_and_with_padding(llama: tuple[TracedRun, Exported]) -> None:
    run, exported = llama
    ids = torch.arange(21).reshape(3, 7)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids).index_fill(1, torch.tensor([0, 1]), 0)}
    with torch.no_grad():
        expected = run.model(**inputs, use_cache=False).logits
    (logits,) = run_file(exported, inputs)
    np.testing.assert_allclose(logits, expected.numpy(), atol=1e-5)


def test_every_call_has_scopes_and_the_graph_before_is_kept(llama: tuple[TracedRun, Exported]) -> None:
    run, exported = llama
    assert exported.before is not None
    assert len(exported.before.nodes) > len(exported.model.proto.graph.node)
    calls = [site.call for site in run.hierarchy.calls]
    leaves = {call for call in calls if not list(run.model.get_submodule(call.path).children())}
    assert leaves <= set(exported.scopes.fx_calls.values())


def test_an_entry_point_keeps_names_that_python_cannot_have() -> None:
    net = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    key = "past_key_values.0.key"

    def decode(**tensors: Tensor) -> dict[str, Tensor]:
        present = torch.cat([tensors[key], net["a"](tensors["input_ids"])], dim=1)
        masked = net["b"](present) * tensors["attention_mask"].unsqueeze(-1)
        return {"logits": masked, "present.0.key": present}

    inputs = {
        "input_ids": torch.randn(2, 3, 4),
        "attention_mask": torch.ones(2, 8),
        key: torch.randn(2, 5, 4),
    }
    axes = {
        "input_ids": {0: "batch", 1: "sequence"},
        "attention_mask": {0: "batch", 1: "total_sequence"},
        key: {0: "batch", 1: "past_sequence"},
    }
    # dynamo keeps a symbol of its own for the length of the mask.
    for exporter, total in (("transformers", "total_sequence"), ("dynamo", "past_sequence + sequence")):
        with entered(net, EntryPoint("decoder", decode, inputs, axes)):
            run = trace_model(net, inputs)
            exported = export_traced(run, exporter, ExportRequest(axes))
        assert "forward" not in vars(net)
        graph = exported.model.proto.graph
        assert shapes_of(graph.input) == {
            "input_ids": ["batch", "sequence", 4],
            "attention_mask": ["batch", "total_sequence"],
            key: ["batch", "past_sequence", 4],
        }
        assert shapes_of(graph.output) == {"logits": ["batch", total, 4], "present.0.key": ["batch", total, 4]}
        assert {str(call) for call in exported.scopes.fx_calls.values()} == {"", "a", "b"}
        longer = {name: torch.cat([tensor, tensor], dim=1) for name, tensor in inputs.items()}
        for got, want in zip(run_file(exported, longer), decode(**longer).values(), strict=True):
            np.testing.assert_allclose(got, want.detach().numpy(), atol=1e-5)


class Running(nn.Module):
    """torch has no ONNX for the greatest so far."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cummax(self.fc(x), dim=1)[0]


def test_what_torch_alone_refuses() -> None:
    run = trace_model(Running(), {"x": torch.randn(2, 4)})
    with pytest.raises(ExportFailed, match="cummax"):
        export_traced(run, "dynamo", ExportRequest())
    exported = export_traced(run, "transformers", ExportRequest())
    x = torch.randn(2, 4)
    np.testing.assert_allclose(run_file(exported, {"x": x})[0], run.model(x).detach().numpy(), atol=1e-6)


class Squeezed(nn.Module):
    """PyTorch leaves an axis that is not 1 as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).squeeze(1).unsqueeze(0).squeeze(0)


@pytest.mark.parametrize("exporter", ["dynamo", "transformers"])
def test_squeezing_an_axis_of_any_size(exporter: str) -> None:
    run = trace_model(Squeezed(), {"x": torch.randn(2, 3, 4)})
    exported = export_traced(run, exporter, ExportRequest({"x": {0: "batch", 1: "sequence"}}))
    x = torch.randn(3, 5, 4)
    np.testing.assert_allclose(run_file(exported, {"x": x})[0], run.model(x).detach().numpy(), atol=1e-6)


class Renewed(nn.Module):
    """Writes into a tensor, and hands a part of it to a module: torch takes the part where it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 4), nn.RMSNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        states = self.fc(x)
        states[1:] += 1.0
        return self.norm(states[0] * 1.0 + self.norm(states[0]))


@pytest.mark.parametrize("exporter", ["dynamo", "transformers"])
def test_a_view_belongs_to_the_module_that_took_it(exporter: str) -> None:
    exported = export_traced(trace_model(Renewed(), {"x": torch.randn(3, 2, 4)}), exporter, ExportRequest())
    owners = {name: call.path for name, call in exported.scopes.fx_calls.items() if name.startswith("select")}
    assert owners
    assert set(owners.values()) == {""}


class Rotated(nn.Module):
    """Positions as complex numbers; an index of None is an operator of its own, which transformers does not replace."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * torch.tensor([1.0, 0.5])
        pairs = torch.view_as_complex(self.fc(x).reshape(*x.shape[:-1], 2, 2))
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)[None]).flatten(2)


def test_an_axis_of_complex_numbers() -> None:
    run = trace_model(Rotated(), {"x": torch.randn(2, 3, 4)})
    exported = export_traced(run, "transformers", ExportRequest({"x": {0: "batch", 1: "sequence"}}))
    x = torch.randn(3, 5, 4)
    np.testing.assert_allclose(run_file(exported, {"x": x})[0], run.model(x).detach().numpy(), atol=1e-6)


class Cleared(nn.Module):
    """transformers replaces the write into a column by nodes of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("columns", torch.tensor([1, 3]))
        self.clear = Clear()

    def forward(self, x: Tensor) -> Tensor:
        return self.clear(self.fc(x), self.columns)


class Clear(nn.Module):
    def forward(self, x: Tensor, columns: Tensor) -> Tensor:
        cleared = x.clone()
        cleared[:, columns] = -1.0
        return cleared


def test_nodes_that_transformers_puts_in_belong_to_the_module_of_those_that_it_takes_out() -> None:
    run = trace_model(Cleared(), {"x": torch.randn(2, 4)})
    exported = export_traced(run, "transformers", ExportRequest())
    calls = exported.scopes.fx_calls
    inserted = [name for name in calls if name.startswith(("arange", "eq", "any", "where"))]
    assert len(inserted) >= 4
    assert {calls[name].path for name in inserted} == {"clear"}
    x = torch.randn(2, 4)
    np.testing.assert_allclose(run_file(exported, {"x": x})[0], run.model(x).detach().numpy(), atol=1e-6)


def test_a_returned_input_and_a_value_returned_twice_keep_their_names() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            doubled = x + x
            return {"x": x, "a": doubled, "b": doubled}

    run = trace_model(Twice(), {"x": torch.randn(2, 3)})
    graph = export_traced(run, "transformers", ExportRequest()).model.proto.graph
    assert [value.name for value in graph.input] == ["x"]
    assert [value.name for value in graph.output] == ["x_output", "a", "b"]


def test_all_that_was_patched_is_put_back() -> None:
    with unchanged():
        export_traced(trace_model(Running(), {"x": torch.randn(2, 4)}), "transformers", ExportRequest())


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_all_that_was_patched_is_put_back_after_an_interruption(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = torch.export.export

    def interrupt(*_: object, **__: object) -> None:
        assert torch.cummax.__module__ == "transformers.exporters.exporter_onnx"
        raise error

    run = trace_model(Running(), {"x": torch.randn(2, 4)})
    monkeypatch.setattr(torch.export, "export", interrupt)
    with unchanged(), pytest.raises((KeyboardInterrupt, ExportFailed)):
        export_traced(run, "transformers", ExportRequest())
    monkeypatch.setattr(torch.export, "export", original)
    assert "forward" not in vars(run.model)
    assert export_traced(run, "transformers", ExportRequest()).exporter == "transformers"


def test_patches_that_are_cut_short_are_put_back() -> None:
    with unchanged(), pytest.raises(KeyboardInterrupt), patched_transformers():
        raise KeyboardInterrupt


def test_an_inherited_attribute_is_inherited_again() -> None:
    class Base:
        @staticmethod
        def name() -> str:
            return "base"

    class Derived(Base):
        pass

    def fail(_: object) -> None:
        raise ValueError

    for patches in ([], [(Base, "name", fail)]):
        try:
            with replace_attributes([(Derived, "name", lambda old: lambda _: old() + "!"), *patches]):
                assert Derived().name() == "base!"
        except ValueError:
            assert patches
        assert "name" not in vars(Derived)
        assert isinstance(vars(Base)["name"], staticmethod)


def test_transformers_without_exporters_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.exporters.exporter_onnx", None)
    run = trace_model(Running(), {"x": torch.randn(2, 4)})
    with pytest.raises(ExtraMissing, match="transformers exporter") as failure:
        export_traced(run, "transformers", ExportRequest())
    assert "transformers>=5.22" in failure.value.hint


def test_a_refusal_names_the_exporter_and_the_next_step() -> None:
    class Deciding(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    run = trace_model(Deciding(), {"x": torch.randn(2, 4)})
    with pytest.raises(ExportFailed, match="with the transformers exporter") as failure:
        export_traced(run, "transformers", ExportRequest())
    assert failure.value.hint == "Try --exporter torchscript."


def test_nothing_is_said_about_versions(capfd: pytest.CaptureFixture[str]) -> None:
    export_traced(trace_model(Running(), {"x": torch.randn(2, 4)}), "transformers", ExportRequest())
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""
