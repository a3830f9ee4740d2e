"""`mx.cost` on files: real ones, very large ones, and ones that are wrong."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from measure.bench.module_costs import file_flops, torch_flops
from onnx import TensorProto, helper
from tests.support.architectures import build
from tests.support.exports import Exports
from tests.support.small_file import small, small_path

import modelexport as mx
from modelexport.capture.inputs.make import make_inputs
from modelexport.capture.inputs.specs import InputRequest
from modelexport.errors import UserError
from modelexport.graph.file import external, weights
from modelexport.record.hierarchy import Hierarchy, TensorInfo, join
from modelexport.record.polynomial import Polynomial, sizes_sum

__all__ = ["small", "small_path"]

GIGABYTE = 2**30


def test_a_tagged_file(small_path: Path) -> None:
    found = mx.cost(small_path)
    assert found.total.flops == 2 * (2 * 2 * 4 * 4)
    assert found.by_path["layers.0.fc"].own.flops == 2 * 2 * 4 * 4
    assert found.by_path["layers.1"].total.parameters == 16
    assert found.total.parameters == 40 + 16 + 16
    assert found.total.weight_bytes == 4 * 72
    assert not found.axes
    assert not found.notes


def test_a_file_without_a_record_is_counted_by_the_modules_that_it_tells_of(small_path: Path, tmp_path: Path) -> None:
    model = onnx.load(small_path)
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "bare.onnx")
    found = mx.cost(tmp_path / "bare.onnx")
    assert found.total.flops == mx.cost(small_path).total.flops
    assert None not in [module.path for module in found.modules]
    assert any("no record in" in note for note in found.notes)


def large(folder: Path) -> Path:
    """A product by 16 GB of weights, which are in a file that is not there."""
    far = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2**15, 2**17])
    far.data_location = TensorProto.EXTERNAL
    for key, said in {"location": "weights.bin", "offset": "0", "length": str(16 * GIGABYTE)}.items():
        far.external_data.add(key=key, value=said)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2**15])
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")], [far])
    path = folder / "large.onnx"
    path.write_bytes(helper.make_model(graph, ir_version=10).SerializeToString())
    return path


def test_no_weight_is_read(tmp_path: Path) -> None:
    found = mx.cost(large(tmp_path))
    assert found.total.weight_bytes == 16 * GIGABYTE
    assert found.total.parameters == 2**32
    assert found.total.flops == 2**33 * Polynomial.axis("batch")


def test_no_weight_inside_of_the_file_is_read(small_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a weight was read")

    for kind in (weights.Span, weights.Lazy, weights.Typed):
        monkeypatch.setattr(kind, "raw", refuse)
    monkeypatch.setattr(external, "external_data", refuse)
    assert mx.cost(small_path).total.parameters == 72


def test_an_axis_that_the_file_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no axis 'sequence'\nIt has batch\."):
        mx.cost(large(tmp_path), {"sequence": 3})


def outside(path: Path, target: Path) -> Path:
    """The same file with everything, however small, in another one."""
    onnx.save(
        onnx.load(path),
        target,
        save_as_external_data=True,
        location=f"{target.stem}.bin",
        size_threshold=0,
        convert_attribute=True,
    )
    return target


def test_shapes_that_lie_in_another_file_are_read(bert: Path, tmp_path: Path) -> None:
    path = outside(bert, tmp_path / "outside.onnx")
    found, whole = mx.cost(path), mx.cost(bert)
    assert [axis.name for axis in found.axes] == ["batch", "sequence"]
    assert found.total == whole.total
    (tmp_path / "outside.bin").unlink()
    assert len(mx.cost(path).axes) > 2


def test_a_graph_that_was_changed_since_is_told_of(small_path: Path, tmp_path: Path) -> None:
    model = onnx.load(small_path)
    model.graph.node.add(op_type="Relu", input=[model.graph.node[-1].output[0]], output=["one_more"])
    onnx.save(model, tmp_path / "changed.onnx")
    assert "`modelexport relink`" in mx.cost(tmp_path / "changed.onnx").notes[0]


def test_an_axis_of_a_file_that_has_none(small_path: Path) -> None:
    with pytest.raises(UserError, match="All of its axes have a size"):
        mx.cost(small_path, {"batch": 3})


@pytest.mark.parametrize("size", [-1, 1.5, "8", True, 2**63, pytest.param(10**5000, id="long")])
def test_a_size_that_is_none(size: object, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the axis 'batch' cannot have the size"):
        mx.cost(large(tmp_path), {"batch": size})  # type: ignore[dict-item]


def test_a_part_of_the_axes_may_stay_open(bert: Path) -> None:
    whole = mx.cost(bert)
    found = mx.cost(bert, {"batch": 2})
    assert whole.total.flops.axes == ("batch", "sequence")
    assert found.total.flops.axes == ("sequence",)
    assert whole.total.flops.at({"batch": 2}) == found.total.flops
    assert whole.total.activation_bytes.at({"batch": 2}) == found.total.activation_bytes


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "vit", "resnet", "albert"])
def test_modules_multiply_as_much_as_torch_counts(name: str, exporter: str, exports: Exports) -> None:
    """Whole and module by module, to the last operation: of these nothing was folded away."""
    model = build(name).requires_grad_(False)
    inputs = dict(make_inputs(model, None, InputRequest()).values)
    theirs, ours = torch_flops(model, inputs), file_flops(exports(name, exporter).path, inputs)
    called = {path: flops for path, flops in ours.items() if flops}
    assert called == {path: flops for path, flops in theirs.items() if flops}


def test_parts_add_up_to_the_whole(exports: Exports) -> None:
    found = mx.cost(exports("t5", "dynamo").path)
    for measure in ("flops", "other", "activation_bytes"):
        own = sizes_sum(getattr(module.own, measure) for module in found.modules)
        assert own == getattr(found.total, measure) == getattr(found.by_path[""].total, measure)
    held = sum(parameter.size for parameter in _distinct(exports("t5", "dynamo").provenance.hierarchy))
    assert found.total.parameters == held


def _distinct(hierarchy: Hierarchy) -> list[TensorInfo]:
    """Parameters, one that several modules hold being one."""
    kept: dict[frozenset[str], TensorInfo] = {}
    for module in hierarchy.modules.values():
        for parameter in module.parameters:
            kept[frozenset({join(module.path, parameter.name), *parameter.tied})] = parameter
    return list(kept.values())
