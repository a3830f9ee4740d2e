"""Catalogue of tools: all optimizers, converters and quantizers by name, and chains of them.

To add a tool: write a function that takes a `Job` (source, target, option, feeds) and writes the target, in
`optimizers.py`, in `quantizers.py`, or here if it converts; import the package of the tool inside of the function; add
a row to `_TOOLS` with its name, what it does, its package and its options. `run-tool`, the measurements and
`tests/transform/tools/test_every_tool.py` go over this table; `quantize` calls `quantizers.py` itself.

    int8+ort:all      quantize, then optimize with the option `all`
"""

from __future__ import annotations

import re

from modelexport.errors import UnknownName, UserError
from modelexport.transform.tools import optimizers, quantizers
from modelexport.transform.tools.tool import Job, Tool, read_whole, save_ir, write_whole


def convert_opset(job: Job) -> None:
    """By ONNX's own converter, which has no adapter for some operators and then refuses the model.

    https://onnx.ai/onnx/api/version_converter.html
    """
    from onnx import version_converter

    write_whole(version_converter.convert_version(read_whole(job.source), int(job.option)), job.target)


def convert_opset_by_onnxscript(job: Job) -> None:
    import onnx_ir as ir
    from onnxscript import version_converter

    model = ir.load(str(job.source))
    version_converter.convert_version(model, int(job.option))  # in place
    save_ir(model, job.source, job.target)


def convert_to_half(job: Job) -> None:
    """Inputs and outputs stay in float, so that the same feeds run both files."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    write_whole(convert_float_to_float16(read_whole(job.source), keep_io_types=True), job.target)


def convert_to_half_by_common(job: Job) -> None:
    from onnxconverter_common import float16

    write_whole(float16.convert_float_to_float16(read_whole(job.source), keep_io_types=True), job.target)


def infer_symbolic_shapes(job: Job) -> None:
    from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference

    write_whole(SymbolicShapeInference.infer_shapes(read_whole(job.source), auto_merge=True), job.target)


_ORT = "onnxruntime"
# Operators of ONNX Runtime's that these have fusions for, the main ones; a graph may have none of the patterns.
_FUSED_BY_ORT = ("FusedMatMul", "BiasGelu", "QuickGelu", "SkipLayerNormalization")
_FUSED_BY_TRANSFORMERS = ("Attention", "SimplifiedLayerNormalization", "SkipLayerNormalization", "BiasGelu")
_FUSED_BY_ONNXSCRIPT = ("GroupQueryAttention", "MultiHeadAttention", "SkipSimplifiedLayerNormalization", "FusedMatMul")
_TOOLS = (
    Tool("ort", "ONNX Runtime's optimizer", _ORT, optimizers.ort, ("all", "extended", "basic"), makes=_FUSED_BY_ORT),
    Tool(
        "transformers",
        "ONNX Runtime's optimizer for transformers",
        _ORT,
        optimizers.transformers,
        any_option=True,
        makes=_FUSED_BY_TRANSFORMERS,
    ),
    Tool("onnxslim", "removes and folds what can be", "onnxslim", optimizers.onnxslim),
    Tool("onnxsim", "removes and folds what can be", "onnxsim", optimizers.onnxsim),
    Tool("onnxoptimizer", "ONNX's fusions and eliminations", "onnxoptimizer", optimizers.onnxoptimizer),
    Tool("onnxscript", "the optimizer of torch's exporter", "onnxscript", optimizers.onnxscript),
    Tool(
        "ort_fusions",
        "onnxscript's fusions for ONNX Runtime",
        "onnxscript",
        optimizers.ort_fusions,
        makes=_FUSED_BY_ONNXSCRIPT,
    ),
    Tool("opset", "ONNX's version converter, as opset:21", "onnx", convert_opset, ("21",)),
    Tool("onnxscript_opset", "onnxscript's version converter", "onnxscript", convert_opset_by_onnxscript, ("21",)),
    Tool("int8", "dynamic quantization of weights", _ORT, quantizers.quantize_dynamic_int8, number_type="int8"),
    Tool(
        "qdq",
        "static quantization, in pairs of nodes",
        _ORT,
        quantizers.quantize_static_qdq,
        calibrates=True,
        number_type="int8",
    ),
    Tool(
        "qoperator",
        "static quantization, in operators",
        _ORT,
        quantizers.quantize_static_operators,
        calibrates=True,
        number_type="int8",
    ),
    Tool(
        "int4", "weights of four bits", _ORT, quantizers.quantize_four_bits, number_type="int4", makes=("MatMulNBits",)
    ),
    Tool("fp16", "half precision, by ONNX Runtime's converter", _ORT, convert_to_half, number_type="float16"),
    Tool(
        "fp16_common",
        "half precision, by onnxconverter-common",
        "onnxconverter_common",
        convert_to_half_by_common,
        number_type="float16",
    ),
    Tool("shapes", "symbolic shape inference", _ORT, infer_symbolic_shapes),
)
TOOLS = {tool.name: tool for tool in _TOOLS}
_CHAIN, _OPTION = "+", ":"
# What people write between tools in the place of a plus.
_OTHER_CHAINS = re.compile(r"\s*(?:[,;|>&\s]|->)\s*")


def parse_chain(text: str) -> list[tuple[Tool, str]]:
    """The tools of `int8+ort:all` with their options, in the order in which they run."""
    parts = [part.strip() for part in text.split(_CHAIN)]
    if not any(parts):
        raise UserError(f"{text!r} names no tool", f"Known: {', '.join(TOOLS)}.")
    if not all(parts):
        raise UserError(
            f"there is no tool on one side of a {_CHAIN} in {text!r}",
            f"Name one on both sides, or leave it out: {_CHAIN.join(filter(None, parts))}.",
        )
    return [_parse_tool(part) for part in parts]


def _parse_tool(text: str) -> tuple[Tool, str]:
    name, _, option = text.partition(_OPTION)
    tool = TOOLS.get(name)
    if tool is None:
        raise _unknown_tool(text)
    known = tool.any_option or option in tool.options or (option.isdecimal() and _takes_number(tool))
    if option and not known:
        raise UserError(f"{name} has no option {option!r}", _describe_options(tool))
    if not option and _takes_number(tool):
        raise UserError(f"{name} does not say which one", _describe_options(tool))
    return tool, option or next(iter(tool.options), "")


def _unknown_tool(text: str) -> UserError:
    several = [part for part in _OTHER_CHAINS.split(text) if part]
    if len(several) > 1:
        return UserError(f"unknown tool {text!r}", f"Join several tools by {_CHAIN}: {_CHAIN.join(several)}.")
    written = {f"{tool.name}{_OPTION}{option}" for tool in TOOLS.values() for option in tool.options}
    alike = [name for name in written if re.sub(r"\W|_", "", name) == re.sub(r"\W|_", "", text.casefold())]
    return UnknownName("tool", text, alike or TOOLS)


def _takes_number(tool: Tool) -> bool:
    """Whether any number may stand for the one that is listed, as for an opset."""
    return bool(tool.options) and all(option.isdecimal() for option in tool.options)


def _describe_options(tool: Tool) -> str:
    if _takes_number(tool):
        return f"It takes a number, as in {tool.name}{_OPTION}{tool.options[0]}."
    return f"It knows: {', '.join(tool.options)}." if tool.options else "It has none."
