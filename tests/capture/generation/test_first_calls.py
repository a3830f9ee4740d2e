"""Files without a past: the first call of a model that generates, written as a file of its own."""

from __future__ import annotations

import onnx
import pytest
import torch

from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.generation.captures import BATCH, PAST, SEQUENCE
from modelexport.capture.generation.file_entry import PREFILL, find_first_call
from modelexport.capture.generation.input_pairing import takes_more
from modelexport.record.package import CachePair


def grow(input_ids: torch.Tensor, past: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"present": torch.cat([past, input_ids[:, :, None].float()], dim=1)}


def make_entry(empty: bool = True) -> EntryPoint:
    others = ({"input_ids": torch.ones(2, 6, dtype=torch.long), "past": torch.ones(2, 0, 1)},) if empty else ()
    inputs = {"input_ids": torch.ones(2, 1, dtype=torch.long), "past": torch.ones(2, 4, 1)}
    axes = {"input_ids": {0: BATCH, 1: SEQUENCE}, "past": {0: BATCH, 1: PAST}}
    return EntryPoint("decoder", grow, inputs, axes, (CachePair("past", "present"),), others)


def test_the_first_call_has_an_empty_past_of_any_batch() -> None:
    first = find_first_call(make_entry())
    assert first is not None
    assert (first.name, [*first.inputs], first.cache) == (PREFILL, ["input_ids"], ())
    assert first.forward(input_ids=torch.zeros(3, 5, dtype=torch.long))["present"].shape == (3, 5, 1)


def test_without_a_sample_of_it_there_is_no_first_call() -> None:
    assert find_first_call(make_entry(empty=False)) is None


@pytest.mark.parametrize(
    ("inputs", "more"),
    [
        (["input_ids", "attention_mask"], False),
        (["tokens", "mask"], False),  # other names of the same
        (["input_ids", "attention_mask", "position_ids"], True),
    ],
)
def test_an_input_that_the_call_has_no_tensor_for_is_more(inputs: list[str], more: bool) -> None:
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["b", "s"]) for name in inputs]
    graph = onnx.helper.make_graph([], "g", values, [])
    plain = {name: torch.ones(2, 4, dtype=torch.long) for name in ("input_ids", "attention_mask")}
    assert takes_more(onnx.helper.make_model(graph), plain) is more
