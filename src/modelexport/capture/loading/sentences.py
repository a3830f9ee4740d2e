"""Sentence embeddings: a sentence-transformers folder as one model, with pooling and normalization in the graph.

    minilm-st/  modules.json     0 Transformer, 1 Pooling, 2 Normalize
    load_sentences("minilm-st")  input_ids, attention_mask, … ─► token_embeddings, sentence_embedding

sentence-transformers runs its modules one after the other on a dictionary; the entry point takes tensors by name.
https://www.sbert.net/docs/sentence_transformer/usage/custom_models.html
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.inputs.specs import dynamic_axes
from modelexport.capture.loading.dtypes import loading_dtype
from modelexport.capture.loading.pretrained import refuse_pickles
from modelexport.capture.loading.third_party import LoadedModel, explain_failure, optional_library, quiet_transformers
from modelexport.errors import ModelUnloadable
from modelexport.record.json_reading import read_json
from modelexport.record.model_source import ModelSource
from modelexport.record.package_document import is_inside

TASK = "sentence-similarity"
_MODULES = "modules.json"
_OWN_CLASSES = "sentence_transformers."
_RESULTS = ("token_embeddings", "sentence_embedding")
# Of different lengths, so that one of them is padded.
_SENTENCES = ("A sentence to embed.", "Another sentence, which is longer than the first one.")


def is_sentence_folder(folder: Path, options: ModelSource) -> bool:
    return options.task == TASK and (folder / _MODULES).is_file()


def load_sentences(source: str, folder: Path, options: ModelSource) -> LoadedModel:
    """All modules of the folder as one model, with one entry point."""
    for part in _check_modules(folder, source, options):
        refuse_pickles(part, options.allow_pickle)
    sentence_transformers = optional_library("sentence_transformers")
    dtype = loading_dtype(options)
    with quiet_transformers(), explain_failure(f"sentence-transformers cannot load {source!r}"):
        model: Any = sentence_transformers.SentenceTransformer(
            str(folder), device="cpu", local_files_only=True, trust_remote_code=options.trust_remote_code
        )
        model = model.eval() if dtype is None else model.to(dtype).eval()
        texts = [options.text, options.text] if options.text else list(_SENTENCES)
        # `tokenize` is the name of the same method before sentence-transformers 5.
        made: Mapping[str, Any] = (getattr(model, "preprocess", None) or model.tokenize)(texts)
    inputs = {name: value for name, value in made.items() if isinstance(value, torch.Tensor)}
    run = model.forward

    def forward(**tensors: torch.Tensor) -> Mapping[str, torch.Tensor]:
        results = run(dict(tensors))
        return {name: results[name] for name in _RESULTS if name in results}

    entry = EntryPoint("model", forward, inputs, dynamic_axes(inputs))
    return LoadedModel(model, source, folder, processing=folder, dtype=dtype, entries=(entry,))


def _check_modules(folder: Path, source: str, options: ModelSource) -> list[Path]:
    """The folders of all modules, before any of it is given to the library, which imports the classes by name."""
    path = folder / _MODULES
    try:
        modules = read_json(path)
        listed = [(str(module["type"]), str(module["path"])) for module in modules]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelUnloadable(
            f"{str(path)!r} is not a list of modules: {type(error).__name__}", "Save the model again."
        ) from error
    for class_name, subfolder in listed:
        if not class_name.startswith(_OWN_CLASSES) and not options.trust_remote_code:
            raise ModelUnloadable(
                f"{source!r} needs Python code of its own ({class_name} in {_MODULES}), which is not run by default",
                "Read that code, then pass --trust-remote-code.",
            )
        if subfolder and not is_inside(subfolder):
            raise ModelUnloadable(f"{subfolder!r} in {str(path)!r} leads out of the folder", "Save the model again.")
    # Modules without weights have no folder in a copy that leaves empty ones out.
    return [part for part in dict.fromkeys([folder, *(folder / subfolder for _, subfolder in listed)]) if part.is_dir()]
