"""Modules inside of bodies, around them, and in functions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.cut_files import ROW, run

from modelexport.errors import CutImpossible
from modelexport.graph.file.reading import ModelFile
from modelexport.record.hierarchy import CallSite, Hierarchy, Module, ModuleCall
from modelexport.record.provenance import Attribution, Confidence, NodeEntry, Origin, Provenance
from modelexport.transform.extract.assembly import ExtractedPart, assemble_part
from modelexport.transform.extract.cut import Cutter
from modelexport.transform.extract.selection import select_modules

FLOAT = helper.make_tensor_type_proto(TensorProto.FLOAT, ["batch", 4])


def _body(*nodes: onnx.NodeProto, weight: float = 0.0) -> onnx.GraphProto:
    stored = [numpy_helper.from_array(np.full(4, weight, np.float32), "w")] if weight else []
    return helper.make_graph(
        list(nodes), "body", [], [helper.make_value_info(nodes[-1].output[0], FLOAT)], initializer=stored
    )


def _model(*nodes: onnx.NodeProto, functions: tuple[onnx.FunctionProto, ...] = ()) -> onnx.ModelProto:
    inputs = [helper.make_value_info("x", FLOAT), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    graph = helper.make_graph(list(nodes), "g", inputs, [helper.make_value_info("y", FLOAT)])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets, functions=list(functions))


BRANCHES = _model(
    helper.make_node("Neg", ["x"], ["h"]),
    helper.make_node(
        "If",
        ["c"],
        ["z"],
        then_branch=_body(
            helper.make_node("Mul", ["h", "w"], ["t"]), helper.make_node("Relu", ["t"], ["u"]), weight=3.0
        ),
        else_branch=_body(helper.make_node("Abs", ["h"], ["u"])),
    ),
    helper.make_node("Neg", ["z"], ["y"]),
)
OWNERS = {
    "h": "before",
    "z": "choice",
    "z|then_branch|t": "choice.yes",
    "z|then_branch|u": "choice.yes",
    "z|else_branch|u": "choice.no",
    "y": "",
}


def _cutter(model: onnx.ModelProto, owners: Mapping[str, str]) -> tuple[ModelFile, Cutter]:
    file = ModelFile(model, {})
    paths = dict.fromkeys(["", *sorted(owners.values())])
    sites = [
        CallSite(ModuleCall(path), None if not path else ModuleCall(path.rpartition(".")[0])) for path in sorted(paths)
    ]
    hierarchy = Hierarchy.of((Module(path, "Part", "net", arguments=("x",)) for path in sorted(paths)), sites)
    nodes = {
        node.key: NodeEntry(
            node.key,
            node.name,
            node.op_type,
            Attribution((ModuleCall(owners[node.key]),), ModuleCall(owners[node.key]), Confidence.EXACT),
        )
        for node in file.graph.nodes
    }
    provenance = Provenance(hierarchy, nodes, {}, Origin("hand", "hand", file.graph.fingerprint))
    return file, Cutter(file, provenance)


def extract(module: str, model: onnx.ModelProto = BRANCHES, owners: Mapping[str, str] = OWNERS) -> ExtractedPart:
    file, cutter = _cutter(model, owners)
    return assemble_part(file, cutter.provenance, cutter.cut(select_modules(cutter.provenance, [module])), cutter.types)


def test_a_module_in_a_branch_becomes_a_graph_of_its_own() -> None:
    found = extract("choice.yes")
    assert [node.op_type for node in found.file.proto.graph.node] == ["Mul", "Relu"]
    assert [tensor.name for tensor in found.file.proto.graph.initializer] == ["w"]
    assert list(found.provenance.nodes) == ["t", "u"]
    assert np.array_equal(run(found, h=ROW)[0], np.maximum(3 * ROW, 0))


def test_a_module_with_branches_comes_whole() -> None:
    found = extract("choice")
    assert set(found.provenance.nodes) == {"z", "z|then_branch|t", "z|then_branch|u", "z|else_branch|u"}
    assert found.provenance.nodes["z|else_branch|u"].attribution.module == "no"
    assert np.array_equal(run(found, h=ROW, c=np.array(False))[0], np.abs(ROW))


def test_what_only_a_body_reads_leaves_a_module() -> None:
    found = extract("before")
    assert [value.name for value in found.file.proto.graph.output] == ["h"]


def test_a_module_in_both_branches_cannot_be_cut_alone() -> None:
    owners = {**OWNERS, "z|else_branch|u": "choice.yes", "z|then_branch|t": "choice.no"}
    with pytest.raises(CutImpossible, match=r"choice\.yes runs in more than one branch of If") as refused:
        extract("choice.yes", owners=owners)
    assert refused.value.instead == ("choice",)


def test_branches_that_are_one_modules_work_come_with_their_node() -> None:
    owners = {**OWNERS, "z|else_branch|u": "choice.yes"}
    assert [node.op_type for node in extract("choice.yes", owners=owners).file.proto.graph.node] == ["If"]


def test_a_module_in_a_loop_is_there_once_for_all_of_its_calls() -> None:
    row = helper.make_tensor_type_proto(TensorProto.FLOAT, [4])
    step = helper.make_graph(
        [helper.make_node("Relu", ["i"], ["r"]), helper.make_node("Neg", ["r"], ["o"])],
        "step",
        [helper.make_value_info("i", row)],
        [helper.make_value_info("o", row)],
    )
    model = _model(helper.make_node("Scan", ["x"], ["y"], body=step, num_scan_inputs=1))
    calls = tuple(ModuleCall("cell", index) for index in range(3))
    file = ModelFile(model, {})
    hierarchy = Hierarchy.of(
        [Module("", "Net", "net"), Module("cell", "Cell", "net")],
        [CallSite(ModuleCall(""), None), *(CallSite(call, ModuleCall("")) for call in calls)],
    )
    owners = {"y": (ModuleCall(""),), "y|body|r": calls, "y|body|o": (ModuleCall(""),)}
    nodes = {
        node.key: NodeEntry(
            node.key, node.name, node.op_type, Attribution(owners[node.key], owners[node.key][0], Confidence.STRONG)
        )
        for node in file.graph.nodes
    }
    provenance = Provenance(hierarchy, nodes, {}, Origin("hand", "hand", file.graph.fingerprint))
    cutter = Cutter(file, provenance)
    for call in ("cell", "cell#2"):
        cut = cutter.cut(select_modules(provenance, [call]))
        assert [node.op_type for node in cut.nodes] == ["Relu"]
        found = run(assemble_part(file, provenance, cut, cutter.types), i=ROW[0])[0]
        assert np.array_equal(found, np.maximum(ROW[0], 0))


FOLDED = _model(
    helper.make_node("Block", ["x"], ["h"], domain="own"),
    helper.make_node("Block", ["h"], ["y"], domain="own"),
    functions=(
        helper.make_function(
            "own",
            "Block",
            ["a"],
            ["b"],
            [helper.make_node("Relu", ["a"], ["i"]), helper.make_node("Neg", ["i"], ["b"])],
            [helper.make_opsetid("", 20)],
        ),
    ),
)


def test_a_function_comes_with_the_node_that_calls_it() -> None:
    owners = {"h": "one", "y": "two", "own::Block|i": "one", "own::Block|b": "one"}
    found = extract("one", FOLDED, owners)
    assert [function.name for function in found.file.proto.functions] == ["Block"]
    assert np.array_equal(run(found, x=ROW)[0], -np.maximum(ROW, 0))


def test_a_part_of_a_function_needs_a_flat_file() -> None:
    owners = {"h": "one", "y": "two", "own::Block|i": "one.part", "own::Block|b": "one"}
    with pytest.raises(CutImpossible, match="lies in the function own::Block of the file"):
        extract("one.part", FOLDED, owners)
