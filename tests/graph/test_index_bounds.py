"""Which inputs are indices, found by following them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.building import body, model, node
from tests.support.exports import Exports

from modelexport.capture.onnxruntime.inputs import index_bounds
from modelexport.graph.file.reading import open_model, parse_model
from modelexport.graph.index import index_model


def found(proto: onnx.ModelProto) -> dict[str, int | None]:
    """As for a file: the data of large weights is elsewhere."""
    opened = parse_model(proto.SerializeToString()).proto
    return index_bounds(opened, index_model(opened))


def table(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.zeros(shape, np.float32), name)


def stored(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values), name)


TABLE = table("table", 50, 40)
LOOKUP = node("Gather", "table x", "y")


def test_an_input_that_is_looked_up_stays_below_the_size_of_the_table() -> None:
    assert found(model(LOOKUP, weights=[TABLE])) == {"x": 50}
    assert found(model(node("Gather", "table x", "y", axis=1), weights=[TABLE])) == {"x": 40}
    assert found(model(node("Gather", "table x", "y", axis=-2), weights=[TABLE])) == {"x": 50}


def test_an_input_that_is_not_looked_up_is_no_index() -> None:
    assert found(model(node("Sin", "x", "y"), weights=[TABLE])) == {}
    # It is the table here.
    assert found(model(node("Gather", "x i", "y"), weights=[stored("i", 1)])) == {}


def test_the_smallest_of_several_tables_counts() -> None:
    lookups = [LOOKUP, node("Gather", "small x", "z"), node("Gather", "large x", "u")]
    assert found(model(*lookups, weights=[TABLE, table("small", 7, 3), table("large", 90, 3)])) == {"x": 7}


ARRANGING = {
    "Cast": node("Cast", "x", "i", to=TensorProto.INT32),
    "Identity": node("Identity", "x", "i"),
    "Reshape": node("Reshape", "x s", "i"),
    "Squeeze": node("Squeeze", "x", "i"),
    "Unsqueeze": node("Unsqueeze", "x s", "i"),
    "Flatten": node("Flatten", "x", "i"),
    "Transpose": node("Transpose", "x", "i"),
    "Expand": node("Expand", "x s", "i"),
    "Tile": node("Tile", "x s", "i"),
    "Slice": node("Slice", "x s s", "i"),
    "Split": node("Split", "x", "other i", num_outputs=2),
    "Concat": node("Concat", "s x", "i", axis=0),
    "Where": node("Where", "c x s", "i"),
    "Gather": node("Gather", "x s", "i"),
}


@pytest.mark.parametrize("name", ARRANGING)
def test_what_arranges_is_followed(name: str) -> None:
    proto = model(ARRANGING[name], node("Gather", "table i", "y"), weights=[TABLE, stored("s", 1)], inputs="x c")
    assert found(proto) == {"x": 50}


@pytest.mark.parametrize("op_type", ["Add", "Mul", "CumSum", "Equal", "Shape"])
def test_what_computes_is_not_followed(op_type: str) -> None:
    compute = node(op_type, "x" if op_type == "Shape" else "x s", "i")
    assert found(model(compute, node("Gather", "table i", "y"), weights=[TABLE, stored("s", 1)])) == {}


def test_a_condition_is_not_what_is_chosen() -> None:
    chosen = node("Where", "x s s", "i")
    assert found(model(chosen, node("Gather", "table i", "y"), weights=[TABLE, stored("s", 1)])) == {}


def test_quantized_and_narrower_tables() -> None:
    small = numpy_helper.from_array(np.zeros((50, 4), np.int8), "q")
    scale = numpy_helper.from_array(np.array(0.1, np.float32), "scale")
    before = [node("DequantizeLinear", "q scale", "table"), node("Cast", "table", "wide", to=TensorProto.DOUBLE)]
    assert found(model(*before, node("Gather", "wide x", "y"), weights=[small, scale])) == {"x": 50}
    packed = helper.make_node("GatherBlockQuantized", ["q", "x", "scale"], ["y"], domain="com.microsoft")
    assert found(model(packed, weights=[small, scale])) == {"x": 50}


def test_tables_in_nodes() -> None:
    constant = node("Constant", "", "table", value=TABLE)
    assert found(model(constant, LOOKUP)) == {"x": 50}


def test_a_table_that_is_computed_has_the_size_that_the_file_states() -> None:
    proto = model(node("Sin", "table", "t"), node("Gather", "t x", "y"), weights=[TABLE])
    assert found(proto) == {"x": None}
    proto.graph.value_info.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, [50, "n"]))
    assert found(proto) == {"x": 50}
    proto.graph.node[1].attribute.append(helper.make_attribute("axis", 1))
    assert found(proto) == {"x": None}


def test_an_embedding_that_was_fused() -> None:
    inputs = ["x", "kinds", "words", "places", "segments", "scale", "bias"]
    fused = helper.make_node("EmbedLayerNormalization", inputs, ["y"], domain="com.microsoft")
    weights = [table("words", 50, 4), table("places", 9, 4), table("segments", 2, 4), table("scale", 4)]
    assert found(model(fused, inputs="x kinds", weights=weights)) == {"x": 50, "kinds": 2}


def test_bodies_and_what_comes_out_of_them() -> None:
    inside = body(node("Identity", "x", "i"), node("Gather", "table i", "b"), outputs="b")
    branches = node("If", "yes", "y", then_branch=inside, else_branch=inside)
    yes = numpy_helper.from_array(np.array(True), "yes")
    assert found(model(branches, weights=[TABLE, yes])) == {"x": 50}
    passing = body(node("Identity", "x", "i"), outputs="i")
    branches = node("If", "yes", "h", then_branch=passing, else_branch=passing)
    assert found(model(branches, node("Gather", "table h", "y"), weights=[TABLE, yes])) == {"x": 50}


def test_functions() -> None:
    inside = [node("Identity", "b", "i"), node("Gather", "a i", "c"), node("Cast", "b", "d", to=TensorProto.INT32)]
    imports = [helper.make_opsetid("", 20)]
    function = helper.make_function("own", "Look", ["a", "b"], ["c", "d"], inside, imports)
    once = helper.make_node("Look", ["table", "x"], ["y", "again"], domain="own")
    assert found(model(once, weights=[TABLE], functions=[function])) == {"x": 50}
    after = node("Gather", "small again", "z")
    assert found(model(once, after, weights=[TABLE, table("small", 7, 3)], functions=[function])) == {"x": 7}
    # Two tables go by one name; neither is certain.
    twice = helper.make_node("Look", ["small", "x"], ["u", "v"], domain="own")
    assert found(model(once, twice, weights=[TABLE, table("small", 7, 3)], functions=[function])) == {"x": None}


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("bert", {"input_ids": 100, "token_type_ids": 2}),
        ("t5", {"input_ids": 100, "decoder_input_ids": 100}),
        ("vit", {}),
    ],
)
def test_real_exports(exports: Exports, name: str, exporter: str, bounds: dict[str, int]) -> None:
    proto = open_model(exports(name, exporter).path).proto
    assert index_bounds(proto, index_model(proto)) == bounds
