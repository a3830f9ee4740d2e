"""One model exported and judged by every strategy, and the same model as other tools would have left it.

The export is made from the same pieces as `modelexport export`. The others are a plain `torch.onnx.export`, and that
file without any name in it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
import torch
from tests.support.architectures import build
from torch.export import Dim

from modelexport.api.environment import Clock
from modelexport.api.signals import SignalOptions, record_signals
from modelexport.attribute.judge import (
    AttributionInput,
    AttributionResult,
    StrategyResult,
    attribute_graph,
    run_strategy,
)
from modelexport.attribute.strategies import ALL, CATALOGUE, strategies_named
from modelexport.capture.arguments import CallArguments, ExportRequest
from modelexport.capture.entry_point import call_by_position
from modelexport.capture.export import TracedRun, export_traced, export_unfolded_graph, prepare_model, trace_model
from modelexport.capture.isolation import exportable_moe, preserve_model
from modelexport.capture.silence import quiet
from modelexport.graph.file.reading import ModelFile
from modelexport.graph.index import Graph, index_model
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.model_source import ModelSource
from modelexport.record.provenance import Origin, Provenance

DEFAULT = next(iter(CATALOGUE))


@dataclass(frozen=True)
class JudgedExport:
    """An export with what each strategy says of it.

    axes       the dynamic axes that it was made with
    own        the answer of an export by the default strategy
    merged     the answer of `all`
    judged     each strategy that could judge, alone
    recording  seconds that running model and file again took
    merging    seconds that `all` took, all strategies included
    """

    name: str
    exporter: str
    model: torch.nn.Module
    run: TracedRun
    axes: Mapping[str, Mapping[int, str]]
    file: ModelFile
    graph: Graph
    own: Provenance
    merged: AttributionResult
    judged: tuple[StrategyResult, ...]
    recording: float
    merging: float

    @property
    def hierarchy(self) -> Hierarchy:
        return self.run.hierarchy

    @property
    def label(self) -> str:
        return f"{self.name}, {self.exporter}"


def export_and_judge(name: str, exporter: str) -> JudgedExport:
    model = build(name)
    clock = Clock(None)
    prepared = prepare_model(ModelSource(model), clock.step)
    run = trace_model(prepared.module, prepared.inputs)
    request = ExportRequest(axes=prepared.axes)
    exported = export_traced(run, exporter, request)
    with clock.step("record"):
        signals = record_signals(strategies_named(ALL), run, exported.model, exported.scopes, SignalOptions()).signals
    graph = index_model(exported.model.proto)
    look_behind = None if exported.before is not None else lambda: export_unfolded_graph(run, request)
    scene = AttributionInput(graph, run.hierarchy, signals, exported.before, exported.lineage, look_behind)
    start = time.perf_counter()
    merged = attribute_graph(scene, Origin(ALL, exporter))
    merging = time.perf_counter() - start
    own = attribute_graph(scene, Origin(DEFAULT, exporter)).provenance
    # A scene remembers how the graphs are linked. Judging by one strategy alone pays for that itself.
    judged = tuple(run_strategy(CATALOGUE[item.strategy], replace(scene)) for item in merged.judged)
    return JudgedExport(
        name,
        exporter,
        model,
        run,
        prepared.axes,
        exported.model,
        graph,
        own,
        merged,
        judged,
        clock.seconds["record"],
        merging,
    )


def write_plain(export: JudgedExport, path: Path) -> None:
    """What plain `torch.onnx.export` makes of the same model, inputs and names of outputs."""
    try:
        # As a user would run it: with gradients. Some models torch can export only without.
        _write_plain(export, path, gradients=True)
    except torch.onnx.OnnxExporterError:
        _write_plain(export, path, gradients=False)


def _write_plain(export: JudgedExport, path: Path, *, gradients: bool) -> None:
    model, arguments = export.model, dict(export.run.arguments.kwargs)
    outputs = [value.name for value in export.file.proto.graph.output]
    with torch.set_grad_enabled(gradients), exportable_moe(model):
        export_plainly(model, arguments, path, export.exporter, export.axes, outputs)


def export_plainly(
    model: torch.nn.Module,
    arguments: Mapping[str, object],
    path: Path,
    exporter: str,
    axes: Mapping[str, Mapping[int, str]],
    outputs: Sequence[str] | None = None,
) -> None:
    """What somebody without this tool would write."""
    tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    with quiet(), preserve_model(model):
        if exporter == "dynamo":
            torch.onnx.export(
                model,
                (),
                path,
                kwargs=dict(arguments),
                dynamo=True,
                verbose=False,
                dynamic_shapes={name: dict.fromkeys(axes.get(name, {}), Dim.AUTO) or None for name in arguments},
                output_names=outputs,
                external_data=False,
            )
            return
        with call_by_position(model, CallArguments(dict(arguments))):
            torch.onnx.export(
                model,
                tuple(tensors.values()),
                str(path),
                dynamo=False,
                input_names=list(tensors),
                output_names=outputs,
                dynamic_axes={name: dict(named) for name, named in axes.items()},
            )


def write_nameless(source: Path, path: Path) -> None:
    """The same model, its nodes in the same order, with nothing left that a name or metadata could tell.

    Inputs and outputs keep their names: a model is fed and read by them.
    """
    model = onnx.load(source)
    if model.functions:
        raise NotImplementedError("functions keep the names of what they are called with")
    model.ClearField("metadata_props")
    model.ClearField("doc_string")
    numbers = itertools.count()
    fixed = [value.name for value in (*model.graph.input, *model.graph.output)]
    _rename_values(model.graph, {name: name for name in fixed}, numbers)
    onnx.save(model, path)


def _rename_values(graph: onnx.GraphProto, outer: Mapping[str, str], numbers: Iterator[int]) -> None:
    """Rename what a graph makes; `outer` are names that are decided already."""
    names = dict(outer)
    for name in _names_in(graph):
        if name and name not in outer:
            names[name] = f"v{next(numbers)}"
    for value in (*graph.input, *graph.output):
        value.name = names[value.name]
        _clear_notes(value)
    for tensor in graph.initializer:
        tensor.name = names[tensor.name]
        _clear_notes(tensor)
    _clear_notes(graph)
    # Shapes of values inside, by their names, and what quantizers say of them: nobody needs either to run a graph.
    graph.ClearField("value_info")
    graph.ClearField("quantization_annotation")
    graph.name = "graph"
    for node in graph.node:
        node.name = f"n{next(numbers)}"
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        _clear_notes(node)
        for attribute in node.attribute:
            attribute.doc_string = ""
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _rename_values(body, names, numbers)


def _names_in(graph: onnx.GraphProto) -> Iterable[str]:
    """Every name that a graph gives to something."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from node.output


def _clear_notes(holder: onnx.GraphProto | onnx.NodeProto | onnx.ValueInfoProto | onnx.TensorProto) -> None:
    holder.ClearField("metadata_props")
    holder.ClearField("doc_string")
