"""Tool: what a tool of others is, and how whole models are handed to it.

A tool takes and writes complete files, weights included; files with weights beside them stay so (`is_spread`), because
protobuf cannot hold more than two gigabytes.

    Tool("ort", …).run(Job(Path("in.onnx"), Path("out.onnx"), option="all", feeds=()))
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from modelexport.graph.file.external import external_data, is_external, tensors
from modelexport.graph.file.reading import open_model
from modelexport.graph.file.writing import save_model
from modelexport.graph.index import FLOATS
from modelexport.graph.protos import find_attribute, in_order, operator_name

Feed = Mapping[str, np.ndarray]

# Packages that other verbs need as well; all the rest comes with the extra `tools`.
_EXTRAS = {"onnxruntime": "runtime", "onnxscript": "export"}
# Before this version, every initializer had to be an input too: https://github.com/onnx/onnx/blob/main/docs/IR.md
_IR_WITH_FREE_WEIGHTS = 4


# Folds constants and removes what nobody reads; others then get along with a file that they stumbled over.
CLEANER = "onnxslim"


@dataclass(frozen=True)
class Job:
    """One run of a tool.

    source    the file that it takes; it is left as it is
    target    the file that it is to write
    option    what stands behind the colon of its name: `all` of `ort:all`
    feeds     inputs of the model, for quantizers that want to see it run
    """

    source: Path
    target: Path
    option: str
    feeds: tuple[Feed, ...]


@dataclass(frozen=True)
class Tool:
    """
    does        in a few words
    package     the one that it comes from
    options     what may stand behind the colon; the first one is meant if nothing does
    any_option  whether the tool itself knows what may stand there
    calibrates  whether it looks at the model while it runs, and so needs inputs
    remedy      what to try where it fails; empty if nothing is known of that
    number_type what weights become: int8, int4, float16; empty if the tool leaves them as they are
    makes       operators of ONNX Runtime's that it has fusions for; a graph need not have the patterns
    """

    name: str
    does: str
    package: str
    run: Callable[[Job], None]
    options: tuple[str, ...] = ()
    any_option: bool = False
    calibrates: bool = False
    remedy: str = ""
    number_type: str = ""
    makes: tuple[str, ...] = ()

    @property
    def extra(self) -> str:
        """The part of modelexport's own dependencies that brings the package."""
        return _EXTRAS.get(self.package, "tools")


if TYPE_CHECKING:
    import onnx_ir as ir

    from modelexport.graph.file.reading import ModelFile


def read_whole(path: Path) -> onnx.ModelProto:
    return onnx.load(path)  # noqa: TID251 - weights and all


def put_in_order(model: onnx.ModelProto) -> None:
    """Some tools append the nodes that they add, which is no order that ONNX allows."""
    ordered = in_order(model.graph.node)
    if ordered is not model.graph.node:
        kept = onnx.GraphProto(node=ordered)  # copies: the nodes are gone once the graph has let go of them
        del model.graph.node[:]
        model.graph.node.extend(kept.node)


def write_whole(model: onnx.ModelProto, path: Path, *, spread: bool = False) -> None:
    """
    spread  whether weights go into a file beside it
    """
    put_in_order(model)
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


def store_constants(model: ModelFile) -> ModelFile:
    """Floats in Constant nodes of the main graph become initializers, in place: quantizers look for weights only there.

        w = Constant(…); y = Conv(x, w)   →   y = Conv(x, w), w stored

    What the model returns as it is stays a node.
    """
    graph = model.proto.graph
    returned = {value.name for value in graph.output}
    weights, kept = dict(model.weights), []
    for node in graph.node:
        value = find_attribute(node, "value") if operator_name(node.op_type, node.domain) == "Constant" else None
        if value is None or value.t.data_type not in FLOATS or node.output[0] in returned:
            kept.append(node)
            continue
        tensor = graph.initializer.add()
        tensor.CopyFrom(value.t)
        tensor.name = node.output[0]
        if is_external(tensor):
            weights[tensor.name] = external_data(tensor, model.directory)
    if len(kept) < len(graph.node):
        holder = onnx.GraphProto(node=kept)  # copies: the nodes are gone once the graph has let go of them
        del graph.node[:]
        graph.node.extend(holder.node)
        model.proto.ir_version = max(model.proto.ir_version, _IR_WITH_FREE_WEIGHTS)
    return replace(model, weights=weights)


def lists_weights_as_inputs(model: onnx.ModelProto) -> bool:
    """Whether initializers are inputs because the version of the format wants it, and not to be replaced by callers."""
    stored = {tensor.name for tensor in model.graph.initializer}
    return model.ir_version < _IR_WITH_FREE_WEIGHTS and any(value.name in stored for value in model.graph.input)


def free_weights(model: ModelFile) -> ModelFile:
    """Initializers are no inputs any more, in place, in the version of the format that allows it."""
    graph = model.proto.graph
    stored = {tensor.name for tensor in graph.initializer}
    holder = onnx.GraphProto(input=[value for value in graph.input if value.name not in stored])
    del graph.input[:]
    graph.input.extend(holder.input)
    model.proto.ir_version = max(model.proto.ir_version, _IR_WITH_FREE_WEIGHTS)
    return model


def is_spread(path: Path) -> bool:
    """Whether some weights are in other files: what a tool writes elsewhere must not refer to these."""
    return any(map(is_external, tensors(open_model(path).proto)))


def data_beside(path: Path) -> str:
    return f"{path.name}.data"


def save_ir(model: ir.Model, source: Path, target: Path) -> None:
    """`source` is where the model was read from."""
    import onnx_ir as ir

    ir.save(model, str(target), external_data=data_beside(target) if is_spread(source) else None)
