"""Export of networks that work together without generating: encoders of sentences, pipelines that make images."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import modelexport as mx
from modelexport.errors import ModelUnloadable, UserError

pytestmark = pytest.mark.slow
SENTENCES = ["the rain in spain", "on it", "an end to the tea and the other things on the table"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sentence_transformers")
    from measure.generation.pipelines import save_sentence_encoder

    folder = tmp_path_factory.mktemp("models") / "encoder"
    save_sentence_encoder(folder)
    return folder


def test_pooling_and_normalization_are_in_the_graph(encoder: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    result = mx.export(encoder, tmp_path / "encoder.onnx", task="sentence-similarity")
    assert result.check is not None
    assert result.check.ok
    classes = {module.class_name for module in result.provenance.hierarchy.modules.values()}
    assert {"Pooling", "Normalize", "BertModel"} <= classes
    library: Any = SentenceTransformer(str(encoder), device="cpu", local_files_only=True)
    session = onnxruntime.InferenceSession(result.path)
    made = library.preprocess(SENTENCES)
    feed = {value.name: made[value.name].numpy() for value in session.get_inputs()}
    (embedding,) = session.run(["sentence_embedding"], feed)
    np.testing.assert_allclose(embedding, library.encode(SENTENCES), atol=1e-5)


def test_a_folder_of_sentences_is_a_package(encoder: Path, tmp_path: Path) -> None:
    package = mx.export(encoder, tmp_path / "out", task="sentence-similarity", target="optimum")
    assert package["model"].info.outputs == ("token_embeddings", "sentence_embedding")
    assert package["model"].info.file == "model.onnx"
    assert (package.folder / "tokenizer.json").is_file()
    # Embeddings of sentences do not run the pooler of BERT.
    assert [absent.path for absent in package.info.absent] == ["0.model.pooler.dense"]


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ({"type": "joblib.numpy_pickle"}, "code of its own"),
        ({"path": "../elsewhere"}, "leads out of the folder"),
        ({"path": "/etc"}, "leads out of the folder"),
    ],
)
def test_modules_of_strangers_are_refused_before_they_are_imported(
    tmp_path: Path, module: dict[str, Any], message: str
) -> None:
    listed = {"path": "", "type": "sentence_transformers.models.Transformer"} | module
    (tmp_path / "modules.json").write_text(json.dumps([listed]), encoding="utf-8")
    with pytest.raises(ModelUnloadable, match=message):
        mx.export(tmp_path, tmp_path / "out.onnx", task="sentence-similarity")


def test_pickles_of_inner_modules_are_refused(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "pytorch_model.bin").write_bytes(b"")
    module = {"path": "a/b", "type": "sentence_transformers.models.Dense"}
    (tmp_path / "modules.json").write_text(json.dumps([module]), encoding="utf-8")
    with pytest.raises(ModelUnloadable, match="a pickle"):
        mx.export(tmp_path, tmp_path / "out.onnx", task="sentence-similarity")


def test_a_list_of_modules_that_is_damaged_is_one_message(tmp_path: Path) -> None:
    for text in ("{", "3", '[{"path": ""}]'):
        (tmp_path / "modules.json").write_text(text, encoding="utf-8")
        with pytest.raises(ModelUnloadable, match="not a list of modules"):
            mx.export(tmp_path, tmp_path / "out.onnx", task="sentence-similarity")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, mx.Package]:
    pytest.importorskip("diffusers")
    from measure.generation.pipelines import save_unet_pipeline

    folder = tmp_path_factory.mktemp("pictures")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of diffusers, about settings of the scheduler
        save_unet_pipeline(folder / "model")
    mx.export(folder / "model", folder / "out")
    return folder / "model", mx.open_package(folder / "out")


def test_every_network_of_a_pipeline_is_a_component(pictures: tuple[Path, mx.Package]) -> None:
    _, package = pictures
    files = {name: component.info.file for name, component in package.components.items()}
    assert files == {name: f"{name}/model.onnx" for name in ("text_encoder", "unet", "vae_decoder", "vae_encoder")}
    assert package.info.absent == ()
    # Encoder and decoder of images are one module of the whole model.
    assert package.provenance.components_of("vae") == ("vae_decoder", "vae_encoder")
    assert (package.folder / "scheduler" / "scheduler_config.json").is_file()
    assert mx.validate(package).ok


def test_rows_of_every_network_are_the_batch(pictures: tuple[Path, mx.Package]) -> None:
    """Also of the one that guidance runs on twice as many."""
    _, package = pictures
    assert package["unet"].file.types.dims("sample") == ("batch", 4, "height", "width")
    assert {axis.name for axis in mx.cost(package).axes} == {"batch", "height", "width"}


def test_networks_of_a_pipeline_compute_what_they_do_in_it(pictures: tuple[Path, mx.Package]) -> None:
    library: Any = pytest.importorskip("diffusers")
    folder, package = pictures
    coder = library.AutoencoderKL.from_pretrained(str(folder / "vae"), local_files_only=True)
    latents = torch.randn(1, 4, 6, 10, generator=torch.Generator().manual_seed(0))
    session = onnxruntime.InferenceSession(package["vae_decoder"].path)
    (image,) = session.run(None, {"latent_sample": latents.numpy()})
    with torch.no_grad():
        expected = coder.decode(latents, return_dict=False)[0]
    np.testing.assert_allclose(image, expected.numpy(), atol=1e-4)


def test_genai_does_not_run_pipelines(pictures: tuple[Path, mx.Package], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="onnxruntime-genai cannot run"):
        mx.export(pictures[0], tmp_path / "out", target="genai")
    assert not list(tmp_path.iterdir())
