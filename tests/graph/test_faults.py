"""What is wrong with a file is found when it is opened, all of it, and costs next to nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from tests.support.building import body, model, node, weight
from tests.support.hostile_files import EXPLOSIVE, MALFORMED, Make, chained, doubling, not_utf8, tagged

from modelexport.errors import FileMalformed
from modelexport.graph.file.faults import find_faults
from modelexport.graph.file.reading import open_model, parse_model
from modelexport.graph.functions import inline_graph, measure_calls
from modelexport.graph.index import index_model

SECONDS = 5


def faults_of(proto: onnx.ModelProto) -> list[str]:
    file = parse_model(proto.SerializeToString())
    return list(find_faults(file.proto, file.weights))


def test_a_sound_file_has_none(tmp_path: Path) -> None:
    assert faults_of(tagged()) == []
    onnx.save(tagged(), tmp_path / "a.onnx")
    assert open_model(tmp_path / "a.onnx").graph.nodes


@pytest.mark.parametrize("count", [3, 3000])
def test_every_type_has_none_however_it_is_stored(count: int) -> None:
    for number in sorted(set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}):
        values: Any = [b"a" if number == TensorProto.STRING else 1] * count
        stored = [helper.make_tensor("w", number, [count], values)]
        if number != TensorProto.STRING:
            array = onnx.numpy_helper.to_array(stored[0])
            stored.append(onnx.numpy_helper.from_array(array, "w"))
        for tensor in stored:
            assert faults_of(model(node("Neg", "x", "y"), weights=[tensor])) == [], number


def test_a_header_alone_and_an_empty_tensor_have_none() -> None:
    header = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    empty = onnx.TensorProto(name="e", data_type=TensorProto.FLOAT, dims=[0, 3])
    assert faults_of(model(node("Neg", "x", "y"), weights=[header, empty])) == []


@pytest.mark.parametrize("inputs", ["", "i"])
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_loop_whose_body_has_no_counter_or_condition(inputs: str, is_inside: bool) -> None:
    loop = node("Loop", "n c", "y", body=body(node("Not", "c", "t"), inputs=inputs, outputs="t"))
    proto = model(node("If", "c", "z", then_branch=body(loop, outputs="y")) if is_inside else loop)
    (fault,) = faults_of(proto)
    assert "and 1 outputs, and it takes 2 at least and makes 1 at least" in fault
    loop.domain = "com.example"  # of which nobody knows what its body takes
    assert not faults_of(model(loop))


def test_a_scan_that_says_something_else_than_how_many_inputs_it_scans() -> None:
    inner = body(node("Neg", "row", "t"), inputs="row", outputs="t")
    assert not faults_of(model(node("Scan", "x", "y", body=inner, num_scan_inputs=1, scan_input_axes=[0])))
    (count,) = faults_of(model(node("Scan", "x", "y", body=inner, num_scan_inputs=[1])))
    assert count == "the attribute num_scan_inputs of the Scan '' is not a whole number"
    (axes,) = faults_of(model(node("Scan", "x", "y", body=inner, num_scan_inputs=1, scan_output_axes=0)))
    assert axes == "the attribute scan_output_axes of the Scan '' is not a list of whole numbers"
    (second,) = faults_of(model(node("Scan", "x", "y", body=inner, num_scan_inputs=1, then_branch=inner)))
    assert second == "the Scan '' has a body 'then_branch', and it takes one named 'body'"


@pytest.mark.parametrize("make", MALFORMED.values(), ids=MALFORMED)
def test_malformed_parts_are_named(make: Make, tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(make().SerializeToString())
    with pytest.raises(FileMalformed) as caught:
        open_model(tmp_path / "a.onnx")
    assert len(set(caught.value.faults)) == 1
    assert caught.value.faults[0] in caught.value.message
    assert caught.value.hint


def test_all_of_them_are_listed(tmp_path: Path) -> None:
    weights = [onnx.TensorProto(name=f"w{number}", data_type=99, dims=[1]) for number in range(5)]
    onnx.save(model(node("Neg", "x", "y"), weights=weights), tmp_path / "a.onnx")
    with pytest.raises(FileMalformed, match=r"'w0' is of type 99.* \(and 4 more\)") as caught:
        open_model(tmp_path / "a.onnx")
    assert len(caught.value.faults) == 5


@pytest.mark.parametrize("marker", [b"mm", b"MatMul", b"Net"], ids=["name", "operator", "record"])
def test_a_name_that_is_no_utf8_is_named(marker: bytes, tmp_path: Path) -> None:
    data = not_utf8(marker)
    if marker == b"Net":
        data = tagged().SerializeToString().replace(b"pkg.modelexport.record", b"pkg.modelexport.recor\xed")
    (tmp_path / "a.onnx").write_bytes(data)
    with pytest.raises(FileMalformed, match="is not UTF-8") as caught:
        open_model(tmp_path / "a.onnx")
    assert all(fault.startswith("model.") for fault in caught.value.faults)


@pytest.mark.parametrize("make", EXPLOSIVE.values(), ids=EXPLOSIVE)
def test_what_unfolds_without_end_is_refused_at_once(make: Make, tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(make().SerializeToString())
    began = time.process_time()
    with pytest.raises(FileMalformed):
        open_model(tmp_path / "a.onnx")
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize("proto", [doubling(6), chained(40)], ids=["doubling", "chain"])
def test_calls_are_measured_as_they_are_inlined(proto: onnx.ModelProto) -> None:
    measured, flat = measure_calls(proto), inline_graph(index_model(proto)).graph
    names = [name for node in flat.nodes for name in (*node.inputs, *node.outputs)]
    assert measured.nodes == len(flat.nodes)
    assert sum(map(len, names)) <= measured.characters
    assert not any(node.function in flat.body_outputs for node in flat.nodes)


def test_functions_that_call_themselves_stay_calls_and_end() -> None:
    """Twenty that all call each other: paths without a repetition are more than anybody can walk."""
    names = [f"F{number}" for number in range(20)]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    functions = [
        helper.make_function(
            "local",
            name,
            ["a"],
            ["v19"],
            [node(other, "a", f"v{step}", domain="local") for step, other in enumerate(names)],
            opsets,
        )
        for name in names
    ]
    proto = model(node("F0", "x", "y", domain="local"), functions=functions)
    assert faults_of(proto) == []
    assert [made.op_type for made in inline_graph(index_model(proto)).graph.nodes if not made.graph] == ["F0"]


def test_two_functions_of_a_name(tmp_path: Path) -> None:
    proto = doubling(2)
    proto.functions.append(proto.functions[0])
    assert faults_of(proto) == ["there are several functions 'local::F0'"]


def test_bodies_are_looked_into() -> None:
    inner = body(node("Neg", "x", "t"), outputs="t")
    inner.node[0].attribute.add(name="odd")
    outer = body(node("If", "x", "u", then_branch=inner, else_branch=inner), outputs="u")
    faults = faults_of(model(node("If", "x", "y", then_branch=outer, else_branch=outer), weights=[weight("w", 1)]))
    assert len(faults) == 4
    assert set(faults) == {"the attribute 'odd' of a Neg has no type that ONNX knows"}
