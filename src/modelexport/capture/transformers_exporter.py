"""Transformers exporter: torch.export and torch.onnx with what transformers' own `OnnxExporter` mends about them.

transformers replaces functions of torch and of models that torch cannot export by ones that it can, mends the FX graph,
and translates some operators itself. All of that is used here as it is; the program that comes of it is recorded like
one of torch alone.

    export_transformers(llava, input_ids=…, pixel_values=…)
        apply_patches("onnx"), apply_patches("dynamo")     functions that can be exported, until the export is over
        torch.export.export(llava, …)                      an FX graph with module stacks
        apply_fx_node_fixes("onnx", graph)                 again after torch's decompositions
        torch.onnx.export(graph, custom_translation_table) the program, see onnx_program.py
        apply_onnx_ir_fixes(program)                       after torch's optimizer

Inputs and outputs have the names that the other exporters give them. The model need not be one of transformers: most
patches are about torch.

https://github.com/huggingface/transformers/blob/main/src/transformers/exporters/exporter_onnx.py
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from modelexport.capture.arguments import CallArguments, Exported, ExportRequest
from modelexport.capture.dynamo import positional_shapes
from modelexport.capture.entry_point import call_by_position
from modelexport.capture.isolation import Patch, replace_attributes
from modelexport.capture.onnx_program import export_dynamic_or_static, finish_export, translate_operators
from modelexport.capture.silence import silence_loggers
from modelexport.errors import ExtraMissing
from modelexport.record.hierarchy import Hierarchy

_NEEDED = "pip install 'transformers>=5.22'"
_STACK = "nn_module_stack"


def export_transformers(
    model: torch.nn.Module, arguments: CallArguments, request: ExportRequest, hierarchy: Hierarchy
) -> Exported:
    # transformers warns that it was tested with other versions of torch, and about every name that it translates.
    with silence_loggers("transformers"):
        exporter = _load_exporter("exporter_onnx")
        with _patched(exporter):
            program = export_dynamic_or_static(
                model,
                "transformers",
                request,
                lambda dynamic: _export(model, arguments, request, dynamic=dynamic),
                "Try --exporter torchscript.",
            )
            return finish_export(program, "transformers", request, hierarchy, model, exporter.apply_onnx_ir_fixes)


def _load_exporter(name: str) -> Any:
    """A module of `transformers.exporters`, untyped: transformers has them since version 5.22."""
    try:
        return importlib.import_module(f"transformers.exporters.{name}")
    except ImportError as error:
        raise ExtraMissing(f"the transformers exporter is missing from this installation: {error}", _NEEDED) from error


def _export(
    model: torch.nn.Module, arguments: CallArguments, request: ExportRequest, *, dynamic: bool
) -> torch.onnx.ONNXProgram | None:
    tensors = arguments.tensors
    shapes = positional_shapes(tensors, request.axes) if dynamic else None
    exporter = _load_exporter("exporter_onnx")
    with call_by_position(model, arguments), _load_exporter("exporter_dynamo").reset_model_state(model):
        exported = torch.export.export(model, tuple(tensors.values()), dynamic_shapes=shapes, strict=False)
    exporter.apply_fx_node_fixes("onnx", exported.graph_module)
    return torch.onnx.export(
        exported,
        dynamo=True,
        optimize=False,
        verbose=False,
        input_names=list(tensors),
        opset_version=request.opset,
        custom_translation_table=translate_operators() | exporter._ONNX_TRANSLATION_TABLE,
    )


@contextmanager
def patched_transformers() -> Iterator[None]:
    """While this is open, functions of torch and of models are those that transformers exports with."""
    with _patched(_load_exporter("exporter_onnx")):
        yield


@contextmanager
def _patched(exporter: ModuleType) -> Iterator[None]:
    registry = _load_exporter("utils")
    own: list[Patch] = [
        (registry, "patch_attributes", lambda original: replace_attributes),  # noqa: ARG005
        (exporter, "apply_fx_node_fixes", _keep_module_stacks),
    ]
    # In this order: for a function that both replace, `dynamo` wraps what `onnx` made of it.
    with replace_attributes(own), registry.apply_patches("onnx"), registry.apply_patches("dynamo"):
        yield


def _keep_module_stacks(fix_nodes: Callable[[str, torch.fx.GraphModule], None]) -> Any:
    """An FX node that a fix puts in belongs to the module call of the node that it takes out."""

    def fix_and_keep(backend: str, graph_module: torch.fx.GraphModule) -> None:
        inserted: set[torch.fx.Node] = set()

        def hand_on_stack(removed: torch.fx.Node) -> None:
            # Fixes insert right before the node that they replace.
            node = removed.prev
            while node in inserted:
                node.meta.setdefault(_STACK, removed.meta.get(_STACK) or {})
                node = node.prev

        parts = [part for part in graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
        for part in parts:
            part._register_create_node_hook(inserted.add)
            part._register_erase_node_hook(hand_on_stack)
        try:
            fix_nodes(backend, graph_module)
            for part in parts:
                _stack_complex(part)
        finally:
            for part in parts:
                part._unregister_create_node_hook(inserted.add)
                part._unregister_erase_node_hook(hand_on_stack)

    return fix_and_keep


def _stack_complex(graph_module: torch.fx.GraphModule) -> None:
    """`x[:, None]` of complex numbers becomes `stack([x], dim=1)`: torch can translate this one of the two."""
    for node in graph_module.graph.nodes:
        if node.target is not torch.ops.aten.unsqueeze.default:
            continue
        tensor, axis = node.args
        value = tensor.meta.get("val")
        if isinstance(value, torch.Tensor) and value.is_complex():
            node.target, node.args = torch.ops.aten.stack.default, ([tensor], axis)
