"""Random graphs: every operator reads what is there already, be it given, stored, made or left out."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import numpy_helper
from tests.support.building import body, model, node, weight

# By operator: how many values it reads at least, and at most.
ARITIES = {"Relu": (1, 1), "Neg": (1, 1), "Add": (2, 2), "MatMul": (2, 2), "Clip": (1, 3), "Concat": (1, 3)}


@st.composite
def models(draw: st.DrawFn, *, bodies: bool = True) -> onnx.ModelProto:
    """Chains and branches, constants of both kinds, twins, and at times a body that reads values from outside."""
    stored = [_tensor(draw, f"w{place}") for place in range(draw(st.integers(0, 3)))]
    values = ["x", *(tensor.name for tensor in stored)]
    nodes: list[onnx.NodeProto] = []
    for place in range(draw(st.integers(1, 8))):
        made = f"v{place}"
        nodes.append(_node(draw, values, made, bodies=bodies))
        values.append(made)
    return model(*nodes, outputs=values[-1], weights=stored)


def _tensor(draw: st.DrawFn, name: str) -> onnx.TensorProto:
    if draw(st.booleans()):
        return weight(name)  # a header alone, like a large weight
    numbers = draw(st.lists(st.floats(-4, 4, width=16), min_size=1, max_size=12))
    return numpy_helper.from_array(np.array(numbers, np.float32), name)


def _node(draw: st.DrawFn, values: list[str], made: str, *, bodies: bool) -> onnx.NodeProto:
    kind = draw(st.sampled_from(["Constant", *(["If"] if bodies else []), *ARITIES]))
    if kind == "Constant":
        return node("Constant", "", made, value=weight("", draw(st.sampled_from([1.0, 2.0]))))
    if kind == "If":
        inner = node("Neg", draw(st.sampled_from(values)), "inner")
        other = node("Relu", draw(st.sampled_from(values)), "inner")
        return node("If", "x", made, then_branch=body(inner, outputs="inner"), else_branch=body(other, outputs="inner"))
    least, most = ARITIES[kind]
    read = [draw(st.sampled_from(values)) for _ in range(draw(st.integers(least, most)))]
    if kind == "Clip" and len(read) > 2:
        read[1] = "_"
    if kind == "Concat":
        return node(kind, " ".join(read), made, axis=draw(st.integers(0, 1)))
    return node(kind, " ".join(read), made)
