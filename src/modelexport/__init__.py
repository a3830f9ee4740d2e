"""Export PyTorch and Hugging Face models to ONNX so that every node can be traced to the module that produced it.

import modelexport as mx

result = mx.export(model, "bert.onnx", inputs=inputs)   # a live nn.Module, a folder or a hub id
prov = mx.load("bert.onnx")                             # no torch needed
prov.attribution("node_linear").module                  # 'encoder.layer.0.attention.self.query'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelexport.api.attach import attach
    from modelexport.api.convert import Converted, convert
    from modelexport.api.cost import cost
    from modelexport.api.diff import diff
    from modelexport.api.export import export
    from modelexport.api.exporters import (
        HierarchyExporter,
        UniversalHierarchyExporter,
        export_hf_model_with_semantics,
    )
    from modelexport.api.extract import extract
    from modelexport.api.flatten import FlattenResult, flatten
    from modelexport.api.fold import FoldResult, fold
    from modelexport.api.options import ExportResult
    from modelexport.api.profile import profile
    from modelexport.api.quantize import QuantizeResult, quantize
    from modelexport.api.query import query
    from modelexport.api.reading import analyze, compare, load, validate
    from modelexport.api.relink import RelinkResult, relink
    from modelexport.api.run_tool import run_tool
    from modelexport.api.select import Selected, select
    from modelexport.api.semantic_mapper import SemanticMapper
    from modelexport.api.semantic_query import SemanticQueryInterface
    from modelexport.api.strategy_scores import compare_strategies
    from modelexport.api.strip import strip
    from modelexport.api.verify import verify
    from modelexport.api.view import ViewResult, view
    from modelexport.capture.hierarchy import TracingHierarchyBuilder
    from modelexport.errors import ModelExportError, UserError
    from modelexport.record.changes import Diff
    from modelexport.record.cost import Cost
    from modelexport.record.evidence import Attribution, Confidence, Evidence
    from modelexport.record.extraction import Extraction
    from modelexport.record.hierarchy import Hierarchy, Module, ModuleCall
    from modelexport.record.provenance import NodeEntry, Provenance
    from modelexport.record.tags import TORCH_NN_EXCEPTIONS, TagPolicy, Tags
    from modelexport.record.tensors import Boundary, TensorEntry
    from modelexport.record.verification import Difference, Verdict, Verification

# Where each public name lives. They are imported on first use, so that `import modelexport` costs nothing and no name
# that works without torch ever imports it.
_HOMES = {
    "Attribution": "record.evidence",
    "Boundary": "record.tensors",
    "Confidence": "record.evidence",
    "Cost": "record.cost",
    "Converted": "api.convert",
    "Difference": "record.verification",
    "Evidence": "record.evidence",
    "ExportResult": "api.options",
    "Extraction": "record.extraction",
    "FlattenResult": "api.flatten",
    "FoldResult": "api.fold",
    "Hierarchy": "record.hierarchy",
    "HierarchyExporter": "api.exporters",
    "ModelExportError": "errors",
    "Module": "record.hierarchy",
    "ModuleCall": "record.hierarchy",
    "NodeEntry": "record.provenance",
    "Provenance": "record.provenance",
    "QuantizeResult": "api.quantize",
    "RelinkResult": "api.relink",
    "Selected": "api.select",
    "SemanticMapper": "api.semantic_mapper",
    "SemanticQueryInterface": "api.semantic_query",
    "TORCH_NN_EXCEPTIONS": "record.tags",
    "TagPolicy": "record.tags",
    "Tags": "record.tags",
    "TensorEntry": "record.tensors",
    "TracingHierarchyBuilder": "capture.hierarchy",
    "UniversalHierarchyExporter": "api.exporters",
    "UserError": "errors",
    "Verdict": "record.verification",
    "Verification": "record.verification",
    "ViewResult": "api.view",
    "analyze": "api.reading",
    "attach": "api.attach",
    "compare_strategies": "api.strategy_scores",
    "compare": "api.reading",
    "diff": "api.diff",
    "Diff": "record.changes",
    "cost": "api.cost",
    "convert": "api.convert",
    "export": "api.export",
    "export_hf_model_with_semantics": "api.exporters",
    "extract": "api.extract",
    "flatten": "api.flatten",
    "fold": "api.fold",
    "load": "api.reading",
    "profile": "api.profile",
    "quantize": "api.quantize",
    "query": "api.query",
    "relink": "api.relink",
    "run_tool": "api.run_tool",
    "select": "api.select",
    "strip": "api.strip",
    "validate": "api.reading",
    "verify": "api.verify",
    "view": "api.view",
}

__all__ = [
    "TORCH_NN_EXCEPTIONS",
    "Attribution",
    "Boundary",
    "Confidence",
    "Converted",
    "Cost",
    "Diff",
    "Difference",
    "Evidence",
    "ExportResult",
    "Extraction",
    "FlattenResult",
    "FoldResult",
    "Hierarchy",
    "HierarchyExporter",
    "ModelExportError",
    "Module",
    "ModuleCall",
    "NodeEntry",
    "Provenance",
    "QuantizeResult",
    "RelinkResult",
    "Selected",
    "SemanticMapper",
    "SemanticQueryInterface",
    "TagPolicy",
    "Tags",
    "TensorEntry",
    "TracingHierarchyBuilder",
    "UniversalHierarchyExporter",
    "UserError",
    "Verdict",
    "Verification",
    "ViewResult",
    "analyze",
    "attach",
    "compare",
    "compare_strategies",
    "convert",
    "cost",
    "diff",
    "export",
    "export_hf_model_with_semantics",
    "extract",
    "flatten",
    "fold",
    "load",
    "profile",
    "quantize",
    "query",
    "relink",
    "run_tool",
    "select",
    "strip",
    "validate",
    "verify",
    "view",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
