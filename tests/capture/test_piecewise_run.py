"""A graph that is run in pieces gives what it gives in one."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tests.support.building import model, node
from tests.support.exports import Exports

from modelexport.capture.onnxruntime import piecewise as pieces
from modelexport.capture.onnxruntime.piecewise import PiecewiseRun
from modelexport.errors import ExtraMissing, FileUnreadable, RuntimeFailed
from modelexport.graph.file.reading import ModelFile, initializer_array, initializer_arrays, open_model, parse_model
from modelexport.graph.nchwc import blocked_values
from modelexport.transform.tools.optimizers import save_optimized

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


def chain(length: int) -> onnx.ModelProto:
    nodes = [node("Sin", "x" if not place else f"v{place}", f"v{place + 1}") for place in range(length)]
    return model(*nodes, outputs=f"v{length}")


def prepared(proto: onnx.ModelProto, wanted: Collection[str] | None = None) -> PiecewiseRun:
    return PiecewiseRun(parse_model(proto.SerializeToString()), wanted)


def seen(run: PiecewiseRun, **feed: np.ndarray) -> dict[str, np.ndarray]:
    """Copies, in the order in which values were shown; each of them once."""
    found: dict[str, np.ndarray] = {}

    def see(name: str, array: np.ndarray) -> None:
        assert name not in found
        found[name] = array.copy()

    run.run(feed or {"x": X}, see)
    return found


@pytest.fixture
def lengths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many nodes each session that is made has."""
    counted: list[int] = []
    session = pieces._session

    def watched(proto: onnx.ModelProto) -> Any:
        counted.append(len(proto.graph.node))
        return session(proto)

    monkeypatch.setattr(pieces, "_session", watched)
    return counted


def of_shape(proto: onnx.ModelProto, *sizes: int | str) -> onnx.ModelProto:
    """The model with its one input of a known shape."""
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, list(sizes)))
    return proto


# what takes the place of a value


def test_what_comes_behind_an_exchanged_value_is_computed_from_the_other_one() -> None:
    other = np.full_like(X, 0.25)
    shown: dict[str, np.ndarray] = {}
    pieces_seen: list[tuple[str, ...]] = []

    def revise(arrays: Mapping[str, np.ndarray], is_last: bool) -> tuple[str, np.ndarray | None] | None:
        pieces_seen.append((*arrays, "last" if is_last else "more"))
        return ("v2", other) if "v2" in arrays else None

    prepared(chain(4)).run({"x": X}, lambda name, array: shown.update({name: array.copy()}), revise=revise)
    assert pieces_seen == [("v1", "v2", "v3", "v4", "last"), ("v3", "v4", "last")]
    np.testing.assert_array_equal(shown["v2"], other)
    np.testing.assert_allclose(shown["v1"], np.sin(X), rtol=1e-6)
    np.testing.assert_allclose(shown["v4"], np.sin(np.sin(other)), rtol=1e-6)


def test_a_piece_may_be_cut_before_a_value() -> None:
    pieces_seen: list[tuple[str, ...]] = []

    def revise(arrays: Mapping[str, np.ndarray], is_last: bool) -> tuple[str, np.ndarray | None] | None:
        pieces_seen.append(tuple(arrays))
        return ("v3", None) if "v3" in arrays and len(pieces_seen) < 3 else None

    shown: list[str] = []
    prepared(chain(4)).run({"x": X}, lambda name, _: shown.append(name), revise=revise)
    # One node at least counts in each piece.
    assert pieces_seen == [("v1", "v2", "v3", "v4"), ("v3", "v4"), ("v4",)]
    assert shown == ["x", "v1", "v2", "v3", "v4"]


# what is seen


def test_inputs_come_first_and_values_in_the_order_of_nodes() -> None:
    found = seen(prepared(chain(5)))
    assert list(found) == ["x", "v1", "v2", "v3", "v4", "v5"]
    np.testing.assert_array_equal(found["x"], X)
    np.testing.assert_allclose(found["v2"], np.sin(np.sin(X)), rtol=1e-6)


@given(st.sets(st.integers(1, 12)), st.integers(1, 12))
def test_wanted_values_are_those_of_a_full_run(places: set[int], longest: int) -> None:
    everything = seen(prepared(chain(12)))
    wanted = {f"v{place}" for place in places}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "_LONGEST_PIECE", longest)
        found = seen(prepared(chain(12), wanted))
    assert list(found) == ["x", *(name for name in everything if name in wanted)]
    for name, array in found.items():
        np.testing.assert_allclose(array, everything[name], rtol=1e-5)


def test_names_that_nobody_makes_are_not_waited_for() -> None:
    assert set(seen(prepared(chain(2), {"v2", "nothing"}))) == {"x", "v2"}


def test_a_scalar_stays_a_scalar() -> None:
    """numpy's own way to make an array contiguous gives it an axis."""
    proto = model(node("Sin", "x", "h"), node("Shape", "h", "y"))
    found = seen(prepared(proto), x=np.array(0.5, np.float32))
    assert found["h"].shape == ()
    assert found["y"].shape == (0,)


def test_a_feed_in_any_order_of_memory() -> None:
    turned = np.asfortranarray(X)
    np.testing.assert_array_equal(seen(prepared(chain(1)), x=turned)["v1"], seen(prepared(chain(1)))["v1"])


def test_fed_values_go_before_the_defaults_of_the_file() -> None:
    """A graph may list an initializer among its inputs; large ones lie elsewhere than small ones."""
    for size in (4, 4000):
        default, other = np.zeros(size, np.float32), np.ones(size, np.float32)
        proto = model(node("Add", "x w", "y"), inputs="x w", weights=[numpy_helper.from_array(default, "w")])
        run = prepared(proto)
        x = np.full(size, 2, np.float32)
        assert seen(run, x=x)["y"][0] == 2
        assert seen(run, x=x, w=other)["y"][0] == 3
        assert seen(run, x=x)["y"][0] == 2


# constants


def test_constants_are_what_the_file_holds(tmp_path: Path) -> None:
    arrays = {
        "small": np.arange(4, dtype=np.float32),
        "large": np.arange(4000, dtype=np.float32).reshape(4, 1000),
        "narrow": np.arange(2000).astype(helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)),
    }
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    weights.append(numpy_helper.from_array(np.array(["a"], dtype=object), "words"))
    proto = model(node("MatMul", "x large", "y"), weights=weights)
    inside = parse_model(proto.SerializeToString())
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    for file in (inside, open_model(tmp_path / "m.onnx")):
        found = dict(initializer_arrays(file))
        assert list(found) == ["small", "large", "narrow"]
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)


def test_large_constants_are_not_copied(tmp_path: Path) -> None:
    large = numpy_helper.from_array(np.ones((4, 1000), np.float32), "w")
    path = tmp_path / "m.onnx"
    onnx.save(model(node("MatMul", "x w", "y"), weights=[large]), path, save_as_external_data=True, location="m.data")
    array = dict(initializer_arrays(open_model(path)))["w"]
    assert array.base is not None
    assert not array.flags.writeable  # it is the mapped file


def test_weights_are_fed_from_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = numpy_helper.from_array(X.repeat(999, 0), "w")
    path = tmp_path / "m.onnx"
    proto = model(node("Sub", "w one", "h"), node("Sin", "h", "y"), weights=[large, _one()])
    onnx.save(proto, path, save_as_external_data=True, location="m.data")
    mapped: list[int] = []
    lent: list[int] = []
    read, weight = initializer_array, PiecewiseRun._weight

    def reading(file: ModelFile, tensor: onnx.TensorProto) -> np.ndarray:
        array = read(file, tensor)
        mapped.append(array.ctypes.data)
        return array

    def lending(self: PiecewiseRun, name: str) -> Any:
        value = weight(self, name)
        lent.append(value.data_ptr())
        return value

    monkeypatch.setattr(pieces, "initializer_array", reading)
    monkeypatch.setattr(PiecewiseRun, "_weight", lending)
    seen(PiecewiseRun(open_model(path)))
    assert len(lent) == 1
    assert lent == mapped


def _one() -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(1, np.float32), "one")


# pieces


def test_a_small_graph_is_one_piece(lengths: list[int]) -> None:
    seen(prepared(of_shape(chain(100), 2, 4)))
    assert lengths == [100]


def test_a_long_graph_is_cut(lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_LONGEST_PIECE", 40)
    seen(prepared(of_shape(chain(100), 2, 4)))
    assert lengths == [40, 40, 20]


@pytest.mark.parametrize("sizes", [(2, 4), ("rows", "columns"), ("rows", 4)])
def test_pieces_make_no_more_than_they_may(
    sizes: tuple[int | str, ...], lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes of open axes are those of what is fed."""
    monkeypatch.setattr(pieces, "_ROOM", 3 * X.nbytes)
    found = seen(prepared(of_shape(chain(10), *sizes)))
    assert lengths == [3, 3, 3, 1]
    assert len(found) == 11


def test_a_value_larger_than_allowed_is_a_piece_of_its_own(lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_ROOM", X.nbytes - 1)
    seen(prepared(of_shape(chain(4), 2, 4)))
    assert lengths == [1, 1, 1, 1]


def test_values_that_nobody_wants_cost_nothing(lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_ROOM", 2 * X.nbytes)
    seen(prepared(of_shape(chain(100), 2, 4), {"v40", "v60", "v80"}))
    assert lengths == [79, 21]


def test_sizes_that_nobody_knows_are_learnt(lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """How often a value is repeated is known at run time only; so is the size of everything behind it."""
    count = numpy_helper.from_array(np.array([400]), "many")
    nodes = [
        node("Cast", "x", "b", to=TensorProto.INT64),
        node("ReduceMax", "b", "m", keepdims=0),
        node("Add", "m many", "count"),
        node("Expand", "one count", "v0"),
        *(node("Sin", f"v{place}", f"v{place + 1}") for place in range(300)),
    ]
    proto = of_shape(model(*nodes, outputs="v300", weights=[count, _one()]), 2, 4)
    plenty = seen(prepared(proto))
    assert lengths == [32, 64, 128, 80]
    lengths.clear()
    monkeypatch.setattr(pieces, "_ROOM", 50 * plenty["v1"].nbytes)
    scarce = seen(prepared(proto))
    assert lengths[0] == 32
    assert set(lengths[1:-1]) == {50}
    assert all(np.array_equal(array, scarce[name]) for name, array in plenty.items())


def test_sessions_are_made_once(lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_ROOM", 3 * X.nbytes)
    run = prepared(of_shape(chain(10), "rows", 4))
    first = seen(run)
    made, spent = len(lengths), run.building
    assert spent > 0
    again, longer = seen(run), seen(run, x=np.concatenate([X, X]))
    assert len(lengths) == made
    assert run.building == spent
    for name, array in first.items():
        np.testing.assert_array_equal(again[name], array)
        np.testing.assert_allclose(longer[name], np.concatenate([array, array]), rtol=1e-6)


def test_other_types_need_other_sessions(lengths: list[int]) -> None:
    run = prepared(chain(3))
    seen(run)
    wide = seen(run, x=X.astype(np.float64))
    assert wide["v3"].dtype == np.float64
    assert len(lengths) == 2


def test_no_more_sessions_are_kept_than_threads_allow(lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_LONGEST_PIECE", 1)
    monkeypatch.setattr(pieces, "_MOST_SESSIONS", 3)
    run = prepared(chain(5))
    assert all(np.array_equal(array, seen(run)[name]) for name, array in seen(run).items())
    assert len(run._pieces) == 3
    assert len(lengths) == 5 + 5 * 2 + 2


def test_what_no_later_node_reads_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[set[str]] = []
    make = PiecewiseRun._run_piece

    def watched(self: PiecewiseRun, start: int, end: int, values: Mapping[str, Any]) -> Any:
        alive.append(set(values))
        return make(self, start, end, values)

    monkeypatch.setattr(PiecewiseRun, "_run_piece", watched)
    monkeypatch.setattr(pieces, "_LONGEST_PIECE", 1)
    large = numpy_helper.from_array(np.ones((4, 400), np.float32), "w")
    nodes = node("Sin", "x", "a"), node("MatMul", "a w", "b"), node("Cos", "a", "c"), node("Add", "c x", "y")
    seen(prepared(model(*nodes, weights=[large])))
    assert alive == [{"x"}, {"x", "a"}, {"x", "a"}, {"x", "c"}]


# as it is deployed


@pytest.fixture(scope="module")
def convolutions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Convolutions with something between them, and what ONNX Runtime makes of it."""
    random = np.random.default_rng(0)
    first = numpy_helper.from_array(random.normal(size=(32, 3, 3, 3)).astype(np.float32), "v")
    second = numpy_helper.from_array(random.normal(size=(32, 32, 3, 3)).astype(np.float32), "w")
    nodes = [
        node("Conv", "x v", "a"),
        node("Sigmoid", "a", "b"),
        node("Mul", "a b", "c"),
        node("Conv", "c w", "d"),
        node("MaxPool", "d", "y", kernel_shape=[2, 2]),
    ]
    plain = tmp_path_factory.mktemp("convolutions") / "plain.onnx"
    proto = of_shape(model(*nodes, weights=[first, second]), 1, 3, 12, 10)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32, 7, 5]))
    onnx.save(proto, plain)
    save_optimized(plain, plain.with_name("optimized.onnx"))
    return plain, plain.with_name("optimized.onnx")


def test_values_in_onnx_runtimes_own_order_are_seen_in_the_usual_one(convolutions: tuple[Path, Path]) -> None:
    feed = {"x": np.random.default_rng(1).normal(size=(1, 3, 12, 10)).astype(np.float32)}
    plain, optimized = (seen(PiecewiseRun(open_model(path)), **feed) for path in convolutions)
    nodes = open_model(convolutions[1]).proto.graph.node
    if not blocked_values(nodes):
        pytest.skip("on this processor, ONNX Runtime has no order of its own")
    assert len(blocked_values(nodes)) > 2
    for name, array in optimized.items():
        alike = [
            other for other in plain.values() if other.shape == array.shape and np.allclose(other, array, atol=1e-4)
        ]
        assert alike, name


def test_nothing_is_optimized_that_was_not(exports: Exports, lengths: list[int]) -> None:
    """A graph that ONNX Runtime optimized, contrib operators and all, gives the values of its own nodes."""
    source = exports("bert", "dynamo").path
    optimized = source.with_name("optimized.onnx")
    save_optimized(source, optimized)
    ids = np.array([[1, 5, 7, 2, 9, 4]])
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    plain, deployed = (seen(PiecewiseRun(open_model(path)), **feed) for path in (source, optimized))
    made = [name for one in open_model(optimized).proto.graph.node for name in one.output if name]
    assert list(deployed) == [*feed, *made]
    assert sum(lengths) == sum(len(open_model(path).proto.graph.node) for path in (source, optimized))
    for value in open_model(source).proto.graph.output:
        np.testing.assert_allclose(deployed[value.name], plain[value.name], atol=1e-5)


def test_nodes_that_are_listed_before_what_they_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_LONGEST_PIECE", 2)
    proto = chain(6)
    jumbled = chain(6)
    del jumbled.graph.node[:]
    jumbled.graph.node.extend(proto.graph.node[place] for place in (3, 0, 5, 1, 4, 2))
    found = seen(prepared(jumbled))
    assert list(found) == ["x", "v1", "v2", "v3", "v4", "v5", "v6"]
    np.testing.assert_array_equal(found["v6"], seen(prepared(proto))["v6"])


# what does not work


def test_what_lies_before_the_failure_was_seen() -> None:
    five = numpy_helper.from_array(np.array([5]), "five")
    nodes = [node("Sin", "x", "a"), node("Cos", "a", "b"), node("Reshape", "b five", "c"), node("Sin", "c", "y")]
    run = prepared(model(*nodes, weights=[five]))
    found: list[str] = []
    for _ in range(2):
        found.clear()
        with pytest.raises(RuntimeFailed, match=r"ONNX Runtime cannot run the graph: .*Reshape") as failure:
            run.run({"x": X}, lambda name, _: found.append(name))
        assert found == ["x", "a", "b"]
    assert "\n" not in failure.value.message
    assert failure.value.hint
    assert failure.value.exit_code == 2


def test_a_run_that_failed_does_not_spoil_the_next() -> None:
    run = prepared(model(node("Sin", "x", "a"), node("Add", "a w", "y"), weights=[numpy_helper.from_array(X, "w")]))
    with pytest.raises(RuntimeFailed):
        seen(run, x=np.ones((3, 5), np.float32))
    np.testing.assert_allclose(seen(run)["y"], np.sin(X) + X, rtol=1e-6)


def test_what_goes_wrong_while_looking_is_not_the_runtimes_fault() -> None:
    def see(name: str, array: np.ndarray) -> None:
        raise ValueError(name)

    with pytest.raises(ValueError, match="x"):
        prepared(chain(3)).run({"x": X}, see)


def test_missing_weights_are_the_files_fault(tmp_path: Path) -> None:
    large = numpy_helper.from_array(np.ones((4, 1000), np.float32), "w")
    path = tmp_path / "m.onnx"
    onnx.save(model(node("MatMul", "x w", "y"), weights=[large]), path, save_as_external_data=True, location="m.data")
    (tmp_path / "m.data").unlink()
    with pytest.raises(FileUnreadable, match=r"m\.data"):
        seen(PiecewiseRun(open_model(path)))


def test_without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ExtraMissing) as missing:
        seen(prepared(chain(1)))
    assert missing.value.hint == "pip install 'modelexport[runtime]'"


def test_an_operator_that_must_know_how_many_axes_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resize refuses sizes of which it does not know how many there will be."""
    monkeypatch.setattr(pieces, "_FIRST_PIECE", 1)
    monkeypatch.setattr(pieces, "_LONGEST_PIECE", 1)
    table = numpy_helper.from_array(np.ones((1, 1, 2, 2), np.float32), "table")
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Resize", ["table", "", "", "s"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", "b", "c", "d"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], [table])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    assert seen(prepared(proto), x=np.zeros((1, 1, 3, 5), np.float32))["y"].shape == (1, 1, 3, 5)
