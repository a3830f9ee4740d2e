"""What can be asked of an export."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from modelexport.graph.embed import EmbedOptions
from modelexport.record.check import OutputCheck
from modelexport.record.provenance import Provenance
from modelexport.record.tags import TagPolicy

EXPORTERS = ("dynamo", "torchscript")
STRATEGIES = ("enhanced_semantic",)

Progress = Callable[[str], None]


@dataclass(frozen=True)
class ExportResult:
    """What an export gave.

    notes    what the user should know: random weights, axes that torch fixed, …
    seconds  how long each step took
    """

    path: Path
    files: tuple[Path, ...]
    provenance: Provenance
    check: OutputCheck | None = None
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ExportOptions:
    """Everything about an export but the model and its inputs."""

    exporter: str = "dynamo"
    strategy: str = "enhanced_semantic"
    opset: int | None = None
    static: bool = False
    dynamic: bool = False
    external_data: bool | None = None
    policy: TagPolicy = TagPolicy()
    embed: EmbedOptions = EmbedOptions()
    check: bool = True
    atol: float = 1e-4
    rtol: float = 1e-4
    verbose: bool = False
