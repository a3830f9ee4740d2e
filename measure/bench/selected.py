"""Nodes that a query selects, and those that ONNX Runtime's quantizers leave in float because of it.

A file is quantized as a whole, and once more for each query with what it selects excluded. Nodes that are quantized in
the first and in float in the second must be exactly those of the selection that are quantized in the first: `missed`
are selected nodes that are quantized all the same, `others` are nodes that were not selected and are in float now.

`dynamic` and `qoperator` are ONNX Runtime's own functions, given what `modelexport select --for ort-exclude` writes. A
node is in float there if it is there under its name and with its operator. `qdq` is `modelexport quantize --static`. A
node is in float there if the quantizer does not know its operator, or if some floating-point number that it reads (but
a bias) comes out of no DequantizeLinear, or if something else than QuantizeLinear reads what it makes: of what ONNX
Runtime can run in integers, only products (MatMul, Gemm) can make floats.

ONNX Runtime's quantizers leave some operators in the format of what they read (Reshape, Transpose, pools, Relu before
it is absorbed): after a node in float they are in float. They are counted as `follow`.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import QuantFormat, quantize_dynamic, quantize_static

import modelexport as mx
from measure.corpus.models import export_row
from measure.corpus.rows import EXPORTERS
from measure.pages import Table
from modelexport.capture.onnxruntime.inputs import SampleRequest, sample_feeds
from modelexport.errors import UserError
from modelexport.graph.file.reading import ModelFile
from modelexport.graph.index import index_model
from modelexport.graph.types import ValueTypes
from modelexport.transform.tools.quantizers import Quantization, quantizable_operators

ARCHITECTURES = ("bert", "gpt2", "llama", "t5", "vit", "resnet", "whisper", "albert")
QUERIES = (
    "layer=0",
    "role=attention.*",
    "op=Softmax",
    "op=MatMul & !layer=0",
    "op=Gemm",
    "op=Conv",
    "role=residual",
    "role=norm",
    "param=**.weight & op!=Gather",
)
MODES = ("dynamic", "qoperator", "qdq")
COLUMNS = (
    "architecture",
    "quantizer",
    "queries",
    "selected",
    "of them quantizable",
    "left in float",
    "missed",
    "others",
    "follow",
)
# With or without anything excluded.
UNABLE = {("t5", "qoperator"): "ONNX Runtime's quantizer fails, as it forgets a value that it has quantized"}
# What the quantizers leave in the format of what it reads.
_MOVING = (
    "Reshape",
    "Transpose",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    "Slice",
    "Pad",
    "Split",
    "Gather",
    "GatherElements",
)
_OTHERS = ("Resize", "MaxPool", "AveragePool", "GlobalAveragePool", "Where", "TopK", "Relu", "Clip", "Concat")
FOLLOWERS = frozenset((*_MOVING, *_OTHERS))
# Inputs from here on are biases, which are added in more bits.
_BIAS = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2}
# What ONNX Runtime runs in integers even if it is to make floats.
_MAKING_FLOATS = ("MatMul", "Gemm")


@dataclass
class Counts:
    queries: int = 0
    selected: int = 0
    quantizable: int = 0
    left: int = 0
    missed: int = 0
    others: int = 0
    follow: int = 0

    @property
    def cells(self) -> tuple[str, ...]:
        found = (self.queries, self.selected, self.quantizable, self.left, self.missed, self.others, self.follow)
        return tuple(map(str, found))

    @property
    def holds(self) -> bool:
        return self.queries > 0 and self.missed == 0 and self.others == 0


def measure_selected() -> Table:
    rows = []
    holds = True
    for name in ARCHITECTURES:
        for exporter in EXPORTERS:
            sys.stderr.write(f"selected: {name} {exporter}\n")
            with tempfile.TemporaryDirectory() as folder:
                path = export_row(name, exporter, Path(folder) / "model.onnx").path
                for mode in MODES:
                    if (name, mode) in UNABLE:
                        continue
                    counts = count(path, mode)
                    rows.append((f"{name} {exporter}", mode, *counts.cells))
                    holds &= counts.holds
    notes = tuple(f"{mode} of {name}: {reason}" for (name, mode), reason in UNABLE.items())
    return Table("Selected nodes left in float", (__doc__ or "").strip(), COLUMNS, tuple(rows), holds, notes)


def count(path: Path, mode: str) -> Counts:
    """Over all queries that select something."""
    before = onnx.load(path, load_external_data=False)
    floats = _FLOATS_OF[mode]
    counts = Counts()
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "quantized.onnx"
        whole = floats(before, _quantized(path, target, mode, None))
        for query in QUERIES:
            try:
                selected = {entry.name for entry in mx.select(path, query, "ort-exclude").nodes}
            except UserError:
                continue  # there is no such thing in this model
            left = floats(before, _quantized(path, target, mode, query)) - whole
            there = {node.name for node in before.graph.node}  # what is in a body is never quantized
            _add(counts, before, selected, (selected & there) - whole, left)
    return counts


def _add(counts: Counts, before: onnx.ModelProto, selected: set[str], quantizable: set[str], left: set[str]) -> None:
    operators = {node.name: node.op_type for node in before.graph.node}
    more = {name for name in left - selected if operators[name] in FOLLOWERS}
    counts.queries += 1
    counts.selected += len(selected)
    counts.quantizable += len(quantizable)
    counts.left += len(left & selected)
    counts.missed += len(quantizable - left)
    counts.others += len(left - selected - more)
    counts.follow += len(more)


def _quantized(path: Path, target: Path, mode: str, query: str | None) -> onnx.ModelProto:
    logging.disable()  # the quantizers have much to say
    try:
        if mode == "qdq":
            mx.quantize(path, target, static=True, exclude=() if query is None else (query,), samples=1, check=False)
        else:
            names = [] if query is None else json.loads(mx.select(path, query, "ort-exclude").text)
            _by_ort(path, target, mode, names)
    finally:
        logging.disable(logging.NOTSET)
    return onnx.load(target)


def _by_ort(path: Path, target: Path, mode: str, names: list[str]) -> None:
    model = onnx.load(path)
    if mode == "dynamic":
        _forget_stated_weights(model)
        quantize_dynamic(model, target, nodes_to_exclude=names)
        return
    feeds = sample_feeds(model, index_model(model), SampleRequest(1))
    quantize_static(model, target, _Reader(feeds), quant_format=QuantFormat.QOperator, nodes_to_exclude=names)


def _forget_stated_weights(model: onnx.ModelProto) -> None:
    """dynamo states the shapes of weights twice, and the quantizer turns those of a Gemm round in one place only."""
    stored = {tensor.name for tensor in model.graph.initializer}
    kept = onnx.GraphProto(value_info=[value for value in model.graph.value_info if value.name not in stored])
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept.value_info)


class _Reader:
    def __init__(self, feeds: Iterator[dict[str, np.ndarray]]) -> None:
        self._feeds = feeds

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def _still_there(before: onnx.ModelProto, after: onnx.ModelProto) -> set[str]:
    """A dynamic quantizer takes a Gemm apart in any case; then it is its MatMul that is asked for."""
    there = {(node.name, node.op_type): node for node in after.graph.node}
    found = set()
    for node in before.graph.node:
        kept = there.get((node.name, node.op_type)) or there.get((f"{node.name}_MatMul", "MatMul"))
        # What merely moves numbers keeps name and operator, and moves fewer bits.
        if kept is not None and not any(name.endswith("_quantized") for name in kept.input):
            found.add(node.name)
    return found


def _read_floats(before: onnx.ModelProto, after: onnx.ModelProto) -> set[str]:
    types, known, in_integers = (
        ValueTypes(ModelFile(before, {})),
        quantizable_operators(Quantization("qdq")),
        quantizable_operators(Quantization("qoperator")),
    )
    paired = {name for node in after.graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    read_otherwise = _read_as_floats(after)
    there = {node.name: node for node in after.graph.node}
    found = set()
    for node in before.graph.node:
        places = [
            place
            for place, name in enumerate(node.input)
            if types.is_float(name) and place < _BIAS.get(node.op_type, len(node.input))
        ]
        kept = there.get(node.name)
        paired_all = bool(places) and kept is not None and all(kept.input[place] in paired for place in places)
        needs_end = node.op_type in in_integers and node.op_type not in _MAKING_FLOATS
        ends = not needs_end or kept is None or read_otherwise.isdisjoint(kept.output)
        if node.op_type not in known or (kept is not None and not (paired_all and ends)):
            found.add(node.name)
    return found


def _read_as_floats(model: onnx.ModelProto) -> set[str]:
    """Values that something else than QuantizeLinear reads, also if others hand them on to it."""
    found = {value.name for value in model.graph.output}
    for node in reversed(model.graph.node):  # readers come after makers
        hands_on = node.op_type in FOLLOWERS and found.isdisjoint(node.output)
        if node.op_type != "QuantizeLinear" and not hands_on:
            found.update(node.input)
    return found


_FLOATS_OF: dict[str, Callable[[onnx.ModelProto, onnx.ModelProto], set[str]]] = {
    "dynamic": _still_there,
    "qoperator": _still_there,
    "qdq": _read_floats,
}
