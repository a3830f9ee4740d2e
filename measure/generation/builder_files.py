"""Files of onnxruntime-genai's builder without their names: how many nodes `attach` credits to the right modules.

The builder names its nodes after the modules that it reads (`/model/layers.0/attn/o_proj/MatMul`): that is the truth.
It is hidden from `attach`, with the names of values and weights, the order of nodes, and all metadata.

    family   type   nodes   credited   around   wrong   wrong although sure
    llama    int4      33         33        0       0                     0

A fused node is credited if the module that the builder names is among its owners.
https://onnxruntime.ai/docs/genai/howto/build-model.html
"""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch

import modelexport as mx
from measure.anyfile.nameless import old_key, remove_names
from measure.generation.targets import Target
from measure.pages import Table, percent
from measure.workers import silence
from modelexport.record.hierarchy import lineage_of
from modelexport.record.provenance import Attribution, Confidence, Provenance
from modelexport.transform.tools.tool import read_whole, write_whole

FAMILIES = ("llama", "qwen2", "phi3", "gemma")
PRECISIONS = ("fp32", "int4")
BUILDER = "onnxruntime_genai.models.builder"
SHARE = 0.97
_TITLE = "Files of onnxruntime-genai's builder"
_TEXT = (
    "`attach` to files whose names, order of nodes and metadata were removed. Names of nodes that the builder gave say "
    "which module a node belongs to: it is credited if that module is among its owners, and `around` if only a module "
    "that encloses it is."
)

# The builder takes a linear layer with as many outputs as there are tokens for the head, and ONNX Runtime's
# GroupQueryAttention wants heads of a multiple of 16.
_VOCABULARY = 99
_SIZES = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_OWN_SIZES: Mapping[str, Mapping[str, int]] = {
    "phi3": {"original_max_position_embeddings": 128},
    "gemma": {"head_dim": 16},
}
# With the usual spread a tiny model computes nearly the same everywhere.
_SPREAD, _SHIFT = 8.0, 0.1
# What the builder calls modules of transformers.
_MODULES = (
    (re.compile(r"^model\.layers\.\d+\.final_norm_layernorm\b.*"), ("model.norm",)),
    (re.compile(r"^model\.(constant_nodes|attn_mask_reformat)\b.*"), ("model",)),
    (re.compile(r"^(model\.layers\.\d+)\.attn\.qkv_proj\b.*"), (r"\1.self_attn.q_proj", r"\1.self_attn.qkv_proj")),
    (re.compile(r"^(model\.layers\.\d+)\.attn\.(\w+_proj)\b.*"), (r"\1.self_attn.\2",)),
    (re.compile(r"^(model\.layers\.\d+)\.attn\b.*"), (r"\1.self_attn",)),
    (re.compile(r"^(model\.layers\.\d+\.mlp)\.(gate_proj|up_proj)\b.*"), (r"\1.\2", r"\1.gate_up_proj")),
    (re.compile(r"^(model\.layers\.\d+\.mlp)\.act_fn\b.*"), (r"\1.act_fn", r"\1.activation_fn")),
)


@dataclass(frozen=True)
class BuilderRow:
    """
    credited  nodes with the builder's module among their owners
    around    nodes that only a module around it, or inside of it, is credited with
    wrong     the rest
    sure      those of the wrong ones whose confidence is strong or more
    """

    family: str
    precision: str
    nodes: int
    credited: int
    around: int
    wrong: int
    sure: int

    @property
    def counts(self) -> tuple[int, ...]:
        return self.nodes, self.credited, self.around, self.wrong, self.sure

    @property
    def share(self) -> float:
        return self.credited / self.nodes


def measure_part(folder: Path) -> tuple[Table, tuple[Target, ...]]:
    return compose_builder_files(list(measure_builder_files(folder)))


def compose_builder_files(measured: Sequence[BuilderRow]) -> tuple[Table, tuple[Target, ...]]:
    columns = ("family", "type", "nodes", "credited", "around", "wrong", "wrong although sure", "credited, %")
    rows = tuple((row.family, row.precision, *map(str, row.counts), percent(row.share)) for row in measured)
    least, sure = min(row.share for row in measured), sum(row.sure for row in measured)
    what = "nodes of files of onnxruntime-genai's builder, without names, that `attach` credits to the right module"
    targets = (
        Target(what, f"at least {percent(SHARE)} %", f"{percent(least)} % in the worst file", least >= SHARE),
        Target("of them wrong, with confidence `strong` or more", "0", str(sure), not sure),
    )
    return Table(_TITLE, _TEXT, columns, rows, all(target.holds for target in targets)), targets


def measure_builder_files(folder: Path) -> Iterator[BuilderRow]:
    """One row for each family and precision; files are built in `folder`."""
    for family in FAMILIES:
        source = folder / family
        save_model(family, source)
        for precision in PRECISIONS:
            yield measure_file(
                family, precision, source, build_file(source, folder / f"{family}-{precision}", precision)
            )


def measure_file(family: str, precision: str, source: Path, built: Path) -> BuilderRow:
    named = read_whole(built)
    nameless, names = remove_names(named)
    hidden = built.with_name("nameless.onnx")
    write_whole(nameless, hidden)
    record = mx.attach(hidden, source, built.with_name("tagged.onnx")).provenance
    truth = {node.output[0]: node.name for node in named.graph.node}
    counts = Counter(
        judge_node(truth[old_key(key, names)], entry.attribution, record) for key, entry in record.nodes.items()
    )
    wrong = counts["wrong"] + counts["sure"]
    return BuilderRow(family, precision, len(record.nodes), counts["credited"], counts["around"], wrong, counts["sure"])


def judge_node(name: str, answer: Attribution, record: Provenance) -> str:
    """`credited`, `around`, `wrong`, or `sure` for what is wrong with a confidence of strong or more."""
    owners = {owner.path for owner in answer.owners}
    modules = [module for module in name_modules(name) if module in record.hierarchy.modules]
    readers = {"constant_nodes"} & set(name.split("/"))
    if owners & set(modules) or (readers and owners):
        # A constant is listed for the whole model, and belongs to whoever reads it.
        return "credited"
    around = {path for module in modules for path in lineage_of(module)}
    if owners and all(owner in around or not modules for owner in owners):
        return "around"
    return "sure" if answer.confidence >= Confidence.STRONG else "wrong"


def name_modules(name: str) -> tuple[str, ...]:
    """Paths of modules that a node's name may mean: `/model/embed_tokens/Gather` -> `model.embed_tokens`."""
    path = ".".join(name.strip("/").split("/"))
    for pattern, modules in _MODULES:
        match = pattern.match(path)
        if match:
            return tuple(match.expand(module) for module in modules)
    return (path.rpartition(".")[0],)


def save_model(family: str, folder: Path) -> None:
    """A tiny model of a family with random weights, and a tokenizer, which the builder wants to copy."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **{**_SIZES, **_OWN_SIZES.get(family, {})})
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).float().eval()
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * _SHIFT) if parameter.dim() == 1 else parameter.mul_(_SPREAD)
    model.save_pretrained(folder)
    words = {f"w{index}": index for index in range(_VOCABULARY)}
    tokenizer = {"version": "1.0", "model": {"type": "WordLevel", "vocab": words, "unk_token": "w3"}}
    tokenizer |= {"added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "w1", "eos_token": "w2", "pad_token": "w0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def build_file(source: Path, target: Path, precision: str) -> Path:
    """Run the builder as its command line does, in this process: importing it takes longer than building."""
    command = [BUILDER, "-i", str(source), "-o", str(target), "-p", precision, "-e", "cpu"]
    command += ["-c", str(target.parent / "cache")]
    with mock.patch.object(sys, "argv", command), silence():  # it says a line about every node
        runpy.run_module(BUILDER, run_name="__main__")
    return target / "model.onnx"
