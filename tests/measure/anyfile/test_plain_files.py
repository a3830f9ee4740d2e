"""A plain file is what torch writes; one with parameter names alone says nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from measure.anyfile.plain_files import keep_parameter_names, strip_node_names, strip_record
from measure.corpus.models import build, export_row, inputs_of, rows_by_name
from onnx import TensorProto, helper
from tests.support import building
from torch.export import Dim

from modelexport.capture.silence import quiet
from modelexport.graph.index import Graph, index_model


def _branching() -> onnx.ModelProto:
    value = helper.make_tensor_value_info("inside", TensorProto.FLOAT, ["n"])
    body = helper.make_graph([helper.make_node("Relu", ["hidden"], ["inside"], name="/fc/Relu")], "then", [], [value])
    weights = [helper.make_tensor(name, TensorProto.FLOAT, (1,), [1.0]) for name in ("fc.weight", "val_3")]
    choice = helper.make_node("If", ["flag"], ["y"], name="/fc/If", then_branch=body, else_branch=body)
    multiply = helper.make_node("Mul", ["x", "fc.weight"], ["hidden"], name="/fc/Mul")
    compare = helper.make_node("Greater", ["val_3", "x"], ["flag"], name="/fc/Greater")
    multiply.metadata_props.add(key="namespace", value="fc")
    return building.model(multiply, compare, choice, weights=weights)


def test_names_of_parameters_inputs_and_outputs_are_all_that_stays() -> None:
    model = _branching()
    nameless = keep_parameter_names(model, {"fc.weight", "fc.bias"})
    assert nameless.graph.initializer[0].name == "fc.weight"
    text = nameless.SerializeToString()
    for name in (b"val_3", b"/fc", b"hidden", b"flag", b"inside", b"namespace"):
        assert name not in text
    names = [name for node in nameless.graph.node for name in (*node.input, *node.output)]
    assert all(re.fullmatch(r"v\d+|fc\.weight|x|y", name) for name in names)
    graph, named = index_model(nameless), index_model(model)
    assert [node.op_type for node in graph.nodes] == [node.op_type for node in named.nodes]
    assert _edges(graph) == _edges(named)
    assert model == _branching()


def test_values_keep_their_names_where_nodes_lose_theirs() -> None:
    unnamed = strip_node_names(_branching())
    assert b"/fc" not in unnamed.SerializeToString()
    assert b"namespace" not in unnamed.SerializeToString()
    assert [list(node.output) for node in unnamed.graph.node] == [list(node.output) for node in _branching().graph.node]


def test_names_that_look_like_the_new_ones_do_not_meet_them() -> None:
    node = helper.make_node("Relu", ["x"], ["a"])
    last = helper.make_node("Relu", ["a"], ["v0"])
    nameless = keep_parameter_names(building.model(node, last, outputs="v0"), ())
    assert nameless.graph.node[0].output[0] not in ("v0", "x")
    assert nameless.graph.node[1].output[0] == "v0"


def _edges(graph: Graph) -> list[list[int]]:
    """By place in the file: which nodes each node reads from."""
    places = {node.key: place for place, node in enumerate(graph.nodes)}
    return [sorted(places[other.key] for other in graph.predecessors(node)) for node in graph.nodes]


@pytest.mark.slow
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("name", ["folded-norms", "twin-blocks"])
def test_an_export_without_its_record_is_a_plain_one(name: str, exporter: str, tmp_path: Path) -> None:
    export_row(name, exporter, tmp_path / "ours.onnx")
    ours = strip_record(onnx.load(tmp_path / "ours.onnx"))
    row = rows_by_name()[name]
    model = build(row)
    arguments = inputs_of(row, model)
    assert isinstance(arguments, tuple | torch.Tensor)
    given = arguments if isinstance(arguments, tuple) else (arguments,)
    inputs, outputs = ([value.name for value in values] for values in (ours.graph.input, ours.graph.output))
    with quiet():
        torch.onnx.export(
            model,
            given,
            str(tmp_path / "plain.onnx"),
            dynamo=exporter == "dynamo",
            input_names=inputs,
            output_names=outputs,
            **_open_axes(ours, exporter),
        )
    plain = onnx.load(tmp_path / "plain.onnx")
    # Traces name the lines that were running, and those of our own export are among them.
    assert [_comparable(node) for node in ours.graph.node] == [_comparable(node) for node in plain.graph.node]
    assert {tensor.name for tensor in ours.graph.initializer} == {tensor.name for tensor in plain.graph.initializer}
    assert ours.ir_version == plain.ir_version
    assert {entry.key for entry in ours.metadata_props} == {entry.key for entry in plain.metadata_props}


def _open_axes(model: onnx.ModelProto, exporter: str) -> dict[str, Any]:
    """The axes that a file leaves open, as its exporter wants to be told of them."""
    axes = {
        value.name: [axis for axis, size in enumerate(value.type.tensor_type.shape.dim) if size.dim_param]
        for value in model.graph.input
    }
    if exporter == "torchscript":
        return {"dynamic_axes": axes}
    return {"dynamic_shapes": tuple(dict.fromkeys(open_ones, Dim.AUTO) or None for open_ones in axes.values())}


def _comparable(node: onnx.NodeProto) -> tuple[object, ...]:
    metadata = {entry.key: entry.value for entry in node.metadata_props if not entry.key.endswith("stack_trace")}
    return node.op_type, node.name, tuple(node.input), tuple(node.output), node.doc_string, metadata
