"""Of what type the numbers are in the values of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx
import onnx.shape_inference


def value_types(proto: onnx.ModelProto) -> dict[str, int]:
    """By value of the main graph, where the file says it or it can be inferred. Weights need not be in the proto."""
    graph = proto.graph
    found = dict(_stated([*graph.input, *graph.value_info, *graph.output]))
    found.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
    if all(output in found for node in graph.node for output in node.output if output):
        return found
    return {**dict(_stated(_inferred(proto))), **found}


def _stated(values: Iterable[onnx.ValueInfoProto]) -> Iterator[tuple[str, int]]:
    for value in values:
        if value.type.tensor_type.elem_type:
            yield value.name, value.type.tensor_type.elem_type


def _inferred(proto: onnx.ModelProto) -> Iterable[onnx.ValueInfoProto]:
    try:
        graph = onnx.shape_inference.infer_shapes(proto).graph
    except Exception:  # noqa: BLE001 - it has no error class of its own, and what it would say can be done without
        return ()
    return [*graph.value_info, *graph.output]
