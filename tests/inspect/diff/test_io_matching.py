"""Inputs and outputs of two models: which are the same, and what is said of those that are not."""

from __future__ import annotations

import pytest
from onnx import TensorProto

from modelexport.inspect.diff.io_matching import ValueType, compare_io, match_rest, shapes_differ
from modelexport.record.results.diff import FieldChange

IDS = ValueType(TensorProto.INT64, ("batch", 128))
HIDDEN = ValueType(TensorProto.FLOAT, ("batch", 128, 8))


@pytest.mark.parametrize(
    ("dims", "differ"), [(("b", 128), False), (("batch", 64), True), (("batch", "s"), True), ((None, None), False)]
)
def test_names_of_axes_are_no_difference(dims: tuple[int | str | None, ...], differ: bool) -> None:
    assert shapes_differ(IDS, ValueType(TensorProto.INT64, dims)) is differ


def test_what_is_left_over_is_matched_in_order_if_there_are_as_many() -> None:
    assert match_rest({"a": IDS, "b": HIDDEN}, {"c": HIDDEN, "d": IDS}, {}) == {"a": "c", "b": "d"}


def test_what_is_left_over_is_matched_by_type_if_there_are_more() -> None:
    assert match_rest({"a": IDS}, {"c": HIDDEN, "d": IDS}, {}) == {"a": "d"}


def test_what_is_gone_new_and_another_type() -> None:
    changes = list(compare_io("input", {"a": IDS, "b": HIDDEN}, {"a": HIDDEN, "c": None}, {"a": "a"}))
    assert changes == [
        FieldChange("input a", "int64[batch, 128]", "float[batch, 128, 8]"),
        FieldChange("input b", "float[batch, 128, 8]", ""),
        FieldChange("input c", "", "present"),
    ]


def test_the_order_counts_for_outputs_alone() -> None:
    left, right, pairs = {"a": IDS, "b": IDS}, {"b": IDS, "a": IDS}, {"a": "a", "b": "b"}
    assert list(compare_io("input", left, right, pairs)) == []
    assert list(compare_io("output", left, right, pairs)) == [FieldChange("order of outputs", "a, b", "b, a")]
