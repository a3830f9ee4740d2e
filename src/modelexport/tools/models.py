"""Whole models, for tools that take nothing less."""

from __future__ import annotations

from pathlib import Path

import onnx

from modelexport.graph.order import in_order


def read_whole(path: Path) -> onnx.ModelProto:
    return onnx.load(path)  # noqa: TID251 - weights and all


def write_whole(model: onnx.ModelProto, path: Path) -> None:
    """Some tools append the nodes that they add, which is no order that ONNX allows."""
    ordered = in_order(model.graph.node)
    if ordered is not model.graph.node:
        kept = onnx.GraphProto(node=ordered)
        del model.graph.node[:]
        model.graph.node.extend(kept.node)
    onnx.save(model, path)  # noqa: TID251 - into a folder that nobody else sees
