"""What an exporter said about its own graph, beside what it wrote into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from modelexport.record.hierarchy import ModuleCall


@dataclass(frozen=True)
class ExporterScopes:
    """FX node names of the exported program, mapped to the module call that issued them.

    The ONNX metadata that dynamo writes keeps the module's path but drops the call's number; the exported program
    still has both.
    """

    fx_calls: Mapping[str, ModuleCall] = field(default_factory=dict)
