"""What modules cost: every node in one place, every weight once."""

from __future__ import annotations

from dataclasses import replace

import onnx
from onnx import TensorProto, helper
from tests.support.building import attribution, provenance, tree
from tests.support.cost_files import OPSETS, file_of, header, value

from modelexport.graph.file.reading import ModelFile
from modelexport.inspect.cost.totals import count
from modelexport.record.hierarchy import Hierarchy, Module, TensorInfo
from modelexport.record.provenance import Attribution, Provenance
from modelexport.record.results.cost import Cost


def hierarchy() -> Hierarchy:
    found = tree(
        {"": "Net", "a": "Block", "a.conv": "Conv2d", "a.norm": "BatchNorm2d", "b": "Block", "b.conv": "Conv2d"},
        "", "a", "a.conv", "a.norm", "b", "b.conv",
    )  # fmt: skip
    weight = TensorInfo("weight", (4, 3, 3, 3), "float32", 432)
    scale = TensorInfo("weight", (4,), "float32", 16)
    parameters = {"a.conv": weight, "b.conv": weight, "a.norm": scale}
    modules: list[Module] = [
        replace(module, parameters=(parameters[path],)) if path in parameters else module
        for path, module in found.modules.items()
    ]
    return Hierarchy.of(modules, found.calls)


def tied() -> Hierarchy:
    """Both convolutions have one weight."""
    found = hierarchy()
    weight = TensorInfo("weight", (4, 3, 3, 3), "float32", 432, ("a.conv.weight",))
    modules = [replace(one, parameters=(weight,)) if one.path == "b.conv" else one for one in found.modules.values()]
    return Hierarchy.of(modules, found.calls)


def counted(model: onnx.ModelProto, record: Provenance) -> Cost:
    return count("a.onnx", ModelFile(model, {}), record, {"batch": 2})


def weights_of(record: Provenance, **owners: tuple[str, ...]) -> Provenance:
    found: dict[str, Attribution] = {name: attribution(record.hierarchy, *paths) for name, paths in owners.items()}
    return replace(record, initializers=found)


def two_convolutions(second: str) -> onnx.ModelProto:
    nodes = [helper.make_node("Conv", ["x", "w"], ["p"]), helper.make_node("Conv", ["x", second], ["q"]),
             helper.make_node("Add", ["p", "q"], ["y"])]  # fmt: skip
    return file_of(nodes, [value("x", ("batch", 3, 8, 8))], [header("w", (4, 3, 3, 3)), header("v", (4, 3, 3, 3))])


FLOPS = 2 * 2 * 4 * 36 * 27


def test_modules_have_their_own_and_what_is_inside() -> None:
    model = two_convolutions("v")
    record = provenance(model, hierarchy(), {"p": ("a.conv",), "q": ("b.conv",), "y": ("",)})
    found = counted(model, weights_of(record, w=("a.conv",), v=("b.conv",)))
    assert found.by_path["a"].own.flops == 0
    assert found.by_path["a"].total.flops == FLOPS
    assert found.by_path[""].total.flops == 2 * FLOPS == found.total.flops
    assert found.by_path[""].own.other == 2 * 4 * 36
    assert found.by_path["a"].total.parameters == 108
    assert found.by_path["a.conv"].calls == 1
    assert None not in found.by_path


def test_a_weight_that_two_modules_share_counts_once_in_the_whole() -> None:
    model = two_convolutions("w")
    del model.graph.initializer[1]
    record = provenance(model, tied(), {"p": ("a.conv",), "q": ("b.conv",), "y": ("",)})
    found = counted(model, weights_of(record, w=("a.conv", "b.conv")))
    assert found.by_path["a"].total.parameters == 108
    assert found.by_path["b"].total.parameters == 108
    assert found.by_path[""].total.parameters == 108 == found.total.parameters
    assert found.total.weight_bytes == 432
    assert [node.parameters for node in found.nodes] == [108, 108, 0]


def test_a_normalization_in_a_convolution_leaves_it_the_convolutions() -> None:
    model = two_convolutions("v")
    record = provenance(model, hierarchy(), {"p": ("a.conv", "a.norm"), "q": ("b.conv",), "y": ("",)})
    found = counted(model, weights_of(record, w=("a.conv", "a.norm"), v=("b.conv",)))
    assert found.by_path["a.conv"].own.flops == FLOPS
    assert found.by_path["a.norm"].own.flops == 0
    assert found.by_key["p"].module == "a.conv"


def test_work_of_several_modules_is_charged_to_the_one_around_them() -> None:
    model = two_convolutions("v")
    record = provenance(model, hierarchy(), {"p": ("a.conv", "b.conv"), "q": ("b.conv",), "y": ()})
    found = counted(model, weights_of(record, w=("a.conv", "b.conv"), v=("b.conv",)))
    assert found.by_key["p"].module == ""
    assert found.by_path[""].own.flops == FLOPS
    assert found.by_path[None].total.other == 2 * 4 * 36
    assert sum(module.own.flops.value or 0 for module in found.modules) == found.total.flops


def test_what_a_function_does_for_a_module_is_charged_to_that_module() -> None:
    inner = [helper.make_node("Conv", ["i", "k"], ["o"])]
    function = helper.make_function("local", "Block", ["i", "k"], ["o"], inner, OPSETS[:1])
    nodes = [helper.make_node("Block", ["x", "w"], ["p"], domain="local"),
             helper.make_node("Block", ["x", "v"], ["q"], domain="local"),
             helper.make_node("Add", ["p", "q"], ["y"])]  # fmt: skip
    weights = [header("w", (4, 3, 3, 3)), header("v", (4, 3, 3, 3))]
    model = file_of(nodes, [value("x", ("batch", 3, 8, 8))], weights, [function])
    owners = {"p": ("a",), "q": ("b",), "y": ("",), "local::Block|o": ("a.conv", "b.conv")}
    found = counted(model, weights_of(provenance(model, hierarchy(), owners), w=("a.conv",), v=("b.conv",)))
    assert found.by_path["a.conv"].own.flops == FLOPS
    assert found.by_path["b.conv"].own.flops == FLOPS
    assert found.by_path[""].total.flops == 2 * FLOPS


def test_what_is_not_known_is_counted_as_not_known() -> None:
    nodes = [
        helper.make_node("Riddle", ["x"], ["p"], domain="org.nowhere"),
        helper.make_node("MatMul", ["p", "w"], ["y"]),
    ]
    model = file_of(nodes, [value("x", ("batch", 8), TensorProto.FLOAT)], [header("w", (8, 3))])
    found = counted(model, provenance(model, hierarchy(), {"p": ("a",), "y": ("b",)}))
    assert found.by_path["a"].total.unknown == {"flops": 1, "other": 1, "activation_bytes": 1}
    assert found.by_path["b"].total.unknown == {"flops": 1, "activation_bytes": 1}
    assert found.total.unknown == {"flops": 2, "other": 1, "activation_bytes": 2}
    assert [node.key for node in found.unknown] == ["p", "y"]


def test_a_weight_that_the_file_holds_twice_is_one_parameter() -> None:
    """An exporter keeps a transposed copy of a weight that two modules share."""
    model = two_convolutions("v")
    record = provenance(model, tied(), {"p": ("a.conv",), "q": ("b.conv",), "y": ("",)})
    cost = counted(model, weights_of(record, w=("a.conv",), v=("b.conv",)))
    assert cost.by_path["b"].total.parameters == 108
    assert cost.total.parameters == 108
    assert cost.total.weight_bytes == 2 * 432


def test_parameters_that_are_equal_are_not_one() -> None:
    """An exporter stores weights once that have the same numbers, as those of layers that were just made have."""
    model = two_convolutions("w")
    del model.graph.initializer[1]
    record = provenance(model, hierarchy(), {"p": ("a.conv",), "q": ("b.conv",), "y": ("",)})
    for owners in (("a.conv", "b.conv"), ("",)):  # some exporters say no more than that it belongs to all of it
        found = counted(model, weights_of(record, w=owners))
        assert found.by_path["a"].total.parameters == found.by_path["b"].total.parameters == 108
        assert found.total.parameters == 216
        assert found.total.weight_bytes == 432
        assert [node.parameters for node in found.nodes] == [108, 108, 0]


def test_a_convolution_with_a_normalization_inside_has_no_more_than_its_weight() -> None:
    model = file_of(
        [helper.make_node("Conv", ["x", "w", "c"], ["y"])],
        [value("x", ("batch", 3, 8, 8))],
        [header("w", (4, 3, 3, 3)), header("c", (4,))],
    )
    record = provenance(model, hierarchy(), {"y": ("a.conv", "a.norm")})
    found = counted(model, weights_of(record, w=("a.conv", "a.norm"), c=("a.conv", "a.norm")))
    assert found.total.parameters == 108 + 4


def test_constants_are_no_parameters_where_all_of_them_are_there() -> None:
    """The weight is there in two halves; what is left belongs to the same module, and is none."""
    nodes = [helper.make_node("Conv", ["x", name], [f"{name}_y"]) for name in ("one", "other")]
    nodes.append(helper.make_node("Concat", ["one_y", "other_y"], ["z"], axis=1))
    nodes.append(helper.make_node("Mul", ["z", "table"], ["y"]))
    model = file_of(
        nodes,
        [value("x", ("batch", 3, 8, 8))],
        [header("table", (4, 1, 1)), header("one", (2, 3, 3, 3)), header("other", (2, 3, 3, 3))],
    )
    owner = ("b.conv",)
    record = provenance(model, hierarchy(), dict.fromkeys(("one_y", "other_y", "z", "y"), owner))
    found = counted(model, weights_of(record, one=owner, other=owner, table=owner))
    assert found.total.parameters == 108
    assert [node.parameters for node in found.nodes] == [54, 54, 0, 0]
