"""Folders of onnxruntime-genai's builder: fused operators, packed weights, axes without sizes; all verbs run them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

import modelexport as mx
from modelexport.graph.file.tagged_file import open_tagged
from modelexport.graph.types import input_dims

pytest.importorskip("onnxruntime_genai")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

KEY = "past_key_values.0.key"


class Built(NamedTuple):
    model: Path
    folder: Path
    tagged: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    from measure.generation.builder_files import build_file, save_model

    work = tmp_path_factory.mktemp("builder")
    save_model("llama", work / "model")
    folder = build_file(work / "model", work / "built", "fp32").parent
    mx.attach(folder, work / "model", work / "tagged")
    return Built(work / "model", folder, work / "tagged")


def copy_without_configuration(folder: Path, target: Path) -> Path:
    """The record alone says how large a head is."""
    shutil.copytree(folder, target)
    (target / "genai_config.json").unlink()
    return target


def read_key_dims(path: Path) -> tuple[int | str, ...] | None:
    sized = open_tagged(path).sized_proto
    return next(input_dims(value) for value in sized.graph.input if value.name == KEY)


def test_sizes_that_the_file_leaves_open_are_recorded(built: Built, tmp_path: Path) -> None:
    stated = next(value for value in open_tagged(built.folder / "model.onnx").proto.graph.input if value.name == KEY)
    dims = input_dims(stated)
    assert dims is not None
    assert isinstance(dims[3], str)
    alone = copy_without_configuration(built.tagged, tmp_path / "alone")
    assert read_key_dims(alone / "model.onnx") == (*dims[:3], 16)
    assert open_tagged(alone / "model.onnx").record.origin.sizes[KEY] == {3: 16}


def test_sizes_are_those_of_the_configuration_where_there_is_no_record(built: Built, tmp_path: Path) -> None:
    assert (read_key_dims(built.folder / "model.onnx") or ())[3] == 16
    alone = copy_without_configuration(built.folder, tmp_path / "alone")
    assert isinstance((read_key_dims(alone / "model.onnx") or ())[3], str)


def test_a_folder_is_profiled(built: Built) -> None:
    profile = mx.profile_package(built.tagged, prompt=8, new_tokens=2, runs=1, warmup=0)
    assert [phase.phase for phase in profile.phases] == ["prefill", "decode"]


def test_a_file_is_profiled_and_compared(built: Built, tmp_path: Path) -> None:
    alone = copy_without_configuration(built.tagged, tmp_path / "alone") / "model.onnx"
    assert mx.profile(alone, runs=1, warmup=0).time > 0
    assert mx.verify(alone, against=alone).ok


def test_a_folder_is_verified_against_itself_and_quantized(built: Built, tmp_path: Path) -> None:
    assert mx.verify_package(built.tagged, against=built.tagged).ok
    mx.quantize(built.tagged, tmp_path / "static", static=True)
    assert read_key_dims(tmp_path / "static" / "model.onnx") == read_key_dims(built.tagged / "model.onnx")
