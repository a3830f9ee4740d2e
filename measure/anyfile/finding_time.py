"""Time: how long it takes to find a hierarchy, against `analyze` on the tagged file of the same graph.

The graph is that of transformer layers written down by hand, named as three kinds of exporters name it:

    node names        /layers.0/query/MatMul reads onnx::MatMul_0      TorchScript
    parameter names   no names but layers.0.query.weight               many exporters, after an optimizer
    no names          v17 reads v3                                     structure is all there is
"""

from __future__ import annotations

import gc
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import onnx

import modelexport as mx
from measure.anyfile.plain_files import keep_parameter_names
from measure.bench.synthetic_models import NODES_OF_LAYER, layers_model
from measure.catalogue import Options
from measure.pages import Table
from modelexport.attribute.sources.find import find_hierarchy
from modelexport.graph.index import index_model

# A graph of a few thousand nodes fits into the processor's cache and is faster than in proportion.
SIZES = (14_000, 28_000)
LARGEST_RATIO = 1.0
LARGEST_GROWTH = 2.5
_ROUNDS = 3
_TEXT = (
    "Processor time, the best of {rounds} rounds in one process. `finding` is what a file without a record takes more: "
    "reading the graph's names and structure, judging every node, roles, descriptions. `analyze` is that of the file "
    "that `attach` writes of the same graph: reading, unpacking the record, counting. The limit is {ratio:.0f} times "
    "the time of `analyze` at both sizes; and at {nodes:,} nodes, {growth} times the time of finding at {fewer:,}, "
    "where linear would be {linear:.1f} times."
)
_COLUMNS = ("names", "nodes", "modules are read from", "finding", "`analyze`", "ratio", "growth", "holds")


@dataclass(frozen=True)
class Timing:
    """One graph. `finding` and `analyzing` are in seconds."""

    names: str
    nodes: int
    source: str
    finding: float
    analyzing: float

    @property
    def ratio(self) -> float:
        return self.finding / self.analyzing


def measure_finding_time(options: Options) -> Table:  # noqa: ARG001 - every section takes them
    return compose_table([time_finding(names, SIZES) for names in NAMINGS])


def compose_table(timings: list[list[Timing]]) -> Table:
    """
    timings  of each naming, the smaller graph first
    """
    rows: list[tuple[str, ...]] = []
    kept: list[bool] = []
    for small, large in timings:
        growth = large.finding / small.finding
        holds = max(small.ratio, large.ratio) <= LARGEST_RATIO and growth <= LARGEST_GROWTH
        rows += [(*_compose_cells(small), "", ""), (*_compose_cells(large), f"{growth:.1f}", "yes" if holds else "no")]
        kept.append(holds)
    small, large = timings[0]
    text = _TEXT.format(
        rounds=_ROUNDS,
        ratio=LARGEST_RATIO,
        growth=LARGEST_GROWTH,
        nodes=large.nodes,
        fewer=small.nodes,
        linear=large.nodes / small.nodes,
    )
    return Table("Time to find a hierarchy", text, _COLUMNS, tuple(rows), all(kept))


def _compose_cells(timing: Timing) -> tuple[str, ...]:
    times = (f"{seconds:.2f} s" for seconds in (timing.finding, timing.analyzing))
    return (timing.names, f"{timing.nodes:,}", timing.source or "nothing", *times, f"{timing.ratio:.2f}")


def time_finding(names: str, sizes: Sequence[int]) -> list[Timing]:
    """Both times of graphs of these sizes, all in turn, so that a machine that slows down slows down all of them."""
    models = [NAMINGS[names](make_layers(size)) for size in sizes]
    finding, analyzing = [math.inf] * len(models), [math.inf] * len(models)
    with tempfile.TemporaryDirectory() as folder:
        tagged = [_write_tagged(model, Path(folder) / str(place)) for place, model in enumerate(models)]
        for place in list(range(len(models))) * _ROUNDS:
            # An index keeps what was computed of it: each round has its own.
            find = partial(find_hierarchy, index_model(models[place]))
            finding[place] = min(finding[place], _time_work(find))
            analyzing[place] = min(analyzing[place], _time_work(partial(mx.analyze, tagged[place])))
        sources = [mx.load(path).origin.exporter for path in tagged]
    sizes = [len(model.graph.node) for model in models]
    return [Timing(names, *measured) for measured in zip(sizes, sources, finding, analyzing, strict=True)]


def _write_tagged(model: onnx.ModelProto, folder: Path) -> Path:
    plain, tagged = folder / "plain.onnx", folder / "tagged.onnx"
    folder.mkdir()
    plain.write_bytes(model.SerializeToString())
    mx.attach(plain, None, tagged)
    return tagged


def _time_work(work: Callable[[], object]) -> float:
    gc.collect()
    began = time.process_time()
    work()
    return time.process_time() - began


def make_layers(size: int) -> onnx.ModelProto:
    """So many nodes, or a few more. The output has a name that says nothing, as a user would give it."""
    model = layers_model(-(-size // NODES_OF_LAYER))
    rename_graph(model.graph, {model.graph.output[0].name: "output"})
    return model


def name_by_torchscript(model: onnx.ModelProto) -> onnx.ModelProto:
    """Nodes and values have scopes; matrices, which that exporter transposes, have lost their names."""
    named = onnx.ModelProto()
    named.CopyFrom(model)
    for index, node in enumerate(named.graph.node):
        scope = node.output[0].split("/")[1:-1]  # of `12/query/MatMul`, `12/scores`, `output`
        node.name = "/".join(["", f"layers.{index // NODES_OF_LAYER}", *scope, node.op_type])
    values = {value: f"/layers.{value}_output_0" for node in named.graph.node for value in node.output if "/" in value}
    matrices = [tensor.name for tensor in named.graph.initializer if tensor.name.endswith(".weight")]
    rename_graph(named.graph, values | {name: f"onnx::MatMul_{place}" for place, name in enumerate(matrices)})
    return named


def rename_graph(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Values of a graph without bodies, wherever they are made, read or stored."""
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in graph.output:
        value.name = names.get(value.name, value.name)
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)


def _keep_parameters(model: onnx.ModelProto) -> onnx.ModelProto:
    return keep_parameter_names(model, [tensor.name for tensor in model.graph.initializer])


NAMINGS: Mapping[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = MappingProxyType(
    {
        "node names": name_by_torchscript,
        "parameter names": _keep_parameters,
        "no names": lambda model: keep_parameter_names(model, ()),
    }
)
