"""Exporting with a mapper to the live modules, and exporters that are set up once and used often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

import onnx

from modelexport.api.choices import EXPORTERS, known
from modelexport.api.export import export
from modelexport.api.options import ExportResult
from modelexport.api.semantic_mapper import SemanticMapper
from modelexport.errors import ExportFailed, UserError
from modelexport.record.tags import TorchNN
from modelexport.strategies.catalogue import NAMES

if TYPE_CHECKING:
    import torch

_LONGEST_REASON = 300


def export_hf_model_with_semantics(
    model: torch.nn.Module,
    inputs: object,
    output: str | Path,
    *,
    exporter: str = "dynamo",
    strategy: str = "enhanced_semantic",
    torch_nn_exceptions: Sequence[str] | None = None,
) -> tuple[onnx.ModelProto, SemanticMapper]:
    """Export a live model; the ONNX model as `onnx.load` reads it, and a mapper from its nodes to the live modules.

    inputs  as for `export`; None makes some from the model's configuration
    The mapper's `result` is what `export` returns: the files, the notes, the comparison with PyTorch. For the other
    options of an export: `SemanticMapper(onnx.load(path), export(model, path, …).provenance, model)`.
    """
    if isinstance(model, str | Path):
        raise UserError(
            f"{str(model)!r} is not a live model, and live modules are what this function is for",
            "Load the model first, or use export(model, output), which takes folders and hub ids too.",
        )
    result = HierarchyExporter(strategy, torch_nn_exceptions, exporter).export(model, inputs, output)
    onnx_model = onnx.load(result.path)  # noqa: TID251 - the caller gets the whole model, weights included
    return onnx_model, SemanticMapper(onnx_model, result.provenance, model, result=result)


@dataclass(frozen=True)
class HierarchyExporter:
    """Exports models, each with the same strategy and the same tags.

    torch_nn_exceptions  the classes of torch.nn that appear in tags, instead of `TORCH_NN_EXCEPTIONS`; an empty list
                         for none of them. Attributions always go to the exact module.
    """

    strategy: str = "enhanced_semantic"
    torch_nn_exceptions: Sequence[str] | None = None
    exporter: str = "dynamo"
    opset: int | None = None

    def __post_init__(self) -> None:
        known("strategy", self.strategy, NAMES)
        known("exporter", self.exporter, EXPORTERS)
        _check_names(self.torch_nn_exceptions)

    def export(self, model: torch.nn.Module | str | Path, inputs: object, output: str | Path) -> ExportResult:
        """Model and inputs as for `modelexport.export`; `None` makes inputs from the model's configuration."""
        exceptions = self.torch_nn_exceptions
        return export(
            model,
            output,
            inputs=inputs,
            exporter=self.exporter,
            strategy=self.strategy,
            opset=self.opset,
            torch_nn=TorchNN.EXCEPTIONS if exceptions is None or exceptions else TorchNN.NONE,
            torch_nn_exception=tuple(exceptions or ()),
        )


@dataclass(frozen=True)
class UniversalHierarchyExporter:
    """Exports whatever can be exported: attributed by FX, and by `htp` where FX cannot trace the model.

    The result's `strategy` says which of them it was, its `notes` say why.

    exporter  None is dynamo, and TorchScript for what dynamo cannot export
    """

    torch_nn_exceptions: Sequence[str] | None = None
    exporter: str | None = None
    opset: int | None = None

    def __post_init__(self) -> None:
        if self.exporter is not None:
            known("exporter", self.exporter, EXPORTERS)
        _check_names(self.torch_nn_exceptions)

    def export(self, model: torch.nn.Module | str | Path, inputs: object, output: str | Path) -> ExportResult:
        """Model and inputs as for `modelexport.export`; `None` makes inputs from the model's configuration."""
        if self.exporter is not None:
            return self._by(self.exporter).export(model, inputs, output)
        try:
            return self._by("dynamo").export(model, inputs, output)
        except ExportFailed as error:
            refusal = error
        try:
            result = self._by("torchscript").export(model, inputs, output)
        except ExportFailed as error:
            raise ExportFailed(f"{refusal.message}\n{error.message}", "No exporter is left to try.") from error
        why = f"exported by torchscript: {shorten(refusal.message, _LONGEST_REASON, placeholder=' …')}"
        return replace(result, notes=(why, *result.notes))

    def _by(self, exporter: str) -> HierarchyExporter:
        return HierarchyExporter("fx_graph", self.torch_nn_exceptions, exporter, self.opset)


def _check_names(torch_nn_exceptions: Sequence[str] | None) -> None:
    if isinstance(torch_nn_exceptions, str):
        raise UserError(
            f"torch_nn_exceptions is a list of class names, not one name: {torch_nn_exceptions!r}",
            f"Give [{torch_nn_exceptions!r}].",
        )
