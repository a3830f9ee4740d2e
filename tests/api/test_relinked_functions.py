"""Files with functions: a runtime puts them in the place of their calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.support.building import model, node, provenance, tree

import modelexport as mx
from modelexport.api.writing import write_tagged
from modelexport.graph.file.metadata import EmbedOptions
from modelexport.graph.file.reading import open_model
from modelexport.graph.index import index_model
from modelexport.record.provenance import Origin


@pytest.fixture
def tagged(tmp_path: Path) -> Path:
    block = helper.make_function(
        "local",
        "Block",
        ["a", "w"],
        ["b"],
        [node("MatMul", "a w", "m"), node("Relu", "m", "b")],
        [helper.make_opsetid("", 20)],
    )
    random = np.random.default_rng(0)
    proto = model(
        node("Block", "x first.weight", "h", domain="local"),
        node("Block", "h second.weight", "y", domain="local"),
        weights=[
            numpy_helper.from_array(random.normal(size=(8, 8)).astype(np.float32), f"{name}.weight")
            for name in ("first", "second")
        ],
        functions=[block],
    )
    proto.opset_import.append(helper.make_opsetid("local", 1))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim.add(dim_value=2)
        value.type.tensor_type.shape.dim.add(dim_value=8)
    tree_of = tree({"": "Net", "first": "Block", "second": "Block"})
    owners = {"h": ["first"], "y": ["second"], "local::Block|m": ["first", "second"]}
    onnx.save(proto, tmp_path / "plain.onnx")
    opened = open_model(tmp_path / "plain.onnx")
    record = replace(provenance(proto, tree_of, owners), origin=Origin("t", "t", index_model(proto).fingerprint))
    write_tagged(opened, record, tmp_path / "tagged.onnx", EmbedOptions())
    return tmp_path / "tagged.onnx"


@pytest.mark.parametrize("tool", ["ort:all", "ort:basic"])
def test_what_was_in_a_function_belongs_to_who_called_it(tagged: Path, tmp_path: Path, tool: str) -> None:
    found = mx.run_tool(tagged, tool, tmp_path / "out.onnx")
    assert found.ok
    assert not onnx.load(tmp_path / "out.onnx").functions
    owners = [entry.attribution.modules for entry in found.provenance.nodes.values()]
    assert owners == [("first",), ("first",), ("second",), ("second",)]


def test_so_does_its_time(tagged: Path) -> None:
    found = {module.path: module for module in mx.profile(tagged, runs=2, warmup=0).modules}
    assert set(found) == {"", "first", "second"}
    assert found["first"].nodes == found["second"].nodes == 2
