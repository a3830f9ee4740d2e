from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelexport.graph.file.reading import open_model, parse_model
from modelexport.graph.file.writing import save_model
from modelexport.graph.soundness import check_graph, checkable


def matmul_model(*, output: tuple[int, int] = (2, 50), listed: bool = False, ir_version: int = 10) -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.ones((40, 50), np.float32), "weight")
    shape = numpy_helper.from_array(np.array([2, 50]), "shape")
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["h"]),
        helper.make_node("Reshape", ["h", "shape"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 40])]
    if listed:
        inputs.append(helper.make_tensor_value_info("weight", TensorProto.FLOAT, [40, 50]))
        inputs.append(helper.make_tensor_value_info("shape", TensorProto.INT64, [2]))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [weight, shape])
    return helper.make_model(graph, ir_version=ir_version, opset_imports=[helper.make_opsetid("", 20)])


@pytest.mark.parametrize("listed", [True, False])
def test_a_good_model_is_fine_without_its_weights(listed: bool) -> None:
    model = parse_model(matmul_model(listed=listed).SerializeToString())
    assert "weight" in model.weights
    assert check_graph(model) is None
    assert [value.name for value in checkable(model).graph.input].count("weight") == 1
    assert [tensor.name for tensor in model.proto.graph.initializer] == ["weight", "shape"]


def test_old_models_that_list_their_weights_as_inputs_are_fine() -> None:
    assert check_graph(parse_model(matmul_model(listed=True, ir_version=3).SerializeToString())) is None


def test_external_data_is_not_looked_for(tmp_path: Path) -> None:
    save_model(parse_model(matmul_model().SerializeToString()), tmp_path / "a.onnx", external_data=True, threshold=0)
    (tmp_path / "a.onnx.data").unlink()
    assert check_graph(open_model(tmp_path / "a.onnx")) is None


def test_external_data_of_an_attribute_is_not_looked_for() -> None:
    model = matmul_model()
    value = TensorProto(dims=[2], data_type=TensorProto.INT64, data_location=TensorProto.EXTERNAL)
    value.external_data.add(key="location", value="nowhere")
    model.graph.node.append(helper.make_node("Constant", [], ["c"], value=value))
    assert check_graph(parse_model(model.SerializeToString())) is None


def broken_models() -> dict[str, onnx.ModelProto]:
    shape = matmul_model(output=(2, 51))
    unknown = matmul_model()
    unknown.graph.node[0].op_type = "MatMull"
    order = matmul_model()
    order.graph.node.reverse()
    attribute = matmul_model()
    attribute.graph.node[0].attribute.append(helper.make_attribute("hierarchy_tag", "x"))
    inner = matmul_model()
    inner.graph.initializer[0].dims[0] = 39
    kind = matmul_model()
    kind.graph.initializer[0].data_type = TensorProto.INT32
    return {
        "(50) vs (51)": shape,
        "MatMull": unknown,
        "topologically": order,
        "hierarchy_tag": attribute,
        "dimension": inner,
        "type": kind,
    }


@pytest.mark.parametrize("message", broken_models())
def test_errors_are_found_without_the_weights(message: str) -> None:
    model = parse_model(broken_models()[message].SerializeToString())
    found = check_graph(model)
    assert found is not None
    assert message in found.lower() or message in found
    assert found == found.strip()


def normed_model(operator: str) -> onnx.ModelProto:
    nodes = [helper.make_node(operator, ["x", "scale"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in "xy"]
    scale = numpy_helper.from_array(np.ones(4, np.float32), "scale")
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [scale])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])


def test_operators_that_onnx_runtime_has_in_onnx_s_domain_are_fine() -> None:
    """onnxruntime-genai's builder writes them so."""
    assert check_graph(parse_model(normed_model("SimplifiedLayerNormalization").SerializeToString())) is None


def test_what_the_checker_says_is_one_line() -> None:
    problem = check_graph(parse_model(normed_model("Unheard").SerializeToString()))
    assert problem is not None
    assert problem.startswith("No Op registered for Unheard")
    assert "\n" not in problem
    assert "==>" not in problem


@pytest.mark.parametrize(
    ("kind", "shape", "is_fine"), [(TensorProto.FLOAT, [3], True), (TensorProto.INT64, None, False)]
)
def test_shapes_that_are_stated_may_be_left_out_and_types_may_not(
    kind: int, shape: list[int] | None, is_fine: bool
) -> None:
    proto = matmul_model()
    proto.graph.value_info.append(helper.make_tensor_value_info("h", kind, shape))
    model = parse_model(proto.SerializeToString())
    assert check_graph(model) is not None
    assert (check_graph(model, stated_shapes=False) is None) == is_fine
    assert [value.name for value in model.proto.graph.value_info] == ["h"]


@pytest.mark.parametrize("error", [ValueError("Invalid tensor data type 0."), RuntimeError("odd"), KeyError()])
def test_whatever_the_checker_throws_is_what_it_says(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bindings to C++ have errors of many classes."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(onnx.checker, "check_model", fail)
    problem = check_graph(parse_model(matmul_model().SerializeToString()))
    assert problem is not None
    assert (str(error) or type(error).__name__) in problem
