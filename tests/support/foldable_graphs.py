"""Tagged graphs with layers, made by hand or at random: what a fold may meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tests.support.building import provenance, tree

from modelexport.api.writing import write_tagged
from modelexport.graph.file.metadata import EmbedOptions, Level
from modelexport.graph.file.reading import open_model
from modelexport.graph.index import index_model
from modelexport.record.provenance import Origin

SIZE = 3


@dataclass(frozen=True)
class Made:
    """A model, its modules by path with their classes, and the owner of each node by its first output."""

    proto: onnx.ModelProto
    classes: Mapping[str, str]
    owners: Mapping[str, str]


def saved(made: Made, path: Path, level: Level = Level.FULL) -> Path:
    """The model as a tagged file."""
    plain = path.with_name(f"plain-{path.name}")
    plain.write_bytes(made.proto.SerializeToString())
    owners = {key: [owner] for key, owner in made.owners.items()}
    record = provenance(made.proto, tree(dict(made.classes)), owners)
    record = replace(record, origin=Origin("hand", "hand", index_model(made.proto).fingerprint))
    write_tagged(open_model(plain), record, path, EmbedOptions(level))
    return path


def graph(
    nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], weights: Mapping[str, np.ndarray], **more: object
) -> onnx.ModelProto:
    """A model that is given `x`, three floats."""
    made = helper.make_graph(
        list(nodes),
        "layers",
        [_value("x")],
        [_value(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10, **more)


def _value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIZE])


def constant(name: str, value: float) -> onnx.NodeProto:
    tensor = numpy_helper.from_array(np.full(SIZE, value, np.float32), f"{name}_value")
    return helper.make_node("Constant", [], [name], name=f"{name}_node", value=tensor)


def parse_nodes(text: str) -> list[onnx.NodeProto]:
    """Nodes as `a=Exp(x) b=Add(a,x)`."""
    nodes = []
    for part in text.split():
        output, _, rest = part.partition("=")
        op_type, _, inputs = rest.rstrip(")").partition("(")
        nodes.append(helper.make_node(op_type, [name for name in inputs.split(",") if name], [output]))
    return nodes


def results(path: Path) -> list[np.ndarray]:
    """What ONNX Runtime makes of a file, without anything that it could make of it first."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    fed = np.linspace(-1, 1, SIZE, dtype=np.float32)
    found: list[np.ndarray] = session.run(None, {one.name: fed for one in session.get_inputs()})
    return found


def layers(count: int = 3, *, branch: bool = False, first_differs: bool = False) -> Made:
    """Layers with an inner module each: `fc` multiplies and adds, the layer is a Relu and a residual."""
    nodes: list[onnx.NodeProto] = []
    owners: dict[str, str] = {}
    weights: dict[str, np.ndarray] = {}
    classes = {"": "Net", "layers": "ModuleList"}
    if first_differs:
        weights["start"] = np.ones(SIZE, np.float32)
    if branch:
        weights["always"] = np.array(1, bool)
    before = "x"
    for number in range(count):
        path = f"layers.{number}"
        classes |= {path: "Layer", f"{path}.fc": "Linear"}
        weights[f"{path}.fc.weight"] = np.full(SIZE, number + 2, np.float32)
        own = [
            (constant(f"/{path}/one", 1.5), path),
            (_node("Mul", [before, f"{path}.fc.weight"], f"/{path}/fc/mul"), f"{path}.fc"),
            (_node("Add", [f"/{path}/fc/mul", f"{path}.fc.weight"], f"/{path}/fc/add"), f"{path}.fc"),
            (_node("Add", [f"/{path}/fc/add", f"/{path}/one"], f"/{path}/moved"), path),
        ]
        last = f"/{path}/moved"
        if branch:
            own.append((_branching(path, last, before), path))
            last = f"/{path}/chosen"
        if first_differs and number:
            own += [
                (_node("Neg", [before], f"/{path}/neg"), path),
                (_node("Abs", [f"/{path}/neg"], f"/{path}/abs"), path),
            ]
        skipped = (f"/{path}/abs" if number else "start") if first_differs else before
        own.append((_node("Add", [last, skipped], f"/{path}/out"), path))
        nodes += [node for node, _ in own]
        owners |= {node.output[0]: owner for node, owner in own}
        before = f"/{path}/out"
    nodes.append(helper.make_node("Tanh", [before], ["y"], name="end"))
    owners["y"] = ""
    return Made(graph(nodes, ["y"], weights), classes, owners)


def _node(op: str, inputs: Sequence[str], output: str) -> onnx.NodeProto:
    made = helper.make_node(op, list(inputs), [output], name=f"{output}_node", doc_string=f"makes {output}")
    made.metadata_props.add(key="of", value=output)
    made.metadata_props.add(key="kind", value=op)
    return made


def _branching(path: str, value: str, outer: str) -> onnx.NodeProto:
    """An If whose bodies read a value of the layer and one from before it."""

    def body(op: str, name: str) -> onnx.GraphProto:
        inner = [
            _node(op, [value, outer], f"/{path}/{name}_inner"),
            _node("Relu", [f"/{path}/{name}_inner"], f"/{path}/{name}_end"),
        ]
        return helper.make_graph(inner, f"{path}-{name}", [], [_value(f"/{path}/{name}_end")])

    return helper.make_node(
        "If",
        ["always"],
        [f"/{path}/chosen"],
        name=f"/{path}/if",
        then_branch=body("Add", "a"),
        else_branch=body("Mul", "b"),
    )


@st.composite
def random_graphs(draw: st.DrawFn) -> Made:
    """Layers that are alike but for what was drawn: some read each other's values, some constants differ."""
    count = draw(st.integers(2, 4))
    pattern = draw(
        st.lists(st.tuples(st.sampled_from(_OPS), st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=7)
    )
    depths = [draw(st.sampled_from(("", ".a", ".a.b", ".c"))) for _ in pattern]
    classes = {"": "Net", "layers": "ModuleList"}
    nodes: list[onnx.NodeProto] = []
    owners: dict[str, str] = {}
    made: list[str] = ["x", "w"]
    for number in range(count):
        path = f"layers.{number}"
        classes |= {path: "Layer", f"{path}.a": "A", f"{path}.a.b": "B", f"{path}.c": "C"}
        inside = [made[-1], "w"]
        for place, ((op, left, right), depth) in enumerate(zip(pattern, depths, strict=True)):
            name = f"v{number}_{place}"
            strange = draw(st.integers(0, 9)) == 0
            pool = made if strange else inside
            if op == "Constant":
                node = constant(name, draw(st.sampled_from((1.0, 1.0, 1.0, 2.0))))
            else:
                inputs = [pool[-1 - left % len(pool)], inside[-1 - right % len(inside)]]
                node = helper.make_node(op, inputs[: 1 if op in _UNARY else 2], [name], name=f"n{name}")
            nodes.append(node)
            owners[name] = "" if draw(st.integers(0, 14)) == 0 else f"{path}{depth}"
            inside.append(name)
        made += inside[2:]
    outputs = draw(st.lists(st.sampled_from(made[2:]), min_size=1, max_size=3, unique=True))
    if draw(st.booleans()):
        nodes.sort(key=lambda node: node.op_type != "Constant")
    return Made(graph(nodes, outputs, {"w": np.full(SIZE, 0.5, np.float32)}), classes, owners)


_UNARY = ("Relu", "Neg", "Tanh")
_OPS = ("Add", "Sub", "Max", *_UNARY, "Constant")
