from __future__ import annotations

from dataclasses import replace

import onnx
import pytest
from onnx import helper
from tests.support.building import attribution, body, model, module, node, provenance, run, weight
from tests.support.exports import Exports

import modelexport as mx
from modelexport.errors import UnknownName, UserError
from modelexport.graph.index import edges_of, index_model
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.provenance import Provenance

HIERARCHY = Hierarchy.of(
    [
        module("", "Net"),
        module("shared", "Linear"),
        module("blocks", "ModuleList"),
        module("blocks.0", "Block"),
        module("blocks.0.fc", "Linear"),
        module("blocks.1", "Block", aliases=("last",)),
    ],
    run("", "blocks.0", "blocks.0.fc", "blocks.1"),
)


def recorded(
    proto: onnx.ModelProto, owners: dict[str, tuple[str, ...]], hierarchy: Hierarchy = HIERARCHY
) -> Provenance:
    graph = index_model(proto)
    found = provenance(proto, hierarchy, owners)
    weights = {name: attribution(hierarchy, *owners.get(name, ())) for name in graph.initializers}
    return replace(found, initializers=weights, edges=edges_of(graph))


def chain() -> Provenance:
    proto = model(
        node("MatMul", "x w", "h"),
        node("Add", "h bias", "a"),
        node("Relu", "a", "r"),
        node("Mul", "r c", "m"),
        node("Add", "m a", "n"),
        node("Neg", "n", "y"),
        outputs="y n",
        weights=["w", weight("bias", 1), weight("c", 2)],
    )
    owners = {
        "h": ("blocks.0.fc",),
        "a": ("blocks.0.fc",),
        "r": ("blocks.0",),
        "m": ("blocks.1",),
        "n": ("blocks.1", "blocks.0"),
        "y": ("",),
        "w": ("blocks.0.fc",),
        "bias": ("blocks.1",),
    }
    return recorded(proto, owners)


def test_a_tensor_has_one_producer_and_all_consumers() -> None:
    found = chain().tensor("a")
    assert found.producer == chain().attribution("a")
    assert list(found.producers) == ["a"]
    assert list(found.consumers) == ["r", "n"]
    assert found.consuming_modules == (ModuleCall("blocks.0"), ModuleCall("blocks.1"))
    assert (found.is_input, found.is_output, found.initializer) == (False, False, None)


def test_inputs_outputs_and_initializers() -> None:
    prov = chain()
    x, n, w = prov.tensor("x"), prov.tensor("n"), prov.tensor("w")
    assert (x.is_input, x.producer, dict(x.producers)) == (True, None, {})
    assert x.consuming_modules == (ModuleCall("blocks.0.fc"),)
    assert (n.is_output, list(n.consumers)) == (True, ["y"])
    assert w.producer == w.initializer == attribution(HIERARCHY, "blocks.0.fc")
    assert not w.producers


def test_boundaries() -> None:
    prov = chain()
    assert prov.boundary("blocks.0.fc").enters == ("x",)
    assert prov.boundary("blocks.0.fc").leaves == ("a",)
    # `n` belongs to both blocks, so that it lies inside of either.
    assert prov.boundary("blocks.0").enters == ("x", "m")
    assert prov.boundary("blocks.0").leaves == ("r", "n")
    assert prov.boundary("blocks.1").enters == ("a", "r")
    assert prov.boundary("blocks.1").leaves == ("n",)
    assert prov.boundary("last") == replace(prov.boundary("blocks.1"), module="last")


def test_boundaries_of_what_only_holds_modules_and_of_the_model() -> None:
    prov = chain()
    assert (prov.boundary("blocks").enters, prov.boundary("blocks").leaves) == (("x",), ("n",))
    assert (prov.boundary("").enters, prov.boundary("").leaves) == (("x",), ("n", "y"))
    assert prov.boundary("shared") == mx.Boundary("shared", (), ())


def test_a_path_that_begins_alike_is_another_module() -> None:
    hierarchy = Hierarchy.of([module(path, "Block") for path in ("", "blocks.1", "blocks.10")], run("", "blocks.1"))
    proto = model(node("Relu", "x", "h"), node("Neg", "h", "y"))
    prov = recorded(proto, {"h": ("blocks.1",), "y": ("blocks.10",)}, hierarchy)
    assert prov.boundary("blocks.1") == mx.Boundary("blocks.1", ("x",), ("h",))


def test_a_weight_that_others_hold_and_read_enters() -> None:
    proto = model(node("MatMul", "x w", "h"), node("MatMul", "h w", "y"), weights=["w"])
    prov = recorded(proto, {"h": ("blocks.0",), "y": ("blocks.1",), "w": ("blocks.0",)})
    assert prov.boundary("blocks.0").enters == ("x",)
    assert prov.boundary("blocks.1").enters == ("w", "h")


def test_one_call_of_a_module_and_a_module_that_another_calls() -> None:
    calls = run("", "blocks.0", "blocks.1")
    shared = [
        mx.ModuleCall("shared", number) for number in range(2)
    ]  # called from inside of either block, though it is not below their paths
    sites = [*calls, *(type(calls[0])(call, mx.ModuleCall(f"blocks.{number}")) for number, call in enumerate(shared))]
    hierarchy = Hierarchy.of(HIERARCHY.modules.values(), sites)
    proto = model(node("Relu", "x", "h"), node("Neg", "h", "i"), node("Relu", "i", "y"))
    prov = recorded(proto, {"h": ("shared",), "i": ("",), "y": ("shared#1",)}, hierarchy)
    assert prov.boundary("shared") == mx.Boundary("shared", ("x", "i"), ("h", "y"))
    assert prov.boundary("shared#1") == mx.Boundary("shared#1", ("i",), ("y",))
    assert prov.boundary("blocks.1") == mx.Boundary("blocks.1", ("i",), ("y",))


def test_bodies_and_functions() -> None:
    then = body(node("Mul", "h h", "t"), outputs="t")
    function = helper.make_function(
        "local", "Twice", ["a"], ["b"], [node("Add", "a a", "b")], [helper.make_opsetid("", 20)]
    )
    proto = model(
        node("Relu", "x", "h"),
        node("If", "c", "i", then_branch=then, else_branch=body(outputs="h")),
        node("Twice", "i", "j", domain="local"),
        node("Twice", "j", "y", domain="local"),
        inputs="x c",
        functions=[function],
    )
    prov = recorded(proto, {"h": ("",), "i": ("",), "i|then_branch|t": ("blocks.0",), "j": ("blocks.1",)})
    assert prov.boundary("blocks.0") == mx.Boundary("blocks.0", ("h",), ("i|then_branch|t",))
    assert prov.tensor("h").consuming_modules == (ModuleCall(""), ModuleCall("blocks.0"))
    argument = prov.tensor("local::Twice|a")
    assert list(argument.producers) == ["j", "y"]
    assert argument.producer is None
    assert list(prov.tensor("local::Twice|b").consumers) == ["j", "y"]


def test_names_that_nobody_knows() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'bias'"):
        chain().tensor("bais")
    with pytest.raises(UnknownName, match=r"Did you mean 'blocks\.0'"):
        chain().boundary("block.0")
    with pytest.raises(UnknownName):
        chain().boundary("blocks.0#1")


def test_a_record_alone_has_no_tensors(exports: Exports) -> None:
    path = exports("bert", "dynamo").path
    alone = mx.load(path.with_suffix(".hierarchy.json"))
    assert alone.edges is None
    for ask in (alone.tensor, alone.boundary):
        with pytest.raises(UserError, match=r"Load the \.onnx file"):
            ask("encoder")


def test_edges_are_not_part_of_the_record() -> None:
    assert chain() == replace(chain(), edges=None)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_a_real_model(exports: Exports, exporter: str) -> None:
    prov = mx.load(exports("bert", exporter).path)
    layer = prov.boundary("encoder.layer.1")
    before = prov.boundary("encoder.layer.0")
    # The hidden states go from one layer to the next, and nothing else leaves a layer but what is shared.
    hidden = set(layer.enters) & set(before.leaves)
    assert any(prov.attribution(key).module == "encoder.layer.0.output.LayerNorm" for key in _makers(prov, hidden))
    query = prov.boundary("encoder.layer.0.attention.self.query")
    assert len(query.enters) == len(query.leaves) == 1
    readers = {call.path for call in prov.tensor(query.enters[0]).consuming_modules}
    assert {f"encoder.layer.0.attention.self.{name}" for name in ("query", "key", "value")} < readers
    assert "encoder.layer.0.attention.output" in readers


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_every_value_of_a_real_model_can_be_asked_for(exports: Exports, exporter: str) -> None:
    prov = mx.load(exports("bert", exporter).path)
    for value in prov.known_edges().values:
        found = prov.tensor(value)
        assert found.producers or found.is_input or found.initializer is not None
        assert found.consumers or found.is_output or found.initializer is not None or found.producers
    assert set(prov.boundary("").enters) <= set(prov.known_edges().inputs)


def _makers(prov: Provenance, values: set[str]) -> list[str]:
    return [key for value in values for key in prov.tensor(value).producers]
