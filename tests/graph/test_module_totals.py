"""Sums by module: each node once, in the innermost module around its owners; parameters as torch counts them."""

from __future__ import annotations

from dataclasses import replace

import onnx
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tests.support.building import attribution, provenance, tree
from tests.support.cost_files import OPSETS, file_of, header, value

from modelexport.graph.index import index_model
from modelexport.graph.module_totals import ModuleTotals
from modelexport.record.hierarchy import CallSite, Hierarchy, ModuleCall, TensorInfo, parent_path
from modelexport.record.provenance import Provenance

PATHS = {"": "Net", "a": "Block", "a.fc": "Linear", "a.act": "ReLU", "b": "Block", "b.fc": "Linear"}


def hierarchy(tied: bool = False) -> Hierarchy:
    found = tree(PATHS, *PATHS)
    weight = TensorInfo("weight", (4, 4), "float32", 64)
    other = replace(weight, tied=("a.fc.weight",)) if tied else weight
    parameters = {"a.fc": (weight,), "b.fc": (other,)}
    modules = [replace(one, parameters=parameters.get(path, ())) for path, one in found.modules.items()]
    return Hierarchy.of(modules, found.calls)


def chain(count: int = 6) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", [f"v{n}" if n else "x"], [f"v{n + 1}"]) for n in range(count)]
    nodes[-1].output[0] = "y"
    return file_of(nodes, [value("x", (2, 4))])


def totals_of(model: onnx.ModelProto, record: Provenance | None) -> ModuleTotals:
    return ModuleTotals.of(index_model(model), record)


def own_nodes(totals: ModuleTotals) -> dict[str | None, int]:
    return {path: count for path in (*PATHS, None) if (count := totals.own(path).nodes)}


def test_a_node_of_one_module_is_its_own() -> None:
    model = chain(3)
    totals = totals_of(model, provenance(model, hierarchy(), {"v1": ("a.fc",), "v2": ("a",), "y": ("",)}))
    assert own_nodes(totals) == {"a.fc": 1, "a": 1, "": 1}
    assert (totals.total("a").nodes, totals.total("").nodes, totals.whole.nodes) == (2, 3, 3)


def test_a_shared_node_belongs_to_the_module_around_its_owners_and_is_told_apart() -> None:
    model = chain(3)
    owners = {"v1": ("a.fc", "a.act"), "v2": ("a.fc", "b.fc"), "y": ("a", "a.fc")}
    totals = totals_of(model, provenance(model, hierarchy(), owners))
    assert own_nodes(totals) == {"a": 2, "": 1}
    assert (totals.own("a").shared, totals.own("").shared, totals.whole.shared) == (2, 1, 3)
    assert totals.total("a.fc").nodes == 0
    assert totals.is_served("a.fc")  # it is there, only in company
    assert not totals.is_served("b")
    assert totals.is_served_inside("b")


def test_what_two_calls_of_a_module_share_is_its_own() -> None:
    calls = [CallSite(ModuleCall(""), None), *(CallSite(ModuleCall("a", n), ModuleCall("")) for n in range(2))]
    calls += [CallSite(ModuleCall("a.fc", n), ModuleCall("a", n)) for n in range(2)]
    modules = Hierarchy.of(hierarchy().modules.values(), calls)
    model = chain(1)
    record = provenance(model, modules, {})
    both = attribution(modules, "a.fc", "a.fc#1")
    record = replace(record, nodes={key: replace(entry, attribution=both) for key, entry in record.nodes.items()})
    totals = totals_of(model, record)
    assert own_nodes(totals) == {"a.fc": 1}
    assert totals.own("a.fc").shared == 0  # one module alone, however often it is called


def test_what_belongs_to_nobody_is_in_the_whole_alone() -> None:
    model = chain(2)
    totals = totals_of(model, provenance(model, hierarchy(), {"v1": ("a",), "y": ()}))
    assert own_nodes(totals) == {"a": 1, None: 1}
    assert (totals.total("").nodes, totals.whole.nodes) == (1, 2)
    untagged = totals_of(model, None)
    assert own_nodes(untagged) == {None: 2}


def test_nodes_of_bodies_and_functions_count_once_in_the_file() -> None:
    inner = [helper.make_node("Relu", ["i"], ["o"])]
    function = helper.make_function("local", "Block", ["i"], ["o"], inner, OPSETS[:1])
    body = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["t"])],
        "then",
        [],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["e"])],
        "else",
        [],
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("Block", ["x"], ["p"], domain="local"),
        helper.make_node("Block", ["p"], ["q"], domain="local"),
        helper.make_node("If", ["c"], ["r"], then_branch=body, else_branch=other),
        helper.make_node("Add", ["q", "r"], ["y"]),
    ]
    model = file_of(nodes, [value("x", (2, 4)), value("c", (), TensorProto.BOOL)], functions=[function])
    graph = index_model(model)
    owners: dict[str, tuple[str, ...]] = {node.key: ("b",) for node in graph.nodes}
    owners |= {"p": ("a",), "local::Block|o": ("a.fc", "b.fc"), "y": ("",)}
    totals = ModuleTotals.of(graph, provenance(model, hierarchy(), owners))
    assert totals.whole.nodes == len(graph.nodes) == 7
    assert own_nodes(totals) == {"": 2, "a": 1, "b": 4}
    assert totals.total("").op_types == {"Block": 2, "Relu": 2, "Add": 1, "If": 1, "Neg": 1}


def test_a_tied_weight_counts_for_each_module_and_once_around_them() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"])]
    model = file_of(nodes, [value("x", (2, 4))], [header("w", (4, 4))])
    for tied, whole in ((True, 16), (False, 32)):  # stored once because they are tied, or because they are equal
        record = provenance(model, hierarchy(tied), {"h": ("a.fc",), "y": ("b.fc",)})
        record = replace(record, initializers={"w": attribution(record.hierarchy, "a.fc", "b.fc")})
        totals = totals_of(model, record)
        assert [totals.total(path).parameters for path in ("a.fc", "b.fc", "a")] == [16, 16, 16]
        assert totals.total("").parameters == totals.whole.parameters == whole
        assert totals.whole.bytes == 64


def test_a_fused_node_that_reads_one_tensor_twice_holds_a_parameter_of_each_module() -> None:
    """`SkipLayerNormalization` with the bias of the linear layer and that of the norm, both zeros and stored once."""
    fused = helper.make_node(
        "SkipLayerNormalization", ["x", "s", "norm.weight", "zeros", "zeros"], ["y"], domain="com.microsoft"
    )
    model = file_of(
        [fused], [value("x", (2, 4)), value("s", (2, 4))], [header("norm.weight", (4,)), header("zeros", (4,))]
    )
    modules = tree({"": "Net", "fc": "Linear", "norm": "LayerNorm"}, "", "fc", "norm")
    scale, bias = (TensorInfo(name, (4,), "float32", 16) for name in ("weight", "bias"))
    parameters = {"fc": (bias,), "norm": (scale, bias)}
    held = [replace(module, parameters=parameters.get(path, ())) for path, module in modules.modules.items()]
    record = provenance(model, Hierarchy.of(held, modules.calls), {"y": ("fc", "norm")})
    owners = {"norm.weight": ("norm",), "zeros": ("fc", "norm")}
    both = {name: attribution(record.hierarchy, *calls) for name, calls in owners.items()}
    totals = totals_of(model, replace(record, initializers=both))
    assert [totals.total(path).parameters for path in ("fc", "norm", "")] == [4, 8, 12]
    assert totals.whole.bytes == 32


def test_the_bias_of_a_fused_convolution_is_that_of_the_convolution_whatever_the_names() -> None:
    fused = helper.make_node("Conv", ["x", "onnx::Conv_1", "onnx::Conv_2"], ["y"])
    model = file_of([fused], [value("x", (1, 4, 8, 8))], [header("onnx::Conv_1", (4, 4)), header("onnx::Conv_2", (4,))])
    modules = tree({"": "Net", "conv": "Conv2d", "bn": "BatchNorm2d"}, "", "conv", "bn")
    weight, scale, bias = (
        TensorInfo(name, shape, "float32", 4) for name, shape in (("weight", (4, 4)), ("weight", (4,)), ("bias", (4,)))
    )
    parameters = {"conv": (weight, bias), "bn": (scale, bias)}
    held = [replace(module, parameters=parameters.get(path, ())) for path, module in modules.modules.items()]
    totals = totals_of(model, provenance(model, Hierarchy.of(held, modules.calls), {"y": ("conv", "bn")}))
    assert [totals.total(path).parameters for path in ("conv", "bn", "")] == [20, 0, 20]


@given(st.lists(st.lists(st.sampled_from(list(PATHS)), max_size=3, unique=True), min_size=1, max_size=12))
def test_parts_add_up(owners: list[list[str]]) -> None:
    model = chain(len(owners))
    keys = [node.output[0] for node in model.graph.node]
    totals = totals_of(model, provenance(model, hierarchy(), dict(zip(keys, map(tuple, owners), strict=True))))
    for path in PATHS:
        children = [child for child in PATHS if child and parent_path(child) == path]
        inside = sum(totals.total(child).nodes for child in children)
        assert totals.total(path).nodes == totals.own(path).nodes + inside
    assert totals.total("").nodes + totals.own(None).nodes == totals.whole.nodes == len(owners)
    assert totals.own(None).nodes == owners.count([])
