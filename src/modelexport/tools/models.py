"""Whole models, for tools that take nothing less."""

from __future__ import annotations

from pathlib import Path

import onnx


def read_whole(path: Path) -> onnx.ModelProto:
    return onnx.load(path)  # noqa: TID251 - weights and all


def write_whole(model: onnx.ModelProto, path: Path) -> None:
    onnx.save(model, path)  # noqa: TID251 - into a folder that nobody else sees
