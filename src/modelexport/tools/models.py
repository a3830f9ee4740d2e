"""Whole models, for tools that take nothing less, and weights that are in files of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from modelexport.graph.external import is_external, tensors
from modelexport.graph.model_file import open_model
from modelexport.graph.order import in_order
from modelexport.graph.saving import save_model

if TYPE_CHECKING:
    import onnx_ir as ir

    from modelexport.graph.opened import ModelFile


def read_whole(path: Path) -> onnx.ModelProto:
    return onnx.load(path)  # noqa: TID251 - weights and all


def write_whole(model: onnx.ModelProto, path: Path, *, spread: bool = False) -> None:
    """Some tools append the nodes that they add, which is no order that ONNX allows.

    spread  whether weights go into a file beside it
    """
    ordered = in_order(model.graph.node)
    if ordered is not model.graph.node:
        kept = onnx.GraphProto(node=ordered)
        del model.graph.node[:]
        model.graph.node.extend(kept.node)
    (path.parent / data_beside(path)).unlink(missing_ok=True)  # it would be appended to
    # Into a folder that nobody else sees.
    onnx.save(model, path, save_as_external_data=spread, location=data_beside(path))  # noqa: TID251


@contextmanager
def copy_model(
    source: Path, folder: Path, change: Callable[[ModelFile], ModelFile] = lambda model: model
) -> Iterator[Path]:
    """A copy for tools that write beside what they read; weights go into a file of their own where one is too small.

    change  makes the model that is copied
    """
    with tempfile.TemporaryDirectory(dir=folder) as inner:
        copied = Path(inner) / "model.onnx"
        save_model(change(open_model(source)), copied)
        yield copied


def is_spread(path: Path) -> bool:
    """Whether some weights are in other files: what a tool writes elsewhere must not refer to these."""
    return any(map(is_external, tensors(open_model(path).proto)))


def data_beside(path: Path) -> str:
    """The name of the file for weights beside one that is written."""
    return f"{path.name}.data"


def save_ir(model: ir.Model, source: Path, target: Path) -> None:
    """`source` is where the model was read from."""
    import onnx_ir as ir

    ir.save(model, str(target), external_data=data_beside(target) if is_spread(source) else None)
