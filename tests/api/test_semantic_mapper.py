"""From nodes to live modules. Answers of an export come from its own record; others are judged from the hierarchy."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest
import torch
from tests.support import nets
from tests.support.architectures import build
from tests.support.building import body, model, node, provenance, tree
from tests.support.children import run_child
from tests.support.exports import Exports

import modelexport as mx
from modelexport.errors import UnknownName

HIERARCHY = tree({"": "Net", "a": "Linear", "b": "Linear"})
CHAIN = model(node("Relu", "x", "h", "first"), node("Tanh", "h", "y", "second"))


def recorded(proto: onnx.ModelProto, **owners: tuple[str, ...]) -> mx.Provenance:
    return provenance(proto, HIERARCHY, owners)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)


@pytest.fixture
def live() -> Net:
    return Net()


def test_a_node_is_given_as_itself_by_name_or_by_key(live: Net) -> None:
    mapper = mx.SemanticMapper(CHAIN, recorded(CHAIN, h=("a",), y=("b",)), live)
    for given in (CHAIN.graph.node[1], "second", "y"):
        assert mapper.get_hf_module_for_onnx_node(given) is live.b
        assert mapper.get_node_attribution(given).module == "b"
    assert mapper.get_node_entry(CHAIN.graph.node[0]).key == "h"


def test_several_owners_give_the_module_around_them_and_each_of_them(live: Net) -> None:
    mapper = mx.SemanticMapper(CHAIN, recorded(CHAIN, h=("a", "b"), y=("a", "a#1")), live)
    assert mapper.get_hf_module_for_onnx_node("first") is live
    assert mapper.get_hf_modules_for_onnx_node("first") == (live.a, live.b)
    assert mapper.get_hf_modules_for_onnx_node("second") == (live.a,)  # two calls of one module


def test_a_node_that_nobody_is_known_to_have_issued_has_no_module(live: Net) -> None:
    mapper = mx.SemanticMapper(CHAIN, recorded(CHAIN, h=("a",)), live)
    assert mapper.get_hf_module_for_onnx_node("second") is None
    assert mapper.get_hf_modules_for_onnx_node("second") == ()
    assert mapper.get_node_attribution("second").reason


def test_without_the_model_paths_are_known_and_live_modules_are_not() -> None:
    mapper = mx.SemanticMapper(CHAIN, recorded(CHAIN, h=("a",)))
    assert mapper.get_node_attribution("first").module == "a"
    with pytest.raises(mx.UserError, match="no PyTorch model"):
        mapper.get_hf_module_for_onnx_node("first")
    with pytest.raises(mx.UserError, match="no PyTorch model"):
        mapper.get_hf_module_for_onnx_node("second")  # also where the answer would be None


@pytest.mark.parametrize(
    "stranger",
    ["third", node("Relu", "x", "elsewhere", "third"), node("Sin", "x", "h", "third")],
    ids=["name", "output", "operator"],
)
def test_unknown_nodes(stranger: str | onnx.NodeProto, live: Net) -> None:
    mapper = mx.SemanticMapper(CHAIN, recorded(CHAIN), live)
    with pytest.raises(UnknownName, match="'third'"):
        mapper.get_hf_module_for_onnx_node(stranger)


def test_nodes_in_bodies_are_told_apart_by_their_content(live: Net) -> None:
    """The branches name their values alike, and one node of them is the same in both."""
    branches = [body(node("Relu", "x", "t"), node(op, "t", "r"), outputs="r") for op in ("Sin", "Cos")]
    proto = model(node("If", "x", "y", then_branch=branches[0], else_branch=branches[1]))
    first, second = (attribute.g for attribute in proto.graph.node[0].attribute)
    found = {
        f"y|{proto.graph.node[0].attribute[0].name}|r": ("a",),
        f"y|{proto.graph.node[0].attribute[1].name}|r": ("b",),
    }
    mapper = mx.SemanticMapper(proto, provenance(proto, HIERARCHY, found), live)
    assert mapper.get_hf_module_for_onnx_node(first.node[1]) is live.a
    assert mapper.get_hf_module_for_onnx_node(second.node[1]) is live.b
    with pytest.raises(mx.UserError, match="2 nodes of different graphs") as caught:
        mapper.get_hf_module_for_onnx_node(first.node[0])
    assert "y|then_branch|t" in str(caught.value)


def test_another_model_than_the_recorded_one_is_refused(live: Net) -> None:
    live.b = torch.nn.Identity()  # type: ignore[assignment]
    with pytest.raises(mx.UserError, match="'b' is Identity, in the record it is Linear"):
        mx.SemanticMapper(CHAIN, HIERARCHY, live)
    del live.b
    with pytest.raises(mx.UserError, match="'b' is missing"):
        mx.SemanticMapper(CHAIN, recorded(CHAIN), live)


def test_a_foreign_file_is_judged_with_roles_and_layers(tmp_path: Path) -> None:
    net = nets.perturbed(nets.Attending())
    x = torch.linspace(-1, 1, 48).reshape(2, 3, 8)
    torch.onnx.export(net, (x,), tmp_path / "plain.onnx", dynamo=True, verbose=False)
    hierarchy = mx.TracingHierarchyBuilder().trace_model_execution(net, x)
    mapper = mx.SemanticMapper(onnx.load(tmp_path / "plain.onnx"), hierarchy, model=net)
    softmax = next(proto for proto in mapper.onnx_model.graph.node if proto.op_type == "Softmax")
    assert mapper.get_hf_module_for_onnx_node(softmax) is net.get_submodule("encoder.layers.0.self_attn")
    answer = mapper.get_node_attribution(softmax)
    assert (answer.role, answer.layer_id) == ("attention.softmax", 0)
    assert mapper.provenance.tensor(softmax.output[0]).producer == answer


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_a_file_answers_for_a_model_that_is_built_again(exports: Exports, exporter: str) -> None:
    """Names and metadata of the file are not looked at: the record alone knows."""
    result, bert = exports("bert", exporter), build("bert")
    proto = onnx.load(result.path)
    mapper = mx.SemanticMapper(proto, mx.load(result.path), bert)
    products = [item for item in proto.graph.node if mapper.get_node_attribution(item).role == "attention.query"]
    owners = {mapper.get_hf_module_for_onnx_node(item) for item in products}
    assert owners == {bert.get_submodule(f"encoder.layer.{number}.attention.self.query") for number in (0, 1)}
    paths = {part: path for path, part in bert.named_modules()}
    for item in proto.graph.node:
        part = mapper.get_hf_module_for_onnx_node(item)
        ancestor = mapper.get_node_attribution(item).ancestor
        assert (None if part is None else paths[part]) == (None if ancestor is None else ancestor.path)


def test_reading_a_mapper_imports_no_torch(bert: Path) -> None:
    lines = (
        "import sys, onnx, modelexport as mx",
        f"mapper = mx.SemanticMapper(onnx.load({str(bert)!r}), mx.load({str(bert)!r}).hierarchy)",
        "q = mx.SemanticQueryInterface(mapper)",
        "assert len(q.get_attention_components(0)['query']) and q.find_nodes_by_module_type('linear_projection')",
        "mx.HierarchyExporter(), mx.UniversalHierarchyExporter(), mx.export_hf_model_with_semantics",
        "assert not {'torch', 'transformers', 'onnxruntime', 'onnx_ir'} & sys.modules.keys()",
    )
    run_child([sys.executable, "-c", "\n".join(lines)], check=True)
