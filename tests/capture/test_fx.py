"""The FX graph of a model: who issued each operator, from what, and what came out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support import nets
from tests.support.architectures import build
from tests.support.fingerprints import same_content
from torch import Tensor, nn

from modelexport.capture import fx
from modelexport.capture.arguments import bind_arguments, fingerprint_tensor, output_tensors
from modelexport.capture.fx import FxCapture, FxKind, trace_fx
from modelexport.capture.hierarchy import run_model, trace_run
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.signals import Trace

IDS = torch.tensor([[1, 5, 7, 2, 9]])
MODELS: dict[str, dict[str, Any]] = {
    "bert": {"input_ids": IDS},
    "albert": {"input_ids": IDS},
    "t5": {"input_ids": IDS, "decoder_input_ids": IDS, "use_cache": False},
    "resnet": {"pixel_values": torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)},
}
BOTH = pytest.mark.parametrize("kind", ["torch_export", "symbolic_trace"])
# Modules that issue one operator, and this one only.
ONE_OPERATOR = {"Linear": "linear", "Embedding": "embedding", "Conv2d": "conv2d", "LayerNorm": "layer_norm"}


def captured(model: nn.Module, inputs: object, kind: FxKind) -> tuple[FxCapture, Hierarchy]:
    arguments = bind_arguments(model, inputs)
    hierarchy = trace_run(model, arguments).hierarchy
    return trace_fx(model, arguments, hierarchy, kind), hierarchy


def traced(model: nn.Module, inputs: object, kind: FxKind) -> Trace:
    capture, _ = captured(model, inputs, kind)
    assert capture.failure == ""
    assert capture.trace is not None
    return capture.trace


def row(*shape: int) -> Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)


def issued(trace: Trace) -> list[tuple[str, str]]:
    return [(op.name.partition("::")[2] or op.name, str(op.call)) for op in trace.ops]


@pytest.mark.parametrize("name", MODELS)
def test_every_operator_has_the_call_that_hooks_saw(name: str) -> None:
    capture, hierarchy = captured(build(name), MODELS[name], "torch_export")
    assert capture.trace is not None
    for class_name, operator in ONE_OPERATOR.items():
        seen = [site.call for site in hierarchy.calls if hierarchy.modules[site.call.path].class_name == class_name]
        assert [op.call for op in capture.trace.ops if op.name == f"aten::{operator}"] == seen


@pytest.mark.parametrize("name", MODELS)
def test_the_run_makes_what_the_model_makes(name: str) -> None:
    model = build(name)
    trace = traced(model, MODELS[name], "torch_export")
    wanted = output_tensors(run_model(model, bind_arguments(model, MODELS[name])))
    made = [trace.values[number] for op in trace.ops for number in op.outputs]
    for tensor in wanted.values():
        assert any(same_content(fingerprint_tensor(tensor), value, 1e-5) for value in made)


@BOTH
def test_a_block_that_is_called_three_times(kind: FxKind) -> None:
    trace = traced(nets.Repeated(), row(2, 4), kind)
    assert [str(op.call) for op in trace.ops] == [
        *("blk.fc", "blk.fc#1", "blk.net.0", "blk.net.1", "blk.kinds.p", "blk"),
        *("blk.fc#2", "blk.fc#3", "blk.net.0#1", "blk.net.1#1", "blk.kinds.p#1", "blk#1"),
        *("blk.fc#4", "blk.fc#5", "blk.net.0#2", "blk.net.1#2", "blk.kinds.p#2", "blk#2"),
    ]


@BOTH
def test_one_module_under_two_names(kind: FxKind) -> None:
    trace = traced(nets.TwoNames(), row(2, 4), kind)
    assert [str(op.call) for op in trace.ops] == ["a", "", "a#1", "", "a#2", "a_1"]
    assert trace.tensors["a.weight"] == trace.tensors["b.weight"] != trace.tensors["a_1.weight"]


def test_operators_are_named_after_what_torch_calls_them() -> None:
    exported = traced(nets.CalledThrice(), row(2, 4), "torch_export")
    assert [op.name for op in exported.ops][:2] == ["aten::linear", "aten::sigmoid"]
    symbolic = traced(nets.CalledThrice(), row(2, 4), "symbolic_trace")
    assert [op.name for op in symbolic.ops][:2] == ["module", "torch::sigmoid"]
    assert (exported.source, symbolic.source) == ("torch.export", "torch.fx")


@BOTH
def test_values_are_what_flows_between_operators(kind: FxKind) -> None:
    net = nets.perturbed(nets.CalledThrice())
    trace = traced(net, {"x": row(2, 4)}, kind)
    weights = {trace.tensors["lin.weight"], trace.tensors["lin.bias"]}
    first, *others = trace.ops
    assert set(first.inputs) == {trace.inputs["x"], *weights}
    for before, op in zip(trace.ops, others, strict=False):
        assert set(op.inputs) - weights == set(before.outputs)
    assert trace.values[trace.inputs["x"]] == fingerprint_tensor(row(2, 4))
    assert trace.values[trace.tensors["lin.weight"]] == fingerprint_tensor(net.get_parameter("lin.weight"))
    (made,) = trace.ops[-1].outputs
    assert same_content(trace.values[made], fingerprint_tensor(net(row(2, 4))), 1e-6)


@BOTH
def test_nested_and_starred_inputs_have_the_names_of_the_graph(kind: FxKind) -> None:
    nested = {"xs": [row(2, 4), 2 * row(2, 4)], "extra": {"bias": row(4)}}
    trace = traced(nets.Nested(), nested, kind)
    assert list(trace.inputs) == ["xs_0", "xs_1", "extra_bias"]
    assert trace.inputs["xs_1"] in [number for op in trace.ops for number in op.inputs]
    assert list(traced(nets.Starred(), (row(4), row(4), row(4)), kind).inputs) == ["first", "others_0", "others_1"]


def test_parts_of_a_result_are_no_operators() -> None:
    trace = traced(nets.Divided(), row(2, 4), "torch_export")
    assert [op.name for op in trace.ops] == [
        f"aten::{name}" for name in ("linear", "chunk", "sin", "cos", "mul", "add")
    ]
    parts = trace.ops[1].outputs
    assert len(parts) == 3
    assert [trace.ops[2].inputs, trace.ops[3].inputs] == [parts[:1], parts[1:2]]


def test_a_branch_is_one_operator() -> None:
    trace = traced(nets.Branching(), row(2, 4), "torch_export")
    assert [op.name for op in trace.ops] == ["aten::sum", "aten::gt", "higher_order::cond"]


def test_writing_into_a_tensor_makes_a_new_value() -> None:
    """Afterwards nobody reads the input any more: it holds something else."""
    net = nets.perturbed(nets.Writing())
    trace = traced(net, row(2, 4), "torch_export")
    readers = [op.name for op in trace.ops if trace.inputs["x"] in op.inputs]
    assert readers == ["aten::mul"]


class Guarded(nn.Module):
    """Arguments that are no tensors, a constant of its own, and a decision that depends on both."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, scale: float = 1.0, **others: object) -> Tensor:
        if mask is not None or others:
            raise ValueError("not like this")
        return self.lin(x) * scale + torch.tensor([1.0, 2.0, 3.0, 4.0])


@BOTH
def test_arguments_that_are_no_tensors_are_as_given(kind: FxKind) -> None:
    net = nets.perturbed(Guarded())
    before = set(vars(net))
    trace = traced(net, {"x": row(2, 4), "scale": 3.0, "mask": None}, kind)
    assert set(vars(net)) == before
    assert list(trace.inputs) == ["x"]
    (made,) = trace.ops[-1].outputs
    assert same_content(trace.values[made], fingerprint_tensor(net(row(2, 4), scale=3.0)), 1e-6)


@pytest.mark.parametrize(
    ("net", "why"),
    [(nets.Branching(), "RuntimeError"), (nets.Divided(), "TraceError: Proxy object cannot be iterated")],
)
def test_what_torch_fx_cannot_trace_has_a_reason(net: nn.Module, why: str) -> None:
    capture, _ = captured(net, row(2, 4), "symbolic_trace")
    assert (capture.trace, capture.text) == (None, "")
    assert capture.failure.startswith(why)
    assert "\n" not in capture.failure


class Deciding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if bool(x.sum() > 0) else x - 1


def test_what_torch_export_cannot_trace_has_a_reason() -> None:
    capture, _ = captured(Deciding(), row(2, 4), "torch_export")
    assert capture.trace is None
    assert capture.failure
    assert "\n" not in capture.failure


@BOTH
def test_the_text_lists_nodes_under_their_modules(kind: FxKind) -> None:
    capture, _ = captured(nets.Repeated(), row(2, 4), kind)
    lines = [line.strip() for line in capture.text.splitlines()]
    headings = [line for line in lines if line.startswith("#") and line.endswith("blk.fc#3")]
    assert len(headings) == 1
    assert "blk#1 > blk.fc#3" in headings[0]
    assert "%" in lines[lines.index(headings[0]) + 1]
    assert lines[-1].startswith("return")


def test_the_text_shows_branches_and_no_path_of_this_machine() -> None:
    capture, _ = captured(nets.Branching(), row(2, 4), "torch_export")
    assert "true_graph_0:" in capture.text
    assert capture.text.count("aten.linear.default") == 2
    assert __file__.rpartition("/")[0] not in capture.text
    assert "site-packages" not in capture.text


class Chain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(30):
            x = torch.sin(x)
        return x


def test_values_are_let_go_while_the_graph_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[int] = []

    class Counting(fx._FxRecorder):
        def run_node(self, n: torch.fx.Node) -> Any:
            result = super().run_node(n)
            alive.append(sum(isinstance(value, Tensor) for value in self.env.values()))
            return result

    monkeypatch.setattr(fx, "_FxRecorder", Counting)
    assert len(traced(Chain(), row(2, 4), "torch_export").ops) == 30
    assert len(alive) > 30
    assert max(alive) <= 2
