"""Export PyTorch and Hugging Face models to ONNX so that every node can be traced to the module that produced it.

import modelexport as mx

result = mx.export(model, "bert.onnx", inputs=inputs)   # a live nn.Module, a folder or a hub id
prov = mx.load("bert.onnx")                             # no torch needed
prov.attribution("node_linear").module                  # 'encoder.layer.0.attention.self.query'
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelexport.api.attach import attach, compare_strategies
    from modelexport.api.convert import Converted, convert
    from modelexport.api.diff import diff
    from modelexport.api.export import export
    from modelexport.api.extract import extract
    from modelexport.api.fold import flatten, fold, strip
    from modelexport.api.mission import (
        HierarchyExporter,
        SemanticMapper,
        SemanticQueryInterface,
        UniversalHierarchyExporter,
        export_hf_model_with_semantics,
    )
    from modelexport.api.profile import profile
    from modelexport.api.quantize import quantize
    from modelexport.api.read import analyze, compare, cost, load, query, validate
    from modelexport.api.relink import relink
    from modelexport.api.run_tool import run_tool
    from modelexport.api.select import Selected, select
    from modelexport.api.verify import verify
    from modelexport.api.view import ViewResult, view
    from modelexport.capture.hierarchy import TracingHierarchyBuilder
    from modelexport.errors import ModelExportError, UserError
    from modelexport.record.hierarchy import Hierarchy, Module, ModuleCall
    from modelexport.record.provenance import (
        Attribution,
        Boundary,
        Confidence,
        Evidence,
        NodeEntry,
        Provenance,
        TensorEntry,
    )
    from modelexport.record.results.cost import Cost
    from modelexport.record.results.diff import Diff
    from modelexport.record.results.files import (
        ExportResult,
        Extraction,
        FlattenResult,
        FoldResult,
        QuantizeResult,
        RelinkResult,
    )
    from modelexport.record.results.verification import Difference, Verdict, Verification
    from modelexport.record.tags import TORCH_NN_EXCEPTIONS, TagPolicy, Tags

# Where each public name lives. They are imported on first use, so that `import modelexport` costs nothing and no name
# that works without torch ever imports it.
_HOMES = {
    "Attribution": "record.provenance",
    "Boundary": "record.provenance",
    "Confidence": "record.provenance",
    "Cost": "record.results.cost",
    "Converted": "api.convert",
    "Difference": "record.results.verification",
    "Evidence": "record.provenance",
    "ExportResult": "record.results.files",
    "Extraction": "record.results.files",
    "FlattenResult": "record.results.files",
    "FoldResult": "record.results.files",
    "Hierarchy": "record.hierarchy",
    "HierarchyExporter": "api.mission",
    "ModelExportError": "errors",
    "Module": "record.hierarchy",
    "ModuleCall": "record.hierarchy",
    "NodeEntry": "record.provenance",
    "Provenance": "record.provenance",
    "QuantizeResult": "record.results.files",
    "RelinkResult": "record.results.files",
    "Selected": "api.select",
    "SemanticMapper": "api.mission",
    "SemanticQueryInterface": "api.mission",
    "TORCH_NN_EXCEPTIONS": "record.tags",
    "TagPolicy": "record.tags",
    "Tags": "record.tags",
    "TensorEntry": "record.provenance",
    "TracingHierarchyBuilder": "capture.hierarchy",
    "UniversalHierarchyExporter": "api.mission",
    "UserError": "errors",
    "Verdict": "record.results.verification",
    "Verification": "record.results.verification",
    "ViewResult": "api.view",
    "analyze": "api.read",
    "attach": "api.attach",
    "compare_strategies": "api.attach",
    "compare": "api.read",
    "diff": "api.diff",
    "Diff": "record.results.diff",
    "cost": "api.read",
    "convert": "api.convert",
    "export": "api.export",
    "export_hf_model_with_semantics": "api.mission",
    "extract": "api.extract",
    "flatten": "api.fold",
    "fold": "api.fold",
    "load": "api.read",
    "profile": "api.profile",
    "quantize": "api.quantize",
    "query": "api.read",
    "relink": "api.relink",
    "run_tool": "api.run_tool",
    "select": "api.select",
    "strip": "api.fold",
    "validate": "api.read",
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


class _Package(ModuleType):
    """Python writes a folder that it imports into its parent: `modelexport.verify` would hide the function `verify`."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
