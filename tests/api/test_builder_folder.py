"""Folders of onnxruntime-genai's builder: fused operators, packed weights, axes without sizes; all verbs run them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

import modelexport as mx
from modelexport.capture.onnxruntime.chain import FileChain
from modelexport.errors import RuntimeFailed, UserError
from modelexport.graph.file.tagged_file import open_tagged
from modelexport.graph.types import input_dims
from modelexport.inspect.package.cache_bytes import find_cache
from modelexport.record.results.package_verification import PackageVerification
from modelexport.record.results.verification import Verdict

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


@pytest.fixture(scope="module")
def verified(built: Built) -> PackageVerification:
    return mx.verify_package(built.tagged, built.model, new_tokens=2)


def test_a_folder_is_verified_on_sizes_that_its_operators_take(verified: PackageVerification) -> None:
    assert verified.ok
    assert [check.batch for check in verified.steps] == [1, 1]
    # Every past with every query, those of several tokens behind a past in one row.
    assert len(verified.grid) == 12
    assert {check.batch for check in verified.grid if check.past and check.query > 1} == {1}
    assert {check.batch for check in verified.grid if not check.past} == {1, 2, 3}
    assert [note for note in verified.notes if "one row without padding" in note and "GroupQueryAttention" in note]
    assert [note for note in verified.notes if note.startswith("6 sizes of the grid") and "refused" in note]


def test_an_error_of_an_onnx_operator_is_no_refusal(built: Built) -> None:
    package = mx.open_package(built.tagged)
    chain = FileChain(package.info, {"decoder": package["decoder"].file})
    text = "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Non-zero status code returned while running {} node. Name:'a' "

    def refuse(operator: str) -> str:
        error = RuntimeFailed("cannot run", "")
        error.__cause__ = ValueError(text.format(operator) + "Status Message: sizes do not fit")
        return chain.find_refusal("decoder", error)

    assert refuse("GroupQueryAttention") == "GroupQueryAttention: sizes do not fit"
    assert refuse("MatMul") == ""


def test_packed_weights_are_proved(verified: PackageVerification) -> None:
    proof = verified.components["decoder"].proof
    assert proof is not None
    packed = [node for node in proof.nodes if len(node.claimed) == 3 and node.op_type == "MatMul"]
    assert [node.verdict for node in packed] == [Verdict.PROVED] * 2
    assert not [node for node in proof.nodes if node.verdict is Verdict.CONTRADICTED]


def test_a_folder_is_valid(built: Built) -> None:
    """The builder states the constants of a mask as scalars, and they are rows: a remark, and no error."""
    report = mx.validate(built.tagged / "model.onnx")
    assert report.ok
    assert [finding.code for finding in report.findings] == ["stated-shape"]


def test_a_calibration_that_fails_says_so_once(built: Built, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime writes errors of kernels to the terminal, past Python, before it raises them."""
    shapes = ["input_ids=2x8", "attention_mask=2x24"]
    with pytest.raises(UserError, match="GroupQueryAttention"):
        mx.quantize(built.tagged / "model.onnx", tmp_path / "static.onnx", static=True, input=shapes)
    assert capfd.readouterr().err == ""


def test_fused_nodes_have_a_layer_and_keep_their_states(built: Built) -> None:
    package = mx.open_package(built.tagged)
    entries = list(package["decoder"].provenance.nodes.values())
    attentions = [entry.attribution for entry in entries if entry.op_type == "GroupQueryAttention"]
    assert [answer.layer_id for answer in attentions] == [0, 1]
    packed = [entry for entry in entries if entry.attribution.role == "attention.qkv"]
    assert [entry.attribution.layer_id for entry in packed] == [0, 1]
    cache = find_cache(package.info, {"decoder": package["decoder"].file})
    assert {state.module for state in cache} == {f"model.layers.{layer}.self_attn" for layer in range(2)}
    assert {(state.shape or ())[3] for state in cache} == {16}
