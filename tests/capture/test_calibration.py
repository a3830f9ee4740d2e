"""Samples for a quantizer, and what is said about those that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from modelexport.capture.onnxruntime.calibration import calibration_feeds
from modelexport.errors import InputError


def model(**inputs: tuple[int, list[int | str]]) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    node = helper.make_node("Identity", [next(iter(inputs))], ["y"])
    graph = helper.make_graph(
        [node], "g", given, [helper.make_tensor_value_info("y", given[0].type.tensor_type.elem_type, None)]
    )
    return helper.make_model(graph)


IMAGES = model(x=(TensorProto.FLOAT, [1, 3, 4, 4]))
TOKENS = model(ids=(TensorProto.INT64, ["batch", "tokens"]), mask=(TensorProto.INT64, ["batch", "tokens"]))


def feeds(proto: onnx.ModelProto, folder: Path, **arrays: Any) -> list[dict[str, np.ndarray]]:
    path = folder / "samples.npz"
    np.savez(path, **arrays)
    return list(calibration_feeds(proto, [path]))


def refusal(proto: onnx.ModelProto, folder: Path, **arrays: Any) -> str:
    with pytest.raises(InputError) as caught:
        feeds(proto, folder, **arrays)
    return str(caught.value)


def test_one_sample_as_the_model_takes_it(tmp_path: Path) -> None:
    (feed,) = feeds(TOKENS, tmp_path, ids=np.ones((2, 5), np.int32), mask=np.zeros((2, 5), np.int64))
    assert {name: (array.shape, array.dtype.name) for name, array in feed.items()} == {
        "ids": ((2, 5), "int64"),
        "mask": ((2, 5), "int64"),
    }


def test_an_axis_for_samples_in_front(tmp_path: Path) -> None:
    numbers = np.arange(3 * 2 * 5).reshape(3, 2, 5)
    found = feeds(TOKENS, tmp_path, ids=numbers, mask=numbers + 1)
    assert [feed["ids"][0, 0] for feed in found] == [0, 10, 20]
    assert [feed["mask"].shape for feed in found] == [(2, 5)] * 3


def test_several_times_a_fixed_first_axis(tmp_path: Path) -> None:
    images = np.arange(5 * 48, dtype=np.float64).reshape(5, 3, 4, 4)
    found = feeds(IMAGES, tmp_path, x=images)
    assert [feed["x"].shape for feed in found] == [(1, 3, 4, 4)] * 5
    assert found[4]["x"][0, 0, 0, 0] == 4 * 48
    assert found[0]["x"].dtype == np.float32


@pytest.mark.parametrize("mark", ["/", "."])
def test_a_key_for_each_sample(tmp_path: Path, mark: str) -> None:
    arrays = {
        f"{name}{mark}{number}": np.full((1, number + 1), number) for name in ("ids", "mask") for number in (10, 2)
    }
    found = feeds(TOKENS, tmp_path, **arrays)
    assert [feed["ids"].shape for feed in found] == [(1, 3), (1, 11)]


def test_samples_of_several_files(tmp_path: Path) -> None:
    paths = [tmp_path / "a.npz", tmp_path / "b.npz"]
    for number, path in enumerate(paths):
        np.savez(path, x=np.full((number + 1, 1, 3, 4, 4), number, np.float32))
    assert [feed["x"][0, 0, 0, 0] for feed in calibration_feeds(IMAGES, paths)] == [0, 1, 1]


def test_what_does_not_fit(tmp_path: Path) -> None:
    good = np.ones((2, 5), np.int64)
    assert "no input 'idds'" in refusal(TOKENS, tmp_path, idds=good, mask=good)
    assert "no samples for the input 'mask'" in refusal(TOKENS, tmp_path, ids=good)
    assert "not as float64" in refusal(TOKENS, tmp_path, ids=good * 1.0, mask=good)
    assert "batchxtokens" in refusal(TOKENS, tmp_path, ids=np.ones(5, np.int64), mask=good)
    assert "3 of 'ids', 2 of 'mask'" in refusal(TOKENS, tmp_path, ids=np.stack([good] * 3), mask=np.stack([good] * 2))
    assert "not one sample" in refusal(TOKENS, tmp_path, ids=np.ones((0, 2, 5), int), mask=np.ones((0, 2, 5), int))
    assert "1x3x4x4" in refusal(IMAGES, tmp_path, x=np.ones((1, 4, 4, 3), np.float32))
    assert "NaN" in refusal(IMAGES, tmp_path, x=np.full((1, 3, 4, 4), np.nan, np.float32))
    assert "both as a whole" in refusal(TOKENS, tmp_path, **{"ids": good, "ids/0": good, "mask": good})
    assert "1x2" in refusal(TOKENS, tmp_path, **{"ids/0": np.ones((1, 2, 3), int), "mask/0": good}).replace(
        "1x2x3", "1x2"
    )


def test_what_is_no_archive(tmp_path: Path) -> None:
    path = tmp_path / "samples.npz"
    with pytest.raises(InputError, match="cannot read"):
        list(calibration_feeds(IMAGES, [path]))
    path.write_text("hello")
    with pytest.raises(InputError, match="not an npz"):
        list(calibration_feeds(IMAGES, [path]))
    np.savez(path, x=np.array([{}]))
    with pytest.raises(InputError, match="not an npz"):
        list(calibration_feeds(IMAGES, [path]))
