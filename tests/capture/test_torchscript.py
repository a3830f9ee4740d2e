"""The graph that the TorchScript exporter starts from, as text."""

from __future__ import annotations

import pytest
import torch
from tests.support import nets
from tests.support.architectures import build

from modelexport.capture.arguments import bind_arguments
from modelexport.capture.torchscript import jit_graph_text
from modelexport.errors import ExportFailed

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def text_of(model: torch.nn.Module, inputs: object) -> str:
    return jit_graph_text(model, bind_arguments(model, inputs))


def test_nodes_have_scopes_and_values_have_names() -> None:
    lines = text_of(nets.Repeated(), X).splitlines()
    assert lines[0].startswith("graph(%x : Float(2, 4")
    linears = [line for line in lines if "aten::linear(" in line]
    assert len(linears) == 12
    assert linears[0].endswith("aten::linear(%x, %blk.fc.weight, %blk.fc.bias), scope: blk/blk.fc")
    assert [line.rpartition("scope: ")[2] for line in linears[:4]] == [
        *("blk/blk.fc", "blk/blk.fc", "blk/blk.net/blk.net.0", "blk/blk.kinds.p")
    ]


def test_a_real_model_without_a_path_of_this_machine() -> None:
    text = text_of(build("bert"), {"input_ids": torch.tensor([[1, 5, 7]])})
    assert "scope: encoder/encoder.layer.1/encoder.layer.1.attention/encoder.layer.1.attention.self/" in text
    assert "site-packages" not in text
    assert ".py:" not in text


def test_the_model_and_torch_are_left_as_they_were() -> None:
    net = nets.Writing().train()
    given = X.clone()
    text_of(net, given)
    assert net.training
    assert "forward" not in vars(net)
    assert torch.equal(given, X)
    assert float(net.count) == 0
    assert torch.jit._trace._trace_module_map is None


def test_what_cannot_be_traced_is_an_export_that_failed() -> None:
    with pytest.raises(ExportFailed, match="Branching"):
        text_of(nets.Branching(), X)
    assert torch.jit._trace._trace_module_map is None
