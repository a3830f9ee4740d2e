"""What can be asked of an export."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from modelexport.graph.embed import EmbedOptions
from modelexport.record.check import OutputCheck
from modelexport.record.provenance import Provenance
from modelexport.record.tags import TagPolicy

FxKind = Literal["torch_export", "symbolic_trace"]


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

    @property
    def strategy(self) -> str:
        """The strategy that attributed the nodes: another one than asked for where that could not judge this model."""
        return self.provenance.origin.strategy


@dataclass(frozen=True)
class ExportOptions:
    """Everything about an export but the model and its inputs.

    fx_graph   the kinds of FX graph that are written, and that the strategy fx_graph uses
    jit_graph  where the TorchScript graph is written
    """

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
    fx_graph: tuple[FxKind, ...] = ()
    jit_graph: Path | None = None
