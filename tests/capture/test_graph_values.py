"""Every value of a graph, as a plain run with all outputs exposed would give it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.building import body, model, node
from tests.support.exports import Exports
from tests.support.fingerprints import same_content

from modelexport.capture.onnxruntime import piecewise as pieces
from modelexport.capture.onnxruntime.bodies import fingerprint_values, fingerprint_weights
from modelexport.graph.file.reading import ModelFile, open_model, parse_model
from modelexport.graph.fingerprint import fingerprint
from modelexport.record.signals import GraphValues

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
BOTH = pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])


@pytest.fixture(params=["in one run", "node by node"])
def sliced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "node by node":
        monkeypatch.setattr(pieces, "_LONGEST_PIECE", 1)


def seen(proto: onnx.ModelProto, **inputs: np.ndarray) -> GraphValues:
    return fingerprint_values(parse_model(proto.SerializeToString()), inputs or {"x": X})


def plainly(proto: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All tensors of the main graph, from one session."""
    import onnxruntime

    exposed = onnx.ModelProto()
    exposed.CopyFrom(proto)
    names = [name for item in exposed.graph.node for name in item.output if name]
    del exposed.graph.output[:]
    exposed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(exposed.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def assert_all_seen(proto: onnx.ModelProto, **inputs: np.ndarray) -> GraphValues:
    inputs = inputs or {"x": X}
    found = seen(proto, **inputs)
    assert found.failure == ""
    wanted = plainly(proto, inputs)
    wanted |= {item.name: numpy_helper.to_array(item) for item in proto.graph.initializer}
    assert found.prints == {name: fingerprint(array) for name, array in {**wanted, **inputs}.items()}
    return found


def scalar(name: str, value: object) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(value), name)


# real graphs


@BOTH
def test_a_real_export_gives_what_a_plain_run_gives(
    exports: Exports, exporter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = exports("bert", exporter).path
    ids = np.array([[1, 5, 7, 2, 9, 4]])
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    file = open_model(path)
    taken = {name: array for name, array in feed.items() if name in {value.name for value in file.proto.graph.input}}
    monkeypatch.setattr(pieces, "_LONGEST_PIECE", 7)
    found = fingerprint_values(file, taken)
    assert found.failure == ""
    whole = onnx.load(path)
    wanted = plainly(whole, taken) | {item.name: numpy_helper.to_array(item) for item in whole.graph.initializer}
    assert set(found.prints) == {*wanted, *taken}
    for name, array in {**wanted, **taken}.items():
        # Kernels share the work among threads in ways that differ in the last bit.
        assert same_content(found.prints[name], fingerprint(array), 1e-6), name


# graphs by hand


@pytest.mark.usefixtures("sliced")
def test_bodies_read_values_from_outside() -> None:
    yes = body(node("Add", "x h", "a"), node("Mul", "a w", "b"), outputs="b")
    no = body(node("Sub", "x h", "a"), node("Mul", "a w", "b"), outputs="b")
    assert_all_seen(
        model(
            node("Relu", "x", "h"),
            node("ReduceSum", "h", "sum", keepdims=0),
            node("Greater", "sum zero", "positive"),
            node("Neg", "h", "unrelated"),
            node("If", "positive", "y", then_branch=yes, else_branch=no),
            weights=[scalar("zero", np.float32(0)), scalar("w", np.float32(3))],
        )
    )


@pytest.mark.usefixtures("sliced")
def test_a_branch_inside_a_branch_reads_the_outermost_graph() -> None:
    inner = body(node("Add", "h h", "deep"), outputs="deep")
    outer = body(node("If", "yes", "mid", then_branch=inner, else_branch=inner), outputs="mid")
    assert_all_seen(
        model(
            node("Relu", "x", "h"),
            node("If", "yes", "y", then_branch=outer, else_branch=outer),
            weights=[scalar("yes", True)],
        )
    )


@pytest.mark.usefixtures("sliced")
def test_loops_read_values_from_outside() -> None:
    step = helper.make_graph(
        [node("Add", "v h", "next"), node("Identity", "go", "on"), node("Identity", "next", "row")],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("row", TensorProto.FLOAT, None),
        ],
    )
    loop = node("Loop", "three _ x", "y rows", body=step)
    assert_all_seen(model(node("Relu", "x", "h"), loop, weights=[scalar("three", 3)]))


@pytest.mark.usefixtures("sliced")
def test_sequences_go_from_node_to_node() -> None:
    proto = model(
        node("SplitToSequence", "x", "parts", axis=1, keepdims=0),
        node("SequenceAt", "parts one", "part"),
        node("ConcatFromSequence", "parts", "y", axis=0),
        weights=[scalar("one", 1)],
    )
    found = seen(proto)
    assert found.failure == ""
    assert found.prints["part"] == fingerprint(X[:, 1])
    assert found.prints["y"] == fingerprint(X.T.reshape(-1))
    assert "parts" not in found.prints


@pytest.mark.usefixtures("sliced")
def test_optional_values_and_left_out_results() -> None:
    proto = model(
        node("Optional", "x", "maybe"),
        node("OptionalHasElement", "maybe", "has"),
        node("OptionalGetElement", "maybe", "there"),
        node("LayerNormalization", "there scale", "y _ inverse"),
        weights=[numpy_helper.from_array(np.ones(4, np.float32), "scale")],
    )
    found = seen(proto)
    assert found.failure == ""
    assert found.prints["has"] == fingerprint(np.array(True))
    assert found.prints["there"] == fingerprint(X)
    assert found.prints["inverse"].shape == (2, 1)
    assert "" not in found.prints


@pytest.mark.usefixtures("sliced")
def test_local_functions_are_run() -> None:
    inside = [node("Relu", "a", "b"), node("Neg", "b", "c")]
    function = helper.make_function("own", "Twist", ["a"], ["c"], inside, [helper.make_opsetid("", 20)])
    twist = helper.make_node("Twist", ["h"], ["y"], domain="own")
    proto = model(node("Sin", "x", "h"), twist, functions=[function])
    proto.opset_import.append(helper.make_opsetid("own", 1))
    assert_all_seen(proto)


_TYPES = [
    *("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "BOOL"),
    *("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
]


@pytest.mark.usefixtures("sliced")
@pytest.mark.parametrize("size", [6, 2000])
@pytest.mark.parametrize("kind", _TYPES)
def test_weights_of_every_type(kind: str, size: int) -> None:
    """Small ones lie in the graph, large ones beside it."""
    dtype = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, kind))
    array = (np.arange(size) % 6).astype(dtype)
    cast = node("Cast", "w", "y", to=TensorProto.FLOAT)
    found = seen(model(node("Neg", "x", "h"), cast, weights=[numpy_helper.from_array(array, "w")]))
    assert found.failure == ""
    assert found.prints["w"] == fingerprint(array)
    assert found.prints["y"] == fingerprint(array.astype(np.float32))


@pytest.mark.usefixtures("sliced")
def test_weights_in_another_file(tmp_path: Path) -> None:
    arrays = {"large": np.arange(4000, dtype=np.float32).reshape(4, 1000), "none": np.zeros((0, 4), np.float32)}
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    proto = model(node("MatMul", "x large", "h"), node("Concat", "x none", "y", axis=0), weights=weights)
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="m.data", size_threshold=0)
    found = fingerprint_values(open_model(path), {"x": X})
    assert found.failure == ""
    assert found.prints["large"] == fingerprint(arrays["large"])
    assert found.prints["h"].shape == (2, 1000)
    assert found.prints["y"] == fingerprint(X)


def test_values_of_a_type_that_numpy_lacks_are_passed_on() -> None:
    casts = node("Cast", "x", "h", to=TensorProto.BFLOAT16), node("Cast", "h", "y", to=TensorProto.FLOAT)
    found = seen(model(*casts))
    assert found.failure == ""
    assert set(found.prints) == {"x", "y"}


# what does not work


def custom(*before: onnx.NodeProto, read: str) -> onnx.ModelProto:
    large = numpy_helper.from_array(np.ones((4, 400), np.float32), "w")
    weird = helper.make_node("Weird", [read], ["odd"], domain="elsewhere")
    proto = model(*before, weird, node("Sin", "odd", "y"), weights=[large])
    proto.opset_import.append(helper.make_opsetid("elsewhere", 1))
    return proto


@pytest.mark.usefixtures("sliced")
@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_what_lies_before_an_unknown_operator_is_kept(count: int) -> None:
    chain = [node("Sin", "x" if not place else f"v{place}", f"v{place + 1}") for place in range(count)]
    found = seen(custom(*chain, read=f"v{count}" if count else "x"))
    assert found.failure.startswith("ONNX Runtime cannot run the graph: ")
    assert "elsewhere:Weird" in found.failure
    assert "\n" not in found.failure
    assert set(found.prints) == {"x", "w", *(f"v{place + 1}" for place in range(count))}


def test_a_failure_while_it_runs_is_told() -> None:
    found = seen(model(node("Sin", "x", "h"), node("Reshape", "h five", "y"), weights=[scalar("five", [5])]))
    assert "Reshape" in found.failure
    assert "h" in found.prints
    assert "y" not in found.prints


def test_a_missing_input_is_a_failure_and_weights_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = model(node("MatMul", "x w", "y"), weights=[numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")])
    found = seen(proto, other=X)
    assert found.failure
    assert set(found.prints) == {"other", "w"}


def test_weights_alone() -> None:
    weight = np.arange(16, dtype=np.float32).reshape(4, 4)
    proto = model(node("MatMul", "x w", "y"), weights=[numpy_helper.from_array(weight, "w")])
    found = fingerprint_weights(parse_model(proto.SerializeToString()), "for some reason")
    assert found == GraphValues({"w": fingerprint(weight)}, "for some reason")


def test_without_onnxruntime_weights_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    weight = np.arange(16, dtype=np.float32).reshape(4, 4)
    found = seen(model(node("MatMul", "x w", "y"), weights=[numpy_helper.from_array(weight, "w")]))
    assert "onnxruntime" in found.failure
    assert found.prints["w"] == fingerprint(weight)
    assert "y" not in found.prints


def test_strings_have_no_fingerprint() -> None:
    text = numpy_helper.from_array(np.array(["a", "b"], dtype=object), "words")
    file: ModelFile = parse_model(model(node("Sin", "x", "y"), weights=[text]).SerializeToString())
    assert set(fingerprint_values(file, {"x": X}).prints) == {"x", "y"}
