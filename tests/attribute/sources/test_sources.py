"""Every source by itself: how sure it is, what it reads of oddities, and which of them are asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.support.building import body, model, node, set_metadata
from tests.support.nameless_nets import WITHOUT_REPETITION, Net, layers

from modelexport.attribute.sources.exporter_metadata import DYNAMO, NAMESPACE, WINML
from modelexport.attribute.sources.find import SOURCES, find_hierarchy
from modelexport.attribute.sources.local_functions import FUNCTIONS, read_functions
from modelexport.attribute.sources.node_names import TORCHSCRIPT
from modelexport.attribute.sources.parameter_names import PARAMETERS
from modelexport.attribute.sources.structure import SOURCE
from modelexport.graph.index import index_model
from modelexport.record.provenance import Confidence, Provenance

STRONG, INFERRED = Confidence.STRONG, Confidence.INFERRED


def find(proto: onnx.ModelProto) -> Provenance:
    return find_hierarchy(index_model(proto))


def modules(provenance: Provenance) -> Mapping[str, str | None]:
    return {key: entry.attribution.module for key, entry in provenance.nodes.items()}


def levels(provenance: Provenance) -> Mapping[str, Confidence]:
    return {key: entry.attribution.confidence for key, entry in provenance.nodes.items()}


def relu_with(**metadata: str) -> onnx.ModelProto:
    relu = node("Relu", "x", "y")
    set_metadata(relu, metadata)
    return model(relu)


def dynamo(paths: Sequence[str], classes: Sequence[str]) -> onnx.ModelProto:
    scopes, names = str([*paths, "op"]), str([*classes, "aten"])
    return relu_with(**{"pkg.torch.onnx.name_scopes": scopes, "pkg.torch.onnx.class_hierarchy": names})


def parameters() -> onnx.ModelProto:
    """A product that is known by its bias, and a vector that two nodes read."""
    nodes = [
        node("MatMul", "x val_1", "product"),
        node("Add", "product fc.bias", "sum"),
        node("Add", "sum scale.factor", "first"),
        node("Mul", "first scale.factor", "y"),
    ]
    return model(*nodes, weights=["val_1", "fc.bias", "scale.factor"])


def function(name: str, *nodes: onnx.NodeProto) -> onnx.FunctionProto:
    return helper.make_function("pkg", name, ["a", "w"], ["b"], nodes, [helper.make_opsetid("", 20)])


def call(name: str, inputs: str, outputs: str) -> onnx.NodeProto:
    return node(name, inputs, outputs, domain="pkg")


def functions() -> onnx.ModelProto:
    return model(call("Block", "x w", "y"), weights=["w"], functions=[function("Block", node("MatMul", "a w", "b"))])


# In the order of SOURCES: a file that it reads; the source, detail, confidence and nodes of every reading.
Readings = list[tuple[str, str, Confidence, set[str]]]
FILES: tuple[tuple[onnx.ModelProto, Readings], ...] = (
    (dynamo(["", "enc"], ["m.Net", "m.Enc"]), [(DYNAMO, "", STRONG, {"y"})]),
    (relu_with(**{"winml.hierarchy.tag": "/Net/Encoder"}), [(WINML, "", STRONG, {"y"})]),
    (relu_with(namespace="model/encoder"), [(NAMESPACE, "", STRONG, {"y"})]),
    (model(node("Relu", "x", "y", "/enc/act/Relu")), [(TORCHSCRIPT, "", STRONG, {"y"})]),
    (
        parameters(),
        [
            (PARAMETERS, "", STRONG, {"sum"}),
            (PARAMETERS, "shared", INFERRED, {"first", "y"}),
            (PARAMETERS, "of its bias", INFERRED, {"product"}),
        ],
    ),
    (functions(), [(FUNCTIONS, "", STRONG, {"y", "pkg::Block|b"})]),
)


@pytest.mark.parametrize("number", range(len(SOURCES)), ids=[readings[0][0] for _, readings in FILES])
def test_no_source_is_surer_than_strong(number: int) -> None:
    """What an exporter wrote is no proof, and what follows from it is inferred."""
    proto, expected = FILES[number]
    graph = index_model(proto)
    readings = list(SOURCES[number](graph))
    assert [(item.source, item.detail, item.confidence, set(item.nodes)) for item in readings] == expected
    # Nothing on the way to an answer makes it surer.
    by_key = {key: confidence for _, _, confidence, keys in expected for key in keys}
    assert {key: level for key, level in levels(find_hierarchy(graph)).items() if key in by_key} == by_key
    # No other source speaks of the file.
    others = [reading for other, read in enumerate(SOURCES) if other != number for reading in read(graph)]
    assert not any(reading.nodes for reading in others)


def decoder(count: int) -> tuple[Net, str]:
    net = Net()
    value = net.embed()
    for _ in range(count):
        value = net.pre_norm_layer(value)
    return net, net.linear(net.norm(value), made=100)


class TestStructure:
    """It is asked where names explain next to nothing."""

    def test_a_decoder_without_names(self) -> None:
        net, logits = decoder(3)
        provenance = find(net.proto(logits))
        paths = {key: path or "" for key, path in modules(provenance).items()}
        assert layers(paths) == ["layers.0", "layers.1", "layers.2"]
        assert set(levels(provenance).values()) == {INFERRED}
        assert {entry.attribution.layer_id for entry in provenance.nodes.values()} == {0, 1, 2, None}
        assert provenance.origin.exporter == SOURCE

    def test_a_decoder_with_names_of_its_own(self) -> None:
        net, logits = decoder(3)
        for number, proto in enumerate(net.nodes):
            proto.name = f"/blocks.{number // 14}/{proto.op_type}_{number}"
        provenance = find(net.proto(logits))
        tops = {path.partition(".")[0] for path in provenance.hierarchy.modules}
        assert tops == {"", "blocks"}
        assert provenance.origin.exporter == TORCHSCRIPT
        assert set(levels(provenance).values()) == {STRONG}

    def test_one_name_is_next_to_nothing(self) -> None:
        net, logits = decoder(3)
        net.nodes[0].name = "/table/Gather"
        provenance = find(net.proto(logits))
        assert {"layers.0", "layers.2", "table"} <= set(provenance.hierarchy.modules)

    @pytest.mark.parametrize("build", WITHOUT_REPETITION, ids=lambda item: item.__name__)
    def test_where_nothing_repeats_nothing_is_known(self, build: Callable[[Net], str]) -> None:
        net = Net()
        provenance = find(net.proto(build(net)))
        assert list(provenance.hierarchy.modules) == [""]
        assert set(levels(provenance).values()) == {Confidence.FALLBACK}
        assert set(modules(provenance).values()) == {""}
        assert {item.confidence for item in provenance.initializers.values()} == {Confidence.FALLBACK}
        assert provenance.origin.exporter == ""

    def test_from_one_name_nothing_follows_for_the_rest(self) -> None:
        net = Net()
        value = "x"
        for _ in range(6):
            value = net.add("Relu", net.linear(value))
        net.nodes[0].name = "/stem/MatMul"
        provenance = find(net.proto(value))
        first, *others = levels(provenance).values()
        assert first is STRONG
        assert set(others) == {Confidence.FALLBACK}

    def test_names_of_weights_are_enough(self) -> None:
        """Of two products and thirty activations, the names of two weights explain all."""
        nodes = [node("MatMul", "x enc.first.weight", "v0")]
        nodes += [node("Relu", f"v{number}", f"v{number + 1}") for number in range(30)]
        nodes.append(node("MatMul", "v30 enc.second.weight", "y"))
        provenance = find(model(*nodes, weights=["enc.first.weight", "enc.second.weight"]))
        assert {modules(provenance)[f"v{number}"] for number in range(1, 31)} == {"enc"}
        assert levels(provenance)["v7"] is INFERRED


class TestOrigin:
    """Sources are named that say what no stronger one says."""

    def test_a_source_that_adds_nothing_is_not_named(self) -> None:
        nodes = [node("MatMul", "x fc.weight", "a", "/fc/MatMul"), node("Relu", "a", "y", "/act/Relu")]
        provenance = find(model(*nodes, weights=["fc.weight"]))
        assert provenance.origin.exporter == TORCHSCRIPT
        assert len(provenance.nodes["a"].attribution.evidence) == 2

    def test_several_sources_are_named_strongest_first(self) -> None:
        nodes = [node("MatMul", "x fc.weight", "a"), node("Relu", "a", "y", "/act/Relu")]
        assert find(model(*nodes, weights=["fc.weight"])).origin.exporter == f"{TORCHSCRIPT}, {PARAMETERS}"


class TestNodeNames:
    @pytest.mark.parametrize(
        "suffix", ["", "/MatMulScaleFusion/", "/MatMulScaleFusion", "/LayerNormFusion/ReluFusion/"]
    )
    def test_onnx_runtime_appends_the_fusion(self, suffix: str) -> None:
        proto = model(node("MatMul", "x w", "y", f"/enc/fc/MatMul{suffix}"), weights=["w"])
        assert modules(find(proto)) == {"y": "enc.fc"}

    def test_a_fusion_is_no_scope(self) -> None:
        proto = model(node("MatMul", "x w", "y", "MatMul_3/MatMulScaleFusion/"), weights=["w"])
        assert levels(find(proto)) == {"y": Confidence.FALLBACK}

    def test_the_body_of_a_loop_is_in_the_scope_of_the_loop(self) -> None:
        inner = body(
            node("Identity", "go", "goes"),
            node("Mul", "state state", "product", "while/cell/Mul"),
            node("Relu", "product", "next", "model/act/Relu"),
            inputs="count go state",
            outputs="goes next",
        )
        loop = node("Loop", "trips _ x", "y", "model/rnn/Loop", body=inner)
        by_operator = {
            entry.op_type: entry.attribution.module for entry in find(model(loop, weights=["trips"])).nodes.values()
        }
        assert by_operator == {
            "Loop": "model.rnn",
            "Identity": "model.rnn",
            "Mul": "model.rnn.while.cell",
            "Relu": "model.act",
        }


class TestMetadata:
    def test_a_namespace_of_torch_has_paths_and_classes(self) -> None:
        provenance = find(relu_with(namespace=": m.Net/enc: m.Enc/enc.act: torch.nn.ReLU/relu: aten.relu.default"))
        assert modules(provenance) == {"y": "enc.act"}
        assert {path: (item.package, item.class_name) for path, item in provenance.hierarchy.modules.items()} == {
            "": ("m", "Net"),
            "enc": ("m", "Enc"),
            "enc.act": ("torch.nn", "ReLU"),
        }

    def test_a_namespace_that_does_not_begin_with_the_root_is_none(self) -> None:
        assert levels(find(relu_with(namespace="enc: m.Enc/relu: aten"))) == {"y": Confidence.FALLBACK}

    @pytest.mark.parametrize("classes", [["m.Net"], ["m.Net", "m.Enc", "m.Act", "m.More"]])
    def test_classes_of_another_number_belong_to_other_paths(self, classes: list[str]) -> None:
        provenance = find(dynamo(["", "enc", "enc.act"], classes))
        assert modules(provenance) == {"y": "enc.act"}
        assert not any(module.is_class_known for module in provenance.hierarchy.modules.values())


class TestFunctions:
    def test_functions_inside_of_functions(self) -> None:
        inner = function("Inner", node("MatMul", "a w", "b"))
        outer = function("Outer", call("Inner", "a w", "t"), call("Inner", "t w", "b"))
        proto = model(call("Outer", "x weight", "y"), weights=["weight"], functions=[inner, outer])
        provenance = find(proto)
        assert list(provenance.hierarchy.modules) == ["", "Outer", "Outer.Inner", "Outer.Inner_1"]
        product = provenance.nodes["pkg::Inner|b"].attribution
        assert [owner.path for owner in product.owners] == ["Outer.Inner", "Outer.Inner_1"]

    def test_what_unfolds_has_a_budget(self) -> None:
        """Sixteen functions that call the next one twice are 65,536 calls of the last."""
        last = function("F16", node("MatMul", "a w", "b"))
        others = [function(f"F{n}", call(f"F{n + 1}", "a w", "t"), call(f"F{n + 1}", "t w", "b")) for n in range(16)]
        proto = model(call("F0", "x weight", "y"), weights=["weight"], functions=[last, *others])
        reading = read_functions(index_model(proto))
        assert reading is not None
        assert len({path for paths in reading.nodes.values() for path in paths}) <= 20_001


class TestHierarchy:
    def test_a_list_is_not_called(self) -> None:
        """It runs nothing: its modules are called by the module around it."""
        nodes = [node("Relu", "x", "a", "/enc/layers.0/act/Relu"), node("Relu", "a", "y", "/enc/layers.1/act/Relu")]
        hierarchy = find(model(*nodes, node("Neg", "y", "z", "/enc/Neg"), outputs="z")).hierarchy
        assert hierarchy.modules["enc.layers"].container
        callers = {site.call.path: site.parent and site.parent.path for site in hierarchy.calls}
        assert "enc.layers" not in callers
        assert (callers["enc.layers.0"], callers["enc.layers.0.act"]) == ("enc", "enc.layers.0")

    def test_parameters_of_modules(self) -> None:
        """By their own name if that is the module's; what several modules read is that of the module around them."""
        nodes = [
            node("MatMul", "x fc.weight", "a", "/fc/MatMul"),
            node("Add", "a val_1", "b", "/fc/Add"),
            node("Mul", "b shared", "c", "/first/Mul"),
            node("Mul", "c shared", "d", "/second/Mul"),
            node("Mul", "d half", "y", "/second/Mul_1"),
        ]
        half = numpy_helper.from_array(np.array(0.5, np.float32), "half")
        provenance = find(model(*nodes, weights=["fc.weight", "val_1", "shared", half]))
        names = {
            path: [item.name for item in module.parameters] for path, module in provenance.hierarchy.modules.items()
        }
        assert names == {"": ["shared"], "fc": ["weight", "val_1"], "first": [], "second": []}
        [weight, _] = provenance.hierarchy.modules["fc"].parameters
        assert (weight.shape, weight.dtype, weight.nbytes) == ((64, 64), "float", 64 * 64 * 4)

    def test_weights_of_unknown_nodes_are_no_parameters(self) -> None:
        net = Net()
        provenance = find(net.proto(net.linear("x")))
        assert provenance.hierarchy.modules[""].parameters == ()
