"""Overlays as node data of Model Explorer: no time is lost on the way, and a node shows what its module shows."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.drawings import constant, drawing, drawings, operator

from modelexport.record.hierarchy import ModuleCall
from modelexport.record.results.verification import Status, Verdict
from modelexport.show.data.overlays import CallVerdict, KernelTime, Profiled, Verified
from modelexport.show.formats.drawing import BoxKind, Drawing, Sheet
from modelexport.show.formats.node_data import NodeData, node_data

NET = drawing(
    operator("a", "enc.0"),
    operator("b", "enc.0"),
    operator("c", "enc.0.fc"),
    operator("d", "enc.1"),
    operator("e", ""),
    operator("f", None),
    constant("w", "enc.1"),
)


def kernel(key: str, time: float, charged_to: str | None, *owners: str) -> KernelTime:
    return KernelTime(key, time, charged_to, frozenset(owners), unclear=False)


def profiled(*kernels: KernelTime) -> Profiled:
    return Profiled("a.onnx", "5 runs", {}, {}, kernels)


def times(picture: Drawing, *kernels: KernelTime) -> Mapping[str, float]:
    (data,) = node_data(profiled(*kernels), picture)
    return {key: result["value"] for key, result in data.results.items()}


@pytest.mark.parametrize(
    ("given_kernel", "expected"),
    [
        (kernel("a", 8, "enc.0", "enc.0"), {"a": 8}),
        (kernel("f", 8, None), {"f": 8}),
        (kernel("fused", 8, "enc.0", "enc.0"), {"a": 4, "b": 4}),
        (kernel("d", 8, "enc.0", "enc.0"), {"a": 4, "b": 4}),  # it has the key of a node that it took the place of
        (kernel("fused", 8, "enc", "enc.0.fc", "enc.1"), {"c": 4, "d": 4}),
        (kernel("fused", 8, "enc", "elsewhere"), {"a": 2, "b": 2, "c": 2, "d": 2}),
        (kernel("w", 8, "enc.1", "enc.1"), {"d": 8}),  # a constant takes no time
    ],
    ids=["own", "of no module", "spread", "charged elsewhere", "to owners", "inside", "constant"],
)
def test_time_goes_to_the_nodes_that_it_is_for(given_kernel: KernelTime, expected: Mapping[str, float]) -> None:
    found = times(NET, given_kernel)
    assert found.keys() == set("abcdef")
    assert {key: time for key, time in found.items() if time} == expected


def test_what_is_spread_goes_to_nodes_without_a_kernel_first() -> None:
    found = times(NET, kernel("a", 1, "enc.0", "enc.0"), kernel("fused", 8, "enc.0", "enc.0"))
    assert (found["a"], found["b"]) == (1, 8)
    both = [kernel(key, 1, "enc.0", "enc.0") for key in "ab"]
    found = times(NET, *both, kernel("fused", 8, "enc.0", "enc.0"))
    assert (found["a"], found["b"]) == (5, 5)


def test_time_that_belongs_to_no_node_is_said() -> None:
    (data,) = node_data(profiled(kernel("copy", 12.4, None), kernel("other", 3.0, "gone", "gone")), NET)
    assert data.notes == ("15 µs of kernels belong to no node of the file",)
    assert {result["value"] for result in data.results.values()} == {0.0}


@given(drawings(), st.data())
def test_no_time_is_lost_or_made(picture: Drawing, data: st.DataObject) -> None:
    operators = [box for box in picture.boxes if box.kind is BoxKind.OPERATOR]
    paths = st.sampled_from([None, "gone", *(box.call.path for box in operators if box.call is not None)])
    keys = st.sampled_from([*(box.id for box in picture.boxes), "fused"])
    kernels = st.builds(kernel, keys, st.integers(0, 1000).map(float), paths, paths.filter(bool))
    drawn = data.draw(st.lists(kernels, max_size=6))
    (found,) = node_data(profiled(*drawn), picture)
    shown = sum(result["value"] for result in found.results.values())
    lost = float(found.notes[0].split()[0]) if found.notes else 0.0
    assert shown + lost == pytest.approx(sum(each.time for each in drawn), abs=0.01 * len(operators))


def compared(max_abs: float | None, agrees: bool | None) -> CallVerdict:
    status = Status.NOT_COMPARED if agrees is None else Status.OK if agrees else Status.DIVERGES
    return CallVerdict(status, 60.0, max_abs, agrees, "")


def verified(calls: Mapping[str, CallVerdict], nodes: Mapping[str, Verdict]) -> Verified:
    by_call = {ModuleCall.parse(call): verdict for call, verdict in calls.items()}
    return Verified("a.onnx", "torch", by_call, {}, nodes)


def test_a_node_shows_the_error_of_the_innermost_module_that_was_compared() -> None:
    calls = {"": compared(0.5, True), "enc.0": compared(0.25, False), "enc.0.fc": compared(None, None)}
    (data,) = node_data(verified(calls, {}), NET)
    assert {key: result["value"] for key, result in data.results.items()} == {
        "a": 0.25,
        "b": 0.25,
        "c": 0.25,  # its own module was not compared
        "d": 0.5,
        "e": 0.5,
    }
    good, bad = data.results["d"]["bgColor"], data.results["a"]["bgColor"]
    assert good != bad


def test_an_error_that_is_no_number_is_said_in_words() -> None:
    (data,) = node_data(verified({"": compared(None, False)}, {}), NET)
    assert data.results["e"]["value"] == "not finite"
    json.loads(data.text(NET), parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))


def test_verdicts_have_three_colours_and_a_file_of_their_own() -> None:
    verdicts = {
        "a": Verdict.PROVED,
        "b": Verdict.ENCLOSED,
        "c": Verdict.CONTRADICTED,
        "d": Verdict.NOT_PROVABLE,
    }
    _, data = node_data(verified({}, {**verdicts, "gone": Verdict.PROVED}), NET)
    colours = {key: result["bgColor"] for key, result in data.results.items()}
    assert colours.keys() == set("abcd")
    assert colours["a"] == colours["b"]
    assert len(set(colours.values())) == 3
    assert data.suffix == ".verdicts"


def test_one_object_for_each_graph_with_its_own_nodes() -> None:
    picture = drawing(
        operator("loop", "m", "Loop"),
        operator("loop|body|x", None, sheet="loop|body"),
        sheets=[Sheet("loop|body", "body", "loop")],
        name="bert",
    )
    data = NodeData("n", {box.id: {"value": 1} for box in picture.boxes}, gradient=[{"stop": 0}])
    document = json.loads(data.text(picture))
    assert {graph: list(found["results"]) for graph, found in document.items()} == {
        "bert": ["loop"],
        "loop|body": ["loop|body|x"],
    }
    assert all(found["gradient"] == [{"stop": 0}] for found in document.values())
    assert json.loads(NodeData("n", {}).text(picture)) == {"bert": {"name": "n", "results": {}}}
