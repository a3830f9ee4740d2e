"""Every operator of a run: who issued it, from what, and what came out; and nothing of it stays behind."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import nets
from tests.support.fingerprints import same_content
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from modelexport.capture.arguments import bind_arguments, fingerprint_tensor, to_array
from modelexport.capture.hierarchy import trace_run
from modelexport.errors import InputError
from modelexport.record.signals import Fingerprint, Trace, TracedOp

X = torch.linspace(-1, 1, 8).reshape(2, 4)
_TIGHT = 1e-6


class Doing(nn.Module):
    """Does what it is told, with a Linear at hand."""

    def __init__(self, action: Callable[[Any, Tensor], object]) -> None:
        super().__init__()
        self.action = action
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> object:
        return self.action(self, x)


def traced(model: nn.Module, inputs: object = X) -> Trace:
    trace = trace_run(model, bind_arguments(model, inputs), operators=True).trace
    assert trace is not None
    return trace


def issued(trace: Trace) -> list[tuple[str, str]]:
    return [(op.name.removeprefix("aten::"), str(op.call)) for op in trace.ops]


def calls_of(trace: Trace, name: str) -> list[str]:
    return [str(op.call) for op in trace.ops if op.name == f"aten::{name}"]


def the(trace: Trace, name: str) -> TracedOp:
    (found,) = [op for op in trace.ops if op.name == f"aten::{name}"]
    return found


# who issued it


def test_each_operator_has_the_call_that_was_open() -> None:
    trace = traced(nets.Repeated())
    assert calls_of(trace, "addmm") == [
        *("blk.fc", "blk.fc#1", "blk.net.0", "blk.kinds.p"),
        *("blk.fc#2", "blk.fc#3", "blk.net.0#1", "blk.kinds.p#1"),
        *("blk.fc#4", "blk.fc#5", "blk.net.0#2", "blk.kinds.p#2"),
    ]
    assert calls_of(trace, "relu") == ["blk.net.1", "blk.net.1#1", "blk.net.1#2"]
    assert calls_of(trace, "add") == ["blk", "blk#1", "blk#2"]


def test_a_module_whose_forward_is_called_directly_is_not_seen_and_its_children_are() -> None:
    trace = traced(nets.DirectForward())
    assert calls_of(trace, "add") == ["", ""]
    assert calls_of(trace, "relu") == ["one.net.1", "two.net.1"]


def test_a_checkpoint_hides_nothing() -> None:
    with pytest.warns(UserWarning, match="requires_grad"):
        trace = traced(nets.Checkpointed())
    assert calls_of(trace, "addmm") == ["inner.0", "inner.2", "last"]


def test_what_is_mapped_over_a_batch_is_issued_where_it_is_called() -> None:
    trace = traced(Doing(lambda net, x: torch.relu(torch.vmap(net.lin)(x))))
    assert issued(trace)[-1] == ("relu", "")
    assert {call for name, call in issued(trace) if name in ("mm", "addmm", "bmm")} == {"lin"}


def test_control_flow_is_one_operator_made_of_those_in_the_branch() -> None:
    net = nets.Branching()
    trace = traced(net, X - 1)
    *before, inside, last = trace.ops
    assert [op.name for op in before] == ["aten::sum", "aten::gt"]
    assert (str(inside.call), last.name) == ("no", "higher_order::cond")
    assert set(inside.outputs) <= set(last.inputs)
    (made,) = trace.ops[-1].outputs
    assert same_content(trace.values[made], fingerprint_tensor(net.no(X - 1)), _TIGHT)


def test_a_loop_and_a_gradient_are_recorded_too() -> None:
    from torch._higher_order_ops import while_loop

    def loop(net: Any, x: Tensor) -> Tensor:
        start = (torch.tensor(0), x)
        _, made = while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * 2), start)  # type: ignore[no-untyped-call]
        return made

    trace = traced(Doing(loop))
    assert trace.ops[-1].name == "higher_order::while_loop"
    trace = traced(Doing(lambda net, x: torch.func.grad(lambda y: net.lin(y).sum())(x)))
    assert "lin" in calls_of(trace, "addmm")


# what flows


def test_values_connect_operators() -> None:
    net = nets.perturbed(nets.CalledThrice())
    trace = traced(net, {"x": X})
    products = [op for op in trace.ops if op.name == "aten::addmm"]
    sigmoid, relu = the(trace, "sigmoid"), the(trace, "relu")
    assert trace.inputs["x"] in products[0].inputs
    assert sigmoid.inputs == products[0].outputs
    assert set(sigmoid.outputs) < set(products[1].inputs)
    assert relu.inputs == products[1].outputs
    assert all(trace.tensors["lin.bias"] in op.inputs for op in products)
    assert same_content(trace.values[products[2].outputs[0]], fingerprint_tensor(net(X)), _TIGHT)
    assert trace.source == "hooks"


def test_a_tied_weight_has_one_number() -> None:
    trace = traced(nets.TwoNames())
    assert trace.tensors["a.weight"] == trace.tensors["b.weight"] != trace.tensors["a_1.weight"]


def test_writing_into_a_tensor_makes_a_new_value() -> None:
    trace = traced(nets.perturbed(nets.Writing()), {"x": X})
    (written,) = the(trace, "mul_").outputs
    readers = [op.name for op in trace.ops if trace.inputs["x"] in op.inputs]
    assert readers == ["aten::mul_"]
    assert written in the(trace, "addmm").inputs
    assert trace.values[trace.inputs["x"]] == fingerprint_tensor(X)
    assert same_content(trace.values[written], fingerprint_tensor(2 * X), _TIGHT)


def test_writing_into_a_view_changes_the_tensor_behind_it() -> None:
    def write(net: Any, x: Tensor) -> Tensor:
        own = x.clone()
        own[:, 0].fill_(3.0)
        return net.lin(own)

    trace = traced(Doing(write))
    wanted = X.clone()
    wanted[:, 0] = 3.0
    (read,) = set(the(trace, "addmm").inputs).intersection(the(trace, "fill_").outputs)
    assert same_content(trace.values[read], fingerprint_tensor(wanted), _TIGHT)
    assert the(trace, "clone").outputs != (read,)


def test_writing_into_a_tensor_changes_its_views() -> None:
    def write(net: Any, x: Tensor) -> Tensor:
        own = x.clone()
        row = own[0]
        own.add_(1)
        return row.sin()

    trace = traced(Doing(write))
    assert the(trace, "sin").inputs[0] in the(trace, "add_").outputs
    assert same_content(trace.values[the(trace, "sin").inputs[0]], fingerprint_tensor(X[0] + 1), _TIGHT)


def test_writing_without_a_result_counts() -> None:
    def write(net: Any, x: Tensor) -> Tensor:
        own = x.clone()
        torch._foreach_add_([own], 1.0)
        return own.sin()

    trace = traced(Doing(write))
    assert same_content(trace.values[the(trace, "sin").inputs[0]], fingerprint_tensor(X + 1), _TIGHT)


def test_views_are_operators_and_values() -> None:
    trace = traced(Doing(lambda _, x: x.t().reshape(2, 4).unsqueeze(0)))
    assert [name for name, _ in issued(trace)] == ["t", "clone", "_unsafe_view", "unsqueeze"]
    first, last = trace.values[trace.ops[0].outputs[0]], trace.values[trace.ops[-1].outputs[0]]
    assert first.sketch == last.sketch
    assert (first.shape, last.shape) == ((4, 2), (1, 2, 4))


def test_several_results_are_several_values() -> None:
    trace = traced(Doing(lambda _, x: x.chunk(2, dim=-1)[1].sin()))
    parts = the(trace, "split").outputs
    assert len(parts) == 2
    assert the(trace, "sin").inputs == parts[1:]


# what it costs and what it leaves


def test_no_intermediate_is_kept_alive() -> None:
    seen: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def chain(net: Any, x: Tensor) -> Tensor:
        for _ in range(20):
            x = net.lin(x)
            seen.append(weakref.ref(x))
            alive.append(sum(reference() is not None for reference in seen))
        return x.sum()

    trace = traced(Doing(chain))
    assert len(calls_of(trace, "addmm")) == 20
    assert max(alive) == 1
    assert all(reference() is None for reference in seen)


def test_a_tensor_in_the_place_of_another_has_a_number_of_its_own() -> None:
    """Ids of tensors that are gone are given to others."""

    def chain(net: Any, x: Tensor) -> Tensor:
        for step in range(50):
            x = torch.full((3,), float(step)).sin()
        return x

    trace = traced(Doing(chain))
    sines = [op for op in trace.ops if op.name == "aten::sin"]
    assert len({op.inputs for op in sines}) == 50
    for step, op in enumerate(sines):
        assert trace.values[op.inputs[0]] == fingerprint_tensor(torch.full((3,), float(step)))


def test_tensors_that_no_operator_made_are_told_apart() -> None:
    def chain(_: Any, x: Tensor) -> Tensor:
        for step in range(50):
            x = torch.from_numpy(np.full(3, step, np.float32)).sin()
        return x

    trace = traced(Doing(chain))
    read = [trace.values[op.inputs[0]] for op in trace.ops if op.name == "aten::sin"]
    assert read == [fingerprint_tensor(torch.full((3,), float(step))) for step in range(50)]


def _modes() -> tuple[int, int, int, int]:
    return (
        len(_get_current_dispatch_mode_stack()),
        len(_get_current_function_mode_stack()),  # type: ignore[no-untyped-call]
        len(module_hooks._global_forward_hooks),
        len(module_hooks._global_forward_pre_hooks),
    )


def test_nothing_is_left_behind() -> None:
    net = nets.Writing().train()
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    given, before = X.clone(), _modes()
    traced(net, given)
    assert _modes() == before
    assert net.training
    assert torch.equal(given, X)
    assert all(torch.equal(tensor, state[name]) for name, tensor in net.state_dict().items())


def test_nothing_is_left_behind_by_a_failure() -> None:
    def fail(net: Any, x: Tensor) -> Tensor:
        raise ValueError(f"no {net.lin(x).shape[0]}")

    before = _modes()
    with pytest.raises(InputError, match="ValueError: no 2"):
        traced(Doing(fail))
    assert _modes() == before
    assert calls_of(traced(Doing(lambda net, x: net.lin(x))), "addmm") == ["lin"]


def test_other_threads_are_not_recorded() -> None:
    def work(net: Any, x: Tensor) -> Tensor:
        other = threading.Thread(target=lambda: net.lin(x).tanh())
        other.start()
        other.join()
        return net.lin(x).sin()

    trace = traced(Doing(work))
    assert calls_of(trace, "addmm") == ["lin"]
    assert calls_of(trace, "tanh") == []
    assert calls_of(trace, "sin") == [""]


# tensors of all kinds


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn])
def test_floats_of_any_width_are_floats(dtype: torch.dtype) -> None:
    wanted, found = fingerprint_tensor(X), fingerprint_tensor(X.to(dtype))
    assert found.kind == "float"
    assert same_content(wanted, found, 0.1)


def test_complex_numbers_are_pairs() -> None:
    pairs = torch.stack([X, 2 * X], dim=-1)
    number = torch.view_as_complex(pairs)
    assert fingerprint_tensor(number) == fingerprint_tensor(pairs)
    assert np.array_equal(to_array(number.conj())[..., 1], to_array(-2 * X))
    assert np.array_equal(to_array(number.conj().imag), to_array(-2 * X))


@pytest.mark.parametrize(
    ("tensor", "shape", "kind"),
    [
        (torch.tensor(True), (), "bool"),
        (torch.tensor(3), (), "int"),
        (torch.tensor(1.5), (), "float"),
        (torch.zeros(0, 3), (0, 3), "float"),
        (torch.zeros(0, dtype=torch.bool), (0,), "bool"),
        (torch.zeros(2, 3, dtype=torch.uint16), (2, 3), "int"),
        (torch.zeros(2, 3).to_sparse(), (2, 3), "other"),
        (torch.zeros(2, 3, device="meta"), (2, 3), "other"),
        (torch.zeros(2, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), (2, 4), "other"),
        (nn.Parameter(X), (2, 4), "float"),
    ],
)
def test_every_tensor_has_a_fingerprint(tensor: Tensor, shape: tuple[int, ...], kind: str) -> None:
    found = fingerprint_tensor(tensor)
    assert (found.shape, found.kind) == (shape, kind)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize(
    "action",
    [
        lambda _, x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize().sin(),
        lambda _, x: x.to_sparse().to_dense().sin(),
        lambda _, x: torch.nested.nested_tensor([x[0], x[1, :2]]).to_padded_tensor(0.0).sin(),
        lambda _, x: torch.nested.nested_tensor([x[0], x[1, :2]], layout=torch.jagged).to_padded_tensor(0.0).sin(),
        lambda _, x: torch.view_as_complex(x.reshape(2, 2, 2)).conj().abs().sin(),
        lambda _, x: x[:0].sin(),
    ],
)
def test_tensors_of_any_kind_can_pass_through(action: Callable[[Any, Tensor], Tensor]) -> None:
    trace = traced(Doing(action))
    assert issued(trace)[-1] == ("sin", "")
    assert all(isinstance(value, Fingerprint) for value in trace.values)
