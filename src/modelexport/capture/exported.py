"""What an exporter gave, with everything it said about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from modelexport.graph.index import Graph
from modelexport.graph.model_file import ModelFile
from modelexport.record.signals import ExporterScopes


@dataclass(frozen=True)
class ExportRequest:
    """How to export.

    axes          dynamic axes by input name, each with its name; empty for a static export
    must_dynamic  a refusal of dynamic axes is an error instead of a static export
    output_names  names for the graph's outputs, or none to leave torch's own
    """

    axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    must_dynamic: bool = False
    opset: int | None = None
    output_names: tuple[str, ...] = ()
    verbose: bool = False


@dataclass(frozen=True)
class Exported:
    """An ONNX model as torch made it.

    before  the graph before torch's own optimizer, where the exporter has one
    scopes  what the exporter knows about module calls beyond what it wrote into the graph
    """

    model: ModelFile
    exporter: str
    before: Graph | None = None
    scopes: ExporterScopes = ExporterScopes()
    notes: tuple[str, ...] = ()
