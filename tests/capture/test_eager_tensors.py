"""Watched tensors: memory that is written into, and types that numpy does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.watched_runs import Doing, X, watched
from torch import Tensor

from modelexport.graph.sample import LOOSEST

# writing into memory


def test_a_tensor_that_is_written_into_is_another_value() -> None:
    seen = watched(Doing(lambda _, x: (hidden := torch.sin(x), hidden.add_(1), torch.cos(hidden))[2]))
    before, after = seen.op("sin").makes[0], seen.op("add_").makes[0]
    assert before != after
    assert seen.op("add_").reads == (before,)
    assert seen.op("cos").reads == (after,)
    assert seen.holds(before, torch.sin(X))
    assert seen.holds(after, torch.sin(X) + 1)
    assert after in seen.run.computed


def test_a_view_of_written_memory_is_issued_by_the_writer() -> None:
    def action(net: Any, x: Tensor) -> Tensor:
        hidden = torch.sin(x)
        row = hidden[1]
        net.part(hidden)
        return torch.cos(row)

    seen = watched(Doing(action, lambda _, hidden: hidden.mul_(3)))
    (read,) = seen.op("cos").reads
    assert seen.holds(read, torch.sin(X)[1] * 3)
    (writer,) = [op for op in seen.run.ops if read in op.makes]
    assert (str(writer.call), writer.name) == ("part", seen.op("mul_").name)
    assert seen.op("select").makes[0] in writer.reads
    assert read in seen.run.computed


def test_memory_written_through_a_view() -> None:
    def action(net: Any, x: Tensor) -> Tensor:
        hidden = torch.sin(x)
        hidden[0].fill_(7)
        return torch.cos(hidden)

    seen = watched(Doing(action))
    (read,) = seen.op("cos").reads
    assert read not in seen.op("sin").makes
    wanted = torch.sin(X)
    wanted[0] = 7
    assert seen.holds(read, wanted)


def test_what_is_written_from_the_inputs_into_a_constant_is_computed() -> None:
    def action(net: Any, x: Tensor) -> Tensor:
        room = torch.zeros(2, 4)
        row = room[0]
        room.copy_(x)
        return torch.cos(row)

    seen = watched(Doing(action))
    assert set(seen.op("cos").reads) <= seen.run.computed
    assert set(seen.op("cos").makes) <= seen.run.computed


def test_results_handed_in_by_the_caller() -> None:
    def action(net: Any, x: Tensor) -> Tensor:
        room = torch.zeros(2, 4)
        torch.sin(x, out=room)
        return room

    seen = watched(Doing(action))
    assert set(seen.run.outputs.values()) == set(seen.op("sin").makes)
    assert seen.holds(seen.op("sin").makes[0], torch.sin(X))


def test_memory_that_is_used_again_is_not_mixed_up() -> None:
    def action(net: Any, x: Tensor) -> Tensor:
        total = x
        for place in range(30):
            total = torch.sin(total * place).add_(1)
        return total

    seen = watched(Doing(action))
    assert len(seen.run.ops) == 90
    assert all(set(seen.op("mul", place).reads) == set(seen.op("add_", place - 1).makes) for place in range(1, 30))


def test_a_module_that_writes_into_what_it_is_given() -> None:
    seen = watched(Doing(lambda net, x: net.part(torch.sin(x)), lambda _, x: x.mul_(3)))
    part = seen.call("part")
    assert part.inputs == seen.op("sin").makes
    assert part.outputs == seen.op("mul_").makes
    assert np.allclose(seen.kept(part.inputs)[0], torch.sin(X).numpy())
    assert np.allclose(seen.kept(part.outputs)[0], torch.sin(X).numpy() * 3)


def test_a_keyword_that_is_written_into_is_known_and_not_compared() -> None:
    """Torch shows keyword arguments when a call is over."""
    seen = watched(Doing(lambda net, x: net.part(x=torch.sin(x)), lambda _, x: x.mul_(3)))
    part = seen.call("part")
    assert part.inputs == seen.op("sin").makes
    assert part.outputs == seen.op("mul_").makes
    assert not any(number in seen.spooled for number in part.inputs)


# kinds of tensors


def test_bfloat16_is_widened_and_coarse() -> None:
    seen = watched(Doing(lambda net, x: net.part(x.bfloat16()), lambda _, x: x * 3))
    (kept,) = seen.kept(seen.call("part").outputs)
    assert kept.dtype == np.float32
    assert np.array_equal(kept, (X.bfloat16() * 3).float().numpy())
    assert seen.samples[seen.call("part").outputs[0]].grain == LOOSEST


def test_what_is_made_from_few_bits_stays_coarse() -> None:
    seen = watched(Doing(lambda _, x: (torch.sin(x), torch.cos(x.half().float()), torch.tan(x) > 0)[1]))
    coarse = {name: seen.samples[seen.op(name).makes[0]].is_coarse for name in ("sin", "cos", "tan", "gt")}
    assert coarse == {"sin": False, "cos": True, "tan": False, "gt": False}


def test_a_view_of_written_memory_stays_coarse() -> None:
    def action(_: Any, x: Tensor) -> Tensor:
        hidden = x.bfloat16().float()
        row = hidden[0]
        hidden.mul_(3)
        return row.neg()

    seen = watched(Doing(action))
    assert seen.samples[seen.op("neg").reads[0]].is_coarse


def test_complex_numbers_are_pairs() -> None:
    def action(net: Any, x: Tensor) -> Tensor:
        return torch.view_as_real(net.part(torch.complex(x, x + 1)).conj())

    seen = watched(Doing(action, lambda _, z: (z * 2).conj()))
    (number,) = seen.call("part").outputs
    wanted = torch.view_as_real(torch.complex(X * 2, -(X + 1) * 2).resolve_conj()).numpy()
    assert seen.samples[number].kind == "float"
    assert seen.samples[number].shape == (2, 4, 2)
    assert np.allclose(seen.kept([number])[0], wanted)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool, torch.float64, torch.float16])
def test_other_types_are_kept_as_they_are(dtype: torch.dtype) -> None:
    seen = watched(Doing(lambda net, x: net.part(x), lambda _, x: x.to(dtype)))
    (kept,) = seen.kept(seen.call("part").outputs)
    assert np.array_equal(kept, X.to(dtype).numpy())
    assert kept.dtype == X.to(dtype).numpy().dtype


def _sparse(x: Tensor) -> Tensor:
    return x.to_sparse()


def _tiny(x: Tensor) -> Tensor:
    return x.to(torch.float8_e4m3fn)


def _quantized(x: Tensor) -> Tensor:
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)


def _meta(x: Tensor) -> Tensor:
    return torch.empty(2, 4, device="meta") * 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [_sparse, _tiny, _quantized, _meta])
def test_what_cannot_be_seen_is_not_in_the_way(make: Callable[[Tensor], Tensor]) -> None:
    seen = watched(Doing(lambda net, x: (net.part(x), torch.sin(x))[1], lambda _, x: make(x)))
    (number,) = seen.call("part").outputs
    assert (seen.samples[number].kind, seen.samples[number].shape) == ("other", (2, 4))
    assert number not in seen.spooled
    assert seen.holds(seen.run.outputs["output"], torch.sin(X))


@pytest.mark.filterwarnings("ignore")
def test_nested_tensors_have_no_shape_and_are_not_in_the_way() -> None:
    def nest(net: Any, x: Tensor) -> Tensor:
        net.part(torch.nested.as_nested_tensor([x, x[:1]]))
        return torch.sin(x)

    seen = watched(Doing(nest, lambda _, nested: nested * 2))
    (number,) = seen.call("part").outputs
    assert (seen.samples[number].kind, seen.samples[number].shape) == ("other", ())
    assert seen.holds(seen.run.outputs["output"], torch.sin(X))


@pytest.mark.parametrize("tensor", [torch.tensor(2.5), torch.empty(0, 4)], ids=["scalar", "empty"])
def test_small_tensors(tensor: Tensor) -> None:
    seen = watched(Doing(lambda net, x: net.part(x), lambda _, x: x * 2), tensor)
    (kept,) = seen.kept(seen.call("part").outputs)
    assert kept.shape == tuple(tensor.shape)
    assert np.array_equal(kept, tensor.numpy() * 2)
