"""Values that ONNX Runtime keeps in an order of its own.

When it optimizes convolutions, it moves blocks of channels behind the pixels (NCHWc): a tensor of the usual shape whose
numbers stand elsewhere. Whoever looks at such a value wants it in the order that everybody else has.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np
import onnx
from onnx import TensorProto, helper

from modelexport.graph.blocked import DOMAIN

_INTO, _BACK = "ReorderInput", "ReorderOutput"
# A multiple of every block that there is.
_CHANNELS = 64
_AXES = 4


def blocked_values(nodes: Iterable[onnx.NodeProto]) -> frozenset[str]:
    """Names of values in blocked order; what works element by element leaves them in the order that they have."""
    found: set[str] = set()
    for node in nodes:
        if node.op_type != _BACK and (node.domain == DOMAIN or not found.isdisjoint(node.input)):
            found.update(node.output)
    return frozenset(found)


def in_usual_order(array: np.ndarray) -> np.ndarray:
    """A copy of a blocked value, with its channels in front of its pixels."""
    if array.ndim != _AXES or array.shape[1] % _block():
        return array
    batch, channels, height, width = array.shape
    blocks = array.reshape(batch, channels // _block(), height, width, _block())
    return blocks.transpose(0, 1, 4, 2, 3).reshape(array.shape)


@cache
def _block() -> int:
    """How many channels are in a block: it depends on the processor, and only ONNX Runtime knows."""
    import onnxruntime

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, _CHANNELS, 1, 2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node(_INTO, ["x"], ["y"], domain=DOMAIN)], "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    pixels = np.array([0, 1] * _CHANNELS, np.float32).reshape(1, _CHANNELS, 1, 2)
    # The second pixel follows when the first one's channels of a block are through.
    return int(session.run(None, {"x": pixels})[0].argmax())
