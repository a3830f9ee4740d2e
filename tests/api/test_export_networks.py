"""Export of networks that work together without generating: encoders of sentences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import modelexport as mx
from modelexport.errors import ModelUnloadable

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
