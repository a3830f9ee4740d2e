"""One run of a model, watched: who issued which value, what crossed each call; and nothing of it stays behind."""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import nets
from tests.support.watched_runs import Doing, X, watched
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from modelexport.capture.arguments import CallArguments
from modelexport.capture.eager import watch_run
from modelexport.errors import InputError
from modelexport.graph.sample import alike

# who issued it


def test_nested_and_repeated_calls() -> None:
    seen = watched(nets.Repeated())
    assert seen.issuers("addmm") == [
        *("blk.fc", "blk.fc#1", "blk.net.0", "blk.kinds.p"),
        *("blk.fc#2", "blk.fc#3", "blk.net.0#1", "blk.kinds.p#1"),
        *("blk.fc#4", "blk.fc#5", "blk.net.0#2", "blk.kinds.p#2"),
    ]
    assert seen.issuers("relu") == ["blk.net.1", "blk.net.1#1", "blk.net.1#2"]
    assert seen.issuers("add") == ["blk", "blk#1", "blk#2"]


def test_calls_are_listed_in_the_order_in_which_they_end() -> None:
    ended = [str(item.call) or "." for item in watched(nets.Repeated()).run.calls]
    assert ended[:6] == ["blk.fc", "blk.fc#1", "blk.net.0", "blk.net.1", "blk.net", "blk.kinds.p"]
    assert ended[-2:] == ["blk#2", "."]


def test_one_object_under_two_names_has_its_first_name() -> None:
    seen = watched(nets.TwoNames())
    assert seen.issuers("addmm") == ["a", "a#1", "a#2", "a_1"]


def test_a_module_that_is_not_part_of_the_model_is_not_a_call() -> None:
    stranger = nn.ReLU()
    seen = watched(Doing(lambda net, x: stranger(net.lin(x))))
    assert seen.issuers("relu") == ["."]
    assert [str(item.call) for item in seen.run.calls] == ["lin", ""]


def _memoize(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A cache inside of another decorator, as transformers has it."""
    cached = functools.lru_cache(maxsize=1)(function)

    @functools.wraps(function)
    def call(*sizes: int) -> Tensor:
        return cached(*sizes)

    return call


@_memoize
def _cosines(size: int) -> Tensor:
    return torch.arange(size).cos()


class Memoized(nn.Module):
    @staticmethod
    @functools.lru_cache(maxsize=1)
    def sines(size: int) -> Tensor:
        return torch.arange(size).sin()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.sines(x.shape[-1]) + _cosines(x.shape[-1])


@pytest.mark.parametrize("operator", ["sin", "cos"])
def test_a_call_issues_what_an_earlier_one_left_in_a_cache(operator: str) -> None:
    net = nn.Sequential(Memoized(), Memoized())
    net(X)
    assert watched(net).issuers(operator) == ["0", "1"]


def test_control_flow_is_one_operator() -> None:
    net = nets.Branching()
    seen = watched(net, X - 1)
    assert str(seen.run.ops[-1].call) == ""
    (made,) = seen.run.ops[-1].makes
    assert seen.holds(made, net.no(X - 1))
    assert seen.call(".").outputs == (made,)


def test_a_child_that_fails_does_not_stay_open() -> None:
    def rescued(net: Any, x: Tensor) -> object:
        with suppress(ValueError):
            net.part(x)
        return torch.sin(net.lin(x))

    def failing(net: Any, x: Tensor) -> object:
        raise ValueError(str(torch.cos(net.lin(x)).shape))

    seen = watched(Doing(rescued, failing))
    assert seen.issuers("cos") == ["part"]
    assert seen.issuers("sin") == ["."]
    assert [str(item.call) or "." for item in seen.run.calls] == ["part.lin", "part", "lin", "."]
    assert seen.call("part").outputs == ()


# what flows


def test_values_connect_operators() -> None:
    net = nets.CalledThrice()
    seen = watched(net)
    first, sigmoid, second = seen.op("addmm"), seen.op("sigmoid"), seen.op("addmm", 1)
    assert set(sigmoid.reads) == set(first.makes)
    assert set(sigmoid.makes) <= set(second.reads)
    assert seen.run.inputs["x"] in first.reads
    assert set(seen.run.outputs.values()) == set(seen.op("addmm", 2).makes)
    assert seen.holds(sigmoid.makes[0], torch.sigmoid(net.lin(X)))


def test_a_parameter_has_one_number_and_is_not_computed() -> None:
    seen = watched(nets.CalledThrice())
    biases = {seen.op("addmm", place).reads[0] for place in range(3)}
    assert len(biases) == 1
    assert biases.isdisjoint(seen.run.computed)
    assert seen.op("t").makes[0] not in seen.run.computed


def test_what_is_made_from_the_inputs_is_computed() -> None:
    seen = watched(Doing(lambda net, x: (torch.sin(x), torch.cos(net.lin.weight), torch.ones(3) + 1)))
    computed = {name: set(seen.op(name).makes) <= seen.run.computed for name in ("sin", "cos", "ones", "add")}
    assert computed == {"sin": True, "cos": False, "ones": False, "add": False}
    assert set(seen.run.inputs.values()) <= seen.run.computed


def test_every_number_has_a_sample_and_one_maker() -> None:
    seen = watched(nets.Repeated())
    made = [number for op in seen.run.ops for number in op.makes]
    assert len(made) == len(set(made))
    assert {*made, *(number for op in seen.run.ops for number in op.reads)} <= set(range(len(seen.samples)))
    assert all(number < made for op in seen.run.ops for number in op.reads for made in op.makes)


def test_several_results_and_several_inputs() -> None:
    seen = watched(Doing(lambda net, x: net.part(x), lambda net, x: (*torch.split(x, 1), {"last": net.lin(x)})))
    assert len(seen.call("part").outputs) == 3
    assert list(seen.run.outputs) == ["output", "output_1", "output_2"]
    assert set(seen.op("split").makes) == set(seen.call("part").outputs[:2])


def test_views_are_told_from_work() -> None:
    def action(net: Any, x: Tensor) -> Tensor:
        turned = net.lin(x).t()[1:].reshape(-1, 2)
        return torch.relu(turned.clone()).add_(1).expand(3, -1, -1).flatten().contiguous()

    seen = watched(Doing(action))
    views = {op.name.split(".")[1]: op.view for op in seen.run.ops}
    assert {name for name, view in views.items() if view} >= {"t", "slice", "expand"}
    assert not any(views[name] for name in ("addmm", "clone", "relu", "add_"))


def test_what_looks_at_an_input_is_given() -> None:
    def action(net: Any, x: Tensor) -> tuple[Tensor, ...]:
        part = x.t()[1:]
        return part, torch.sin(part), net.lin(x)[0]

    seen = watched(Doing(action))
    part, changed, row = seen.run.outputs.values()
    assert {seen.run.inputs["x"], part} <= seen.run.given
    assert seen.run.given.isdisjoint({changed, row})
    assert seen.op("t").makes[0] in seen.run.given


def test_an_input_that_was_written_into_is_no_longer_what_was_given() -> None:
    seen = watched(Doing(lambda _, x: (x[0], x.mul_(3), x[1])[2]))
    assert seen.op("select").makes[0] in seen.run.given
    assert seen.op("mul_").makes[0] not in seen.run.given
    assert seen.op("select", 1).makes[0] not in seen.run.given


def test_modules_with_hooks_are_named() -> None:
    net = Doing(lambda net, x: net.part(net.lin(x)), lambda _, x: x * 2)
    assert watched(net).run.hooked == frozenset()
    net.lin.register_forward_hook(lambda *_: None)
    net.get_submodule("part").register_forward_pre_hook(lambda *_: None)
    assert watched(net).run.hooked == {"lin", "part"}


# what crosses a call


def test_what_a_call_was_given_and_returned() -> None:
    net = nets.CalledThrice()
    seen = watched(net)
    first, second = seen.call("lin"), seen.call("lin#1")
    assert first.inputs == (seen.run.inputs["x"],)
    assert first.outputs == seen.op("addmm").makes
    assert second.inputs == seen.op("sigmoid").makes
    assert seen.call(".").inputs == (seen.run.inputs["x"],)
    assert seen.call(".").outputs == tuple(seen.run.outputs.values())


def test_inputs_by_keyword_alone() -> None:
    seen = watched(Doing(lambda net, x: net.lin(input=torch.sin(x))), {"x": X})
    assert seen.call("lin").inputs == seen.op("sin").makes
    assert seen.call(".").inputs == (seen.run.inputs["x"],)


def test_inputs_in_lists_and_dictionaries() -> None:
    seen = watched(nets.Nested(), {"xs": [X, X + 1], "extra": {"bias": X + 2}})
    assert list(seen.run.inputs) == ["xs_0", "xs_1", "extra_bias"]
    assert set(seen.call(".").inputs) == set(seen.run.inputs.values())
    assert list(seen.run.outputs) == ["first", "second"]


def test_one_tensor_twice_is_one_input() -> None:
    seen = watched(Doing(lambda net, x: net.part([x, x]), lambda _, xs: xs[0] + xs[1]))
    assert seen.call("part").inputs == (seen.run.inputs["x"],)


def test_the_spool_has_what_crossed() -> None:
    net = nets.CalledThrice()
    seen = watched(net)
    with torch.no_grad():
        hidden = net.lin(X)
        wanted = {"lin": (X, hidden), "lin#1": (torch.sigmoid(hidden), net.lin(torch.sigmoid(hidden)))}
        wanted["."] = X, net(X)
    for call, (given, returned) in wanted.items():
        item = seen.call(call)
        (got_in,), (got_out,) = seen.kept(item.inputs), seen.kept(item.outputs)
        assert np.array_equal(got_in, given.numpy())
        assert np.array_equal(got_out, returned.numpy())


def test_what_stays_inside_is_not_in_the_spool() -> None:
    seen = watched(Doing(lambda net, x: net.lin(torch.sin(torch.cos(x)))))
    assert seen.op("cos").makes[0] not in seen.spooled
    assert seen.op("sin").makes[0] in seen.spooled


def test_what_is_wanted_by_the_number_of_an_earlier_run_is_kept() -> None:
    net = Doing(lambda net, x: net.lin(torch.sin(torch.cos(x)).mul_(2)))
    made = watched(net).op("sin").makes[0]
    seen = watched(net, wanted={made})
    assert seen.op("sin").makes == (made,)
    # What is written into it afterwards has another number.
    np.testing.assert_allclose(seen.spooled[made], torch.sin(torch.cos(X)).numpy(), rtol=1e-6)
    assert seen.op("cos").makes[0] not in seen.spooled


def test_what_a_hook_makes_of_the_models_result_is_kept_too() -> None:
    net = nets.CalledThrice()
    net.register_forward_hook(lambda _module, _args, output: output * 2)
    seen = watched(net)
    (number,) = seen.run.outputs.values()
    with torch.no_grad():
        assert np.allclose(seen.kept([number])[0], net(X).numpy())


def test_results_that_are_not_in_order_in_memory() -> None:
    seen = watched(Doing(lambda net, x: net.part(x).sin(), lambda _, x: x.T[::2]))
    (found,) = seen.kept(seen.call("part").outputs)
    assert np.array_equal(found, X.T[::2].numpy())


def test_a_module_without_tensors() -> None:
    seen = watched(Doing(lambda net, x: x * net.part(3), lambda _, number: number + 1))
    assert (seen.call("part").inputs, seen.call("part").outputs) == ((), ())


# nothing stays behind


class Counting(nn.Module):
    """A buffer that every run changes, a dropout, and random numbers."""

    runs: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("runs", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        x.add_(torch.rand(4))
        return self.norm(self.drop(self.lin(x)))


def _hooks(model: nn.Module) -> list[int]:
    own = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()]
    shared = module_hooks._global_forward_hooks, module_hooks._global_forward_pre_hooks
    modes = _get_current_dispatch_mode_stack()
    return [*own, *map(len, shared), len(modes)]


def test_the_model_its_inputs_and_random_numbers_stay_as_they_were() -> None:
    model, given = Counting(), X.clone()
    model.norm.eval()
    flags = [part.training for part in model.modules()]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hooks, random = _hooks(model), torch.random.get_rng_state()
    watched(model, given)
    assert [part.training for part in model.modules()] == flags
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), random)
    assert torch.equal(given, X)
    assert _hooks(model) == hooks
    assert model.lin.weight.requires_grad
    assert model.lin.weight.grad is None


def test_a_model_that_fails_leaves_no_hooks() -> None:
    def fails(net: Any, x: Tensor) -> Tensor:
        raise RuntimeError("told to fail")

    model = Doing(lambda net, x: net.part(net.lin(x)), fails)
    hooks, random = _hooks(model), torch.random.get_rng_state()
    with pytest.raises(InputError, match="told to fail"):
        watched(model)
    assert _hooks(model) == hooks
    assert torch.equal(torch.random.get_rng_state(), random)
    assert model.training


def test_the_seed_is_that_of_random_numbers() -> None:
    model = Doing(lambda _, x: x + torch.rand(2, 4))
    first, same, other = (watched(model, seed=seed).samples[-1] for seed in (1, 1, 2))
    assert alike(first, same)
    assert not alike(first, other)


def test_tensors_are_not_kept_alive() -> None:
    made: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def action(net: Any, x: Tensor) -> Tensor:
        for _ in range(5):
            x = torch.sin(x).mul_(2)
            made.append(weakref.ref(x))
            x = net.lin(x)
        gc.collect()
        alive.append(sum(found() is not None for found in made))
        return x

    seen = watched(Doing(action))
    assert alive == [0]
    assert len(seen.run.ops) == 5 * 4


def test_other_threads_are_not_recorded() -> None:
    model = nets.CalledThrice()

    def action(net: Any, x: Tensor) -> Tensor:
        def work() -> None:
            torch.cos(net.lin(x))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return torch.sin(net.lin(x))

    seen = watched(Doing(action))
    assert seen.issued() == [("t", "lin"), ("addmm", "lin"), ("sin", ".")]
    assert [str(item.call) for item in seen.run.calls] == ["lin", ""]
    assert len(watched(model).run.calls) == 4


def test_models_watched_in_several_threads() -> None:
    found: dict[int, list[tuple[str, str]]] = {}
    threads = [
        threading.Thread(target=lambda place=place: found.update({place: watched(nets.CalledThrice()).issued()}))
        for place in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(one == found[0] for one in found.values())
    assert len(found[0]) == 8


class Masked(nn.Module):
    """Leaves out its mask if that hides nothing, as long as nobody traces it; computes with a size."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if torch._C._get_tracing_state() is not None or not bool(mask.all()):
            x = x.masked_fill(mask == 0, -1.0)
        return x.reshape(x.shape[0] * x.shape[1])


def test_a_traced_run_leaves_out_no_work_and_shows_arithmetic_with_sizes() -> None:
    arguments = CallArguments({"x": torch.rand(2, 3), "mask": torch.ones(2, 3, dtype=torch.long)})
    plain, traced = (watch_run(Masked(), arguments, None, traced=traced) for traced in (False, True))
    masking, sizing = "aten.masked_fill.Scalar", "aten.mul.Tensor"
    assert {masking, sizing}.isdisjoint(op.name for op in plain.run.ops)
    assert {masking, sizing} <= {op.name for op in traced.run.ops}
    outputs = [watched.samples[watched.run.outputs["output"]] for watched in (plain, traced)]
    assert alike(*outputs)


def test_a_trace_leaves_parameters_as_they_were() -> None:
    net = nn.Linear(3, 3)
    net.bias.requires_grad_(False)
    watch_run(net, CallArguments({"input": torch.rand(2, 3)}), None, traced=True)
    assert [parameter.requires_grad for parameter in net.parameters()] == [True, False]


def test_a_model_that_refuses_its_inputs_is_told_of_in_a_trace_too() -> None:
    with pytest.raises(InputError, match="does not run on these inputs"):
        watch_run(nn.Linear(3, 3), CallArguments({"input": torch.rand(2, 4)}), None, traced=True)


# higher-order operators


class Chosen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.yes = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        chosen: Tensor = torch.cond(x.sum() > -1e9, lambda x: torch.relu(self.yes(x)), lambda x: x.neg(), (x,))
        return chosen


def test_operators_inside_of_a_branch_are_issued_by_the_module_that_is_open() -> None:
    ops = {op.name: op for op in watched(Chosen()).run.ops}
    assert str(ops["aten.linear.default"].call) == "yes"
    assert ops["aten.relu.default"].call == ops["cond"].call
    assert set(ops["aten.relu.default"].makes) <= set(ops["cond"].reads)


def test_what_a_scan_takes_apart_depends_on_the_inputs() -> None:
    """Elements of what it runs over are made outside of all operators that are seen."""
    seen = watched(nets.GatedScan(), torch.linspace(-1, 1, 24).reshape(3, 2, 4))
    sums = [op for op in seen.run.ops if op.name.startswith("aten.add") and op.call.path == "cell"]
    assert len(sums) == 2 * 3
    assert all(seen.run.computed.issuperset(op.reads) for op in sums)
