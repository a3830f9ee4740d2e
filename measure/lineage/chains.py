"""What is run: rows of the corpus, and tools one by one and in chains."""

from __future__ import annotations

from pathlib import Path

from onnx import TensorProto, compose, helper, shape_inference, utils
from onnx.external_data_helper import convert_model_to_external_data

from modelexport.graph.index import index_model
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
)

# What `merge` puts before every name.
PREFIX = "before_"


def _external(job: Job) -> None:
    model = read_whole(job.source)
    convert_model_to_external_data(model, location=f"{job.target.name}.data", size_threshold=0)
    write_whole(model, job.target)


def _extract(job: Job) -> None:
    """Everything up to a value in the middle: what comes behind it is cut off."""
    model = shape_inference.infer_shapes(read_whole(job.source))
    graph = index_model(model)
    typed = {value.name for value in model.graph.value_info if value.type.tensor_type.elem_type == TensorProto.FLOAT}
    made = [node.key for node in graph.nodes if node.key in graph.computed and node.key in typed]
    inputs = [value.name for value in model.graph.input]
    cut = utils.Extractor(model).extract_model(inputs, [made[len(made) * 2 // 3]])
    write_whole(cut, job.target)


def _merge(job: Job) -> None:
    """With a model behind it that hands its first output on; every name gets a prefix."""
    model = read_whole(job.source)
    last = model.graph.output[0]
    taken = helper.make_value_info("taken", last.type)
    given = helper.make_value_info("given", last.type)
    graph = helper.make_graph([helper.make_node("Identity", ["taken"], ["given"])], "behind", [taken], [given])
    behind = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    merged = compose.merge_models(model, behind, [(last.name, "taken")], prefix1=PREFIX, prefix2="behind_")
    write_whole(merged, job.target)


_MORE = (
    Tool("external", "weights in a file of their own", "onnx", _external),
    Tool("extract", "onnx.utils.extract_model", "onnx", _extract),
    Tool("merge", "onnx.compose.merge_models with a prefix", "onnx", _merge),
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
)
_LOSSY = frozenset({"int8", "qdq", "qoperator", "int4", "fp16", "fp16_common"})


def tools_of(chain: str) -> list[tuple[Tool, str]]:
    """The tools of a chain with their options."""
    if chain in _MORE_BY_NAME:
        return [(_MORE_BY_NAME[chain], "")]
    return parse_chain(chain)


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
