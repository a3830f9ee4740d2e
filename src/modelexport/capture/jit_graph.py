"""The TorchScript graph that the TorchScript exporter starts from, for people to read."""

from __future__ import annotations

from typing import Any

import torch

from modelexport.capture.arguments import CallArguments
from modelexport.capture.experts import exportable_experts
from modelexport.capture.failure import export_failed
from modelexport.capture.module_map import scopes_named
from modelexport.capture.state import EXPORT_LOCK, quiet, undisturbed
from modelexport.capture.torchscript import called_by_position


def jit_graph_text(model: torch.nn.Module, arguments: CallArguments) -> str:
    """The traced graph; each node ends in its scope, the paths of the modules that were open: `layer.0/layer.0.fc`."""
    with EXPORT_LOCK, quiet(), undisturbed(model), exportable_experts(model):
        try:
            graph = _trace(model, arguments.copied())
        except Exception as error:
            raise export_failed(model, "torchscript", error, "Without --jit-graph this graph is not needed.") from error
    # Source ranges are paths of the machine that the trace was made on.
    return str(graph.str(False))


def _trace(model: torch.nn.Module, arguments: CallArguments) -> Any:
    jit: Any = torch.jit
    tensors = arguments.tensors
    paths = {part: path for path, part in model.named_modules()}
    with called_by_position(model, arguments), scopes_named(paths):
        graph = jit._get_trace_graph(model, tuple(tensors.values()), strict=False, _force_outplace=False)[0]
    names = [*tensors, *jit._unique_state_dict(model)]
    for value, name in zip(graph.inputs(), names, strict=True):
        value.setDebugName(name)
    return graph
