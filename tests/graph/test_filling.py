"""Recipes over a checkpoint: what is made in pieces is what numpy makes as a whole; strangers' recipes are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from modelexport.errors import FileMalformed, FileUnreadable, ModelMismatch
from modelexport.graph.file import filling
from modelexport.graph.file.checkpoint import Checkpoint, open_checkpoint
from modelexport.graph.file.declared import WEIGHT_KEY, declare, declared_recipe
from modelexport.graph.file.filling import FilledWeight, find_weight, recipe_shape
from modelexport.record.weight_recipe import FixedArray, Operation, Recipe, StoredTensor, read_recipe, write_recipe

LEFT = np.arange(24, dtype=np.float32).reshape(4, 6) - 7
RIGHT = np.arange(18, dtype=np.float32).reshape(3, 6) * 0.5 + 1
HALF = (np.arange(24).reshape(4, 6) / 3).astype(ml_dtypes.bfloat16)
CUBE = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
NAMES = {np.dtype(np.float32): "F32", np.dtype(ml_dtypes.bfloat16): "BF16"}


def write_checkpoint(folder: Path, arrays: dict[str, np.ndarray]) -> Checkpoint:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    content = b""
    for name, array in arrays.items():
        offsets = [len(content), len(content) + array.nbytes]
        header[name] = {"dtype": NAMES[array.dtype], "shape": array.shape, "data_offsets": offsets}
        content += array.tobytes()
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + content)
    return open_checkpoint(folder)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Any:
    made = write_checkpoint(tmp_path, {"left": LEFT, "right": RIGHT, "half": HALF, "cube": CUBE})
    yield made
    made.close()


def operation(name: str, *operands: Recipe, numbers: tuple[int, ...] = (), dtype: str = "") -> Operation:
    return Operation(name, operands, numbers, dtype)


L, R, H, C = (
    StoredTensor("left", "F32", (4, 6)),
    StoredTensor("right", "F32", (3, 6)),
    StoredTensor("half", "BF16", (4, 6)),
    StoredTensor("cube", "F32", (3, 4, 5)),
)
ROW = FixedArray("F32", (6,), np.arange(6, dtype=np.float32).tobytes())
CASES: dict[str, tuple[Recipe, np.ndarray]] = {
    "as it is": (L, LEFT),
    "transposed": (operation("transpose", L, numbers=(1, 0)), LEFT.T),
    "cast": (operation("cast", H, dtype="F32"), HALF.astype(np.float32)),
    "cast and transposed": (
        operation("transpose", operation("cast", H, dtype="F32"), numbers=(1, 0)),
        HALF.astype(np.float32).T,
    ),
    "cut": (operation("slice", L, numbers=(1, 4, 2, 2, 6, 3)), LEFT[1:4:2, 2:6:3]),
    "cut and transposed": (
        operation("transpose", operation("slice", L, numbers=(1, 4, 1, 1, 6, 2)), numbers=(1, 0)),
        LEFT[1:4, 1:6:2].T,
    ),
    "joined": (operation("concatenate", L, R, numbers=(0,)), np.concatenate([LEFT, RIGHT])),
    "joined along the other axis": (
        operation("concatenate", L, operation("slice", L, numbers=(0, 4, 1, 0, 2, 1)), numbers=(1,)),
        np.concatenate([LEFT, LEFT[:, :2]], 1),
    ),
    "reshaped": (operation("reshape", L, numbers=(3, 8)), LEFT.reshape(3, 8)),
    "scaled by a row": (operation("multiply", L, ROW), LEFT * np.arange(6, dtype=np.float32)),
    "a norm": (operation("divide", R, operation("sqrt", operation("add", R, R))), RIGHT / np.sqrt(RIGHT + RIGHT)),
    "axes in another order": (operation("transpose", C, numbers=(2, 0, 1)), CUBE.transpose(2, 0, 1)),
    "an inner part": (operation("slice", C, numbers=(1, 3, 1, 1, 2, 1, 0, 5, 4)), CUBE[1:3, 1:2, ::4]),
}


@pytest.mark.parametrize("piece", [1, 40, 1 << 20])
@pytest.mark.parametrize("case", CASES)
def test_pieces_make_what_numpy_makes(
    checkpoint: Checkpoint, case: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, expected = CASES[case]
    monkeypatch.setattr(filling, "_PIECE", piece)
    weight = find_weight(read_recipe(write_recipe(recipe)), checkpoint, "w")
    pieces = list(weight.pieces())
    assert b"".join(pieces) == np.ascontiguousarray(expected).tobytes()
    assert (weight.shape, weight.nbytes) == (expected.shape, expected.nbytes)
    assert (len(pieces) == 1) == (piece >= expected.nbytes or case == "reshaped")


@pytest.mark.parametrize("case", CASES)
def test_single_elements_are_those_of_the_whole(checkpoint: Checkpoint, case: str) -> None:
    recipe, expected = CASES[case]
    places = tuple(np.array([0, size - 1, size // 2]) for size in expected.shape)
    np.testing.assert_array_equal(FilledWeight(recipe, checkpoint)[places], expected[places])


def test_a_turned_matrix_is_read_in_columns(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tensor that does not fit into memory, no piece takes more than its part."""
    read: list[int] = []
    plain = Checkpoint.read

    def watch(self: Checkpoint, tensor: StoredTensor, region: Any) -> np.ndarray:
        part = plain(self, tensor, region)
        read.append(part.nbytes)
        return part

    monkeypatch.setattr(Checkpoint, "read", watch)
    monkeypatch.setattr(filling, "_PIECE", 2 * 4 * 4)
    list(FilledWeight(CASES["transposed"][0], checkpoint).pieces())
    assert read == [2 * 4 * 4] * 3


STRANGE = [
    "[]",
    "{",
    '{"op": "system", "of": [{"tensor": "w", "dtype": "F32", "shape": [1]}]}',
    '{"op": "cast", "of": []}',
    '{"op": "add", "of": [{"tensor": "w", "dtype": "F32", "shape": [1]}]}',
    '{"tensor": "w", "dtype": "F32", "shape": [-1]}',
    '{"tensor": "w", "dtype": "F32", "shape": [1e3]}',
    '{"tensor": "w", "dtype": "F32", "shape": [true]}',
    '{"tensor": "w", "dtype": "F32", "shape": [4611686018427387904, 4]}',
    '{"tensor": "w", "dtype": "F32", "shape": [1], "offset": -1}',
    '{"constant": "!", "dtype": "F32", "shape": [1]}',
    '{"op": "transpose", "numbers": ["0"], "of": [{"tensor": "w", "dtype": "F32", "shape": [1]}]}',
    '{"op":"cast","of":[' * 40 + '{"tensor": "w", "dtype": "F32", "shape": [1]}' + "]}" * 40,
]


@pytest.mark.parametrize("text", STRANGE)
def test_what_is_no_recipe_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_recipe(text)


UNFIT = [
    operation("transpose", L, numbers=(0, 0)),
    operation("transpose", L, numbers=(1,)),
    operation("reshape", L, numbers=(-1, 24)),
    operation("reshape", L, numbers=(5, 5)),
    operation("slice", L, numbers=(0, 5, 1, 0, 6, 1)),
    operation("slice", L, numbers=(0, 4, 0, 0, 6, 1)),
    operation("slice", L, numbers=(0, 4, 1)),
    operation("concatenate", L, C, numbers=(0,)),
    operation("concatenate", L, numbers=(2,)),
    # A row times a column would be larger than both.
    operation("multiply", operation("reshape", L, numbers=(24, 1)), operation("reshape", L, numbers=(1, 24))),
    operation("add", L, R),
]


@pytest.mark.parametrize("recipe", UNFIT, ids=lambda recipe: f"{recipe.name} {recipe.numbers}")
def test_steps_that_do_not_fit_each_other_are_a_value_error(recipe: Recipe) -> None:
    with pytest.raises(ValueError, match=r"."):
        recipe_shape(recipe)


def test_a_recipe_makes_the_initializer_that_it_belongs_to() -> None:
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[6, 4])
    declare(tensor, CASES["transposed"][0])
    assert declared_recipe(tensor) == CASES["transposed"][0]
    for wrong in (L, operation("transpose", H, numbers=(1, 0)), replace(L, shape=(6, 4), dtype="X9")):
        declare(tensor, wrong)
        with pytest.raises(FileMalformed, match="cannot be used"):
            declared_recipe(tensor)
    tensor.metadata_props[0].value = "none"
    assert tensor.metadata_props[0].key == WEIGHT_KEY
    with pytest.raises(FileMalformed, match="cannot be used"):
        declared_recipe(tensor)


def test_a_tensor_that_is_not_there_or_another_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(ModelMismatch, match="has no tensor 'other'"):
        find_weight(replace(L, name="other"), checkpoint, "w")
    with pytest.raises(ModelMismatch, match=r"is F32 \[4, 6\]"):
        find_weight(replace(L, shape=(6, 4)), checkpoint, "w")
    with pytest.raises(ModelMismatch, match="BF16"):
        find_weight(replace(L, dtype="BF16", file="model.safetensors"), checkpoint, "w")


def test_a_type_of_a_configuration_is_cast_to(checkpoint: Checkpoint) -> None:
    weight = find_weight(replace(H, dtype="F32"), checkpoint, "w")
    assert b"".join(weight.pieces()) == HALF.astype(np.float32).tobytes()


def test_a_file_that_shrinks_is_told(checkpoint: Checkpoint) -> None:
    path = checkpoint.folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(FileUnreadable, match="is truncated"):
        FilledWeight(C, checkpoint).raw()


def test_digests_tell_contents_apart(tmp_path: Path) -> None:
    large = np.random.default_rng(0).random((300, 300), np.float32)
    digests = set()
    for number, array in enumerate((large, large + 1, large.reshape(-1), np.zeros(0, np.float32))):
        folder = tmp_path / str(number)
        folder.mkdir()
        made = write_checkpoint(folder, {"w": array})
        digests.add(made.digest(made.tensors["w"]))
        assert made.digest(made.tensors["w"]) in digests
        made.close()
    assert len(digests) == 4


def test_a_pipe_is_no_checkpoint(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"w": "model.safetensors"}}')
    with pytest.raises(FileUnreadable):
        open_checkpoint(tmp_path)
