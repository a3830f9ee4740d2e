"""What ONNX Runtime's profiler writes, and what is read of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelexport.capture.onnxruntime.session import ProfileRequest, parse_profile, profile_file
from modelexport.errors import RuntimeFailed, UserError
from modelexport.graph.index import Graph, index_model
from modelexport.inspect.kernel_events import join_events
from modelexport.record.results.profile import RawEvent
from modelexport.transform.tools.optimizers import saving_options

Item = dict[str, Any]


def kernel(name: str, op_type: str, index: int, start: int, duration: int) -> Item:
    about = {"op_name": op_type, "node_index": str(index), "provider": "CPUExecutionProvider"}
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": start, "dur": duration, "args": about}


def session(name: str, start: int, duration: int) -> Item:
    return {"cat": "Session", "name": name, "ts": start, "dur": duration, "args": {}}


def graph_ran(start: int, duration: int) -> Item:
    return session("SequentialExecutor::Execute", start, duration)


def names(events: tuple[RawEvent, ...]) -> list[Any]:
    return [(one.name, *map(names, one.bodies)) if one.bodies else one.name for one in events]


class TestReading:
    def test_bodies_are_inside_of_the_nodes_that_hold_them(self) -> None:
        """Times as they are written: in whole microseconds, so that an event may begin when the one around it does."""
        document = [
            session("session_initialization", 0, 90),
            kernel("first", "Relu", 0, 101, 4),
            kernel("a", "Neg", 0, 107, 2),
            kernel("c", "Exp", 0, 110, 3),
            graph_ran(110, 4),
            kernel("b", "If", 1, 110, 5),
            graph_ran(107, 8),
            kernel("a", "Neg", 0, 116, 2),
            graph_ran(116, 3),
            kernel("loop", "Loop", 1, 106, 14),
            kernel("last", "Relu", 2, 121, 1),
            graph_ran(100, 23),
            session("model_run", 100, 24),
            kernel("first", "Relu", 0, 131, 4),
            graph_ran(130, 6),
            session("model_run", 130, 7),
        ]
        first, second = parse_profile(document)
        assert names(first.events) == ["first", ("loop", ["a", ("b", ["c"])], ["a"]), "last"]
        assert names(second.events) == ["first"]
        assert (first.start, first.duration, second.start) == (100, 24, 130)
        # From times alone: those of what is outermost.
        assert (first.busy, second.busy) == (4 + 14 + 1, 4)

    def test_other_events_do_not_matter(self) -> None:
        strange = [session("batch", 100, 9), {**kernel("x", "Relu", 0, 101, 2), "name": "x_fence_before"}]
        document = [*strange, kernel("x", "Relu", 0, 101, 2), graph_ran(100, 5), session("model_run", 100, 6)]
        assert names(parse_profile(document)[0].events) == ["x"]


FLOAT = TensorProto.FLOAT


def bodies_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    return (item.g for item in node.attribute if item.type == onnx.AttributeProto.GRAPH)


def rename(graph: onnx.GraphProto, pattern: str) -> None:
    """By their place in the graph that holds them."""
    for place, node in enumerate(graph.node):
        node.name = pattern.format(place)
        for body in bodies_of(node):
            rename(body, pattern)


def flow(yes: tuple[str, ...], no: tuple[str, ...]) -> onnx.ModelProto:
    """An If, and in a Loop an If that goes another way every time; every node has a name of its own."""

    def chain(tag: str, operators: tuple[str, ...], source: str) -> onnx.GraphProto:
        values = [source, *(f"{tag}{place}" for place in range(len(operators)))]
        nodes = [
            helper.make_node(op, [values[place]], [values[place + 1]], f"{tag}.{place}")
            for place, op in enumerate(operators)
        ]
        return helper.make_graph(nodes, tag, [], [helper.make_tensor_value_info(values[-1], FLOAT, None)])

    inner: dict[str, Any] = {"then_branch": chain("p", yes, "s"), "else_branch": chain("q", no, "s")}
    loop = helper.make_graph(
        [
            helper.make_node("Identity", ["k"], ["k2"], "keep"),
            helper.make_node("Mod", ["i", "two"], ["m"], "mod"),
            helper.make_node("Cast", ["m"], ["odd"], "cast", to=TensorProto.BOOL),
            helper.make_node("If", ["odd"], ["s2"], "inner", **inner),
        ],
        "loop",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("k", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", FLOAT, None),
        ],
        [helper.make_tensor_value_info("k2", TensorProto.BOOL, []), helper.make_tensor_value_info("s2", FLOAT, None)],
    )
    outer: dict[str, Any] = {"then_branch": chain("t", yes, "x"), "else_branch": chain("e", no, "x")}
    nodes = [
        helper.make_node("If", ["c"], ["y1"], "outer", **outer),
        helper.make_node("Loop", ["n", "true", "y1"], ["y2"], "loop", body=loop),
        helper.make_node("Sin", ["x"], ["z"], "side"),
        helper.make_node("Add", ["y2", "z"], ["y"], "sum"),
    ]
    inputs = [
        helper.make_tensor_value_info("x", FLOAT, [4, 4]),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
    ]
    outputs = [helper.make_tensor_value_info("y", FLOAT, None)]
    numbers = {"n": np.array(3), "true": np.array(True), "two": np.array(2)}
    weights = [numpy_helper.from_array(value, name) for name, value in numbers.items()]
    graph = helper.make_graph(nodes, "flow", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def ran(model: onnx.ModelProto, folder: Path, condition: bool, level: str) -> tuple[list[tuple[str, ...]], Graph]:
    """The nodes that each event of one run may be about, in order; and the graph that ran."""
    folder.mkdir(exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    options = saving_options(folder / "saved.onnx", level, weights_beside=True)
    feed = {"x": np.ones((4, 4), np.float32), "c": np.array(condition)}
    found = profile_file(folder / "model.onnx", feed, options, ProfileRequest(1, 0, (), 1))
    graph = index_model(onnx.load(folder / "saved.onnx", load_external_data=False))
    return [event.keys for event in join_events(found.runs, graph)], graph


@pytest.mark.parametrize("level", ["all", "none"])
@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("pattern", ["", "node_{}"])
class TestBranchesWithoutNames:
    """Nodes without names, or with those that nodes of other bodies have as well.

    Held against the same graph with a name for every node, where nothing is left to find out.
    """

    def both(
        self, model: onnx.ModelProto, folder: Path, condition: bool, level: str, pattern: str
    ) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
        truth, _ = ran(model, folder / "named", condition, level)
        rename(model.graph, pattern)
        return truth, ran(model, folder / "other", condition, level)[0]

    def test_other_branches(self, tmp_path: Path, condition: bool, level: str, pattern: str) -> None:
        model = flow(("Sin", "Cos", "Sin"), ("Sin", "Exp", "Sin"))
        truth, found = self.both(model, tmp_path, condition, level, pattern)
        assert all(len(keys) == 1 for keys in truth)
        assert len(truth) > 15
        assert found == truth

    def test_branches_that_look_alike(self, tmp_path: Path, condition: bool, level: str, pattern: str) -> None:
        """What cannot be known is not said: each event has the true node and that of the other branch."""
        model = flow(("Sin", "Cos"), ("Sin", "Cos"))
        truth, found = self.both(model, tmp_path, condition, level, pattern)
        assert [len(keys) for keys in found] == [2 if "_branch|" in keys[0] else 1 for keys in truth]
        assert all(keys[0] in others for keys, others in zip(truth, found, strict=True))


class TestProviders:
    CPU = "CPUExecutionProvider"

    def run(self, folder: Path, *providers: str) -> tuple[str, ...]:
        onnx.save(flow(("Sin",), ("Cos",)), folder / "model.onnx")
        options = saving_options(folder / "saved.onnx", "all")
        feed = {"x": np.ones((4, 4), np.float32), "c": np.array(True)}
        return profile_file(folder / "model.onnx", feed, options, ProfileRequest(1, 0, providers, 1)).requested

    def test_by_short_names_and_once(self, tmp_path: Path) -> None:
        assert self.run(tmp_path, "cpu", self.CPU) == (self.CPU,)
        assert self.run(tmp_path) == ()

    def test_one_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="no provider 'Abacus'") as caught:
            self.run(tmp_path, "Abacus", "CPU")
        assert self.CPU in caught.value.hint

    def test_one_that_cannot_be_started(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """ONNX Runtime says nothing, and runs everything on the CPU."""
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", self.CPU])
        monkeypatch.setattr(onnxruntime.InferenceSession, "get_providers", lambda _: [self.CPU])
        original = onnxruntime.InferenceSession.__init__

        def start(made: Any, path: str, options: Any, providers: list[str]) -> None:
            original(made, path, options, providers=[name for name in providers if name == self.CPU])

        monkeypatch.setattr(onnxruntime.InferenceSession, "__init__", start)
        with pytest.raises(UserError, match="could not start CUDAExecutionProvider") as caught:
            self.run(tmp_path, "CUDA", "CPU")
        assert self.CPU in caught.value.hint
        assert self.run(tmp_path) == ()  # left to ONNX Runtime, the CPU will do


def test_a_profile_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime stops writing events down after a million of them, and goes on."""
    monkeypatch.setattr(
        "modelexport.capture.onnxruntime.session.parse_profile", lambda document: parse_profile(document)[:-1]
    )
    with pytest.raises(RuntimeFailed, match="wrote down 0 of 1 runs") as caught:
        TestProviders().run(tmp_path)
    assert "--runs" in caught.value.hint
