"""Dynamo exporter: `torch.onnx.export(dynamo=True)`, by way of torch.export and an FX graph.

    export_dynamo(bert, input_ids=…)   torch.onnx.export(bert, kwargs={"input_ids": …}, optimize=False)
                                       and what onnx_program.py makes of the program

Arguments that `forward` takes by way of `**kwargs` are given by position: torch.export binds dynamic shapes to the
parameters of `forward`, and knows no names beyond them.

https://docs.pytorch.org/docs/stable/onnx_export.html
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from modelexport.capture.arguments import CallArguments, Exported, ExportRequest, leaf_name
from modelexport.capture.entry_point import call_by_position
from modelexport.capture.isolation import holds_pretrained_model
from modelexport.capture.onnx_program import export_dynamic_or_static, finish_export, translate_operators
from modelexport.record.hierarchy import Hierarchy


def export_dynamo(
    model: torch.nn.Module, arguments: CallArguments, request: ExportRequest, hierarchy: Hierarchy
) -> Exported:
    named = all(name in inspect.signature(model.forward).parameters for name in arguments.kwargs)
    export = _export_as_given if named else _export_by_position
    others = "transformers, then torchscript" if holds_pretrained_model(model) else "torchscript"
    program = export_dynamic_or_static(
        model,
        "dynamo",
        request,
        lambda dynamic: export(model, _free_of_marks(arguments), request, dynamic=dynamic),
        f"Try --exporter {others}.",
    )
    return finish_export(program, "dynamo", request, hierarchy, model)


def _free_of_marks(arguments: CallArguments) -> CallArguments:
    """The same arguments in tensors of their own, which share their memory.

    torch marks a tensor whose axes are to be dynamic, and leaves the marks where it fails: a second attempt with the
    same tensor would not be static.
    """
    return arguments.with_tensors({name: tensor.detach() for name, tensor in arguments.tensors.items()})


def _export_as_given(
    model: torch.nn.Module, arguments: CallArguments, request: ExportRequest, *, dynamic: bool
) -> torch.onnx.ONNXProgram | None:
    return torch.onnx.export(
        model,
        arguments.args,
        kwargs=dict(arguments.kwargs),
        dynamo=True,
        optimize=False,
        verbose=False,
        opset_version=request.opset,
        custom_translation_table=translate_operators(),
        dynamic_shapes=_dynamic_shapes(model, arguments, request.axes) if dynamic else None,
    )


def _export_by_position(
    model: torch.nn.Module, arguments: CallArguments, request: ExportRequest, *, dynamic: bool
) -> torch.onnx.ONNXProgram | None:
    tensors = arguments.tensors
    with call_by_position(model, arguments):
        return torch.onnx.export(
            model,
            tuple(tensors.values()),
            dynamo=True,
            optimize=False,
            verbose=False,
            input_names=list(tensors),
            opset_version=request.opset,
            custom_translation_table=translate_operators(),
            dynamic_shapes=positional_shapes(tensors, request.axes) if dynamic else None,
        )


def positional_shapes(tensors: Mapping[str, torch.Tensor], axes: Mapping[str, Mapping[int, str]]) -> dict[str, Any]:
    """Dynamic shapes for `call_by_position`, whose one parameter is `*tensors`."""
    auto = torch.export.Dim.AUTO
    return {"tensors": tuple(dict.fromkeys(axes.get(name, {}), auto) or None for name in tensors)}


def _dynamic_shapes(model: torch.nn.Module, arguments: CallArguments, axes: Mapping[str, Mapping[int, str]]) -> Any:
    auto = torch.export.Dim.AUTO

    def shape_of(name: str, value: object) -> object:
        return pytree.tree_map_with_path(
            lambda path, _: dict.fromkeys(axes.get(leaf_name(name, path), {}), auto) or None, value
        )

    if not arguments.args:
        return {name: shape_of(name, value) for name, value in arguments.kwargs.items()}
    # The shapes are bound to the parameters of `forward` just as the arguments are: `*xs` has a tuple of them.
    shapes = [shape_of(name, value) for name, value in zip(arguments.positions, arguments.args, strict=True)]
    return dict(inspect.signature(model.forward).bind(*shapes).arguments)
