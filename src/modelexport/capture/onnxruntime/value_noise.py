"""Monte Carlo arithmetic of a file: its values with other last bits, as `capture/rounding.py` makes those of a model.

    MatMul ──► h                MatMul ──► h.exact ──► Mul (RandomUniformLike 1 ± last bits) ──► h

What a node makes is looked at before it is disturbed: the changes are those that come from what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np
import onnx

from modelexport.capture.onnxruntime.piecewise import PiecewiseRun
from modelexport.capture.rounding import LAST_BITS, largest_array_change
from modelexport.graph.file.tagged_file import TaggedFile

# Coarse types are judged by their grain, and need no such run.
_EPSILON: dict[int, float] = {onnx.TensorProto.FLOAT: 2.0**-23, onnx.TensorProto.DOUBLE: 2.0**-52}
_EXACT, _FACTOR = "modelexport.exact.", "modelexport.factor."


def measure_value_noise(
    file: TaggedFile,
    wanted: Collection[str],
    feed: Mapping[str, np.ndarray],
    believed: Callable[[str], np.ndarray | None],
) -> dict[str, float]:
    """By value: the largest change that other last bits make.

    believed  what the file itself makes of the feed
    """
    noise: dict[str, float] = {}
    proto = round_differently(file)
    disturbed = {name for node in proto.graph.node for name in node.output if name.startswith(_EXACT)}
    seen = {_EXACT + name if _EXACT + name in disturbed else name: name for name in wanted}

    def see(made: str, array: np.ndarray) -> None:
        name = seen.get(made)
        if name is None:
            return
        expected = believed(name)
        if expected is not None:
            noise[name] = largest_array_change(expected, array)

    PiecewiseRun(replace(file, proto=proto), seen, often=False).run(feed, see)
    return noise


def round_differently(file: TaggedFile) -> onnx.ModelProto:
    """The graph in which what is computed of the inputs is off by some last bits. Bodies are left as they are."""
    proto = onnx.ModelProto()
    proto.CopyFrom(file.proto)
    computed = {name for node in file.graph.nodes if node.key in file.graph.computed for name in node.outputs}
    nodes: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        nodes.append(node)
        for position, name in enumerate(node.output):
            epsilon = _EPSILON.get(file.types.dtype(name))
            if name in computed and epsilon is not None:
                node.output[position] = _EXACT + name
                nodes.extend(_disturb(name, LAST_BITS * epsilon, seed=len(nodes)))
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto


def _disturb(name: str, relative: float, seed: int) -> Iterator[onnx.NodeProto]:
    """seed  another one for each value: errors of rounding do not add up as equal ones do"""
    factor = onnx.helper.make_node("RandomUniformLike", [_EXACT + name], [_FACTOR + name])
    for bound, number in (("low", 1 - relative), ("high", 1 + relative), ("seed", float(seed))):
        factor.attribute.append(onnx.helper.make_attribute(bound, number))
    yield factor
    yield onnx.helper.make_node("Mul", [_EXACT + name, _FACTOR + name], [name])
