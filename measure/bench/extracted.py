"""Every module call of a model as a file of its own, cut out of the export by either exporter.

Models have as many layers as published ones (BERT, GPT-2, ViT and ALBERT 12, T5 and Whisper 6 + 6, Llama 16, ResNet 18)
and are narrow. A file counts as equal if ONNX's full check accepts it, ONNX Runtime runs it on the tensors that the
PyTorch module was given, and what it returns is within 1e-4 of what the module returned. Fused modules cannot be cut
out alone: ResNet's convolutions, and the norms that were folded into them. They are a third of ResNet's calls, so that
the share depends on how deep the other models are: with two layers each, 9 % of all calls are refused.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch

import modelexport as mx
from measure.corpus.models import perturbed
from measure.corpus.rows import EXPORTERS
from measure.pages import Table
from modelexport.api.environment import Clock
from modelexport.api.extract import write_part
from modelexport.api.extract_check import ExtractionReference, compare_part, run_reference
from modelexport.capture.tensor_spill import TensorSpill
from modelexport.errors import CutImpossible, ModelExportError
from modelexport.graph.file.tagged_file import TaggedFile, open_tagged
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.model_source import ModelSource
from modelexport.transform.extract.cut import Cutter
from modelexport.transform.extract.selection import select_calls

WITHIN = 1e-4
MOST_REFUSED = 0.03

_TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_IMAGE = {"image_size": 32, "patch_size": 8}


@dataclass(frozen=True)
class Tried:
    """One module call. `problem` is empty if its file is equal, `refused` says why there is none."""

    call: str
    max_abs: float = 0.0
    refused: str = ""
    problem: str = ""


def measure_extracted() -> Table:
    rows, notes, tried = list[tuple[str, ...]](), list[str](), list[Tried]()
    for name in MODELS:
        for exporter in EXPORTERS:
            found = list(_tried(name, exporter))
            tried += found
            rows.append((name, exporter, *_figures(found)))
            notes += _notes(f"{name}, {exporter}", found)
    share = sum(bool(one.refused) for one in tried) / len(tried)
    wrong = [one for one in tried if one.problem]
    rows.append(("all", "", *_figures(tried)))
    columns = ("model", "exporter", "calls", "cut", "equal", "refused", "largest difference")
    limits = f"The limits: every file equal, at most {MOST_REFUSED:.0%} refused; {share:.1%} are."
    text = f"{(__doc__ or '').strip()}\n\n{limits}"
    return Table("Extracted modules", text, columns, tuple(rows), not wrong and share <= MOST_REFUSED, tuple(notes))


def _figures(found: Sequence[Tried]) -> tuple[str, ...]:
    cut = [one for one in found if not one.refused]
    equal = [one for one in cut if not one.problem]
    largest = max((one.max_abs for one in cut), default=0.0)
    return str(len(found)), str(len(cut)), str(len(equal)), str(len(found) - len(cut)), f"{largest:.1e}"


def _notes(where: str, found: Sequence[Tried]) -> Iterator[str]:
    for one in found:
        if one.problem:
            yield f"{where}: {one.call}: {one.problem}"
    for reason, count in Counter(one.refused for one in found if one.refused).items():
        yield f"{where}: {count} refused: {reason}"


def _tried(name: str, exporter: str) -> Iterator[Tried]:
    import transformers

    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        model = perturbed(MODELS[name](transformers)).eval()
        path = Path(folder) / f"{name}.onnx"
        mx.export(model, path, exporter=exporter, no_check=True)
        yield from try_all(path, model, None, Path(folder))


def try_all(path: Path, model: torch.nn.Module, inputs: object, folder: Path) -> Iterator[Tried]:
    """Cut out every module call that a file records, and hold it against the model."""
    opened = open_tagged(path)
    provenance = opened.provenance
    cutter = Cutter(opened, provenance)
    with TensorSpill() as spool:
        reference = run_reference(opened, ModelSource(model, inputs), spool, Clock(None), None)
        for site in provenance.hierarchy.calls:
            yield _try(opened, cutter, site.call, reference, folder / "part.onnx")


def _try(opened: TaggedFile, cutter: Cutter, call: ModuleCall, reference: ExtractionReference, target: Path) -> Tried:
    name = str(call) or "(model)"
    try:
        cut = cutter.cut(select_calls(opened.provenance.hierarchy, [call]))
    except CutImpossible as error:
        return Tried(name, refused=_reason(error))
    try:
        found = write_part(opened, cutter, cut, target)
        onnx.checker.check_model(str(target), full_check=True)
        check = compare_part(found, cut, reference, WITHIN)
    except (ModelExportError, onnx.checker.ValidationError) as error:
        return Tried(name, problem=str(error).splitlines()[0])
    if not mx.validate(target).ok:
        return Tried(name, problem="modelexport validate finds fault with it")
    if not check.ok or check.max_abs > WITHIN:
        return Tried(name, check.max_abs, problem=f"differs by {check.max_abs:.1e}")
    return Tried(name, check.max_abs)


def _reason(error: CutImpossible) -> str:
    """Why, without names."""
    return "fused with its neighbours" if "fused" in error.message else error.message


def _bert(t: Any) -> Any:
    return t.BertModel(t.BertConfig(**_TEXT))


def _gpt2(t: Any) -> Any:
    size = {"n_embd": 32, "n_layer": 12, "n_head": 4}
    return t.GPT2LMHeadModel(t.GPT2Config(**size, vocab_size=100, bos_token_id=1, eos_token_id=2))


def _llama(t: Any) -> Any:
    return t.LlamaForCausalLM(t.LlamaConfig(**_TEXT | {"num_hidden_layers": 16}, num_key_value_heads=2))


def _t5(t: Any) -> Any:
    size = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 6, "num_heads": 4}
    return t.T5ForConditionalGeneration(t.T5Config(**size, vocab_size=100, decoder_start_token_id=0))


def _vit(t: Any) -> Any:
    size = {key: _TEXT[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}
    return t.ViTModel(t.ViTConfig(**size, **_IMAGE))


def _resnet(t: Any) -> Any:
    widths = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [2, 2, 2, 2]}
    return t.ResNetModel(t.ResNetConfig(**widths, layer_type="basic"))


def _whisper(t: Any) -> Any:
    size = {"encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "d_model": 32}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_mel_bins": 8}
    places = {"max_source_positions": 20, "max_target_positions": 20}
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 1}
    return t.WhisperForConditionalGeneration(t.WhisperConfig(vocab_size=100, **size, **heads, **places, **special))


def _albert(t: Any) -> Any:
    return t.AlbertModel(t.AlbertConfig(**_TEXT, embedding_size=16))


MODELS: Mapping[str, Any] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "llama": _llama,
    "t5": _t5,
    "vit": _vit,
    "resnet": _resnet,
    "whisper": _whisper,
    "albert": _albert,
}
