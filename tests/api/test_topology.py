"""The written graph is the one that plain `torch.onnx.export` writes with the same arguments (R7)."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from measure.strategies.judged_exports import export_plainly
from tests.support.architectures import NAMES, build
from tests.support.exports import Exports

import modelexport as mx
from modelexport.capture.inputs.make import make_inputs
from modelexport.capture.inputs.specs import InputRequest
from modelexport.capture.isolation import exportable_moe
from modelexport.graph.file.metadata import strip_metadata

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("name", NAMES)
def test_topology_is_that_of_a_plain_export(exports: Exports, tmp_path: Path, name: str, exporter: str) -> None:
    result = exports(name, exporter)
    ours = onnx.load(result.path)
    outputs = [value.name for value in ours.graph.output]
    try:
        # As a user would run it: with gradients. Some models torch can export only without.
        plain = _plain_export(name, exporter, tmp_path / "plain.onnx", outputs, gradients=True)
    except torch.onnx.OnnxExporterError:
        plain = _plain_export(name, exporter, tmp_path / "plain.onnx", outputs, gradients=False)
    assert _topology(ours) == _topology(plain)
    assert _weights(ours) == _weights(plain)


def _plain_export(name: str, exporter: str, path: Path, outputs: list[str], *, gradients: bool) -> onnx.ModelProto:
    model = build(name)
    made = make_inputs(model, None, InputRequest())
    arguments = dict(made.values)
    # Neither exporter can return a cache object, with or without this tool.
    if "use_cache" in mx.TracingHierarchyBuilder().trace_model_execution(model, arguments).modules[""].arguments:
        arguments["use_cache"] = False
    with torch.set_grad_enabled(gradients), exportable_moe(model):
        export_plainly(model, arguments, path, exporter, made.axes, outputs)
    return onnx.load(path)


def _topology(model: onnx.ModelProto) -> tuple[object, ...]:
    strip_metadata(model, ("pkg.",), ("namespace",))
    nodes = [node.SerializeToString(deterministic=True) for node in model.graph.node]
    inputs = [(value.name, len(value.type.tensor_type.shape.dim)) for value in model.graph.input]
    return nodes, inputs, [value.name for value in model.graph.output], [str(opset) for opset in model.opset_import]


def _weights(model: onnx.ModelProto) -> dict[str, bytes]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor).tobytes() for tensor in model.graph.initializer}
