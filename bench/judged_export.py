"""One model exported once and judged by every strategy, from the same pieces as `modelexport export`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from tests.support.architectures import build

from modelexport.api.opened_file import Clock
from modelexport.api.signals import SignalOptions, record_signals
from modelexport.attribute.judge import (
    StrategyResult,
    AttributionInput,
    AttributionResult,
    attribute_graph,
    run_strategy,
)
from modelexport.attribute.strategies import ALL, CATALOGUE, strategies_named
from modelexport.capture.arguments import ExportRequest
from modelexport.capture.export import SourceOptions, TracedRun, export_traced, prepare, trace, unfolded
from modelexport.capture.loading.options import LoadOptions
from modelexport.graph.file.reading import ModelFile
from modelexport.graph.index import Graph, index_model
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.provenance import Origin, Provenance

DEFAULT = next(iter(CATALOGUE))
EXPORTERS = ("dynamo", "torchscript")


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


def judged_export(name: str, exporter: str) -> JudgedExport:
    model = build(name)
    clock = Clock(None)
    prepared = prepare(model, None, SourceOptions(LoadOptions()), clock.step)
    run = trace(prepared.module, prepared.inputs)
    request = ExportRequest(axes=prepared.axes)
    exported = export_traced(run, exporter, request)
    with clock.step("record"):
        signals = record_signals(strategies_named(ALL), run, exported.model, exported.scopes, SignalOptions()).signals
    graph = index_model(exported.model.proto)
    look_behind = None if exported.before is not None else lambda: unfolded(run, request)
    scene = AttributionInput(graph, run.hierarchy, signals, exported.before, look_behind)
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
