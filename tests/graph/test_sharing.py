"""Weights that several files of a folder have are stored once; models are as they were, whoever reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelexport.graph.file.reading import open_model
from modelexport.graph.file.sharing import WORTHWHILE, rename_data, share_data
from modelexport.graph.file.writing import data_file, save_model

LARGE = (64, 64)


def weight(number: int, shape: tuple[int, ...] = LARGE) -> np.ndarray:
    return np.random.default_rng(number).standard_normal(shape).astype(np.float32)


def write_model(path: Path, weights: dict[str, np.ndarray], *, spread: bool = False) -> Path:
    """x times all of the weights, one after the other."""
    nodes, value = [], "x"
    for name in weights:
        nodes.append(helper.make_node("MatMul", [value, name], [f"{name}_out"]))
        value = f"{name}_out"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 64)) for name in ("x", value)]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)]), path)
    if spread:
        save_model(open_model(path), path, external_data=True)
    return path


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """As onnx itself reads them."""
    onnx.checker.check_model(str(path))
    return {item.name: numpy_helper.to_array(item) for item in onnx.load(path).graph.initializer}


def assert_weights(path: Path, expected: dict[str, np.ndarray]) -> None:
    found = read_weights(path)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert np.array_equal(found[name], array), name


@pytest.mark.parametrize("spread", [(False, False), (True, False), (True, True)])
def test_what_two_files_have_is_stored_once(tmp_path: Path, spread: tuple[bool, bool]) -> None:
    left = {"a": weight(1), "only_left": weight(2), "b": weight(3)}
    right = {"c": weight(3), "only_right": weight(4), "a": weight(1)}
    paths = [
        write_model(tmp_path / f"{name}.onnx", weights, spread=outside)
        for name, weights, outside in zip(("left", "right"), (left, right), spread, strict=True)
    ]
    before = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert share_data(paths, worthwhile=1) == [tmp_path / "shared.onnx.data"]
    assert_weights(paths[0], left)
    assert_weights(paths[1], right)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= before - 2 * left["a"].nbytes + 8192
    assert (tmp_path / "shared.onnx.data").stat().st_size < 3 * left["a"].nbytes
    # A second time, there is nothing left to share.
    assert share_data(paths, worthwhile=1) == []


def test_a_data_file_that_nothing_is_left_in_is_gone(tmp_path: Path) -> None:
    paths = [write_model(tmp_path / f"{name}.onnx", {"w": weight(1)}, spread=True) for name in ("a", "b")]
    share_data(paths, worthwhile=1)
    assert {path.name for path in tmp_path.iterdir()} == {"a.onnx", "b.onnx", "shared.onnx.data"}
    assert_weights(paths[1], {"w": weight(1)})


def test_small_savings_other_folders_and_single_files_stay_as_they_are(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    paths = [write_model(folder / "a.onnx", {"w": weight(1)}) for folder in (tmp_path, inner)]
    contents = [path.read_bytes() for path in paths]
    assert share_data(paths, worthwhile=1) == []  # external data may not leave the folder of a model
    beside = write_model(tmp_path / "b.onnx", {"w": weight(1)})
    assert weight(1).nbytes < WORTHWHILE
    assert share_data([*paths, beside]) == []
    assert [path.read_bytes() for path in paths] == contents


def test_equal_sizes_are_not_equal_content(tmp_path: Path) -> None:
    paths = [write_model(tmp_path / f"{number}.onnx", {"w": weight(number)}) for number in range(2)]
    assert share_data(paths, worthwhile=1) == []


def test_the_common_file_takes_no_other_files_name(tmp_path: Path) -> None:
    names = ("shared", "other")
    paths = [
        write_model(tmp_path / f"{name}.onnx", {"w": weight(1), "v": weight(number)}, spread=True)
        for number, name in enumerate(names, 2)
    ]
    assert share_data(paths, worthwhile=1) == [tmp_path / "shared_1.onnx.data"]
    assert_weights(paths[0], {"w": weight(1), "v": weight(2)})


def test_our_own_reader_reads_shared_weights(tmp_path: Path) -> None:
    paths = [write_model(tmp_path / f"{name}.onnx", {"w": weight(1)}) for name in ("a", "b")]
    share_data(paths, worthwhile=1)
    (copy_folder := tmp_path / "copy").mkdir()
    save_model(open_model(paths[0]), copy_folder / "a.onnx")
    assert_weights(copy_folder / "a.onnx", {"w": weight(1)})
    save_model(open_model(paths[1]), copy_folder / "b.onnx", external_data=False)
    assert_weights(copy_folder / "b.onnx", {"w": weight(1)})


def test_data_is_renamed(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.onnx", {"w": weight(1)}, spread=True)
    rename_data(path, "model.onnx_data")
    assert {item.name for item in tmp_path.iterdir()} == {"model.onnx", "model.onnx_data"}
    assert_weights(path, {"w": weight(1)})
    whole = write_model(tmp_path / "whole.onnx", {"w": weight(1)})
    rename_data(whole, "whole.onnx_data")
    assert not data_file(whole).exists()
    assert not (tmp_path / "whole.onnx_data").exists()
