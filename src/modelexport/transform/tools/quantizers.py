"""Quantizers of ONNX Runtime: dynamic int8, static in QDQ or operator form, four-bit weights.

    dynamic    weights are int8, activations are rounded while the model runs
    four bits  weights of matrix products in blocks that share a scale, activations stay in float: MatMulNBits
    qdq        QuantizeLinear/DequantizeLinear pairs, ranges from calibration
    qoperator  QLinearMatMul and others in place of the pairs

To add one: as a tool of `run-tool`, see `catalogue.py`; as a choice of `quantize`, `make_quantizer` and the tables
`FORMS`, `TYPES` and `METHODS` here, which are its options. Defects of the quantizers that are worked round: a Gemm
weight that is turned round in its place although others read it, an order of nodes that ignores what subgraphs read.
https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from modelexport.errors import ToolFailed, UserError
from modelexport.graph.file.external import external_data, is_external, tensors
from modelexport.graph.file.reading import DETACHED_ABOVE, ModelFile, open_model, tensor_with_data
from modelexport.graph.file.weights import Span
from modelexport.graph.file.writing import save_model
from modelexport.graph.protos import in_order, integer_attribute
from modelexport.transform.tools.keep_float import keep_nodes_float
from modelexport.transform.tools.tool import (
    Feed,
    Job,
    Tool,
    copy_model,
    is_spread,
    put_in_order,
    read_whole,
    store_constants,
    write_whole,
)

# Severities of ONNX Runtime's log.
_WARNING, _FATAL = 2, 4
# Weights that share a scale. A power of two; small models have short rows.
_BLOCK = 16
BLOCKS = (16, 32, 64, 128, 256)
# What ONNX Runtime has operators for whose weights are of four bits; the embedding only if it is asked for.
_FOUR_BITS = frozenset({"int4", "uint4"})
_BLOCKWISE, _BLOCKWISE_ON_REQUEST = "MatMul", "Gather"

TYPES = {
    "int8": "QInt8",
    "uint8": "QUInt8",
    "int16": "QInt16",
    "uint16": "QUInt16",
    "int4": "QInt4",
    "uint4": "QUInt4",
    "float8": "QFLOAT8E4M3FN",
}
METHODS = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile", "distribution": "Distribution"}
# What every form of quantization takes; other types work in QDQ pairs alone, and for few operators.
_BYTES = frozenset({"int8", "uint8"})
FORMS = {"qdq": "QDQ", "qoperator": "QOperator"}


@dataclass(frozen=True)
class Quantization:
    """What ONNX Runtime's quantizers can be told. What is left out is theirs to decide.

    form      of a static one, which looks at the model while it runs; empty for a dynamic one
    include   names of the only nodes that may be quantized
    exclude   names of nodes that are left in float
    block     how many weights share a scale, for those of four bits
    """

    form: str = ""
    per_channel: bool = False
    reduce_range: bool = False
    weight_type: str = ""
    activation_type: str = ""
    method: str = ""
    op_types: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = field(default=(), repr=False)
    block: int = _BLOCK

    @property
    def is_blockwise(self) -> bool:
        """Whether weights alone are quantized, to four bits."""
        return not self.form and self.weight_type in _FOUR_BITS


def make_quantizer(settings: Quantization) -> Tool:
    static = bool(settings.form)
    quantizer = _static if static else _blockwise if settings.is_blockwise else _dynamic
    does, remedy, weight_type = "quantization by ONNX Runtime", _remedy(settings), settings.weight_type or "int8"
    name = settings.form or (weight_type if settings.is_blockwise else "int8")
    run = partial(quantizer, settings)
    return Tool(name, does, "onnxruntime", run, calibrates=static, remedy=remedy, number_type=weight_type)


def _remedy(settings: Quantization) -> str:
    """For whoever asked for such types on the command line of `quantize`; empty for what is usual."""
    types = {settings.weight_type, settings.activation_type} - {""}
    if "float8" in types:
        return (
            "float8 takes all of --static --weight-type float8 --activation-type float8 --method distribution, and few "
            "operators take float8 even so: try int8."
        )
    if not settings.form and types - _BYTES - _FOUR_BITS:
        return "Without --static, weights are int8, uint8, int4 or uint4: add --static, or choose one of these."
    if settings.form == "qoperator" and types - _BYTES:
        return "In this format, numbers are int8 or uint8: choose one of these, or --quant-format qdq."
    if settings.form and types - _BYTES:
        return "Few operators take such types: try --weight-type int8 --activation-type int8."
    return ""


def quantizable_operators(settings: Quantization) -> frozenset[str]:
    """The operators that a quantizer knows how to quantize, if it is not told which."""
    if settings.is_blockwise:
        return frozenset({_BLOCKWISE})
    return _operators_of_form(settings.form)


def _operators_of_form(form: str) -> frozenset[str]:
    from onnxruntime.quantization import registry

    if not form:
        return frozenset({*registry.IntegerOpsRegistry, "Gemm"})  # it takes a Gemm for a MatMul and an Add
    known = frozenset(registry.QLinearOpsRegistry)
    return known | frozenset(registry.QDQRegistry) if form == "qdq" else known


def quantize_dynamic_int8(job: Job) -> None:
    _dynamic(Quantization(), job)


def quantize_static_qdq(job: Job) -> None:
    _static(Quantization("qdq"), job)


def quantize_static_operators(job: Job) -> None:
    _static(Quantization("qoperator"), job)


def quantize_four_bits(job: Job) -> None:
    """MatMul by a constant becomes MatMulNBits, an operator of ONNX Runtime's; nothing else changes."""
    _blockwise(Quantization(weight_type="int4"), job)


def _blockwise(settings: Quantization, job: Job) -> None:
    """int4: around zero; uint4: with a zero point for each block. Stored alike, two in a byte.

    Weights of a large model are in memory one at a time.
    """
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    file = store_constants(open_model(job.source))
    model = file.proto
    # Its own list of nodes to include adds to what it quantizes anyway.
    others = {node.name for node in model.graph.node if node.name not in settings.include}
    quantizer = MatMulNBitsQuantizer(
        model,
        block_size=settings.block,
        is_symmetric=settings.weight_type == "int4",
        nodes_to_exclude=[*settings.exclude, *(others if settings.include else ())],
        op_types_to_quantize=settings.op_types or (_BLOCKWISE,),
    )
    quantizer.node_quantizer = on_demand = _WeightsOnDemand(quantizer.node_quantizer, file)
    quantizer.process()
    put_in_order(model)
    save_model(replace(file, weights=on_demand.weights), job.target, external_data=is_spread(job.source) or None)


class _WeightsOnDemand:
    """A quantizer of single nodes: weights are read before it is asked for a node, and let go of after.

    ONNX Runtime's asks the graph for the weight of a node, and adds what it makes of it to the graph.

    weights  of all initializers that have no data in the graph: those of the file, and what was made of them
    """

    def __init__(self, quantizer: Any, file: ModelFile) -> None:
        self._quantizer, self._file = quantizer, file
        self._stored = {tensor.name: tensor for tensor in file.proto.graph.initializer}
        self.weights = dict(file.weights)
        # What bodies hold is little.
        for tensor in filter(is_external, tensors(file.proto)):
            if tensor.name not in self._stored:
                raw = bytes(external_data(tensor, file.directory).raw())
                tensor.CopyFrom(
                    onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=raw)
                )

    def quantize(self, node: onnx.NodeProto, graph_stack: list[onnx.GraphProto]) -> list[onnx.NodeProto]:
        # In a graph of their own: protobuf frees what was in a message only with all of the message.
        read = [self._stored[name] for name in node.input if name in self._file.weights and name in self._stored]
        part = onnx.GraphProto(initializer=[tensor_with_data(self._file, tensor) for tensor in read])
        made: list[onnx.NodeProto] = self._quantizer.quantize(node, [*graph_stack, part])
        for tensor in part.initializer[len(read) :]:
            self._take_over(tensor)
        if len(part.initializer) > len(read):
            self._unlist({tensor.name for tensor in read})
        return made

    def _take_over(self, tensor: onnx.TensorProto) -> None:
        """A tensor that was made of a weight, with its data apart: a file of protobuf ends at 2 GB."""
        if len(tensor.raw_data) > DETACHED_ABOVE:
            data = memoryview(tensor.raw_data)
            if tensor.name in self.weights and self.weights[tensor.name].raw() != data:
                raise ToolFailed(
                    f"onnxruntime's quantizer makes two weights with one name, {tensor.name!r}",
                    f"A weight is read by nodes of two kinds: quantize one of them, --op-types {_BLOCKWISE}.",
                )
            self.weights[tensor.name] = Span(data)
            tensor = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        self._file.proto.graph.initializer.append(tensor)

    def _unlist(self, names: set[str]) -> None:
        """Up to version 3 of the format, weights are inputs as well; those that are gone are none."""
        inputs = self._file.proto.graph.input
        for value in [value for value in inputs if value.name in names]:
            inputs.remove(value)


def ensure_blockwise(settings: Quantization) -> None:
    """Raise for what is said of weights of four bits and cannot be, without --static."""
    foreign = [name for name in settings.op_types if name not in (_BLOCKWISE, _BLOCKWISE_ON_REQUEST)]
    if foreign:
        raise UserError(
            f"{foreign[0]} has no form with weights of four bits",
            f"ONNX Runtime has one of {_BLOCKWISE} and {_BLOCKWISE_ON_REQUEST}: give these, or use --static.",
        )
    for option, is_given in (("--per-channel", settings.per_channel), ("--reduce-range", settings.reduce_range)):
        if is_given:
            raise UserError(f"{option} is for weights of eight bits", "Choose the size of blocks: --block-size.")
    if settings.block not in BLOCKS:
        raise UserError(f"blocks of {settings.block} weights", f"Give one of {', '.join(map(str, BLOCKS))}.")


def _dynamic(settings: Quantization, job: Job) -> None:
    from onnxruntime.quantization import quantize_dynamic

    with copy_model(
        job.source, job.target.parent, lambda model: _unshare_gemm_weights(store_constants(model))
    ) as source:
        quantize_dynamic(source, job.target, **_shared_options(settings, source))
        quantized = read_whole(job.target)
        # Its order of nodes takes no account of what the bodies of If and Loop read.
        if in_order(quantized.graph.node) is not quantized.graph.node:
            write_whole(quantized, job.target, spread=is_spread(source))


def _static(settings: Quantization, job: Job) -> None:
    from onnxruntime import quantization

    more: dict[str, Any] = {}
    if settings.activation_type:
        more["activation_type"] = quantization.QuantType[TYPES[settings.activation_type]]
    if settings.method:
        more["calibrate_method"] = quantization.CalibrationMethod[METHODS[settings.method]]
    form = quantization.QuantFormat[FORMS[settings.form]]
    with copy_model(job.source, job.target.parent, store_constants) as source:
        more |= _shared_options(settings, source)
        with _quiet_sessions():
            quantization.quantize_static(source, job.target, _CalibrationFeeds(job.feeds), quant_format=form, **more)
        if settings.exclude:
            quantized = read_whole(job.target)
            in_integers = _operators_of_form("qoperator")  # those with a kernel for integers, whatever the form
            if keep_nodes_float(quantized, read_whole(source), frozenset(settings.exclude), in_integers):
                write_whole(quantized, job.target, spread=is_spread(source))


@contextmanager
def _quiet_sessions() -> Iterator[None]:
    """Sessions that the calibration opens write nothing past Python: what they say comes as an exception.

    https://onnxruntime.ai/docs/api/python/api_summary.html (set_default_logger_severity)
    """
    import onnxruntime

    onnxruntime.set_default_logger_severity(_FATAL)
    try:
        yield
    finally:
        # What it was before cannot be asked for; this is ONNX Runtime's own choice.
        onnxruntime.set_default_logger_severity(_WARNING)


def _shared_options(settings: Quantization, source: Path) -> dict[str, Any]:
    from onnxruntime.quantization import QuantType

    options: dict[str, Any] = {
        "per_channel": settings.per_channel,
        "reduce_range": settings.reduce_range,
        "op_types_to_quantize": list(settings.op_types),
        "nodes_to_quantize": list(settings.include),
        "nodes_to_exclude": list(settings.exclude),
        "use_external_data_format": is_spread(source),
    }
    return options | {"weight_type": QuantType[TYPES[settings.weight_type]]} if settings.weight_type else options


def _unshare_gemm_weights(model: ModelFile) -> ModelFile:
    """Every Gemm with a weight of its own, whose shape is stated once.

    The dynamic quantizer turns a Gemm's weight round in its place. Others that read it would read it the wrong way, and
    a shape that is stated a second time would be wrong.
    """
    graph = model.proto.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    stated = [value for value in graph.value_info if value.name not in stored]
    if len(stated) < len(graph.value_info):
        kept = onnx.GraphProto(value_info=stated)
        del graph.value_info[:]
        graph.value_info.extend(kept.value_info)
    readers = Counter(name for node in graph.node for name in node.input)
    weights = dict(model.weights)
    for number, node in enumerate(graph.node):
        transposed = node.op_type == "Gemm" and integer_attribute(node, "transB")
        name = node.input[1] if transposed else ""
        if name in stored and readers[name] > 1:
            copied = graph.initializer.add()
            copied.CopyFrom(stored[name])
            copied.name = node.input[1] = f"{name}_of_gemm_{number}"
            if name in weights:
                weights[copied.name] = weights[name]
    return replace(model, weights=weights)


class _CalibrationFeeds:
    """A CalibrationDataReader by its methods; no subclass, because onnxruntime is imported only when a tool runs."""

    def __init__(self, feeds: tuple[Feed, ...]) -> None:
        self._left: Iterator[Feed] = iter(feeds)

    def get_next(self) -> dict[str, Any] | None:
        feed = next(self._left, None)
        return None if feed is None else dict(feed)
