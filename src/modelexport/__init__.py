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
    from modelexport.api.attach import attach as attach
    from modelexport.api.attach import compare_strategies as compare_strategies
    from modelexport.api.convert import Converted as Converted
    from modelexport.api.convert import convert as convert
    from modelexport.api.diff import diff as diff
    from modelexport.api.export import export as export
    from modelexport.api.extract import extract as extract
    from modelexport.api.fill import fill as fill
    from modelexport.api.fleet import FleetOptions as FleetOptions
    from modelexport.api.fleet import fleet as fleet
    from modelexport.api.fold import flatten as flatten
    from modelexport.api.fold import fold as fold
    from modelexport.api.fold import strip as strip
    from modelexport.api.mission import HierarchyExporter as HierarchyExporter
    from modelexport.api.mission import SemanticMapper as SemanticMapper
    from modelexport.api.mission import SemanticQueryInterface as SemanticQueryInterface
    from modelexport.api.mission import UniversalHierarchyExporter as UniversalHierarchyExporter
    from modelexport.api.mission import export_hf_model_with_semantics as export_hf_model_with_semantics
    from modelexport.api.package import Component as Component
    from modelexport.api.package import Package as Package
    from modelexport.api.package import open_package as open_package
    from modelexport.api.package_tools import PackageTarget as PackageTarget
    from modelexport.api.package_tools import change_package as change_package
    from modelexport.api.profile import profile as profile
    from modelexport.api.profile_package import profile_package as profile_package
    from modelexport.api.quantize import quantize as quantize
    from modelexport.api.read import analyze as analyze
    from modelexport.api.read import compare as compare
    from modelexport.api.read import cost as cost
    from modelexport.api.read import load as load
    from modelexport.api.read import query as query
    from modelexport.api.read import validate as validate
    from modelexport.api.relink import relink as relink
    from modelexport.api.relink import relink_package as relink_package
    from modelexport.api.run_tool import run_tool as run_tool
    from modelexport.api.select import Selected as Selected
    from modelexport.api.select import select as select
    from modelexport.api.verify import verify as verify
    from modelexport.api.verify_package import verify_package as verify_package
    from modelexport.api.view import ViewResult as ViewResult
    from modelexport.api.view import view as view
    from modelexport.capture.hierarchy import TracingHierarchyBuilder as TracingHierarchyBuilder
    from modelexport.errors import ModelExportError as ModelExportError
    from modelexport.errors import UserError as UserError
    from modelexport.record.hierarchy import Hierarchy as Hierarchy
    from modelexport.record.hierarchy import Module as Module
    from modelexport.record.hierarchy import ModuleCall as ModuleCall
    from modelexport.record.provenance import Attribution as Attribution
    from modelexport.record.provenance import Boundary as Boundary
    from modelexport.record.provenance import Confidence as Confidence
    from modelexport.record.provenance import Evidence as Evidence
    from modelexport.record.provenance import NodeEntry as NodeEntry
    from modelexport.record.provenance import Provenance as Provenance
    from modelexport.record.provenance import TensorEntry as TensorEntry
    from modelexport.record.results.cost import Cost as Cost
    from modelexport.record.results.diff import Diff as Diff
    from modelexport.record.results.files import ExportResult as ExportResult
    from modelexport.record.results.files import Extraction as Extraction
    from modelexport.record.results.files import FlattenResult as FlattenResult
    from modelexport.record.results.files import FoldResult as FoldResult
    from modelexport.record.results.files import QuantizeResult as QuantizeResult
    from modelexport.record.results.files import RelinkResult as RelinkResult
    from modelexport.record.results.fleet import FleetResult as FleetResult
    from modelexport.record.results.package_profile import PackageProfile as PackageProfile
    from modelexport.record.results.package_verification import PackageVerification as PackageVerification
    from modelexport.record.results.verification import Difference as Difference
    from modelexport.record.results.verification import Fault as Fault
    from modelexport.record.results.verification import Verdict as Verdict
    from modelexport.record.results.verification import Verification as Verification
    from modelexport.record.tags import TORCH_NN_EXCEPTIONS as TORCH_NN_EXCEPTIONS
    from modelexport.record.tags import TagPolicy as TagPolicy
    from modelexport.record.tags import Tags as Tags

# Where each public name lives. They are imported on first use, so that `import modelexport` costs nothing and no name
# that works without torch ever imports it.
_NAMES_BY_MODULE = {
    "api.attach": "attach compare_strategies",
    "api.convert": "Converted convert",
    "api.diff": "diff",
    "api.export": "export",
    "api.extract": "extract",
    "api.fleet": "FleetOptions fleet",
    "api.fill": "fill",
    "api.fold": "flatten fold strip",
    "api.mission": "HierarchyExporter SemanticMapper SemanticQueryInterface UniversalHierarchyExporter "
    "export_hf_model_with_semantics",
    "api.package": "Component Package open_package",
    "api.package_tools": "PackageTarget change_package",
    "api.profile": "profile",
    "api.profile_package": "profile_package",
    "api.quantize": "quantize",
    "api.read": "analyze compare cost load query validate",
    "api.relink": "relink relink_package",
    "api.run_tool": "run_tool",
    "api.select": "Selected select",
    "api.verify": "verify",
    "api.verify_package": "verify_package",
    "api.view": "ViewResult view",
    "capture.hierarchy": "TracingHierarchyBuilder",
    "errors": "ModelExportError UserError",
    "record.hierarchy": "Hierarchy Module ModuleCall",
    "record.provenance": "Attribution Boundary Confidence Evidence NodeEntry Provenance TensorEntry",
    "record.results.cost": "Cost",
    "record.results.diff": "Diff",
    "record.results.files": "ExportResult Extraction FlattenResult FoldResult QuantizeResult RelinkResult",
    "record.results.fleet": "FleetResult",
    "record.results.package_profile": "PackageProfile",
    "record.results.package_verification": "PackageVerification",
    "record.results.verification": "Difference Fault Verdict Verification",
    "record.tags": "TORCH_NN_EXCEPTIONS TagPolicy Tags",
}
_HOMES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}
# Type checkers cannot evaluate this; they go by the `as` of the imports above, which marks a name as public.
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOMES)


class _Package(ModuleType):
    """Python writes a folder that it imports into its parent: `modelexport.verify` would hide the function `verify`."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
