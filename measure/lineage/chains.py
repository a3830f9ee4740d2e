"""What is run: rows of the corpus, and tools one by one and in chains."""

from __future__ import annotations

from pathlib import Path

from onnx.external_data_helper import convert_model_to_external_data

from measure.lineage import surgery
from measure.lineage.repeated import REPEATED
from modelexport.transform.tools.catalogue import parse_chain
from modelexport.transform.tools.tool import Feed, Job, Tool, read_whole, write_whole

# From every family, and networks with what tools find hard: bodies, recurrent operators, norms to be folded.
ROWS = (
    "bert",
    "modernbert",
    "albert",
    "gpt2",
    "llama",
    "mixtral",
    "mamba",
    "t5",
    "bart",
    "vit",
    "convnext",
    "resnet",
    "mobilenet-v2",
    "detr",
    "segformer",
    "whisper",
    "wav2vec2",
    "clip",
    "patchtst",
    "layoutlm",
    "folded-norms",
    "tied-weights",
    "twin-blocks",
    "branching",
    "scanned",
    "long-short-term",
    "multi-head",
    "convolutions",
    *REPEATED,
)


def _external(job: Job) -> None:
    model = read_whole(job.source)
    convert_model_to_external_data(model, location=f"{job.target.name}.data", size_threshold=0)
    write_whole(model, job.target)


_MORE = (
    Tool("external", "weights in a file of their own", "onnx", _external),
    Tool("extract", "onnx.utils.extract_model", "onnx", surgery.extract),
    Tool("merge", "onnx.compose.merge_models with a prefix", "onnx", surgery.merge),
    Tool("merge_copy", "onnx.compose.merge_models with a second copy", "onnx", surgery.merge_copy),
    Tool("merge_shared", "the same, with the inputs of the first", "onnx", surgery.merge_shared),
    Tool("pack_qkv", "projections of one value packed by hand", "onnx", surgery.pack_qkv),
)
_MORE_BY_NAME = {tool.name: tool for tool in _MORE}

CHAINS = (
    "ort:basic",
    "ort:extended",
    "ort:all",
    "transformers:bert",
    "transformers:gpt2",
    "onnxslim",
    "onnxsim",
    "onnxoptimizer",
    "onnxscript",
    "ort_fusions",
    "opset:21",
    "onnxscript_opset:21",
    "int8",
    "qdq",
    "qoperator",
    "int4",
    "fp16",
    "fp16_common",
    "shapes",
    "external",
    "extract",
    "merge",
    "merge_copy",
    "pack_qkv",
    "int8+ort:all",
    "qdq+ort:all",
    "fp16+ort:all",
    "int4+ort:all",
    "onnxslim+int8",
    "onnxsim+qdq",
    "transformers:bert+int8",
    "onnxscript+ort:extended",
    "onnxslim+fp16+ort:all",
    "transformers:bert+fp16+ort:all",
    "opset:21+onnxoptimizer+int8",
    "onnxslim+transformers:gpt2+fp16",
    "onnxsim+int4+ort:extended",
    "onnxscript+ort_fusions+int8",
    "transformers:bert+int4+ort:basic",
    "opset:21+onnxslim+qdq",
    "onnxoptimizer+qoperator+ort:all",
    "ort:basic+fp16_common+onnxslim",
    "onnxscript_opset:21+onnxsim+int4",
    "ort_fusions+int4+fp16",
    "onnxslim+qdq+ort:extended",
    "shapes+int8+onnxoptimizer",
    "transformers:gpt2+onnxslim+int8",
    "merge_copy+onnxslim+ort:all",
    "merge_shared+ort:all",
    "pack_qkv+transformers:gpt2+ort:all",
)
_LOSSY = frozenset({"int8", "qdq", "qoperator", "int4", "fp16", "fp16_common"})


def tools_of(chain: str) -> list[tuple[Tool, str]]:
    """The tools of a chain with their options. What is done by hand may stand anywhere in it."""
    tools: list[tuple[Tool, str]] = []
    for step in chain.split("+"):
        tools += [(_MORE_BY_NAME[step], "")] if step in _MORE_BY_NAME else parse_chain(step)
    return tools


def is_lossy(chain: str) -> bool:
    """Whether numbers come out of it with fewer bits."""
    return any(tool.name in _LOSSY for tool, _ in tools_of(chain))


def run_chain(chain: str, source: Path, folder: Path, feeds: tuple[Feed, ...]) -> Path:
    """The file that a chain of tools makes. Whatever a tool raises comes through."""
    here = source
    for number, (tool, option) in enumerate(tools_of(chain)):
        target = folder / f"made{number}.onnx"
        tool.run(Job(here, target, option, feeds))
        here = target
    return here
