"""Which weights of a model are other ones than those in a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tests.support.architectures import build
from tests.support.building import attribution
from tests.support.exports import Exports

import modelexport as mx
from modelexport.capture.arguments import to_array
from modelexport.capture.hierarchy import state_tensors
from modelexport.graph.file.reading import initializer_arrays, open_model
from modelexport.record.hierarchy import Hierarchy, Module, ModuleCall, TensorInfo
from modelexport.record.provenance import Attribution, Confidence, Evidence, EvidenceKind, Origin, Provenance
from modelexport.record.results.verification import ParameterCheck
from modelexport.verify import parameter_check as stage
from modelexport.verify.parameter_check import compare_parameters, sample_elements

BFLOAT16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
RANDOM = np.random.default_rng(0)
Arrays = Mapping[str, np.ndarray]


def numbers(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def holding(held: Arrays, buffers: Sequence[str] = (), tied: Mapping[str, str] | None = None) -> Hierarchy:
    """The modules that hold these tensors."""
    modules: dict[str, tuple[list[TensorInfo], list[TensorInfo]]] = {"": ([], [])}
    for full, array in held.items():
        path, _, name = full.rpartition(".")
        other = (tied or {}).get(full)
        info = TensorInfo(name, array.shape, "float32", array.nbytes, (other,) if other else ())
        modules.setdefault(path, ([], []))[full in buffers].append(info)
    return Hierarchy.of(
        Module(path, "Own", "net", tuple(parameters), tuple(others)) for path, (parameters, others) in modules.items()
    )


def compared(
    held: Arrays,
    stored: Arrays,
    owners: Mapping[str, str | Attribution] | None = None,
    hierarchy: Hierarchy | None = None,
) -> ParameterCheck:
    """What could be compared; see `checked`."""
    return replace(checked(held, stored, owners, hierarchy), unknown=())


def checked(
    held: Arrays,
    stored: Arrays,
    owners: Mapping[str, str | Attribution] | None = None,
    hierarchy: Hierarchy | None = None,
) -> ParameterCheck:
    """`owners` are the paths (blanks between several) that the weights of the file are credited to."""
    hierarchy = hierarchy or holding(held)
    credited = {
        name: found if isinstance(found, Attribution) else attribution(hierarchy, *found.split(" "))
        for name, found in (owners or {}).items()
    }
    unknown = {name: attribution(hierarchy) for name in stored if name not in credited}
    record = Provenance(hierarchy, {}, {**unknown, **credited}, Origin("test", "test"))
    return compare_parameters(hierarchy, record, held, iter(stored.items()))


def credited(path: str, source: str) -> Attribution:
    evidence = Evidence(EvidenceKind.PARAMETER, source)
    return Attribution((ModuleCall(path),), ModuleCall(path), Confidence.STRONG, (evidence,))


def test_a_bias_of_zeros_that_is_left_out_is_not_missing() -> None:
    weight, zeros = numbers(4, 8), np.zeros(4, np.float32)
    held = {"a.weight": weight, "a.bias": zeros, "b.weight": weight + 1, "b.bias": zeros, "c.weight": numbers(4, 8)}
    stored = {"a.weight": weight, "folded": numbers(4, 9)}
    # Of b nothing is there as it is: its zeros may be part of what was folded.
    assert checked(held, stored).unknown == ("b.weight", "b.bias", "c.weight")
    assert "a.bias" in checked({**held, "a.bias": zeros + 1}, stored).unknown


# by name


def test_equal_weights_do_not_differ() -> None:
    held = {"a.weight": numbers(4, 8), "a.bias": numbers(4), "b.weight": numbers(2, 3, 4, 5)}
    assert compared(held, held) == ParameterCheck(3)


def test_a_weight_that_differs_is_named_with_how_far() -> None:
    weight, bias = numbers(4, 8), numbers(4)
    other = weight.copy()
    other[1, 2] += 0.5
    found = compared({"a.weight": other, "a.bias": bias}, {"a.weight": weight, "a.bias": bias})
    assert found.compared == 2
    (difference,) = found.differing
    assert (difference.name, difference.initializer) == ("a.weight", "a.weight")
    assert difference.max_abs == pytest.approx(0.5, rel=1e-6)


def test_what_is_not_in_the_file_is_not_counted() -> None:
    held = {"a.weight": numbers(4, 8), "b.weight": numbers(4, 8)}
    assert compared(held, {"a.weight": held["a.weight"]}) == ParameterCheck(1)


def test_buffers_count_where_they_are_floats() -> None:
    held = {"a.mean": numbers(4), "a.steps": np.arange(4), "a.flag": np.array([True])}
    hierarchy = holding(held, buffers=tuple(held))
    changed = {"a.mean": held["a.mean"] + 1, "a.steps": np.arange(4) + 1, "a.flag": np.array([False])}
    found = compared(changed, held, hierarchy=hierarchy)
    assert found.compared == 1
    assert [item.name for item in found.differing] == ["a.mean"]


def test_one_tensor_under_two_names_counts_once() -> None:
    weight = numbers(4, 8)
    held = {"a.weight": weight, "b.weight": weight}
    hierarchy = holding(held, tied={"a.weight": "b.weight", "b.weight": "a.weight"})
    assert compared(held, {"b.weight": weight}, hierarchy=hierarchy) == ParameterCheck(1)
    found = compared(held, {"b.weight": weight + 1}, hierarchy=hierarchy)
    assert [(item.name, item.initializer) for item in found.differing] == [("a.weight", "b.weight")]


def test_a_weight_of_another_shape_and_the_same_size_says_nothing() -> None:
    assert compared({"a.weight": numbers(4, 8)}, {"a.weight": np.ones((2, 4, 4), np.float32)}) == ParameterCheck(0)


def test_a_weight_of_another_size_is_no_copy() -> None:
    found = compared({"a.weight": numbers(4, 8)}, {"a.weight": np.ones((3, 3), np.float32)})
    assert [(item.name, item.max_abs) for item in found.differing] == [("a.weight", np.inf)]


def test_a_weight_without_elements_says_nothing() -> None:
    empty = np.zeros((0, 4), np.float32)
    assert compared({"a.weight": empty}, {"a.weight": empty}) == ParameterCheck(0)


def test_not_a_number_is_what_it_is() -> None:
    held = np.array([np.nan, np.inf, 1.0], np.float32)
    assert compared({"a.w": held}, {"a.w": held.astype(np.float64)}) == ParameterCheck(1)
    assert len(compared({"a.w": held}, {"a.w": np.array([0.0, np.inf, 1.0])}).differing) == 1


# narrower types


@pytest.mark.parametrize("narrow", [np.dtype(np.float16), BFLOAT16, np.dtype(np.float32)], ids=str)
@pytest.mark.parametrize("side", ["file", "model"])
def test_a_narrower_copy_is_equal(narrow: np.dtype[Any], side: str) -> None:
    wide = RANDOM.standard_normal((40, 50)) * 10.0 ** RANDOM.integers(-6, 3, (40, 50))
    wide = wide if narrow == np.float32 else wide.astype(np.float32)
    small = wide.astype(narrow)
    held, stored = (small, wide) if side == "model" else (wide, small)
    assert compared({"a.w": held}, {"a.w": stored}) == ParameterCheck(1)
    step = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}[narrow.name]
    nudged = held.astype(np.float64) * (1 + 4 * step)
    assert len(compared({"a.w": nudged.astype(held.dtype)}, {"a.w": stored}).differing) == 1


def test_what_a_narrow_type_cannot_hold_is_cut() -> None:
    """Converters write the largest or the smallest number, or infinity, or zero."""
    held = np.array([[1e9, -1e9, 1e-9, 1.0], [1e30, 2.0, 3.0, 4.0]], np.float32)
    stored = np.array([[65504, -np.inf, 0.0, 1.0], [np.inf, 2.0, 3.0, 4.0]], np.float16)
    assert compared({"a.w": held}, {"a.w": stored}) == ParameterCheck(1)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, helper.tensor_dtype_to_np_dtype(TensorProto.FLOAT8E4M3FN)])
def test_quantized_weights_say_nothing(kind: Any) -> None:
    held = {"a.weight": numbers(4, 8)}
    assert compared(held, {"a.weight": held["a.weight"].astype(kind)}) == ParameterCheck(0)
    assert compared(held, {"q": held["a.weight"].astype(kind)}, {"q": "a"}) == ParameterCheck(0)


# by module


@pytest.mark.parametrize("shape", [(4, 8), (6, 6), (300, 700), (700, 300)])
def test_a_transposed_weight_is_found_in_its_module(shape: tuple[int, int]) -> None:
    weight = numbers(*shape)
    held = {"a.weight": weight, "b.weight": numbers(*shape)}
    stored = {"turned": weight.T.copy(), "other": held["b.weight"].T.copy()}
    owners = {"turned": "a", "other": "b"}
    assert compared(held, stored, owners) == ParameterCheck(2)
    found = compared({**held, "a.weight": weight + 1}, stored, owners)
    assert found.compared == 2
    assert [(item.name, item.initializer) for item in found.differing] == [("a.weight", "turned")]


def test_a_renamed_weight_of_another_module_says_nothing() -> None:
    weight = numbers(4, 8)
    assert compared({"a.weight": weight + 1}, {"w": weight}, {"w": "elsewhere"}) == ParameterCheck(0)


def test_a_weight_with_its_own_name_in_the_file_has_no_other_counterpart() -> None:
    weight = numbers(4, 8)
    stored = {"a.weight": weight + 1, "copy": weight}
    found = compared({"a.weight": weight}, stored, {"copy": "a"})
    assert [(item.name, item.initializer) for item in found.differing] == [("a.weight", "a.weight")]


def test_the_nearest_that_is_nobody_elses_counts() -> None:
    """All three are of one shape and in one module; one of them was changed into something like another."""
    held = {f"a.{name}": numbers(8, 8) for name in "qkv"}
    stored = {f"w{name}": held[f"a.{name}"] for name in "qkv"}
    owners = dict.fromkeys(stored, "a")
    assert compared(held, stored, owners) == ParameterCheck(3)
    found = compared({**held, "a.q": held["a.k"] + 0.01}, stored, owners)
    assert [(item.name, item.initializer) for item in found.differing] == [("a.q", "wq")]


def test_a_weight_is_held_against_one_parameter_only() -> None:
    """The second one is not in the file at all."""
    held = {"a.q": numbers(8, 8), "a.k": numbers(8, 8)}
    stored = {"wq": held["a.q"]}
    assert compared(held, stored, {"wq": "a"}) == ParameterCheck(1)
    found = compared({**held, "a.q": held["a.q"] + 0.1}, stored, {"wq": "a"})
    assert found.compared == 1
    assert [item.name for item in found.differing] == ["a.q"]


def test_several_parameters_may_have_one_weight_in_the_file() -> None:
    """Exporters keep one of several equal weights."""
    ones = np.ones((4,), np.float32)
    held = {"a.weight": ones, "b.weight": ones.copy()}
    assert compared(held, {"a.weight": ones}, {"a.weight": "a b"}) == ParameterCheck(2)


# what is no copy


@pytest.mark.parametrize("shape", [(8,), (1, 8), (8, 1), (1, 1, 8)])
def test_a_vector_without_its_name_may_be_anything(shape: tuple[int, ...]) -> None:
    held = {"a.bias": numbers(*shape)}
    assert compared(held, {"v": held["a.bias"]}, {"v": "a"}) == ParameterCheck(1)
    assert compared(held, {"v": held["a.bias"] + 1}, {"v": "a"}) == ParameterCheck(0)


def test_a_weight_of_several_modules_is_no_copy() -> None:
    held = {"conv.weight": numbers(4, 8, 3, 3), "norm.weight": numbers(4)}
    stored = {"fused": numbers(4, 8, 3, 3)}
    assert compared(held, stored, {"fused": "conv norm"}) == ParameterCheck(0)


@pytest.mark.parametrize("source", ["absorbed", "folded"])
def test_a_weight_that_the_record_calls_mixed_is_no_copy(source: str) -> None:
    held = {"a.weight": numbers(4, 8)}
    for name in ("a.weight", "w"):
        stored = {name: numbers(4, 8)}
        assert compared(held, stored, {name: credited("a", source)}) == ParameterCheck(0)
        assert len(compared(held, stored, {name: credited("a", "name")}).differing) == 1
        # What is equal is equal, whatever was said about it.
        assert compared(held, {name: held["a.weight"]}, {name: credited("a", source)}) == ParameterCheck(1)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_rescaled_weight_is_no_copy(axis: int) -> None:
    """A norm that was folded in has a factor for each row; a direction, as in weight norm, too."""
    weight = numbers(16, 24)
    rescaled = weight * np.expand_dims(numbers(weight.shape[axis]), 1 - axis)
    assert compared({"a.weight": weight}, {"w": rescaled}, {"w": "a"}) == ParameterCheck(0)
    named = compared({"a.weight": weight}, {"a.weight": rescaled}, {"a.weight": credited("a", "absorbed")})
    assert named == ParameterCheck(0)
    # Under its own name, and nobody says that anything was folded in.
    assert len(compared({"a.weight": weight}, {"a.weight": rescaled}, {"a.weight": "a"}).differing) == 1


def test_one_factor_for_all_is_a_difference_if_the_name_is_the_same() -> None:
    weight = numbers(16, 24)
    assert len(compared({"a.weight": weight}, {"a.weight": weight * 2}, {"a.weight": "a"}).differing) == 1
    assert compared({"a.weight": weight}, {"w": weight * -1}, {"w": "a"}) == ParameterCheck(0)


def test_what_was_made_from_one_parameter_is_not_held_against_another() -> None:
    """Three vectors for each head, all of one shape and in one module; the file has them times a factor."""
    held = {f"a.{name}": numbers(4, 8) for name in "xyz"}
    stored = {f"scaled_{name}": held[f"a.{name}"] * np.float32(0.3) for name in "xyz"}
    assert compared(held, stored, dict.fromkeys(stored, "a")) == ParameterCheck(0)


# samples


@given(st.integers(1, 2000), st.integers(1, 2000))
def test_a_sample_is_bounded_and_turns_with_its_matrix(rows: int, columns: int) -> None:
    table = np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)
    found = sample_elements(table)
    assert 0 < found.size <= 65536
    assert len(np.unique(found)) == found.size
    np.testing.assert_array_equal(sample_elements(np.ascontiguousarray(table.T)).T, found)
    if table.size <= 65536:
        np.testing.assert_array_equal(found, table)


@pytest.mark.parametrize("shape", [(100_000,), (1, 100_000), (100_000, 1), (300, 3, 50, 50), (70_000, 2)])
def test_a_sample_reaches_all_parts(shape: tuple[int, ...]) -> None:
    found = sample_elements(np.arange(np.prod(shape)).reshape(shape))
    assert found.size <= 65536
    assert found.size > 50_000
    assert found.max() > 0.95 * np.prod(shape)


def test_weights_are_looked_at_one_at_a_time() -> None:
    held = {f"a{place}.weight": numbers(8, 8) for place in range(4)}
    order: list[str] = []

    def paired(item: stage._ModelTensor, name: str, *_: object) -> Sequence[stage._Pair]:
        order.append(f"compare {name}")
        return []

    def stream() -> Iterator[tuple[str, np.ndarray]]:
        for name, array in held.items():
            order.append(f"read {name}")
            yield name, array

    hierarchy = holding(held)
    record = Provenance(hierarchy, {}, {name: attribution(hierarchy) for name in held}, Origin("t", "t"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "_pair_with", paired)
        compare_parameters(hierarchy, record, held, stream())
    assert order == [f"{step} {name}" for name in held for step in ("read", "compare")]


# what a tool made


def by_tool(path: str, held: Arrays, tool: str = "ort:all") -> Attribution:
    found = attribution(holding(held), path)
    return replace(found, evidence=(*found.evidence, Evidence(EvidenceKind.LINEAGE, tool, "renamed")))


def test_numbers_in_another_order_and_with_zeros_around_them_are_the_same() -> None:
    held = {"a.weight": numbers(8, 4, 3, 3), "b.weight": numbers(6, 3, 3, 3)}
    blocked = held["a.weight"].transpose(2, 3, 1, 0).reshape(8, 4, 3, 3)
    padded = np.zeros((8, 4, 3, 3), np.float32)
    padded[:6, :3] = held["b.weight"]
    stored = {"reorder_1": blocked, "reorder_2": padded}
    owners = {"reorder_1": by_tool("a", held), "reorder_2": by_tool("b", held)}
    assert checked(held, stored, owners) == ParameterCheck(2)
    # An exporter does not do that: there, other numbers at other places are another weight.
    assert [one.name for one in compared(held, {"w": blocked}, {"w": "a"}).differing] == ["a.weight"]


def test_numbers_that_a_tool_rounded_and_widened_again_are_the_same() -> None:
    held = {"a.weight": numbers(16, 8), "b.weight": numbers(16, 8)}
    half = held["a.weight"].astype(np.float16).astype(np.float32)
    brain = held["b.weight"].astype(BFLOAT16).astype(np.float32)
    owners = {"cast_1": by_tool("a", held), "cast_2": by_tool("b", held)}
    assert checked(held, {"cast_1": half, "cast_2": brain}, owners) == ParameterCheck(2)


@pytest.mark.parametrize("tool", ["ort:all", "torch optimizer"])
def test_what_a_tool_made_of_it_and_holds_other_numbers_cannot_be_compared(tool: str) -> None:
    held = {"a.weight": numbers(16, 8)}
    found = checked(held, {"w": held["a.weight"] + numbers(16, 8)}, {"w": by_tool("a", held, tool)})
    if tool == "ort:all":
        assert found == ParameterCheck(0, (), ("a.weight",))
    else:
        assert [one.name for one in found.differing] == ["a.weight"], "torch's optimizer is part of the export"


def test_constants_that_are_all_the_same_are_no_sign() -> None:
    held = {"a.weight": np.full((4, 4), 0.5, np.float32)}
    stored = {"w": np.full((2, 8), 0.5, np.float32)}
    assert checked(held, stored, {"w": by_tool("a", held)}) == ParameterCheck(0, (), ("a.weight",))


# real files


def test_what_has_no_copy_in_the_file_is_named() -> None:
    held = {"a.weight": numbers(4, 8), "a.bias": numbers(8), "b.weight": numbers(4, 8)}
    stored = {"a.weight": held["a.weight"], "w": held["b.weight"] * 1.05}
    found = checked(held, stored, {"w": "b"})
    assert found == ParameterCheck(1, (), ("a.bias", "b.weight"))


def check(model: torch.nn.Module, path: Path) -> ParameterCheck:
    record = mx.load(path)
    held = {name: to_array(tensor) for name, tensor in state_tensors(model).items()}
    return replace(compare_parameters(record.hierarchy, record, held, initializer_arrays(open_model(path))), unknown=())


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_every_changed_weight_of_a_real_export_is_named(exports: Exports, name: str, exporter: str) -> None:
    path, model = exports(name, exporter).path, build(name)
    tensors = {name: tensor for name, tensor in model.named_parameters() if tensor.is_floating_point()}
    assert check(model, path) == ParameterCheck(len(tensors))
    for changed, tensor in tensors.items():
        before = tensor.detach().clone()
        with torch.no_grad():
            tensor.add_(torch.randn_like(tensor) * 0.01)
        assert [item.name for item in check(model, path).differing] == [changed]
        with torch.no_grad():
            tensor.copy_(before)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_folded_norms_are_no_difference(exports: Exports, exporter: str) -> None:
    found = check(build("resnet"), exports("resnet", exporter).path)
    assert found == ParameterCheck(0)
