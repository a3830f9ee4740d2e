"""What a file says about its own modules: every source on graphs that are written by hand, and their merging."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelexport.attribute.sources.find import find_hierarchy
from modelexport.attribute.sources.node_names import TORCHSCRIPT, read_node_names
from modelexport.attribute.sources.parameter_names import module_of_parameter, read_parameter_names
from modelexport.graph.index import index_model
from modelexport.record.provenance import FROM_FILE, Confidence, Provenance

WIDTH = 4


def weight(name: str, *shape: int) -> TensorProto:
    values = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    return numpy_helper.from_array(values + len(name), name)


def node(op: str, inputs: Sequence[str], output: str, name: str = "", **metadata: str) -> onnx.NodeProto:
    made = helper.make_node(op, list(inputs), [output], name=name)
    for key, value in metadata.items():
        made.metadata_props.add(key=key, value=value)
    return made


def find(nodes: Sequence[onnx.NodeProto], weights: Sequence[TensorProto], output: str) -> Provenance:
    return find_hierarchy(index_model(model_of(nodes, weights, output)))


def model_of(nodes: Sequence[onnx.NodeProto], weights: Sequence[TensorProto], output: str) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, WIDTH]) for name in ("x", output)]
    return helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:], list(weights)))


def modules(provenance: Provenance) -> Mapping[str, str | None]:
    return {key: entry.attribution.module for key, entry in provenance.nodes.items()}


def levels(provenance: Provenance) -> Mapping[str, Confidence]:
    return {key: entry.attribution.confidence for key, entry in provenance.nodes.items()}


def dynamo(paths: list[str], classes: list[str]) -> dict[str, str]:
    return {
        "pkg.torch.onnx.name_scopes": str([*paths, "op"]),
        "pkg.torch.onnx.class_hierarchy": str([*classes, "aten"]),
    }


class TestDynamo:
    def test_paths_and_classes(self) -> None:
        scope = dynamo(["", "enc", "enc.fc"], ["m.Net", "m.Enc", "torch.nn.modules.linear.Linear"])
        found = find([node("MatMul", ["x", "w"], "y", **scope)], [weight("w", WIDTH, WIDTH)], "y")
        assert modules(found) == {"y": "enc.fc"}
        assert levels(found) == {"y": Confidence.STRONG}
        assert [(module.path, module.package, module.class_name) for module in found.hierarchy.modules.values()] == [
            ("", "m", "Net"),
            ("enc", "m", "Enc"),
            ("enc.fc", "torch.nn.modules.linear", "Linear"),
        ]
        assert found.tags.tag("enc") == "/Net/Enc"

    def test_a_stack_that_does_not_begin_with_the_root_is_none(self) -> None:
        lost = dynamo(["_empty_nn_module_stack_from_metadata_hook"], ["_empty_nn_module_stack_from_metadata_hook"])
        found = find([node("Relu", ["x"], "y", **lost)], [], "y")
        assert levels(found) == {"y": Confidence.FALLBACK}
        assert list(found.hierarchy.modules) == [""]

    @pytest.mark.parametrize("text", ["", "[", "{}", "__import__('os')", "[1, 2", "[" * 5000])
    def test_what_is_no_list_is_not_believed(self, text: str) -> None:
        found = find([node("Relu", ["x"], "y", **{"pkg.torch.onnx.name_scopes": text})], [], "y")
        assert levels(found) == {"y": Confidence.FALLBACK}

    def test_it_weighs_more_than_a_parameter_and_the_other_claim_is_kept(self) -> None:
        scope = dynamo(["", "bn"], ["m.Net", "m.BN"])
        found = find([node("Conv", ["x", "conv.weight"], "y", **scope)], [weight("conv.weight", 1, 1)], "y")
        answer = found.nodes["y"].attribution
        assert (answer.module, answer.confidence) == ("bn", Confidence.STRONG)
        assert [claim.owners[0].path for claim in answer.lost] == ["conv"]


def test_tags_of_winml() -> None:
    tag = {"winml.hierarchy.tag": "/Net/Encoder/Layer.0"}
    found = find([node("Relu", ["x"], "y", **tag)], [], "y")
    assert modules(found) == {"y": "Encoder.Layer.0"}
    assert found.hierarchy.modules["Encoder.Layer.0"].class_name == "Layer"


def test_a_namespace() -> None:
    found = find([node("Relu", ["x"], "y", namespace="model/encoder/act")], [], "y")
    assert modules(found) == {"y": "model.encoder.act"}


def torchscript(names: Mapping[str, str], weights: Sequence[TensorProto] = (), **reads: str) -> Provenance:
    """A chain of Adds, one for each name; `reads` gives an output the weight that it adds."""
    nodes, value = [], "x"
    for output, name in names.items():
        nodes.append(node("Add", [value, reads.get(output, value)], output, name))
        value = output
    return find(nodes, weights, value)


class TestTorchScript:
    def test_scopes_are_paths(self) -> None:
        found = torchscript({"a": "/encoder/layer.0/fc/Add", "b": "/encoder/layer.0/Add", "c": "/Add"})
        assert modules(found) == {"a": "encoder.layer.0.fc", "b": "encoder.layer.0", "c": ""}
        assert set(levels(found).values()) == {Confidence.STRONG}

    def test_a_sequential_repeats_its_name(self) -> None:
        found = torchscript({"a": "/enc/net/net.0/Add", "b": "/enc/net/net.0/net.0.1/Add", "c": "/enc/net/Add"})
        assert modules(found) == {"a": "enc.net.0", "b": "enc.net.0.1", "c": "enc.net"}

    def test_a_later_call_reads_the_same_weights(self) -> None:
        names = {"a": "/fc/Add", "b": "/fc_1/Add", "c": "/Add"}
        found = torchscript(names, [weight("shared", WIDTH)], a="shared", b="shared")
        assert modules(found) == {"a": "fc", "b": "fc", "c": ""}

    def test_another_module_reads_others(self) -> None:
        names = {"a": "/fc/Add", "b": "/fc_1/Add", "c": "/Add"}
        found = torchscript(names, [weight("first", WIDTH), weight("second", WIDTH)], a="first", b="second")
        assert modules(found) == {"a": "fc", "b": "fc_1", "c": ""}

    def test_a_parameter_tells_what_a_scope_leaves_out(self) -> None:
        found = torchscript({"a": "/p/Add", "b": "/Add"}, [weight("heads.p.bias", WIDTH)], a="heads.p.bias")
        assert modules(found)["a"] == "heads.p"

    def test_values_keep_names_that_nodes_have_lost(self) -> None:
        found = torchscript({"/enc/fc/Add_output_0": "n1", "/enc/act/Relu_output_0": "n2"})
        assert list(modules(found).values()) == ["enc.fc", "enc.act"]

    def test_an_inliner_puts_the_name_of_the_call_before_it(self) -> None:
        found = torchscript({"a": "F0::If_0_then_branch__Inline_0__/stft/Add", "b": "If_0__Inline_1__/enc/Add"})
        assert modules(found) == {"a": "stft", "b": "enc"}
        assert TORCHSCRIPT in found.origin.exporter

    def test_two_inlined_graphs_with_the_same_scopes_are_two_networks(self) -> None:
        names = [f"{call}/{scope}/Add" for call in ("F0::If_0_then__", "If_0_else__") for scope in ("stft", "enc")]
        found = torchscript(dict(zip("abcd", names, strict=True)))
        assert list(modules(found).values()) == ["If_0_then.stft", "If_0_then.enc", "If_0_else.stft", "If_0_else.enc"]

    def test_weights_of_an_inlined_graph_are_its_own(self) -> None:
        nodes = [
            node("MatMul", ["x", f"{call}__enc.fc.weight"], output, f"{call}__/enc/fc/MatMul")
            for call, output in (("If_0_then", "a"), ("If_0_else", "b"))
        ]
        weights = [weight(f"If_0_{branch}__enc.fc.weight", WIDTH, WIDTH) for branch in ("then", "else")]
        found = find([*nodes, node("Add", ["a", "b"], "y", "/Add")], weights, "y")
        assert modules(found)["b"] == "If_0_else.enc.fc"
        assert found.initializers["If_0_else__enc.fc.weight"].module == "If_0_else.enc.fc"


class TestTensorFlow:
    def test_scopes_without_the_calls_of_functions(self) -> None:
        found = torchscript({"a": "StatefulPartitionedCall/model/dense/MatMul", "b": "model/tf.nn.relu/Relu"})
        assert modules(found) == {"a": "model.dense", "b": "model.tf_nn_relu"}

    def test_names_that_are_joined(self) -> None:
        found = torchscript({"a": "model/conv/Relu;model/conv/BiasAdd", "b": "m/a/Add;m/b/Add"})
        assert modules(found)["a"] == "model.conv"
        assert [owner.path for owner in found.nodes["b"].attribution.owners] == ["m.a", "m.b"]

    def test_a_variable(self) -> None:
        assert module_of_parameter("model/dense_5/MatMul/ReadVariableOp:0") == "model.dense_5"
        assert module_of_parameter("net/dense/BiasAdd/ReadVariableOp/resource:0") == "net.dense"


@pytest.mark.parametrize(
    "name", ["val_45", "onnx::MatMul_3", "p2o.Conv.0", "427", "Conv@12", "0.5", "/enc/Constant_output_0"]
)
def test_names_that_exporters_number_are_no_parameters(name: str) -> None:
    assert module_of_parameter(name) is None


@pytest.mark.parametrize(
    ("name", "path"), [("fc.weight", "fc"), ("1.bias", "1"), ("a.0.fc.weight_quantized", "a.0.fc")]
)
def test_names_of_parameters(name: str, path: str) -> None:
    assert module_of_parameter(name) == path


def layers(count: int) -> list[tuple[str, str, str]]:
    """Operators, scopes and outputs of a chain of small layers."""
    ops = [("MatMul", "fc1"), ("Add", "fc1"), ("Relu", "act"), ("MatMul", "fc2"), ("Add", "fc2")]
    return [(op, f"/layers.{n}/{part}", f"v{n}_{step}") for n in range(count) for step, (op, part) in enumerate(ops)]


def chain(names: Sequence[str], count: int) -> onnx.ModelProto:
    nodes, weights, value = [], [], "x"
    for (op, _, output), name in zip(layers(count), names, strict=True):
        inputs = [value] if op == "Relu" else [value, f"w_{output}"]
        weights += [] if op == "Relu" else [weight(f"w_{output}", *([WIDTH] * (2 if op == "MatMul" else 1)))]
        nodes.append(node(op, inputs, output, name))
        value = output
    return model_of(nodes, weights, value)


class TestShuffledNames:
    COUNT = 12
    NAMES = tuple(f"{scope}/{op}_{number}" for number, (op, scope, _) in enumerate(layers(COUNT)))

    def test_names_that_fit_the_dataflow_are_believed(self) -> None:
        (reading,) = read_node_names(index_model(chain(self.NAMES, self.COUNT)))
        assert reading.confidence is Confidence.STRONG

    @pytest.mark.parametrize("seed", range(5))
    def test_shuffled_names_of_nodes_are_not(self, seed: int) -> None:
        shuffled = random.Random(seed).sample(self.NAMES, len(self.NAMES))
        assert not list(read_node_names(index_model(chain(shuffled, self.COUNT))))

    def test_names_of_nodes_that_contradict_those_of_weights_are_not(self) -> None:
        """Two halves of a network have changed places: every module is in one piece, and in the wrong place."""
        half = len(self.NAMES) // 2
        swapped = [*self.NAMES[half:], *self.NAMES[:half]]
        model = name_weights(chain(swapped, self.COUNT), self.NAMES)
        assert not list(read_node_names(index_model(model)))
        assert list(read_node_names(index_model(name_weights(chain(self.NAMES, self.COUNT), self.NAMES))))
        assert modules(find_hierarchy(index_model(model)))["v0_0"] == "layers.0.fc1"

    @pytest.mark.parametrize("seed", range(5))
    def test_shuffled_names_of_weights_are_not(self, seed: int) -> None:
        shuffled = random.Random(seed).sample(self.NAMES, len(self.NAMES))
        model = name_weights(chain([""] * len(self.NAMES), self.COUNT), shuffled)
        assert not list(read_parameter_names(index_model(model)))
        named = name_weights(chain(self.NAMES, self.COUNT), shuffled)
        assert {reading.source for reading in read_node_names(index_model(named))} == {TORCHSCRIPT}

    def test_a_node_whose_output_is_named_otherwise_is_inferred(self) -> None:
        nodes = [
            node("Relu", ["x"], "/a/b/Relu_output_0", "/a/c/Relu"),
            node("Relu", ["/a/b/Relu_output_0"], "y", "/a/Relu"),
        ]
        found = find(nodes, [], "y")
        first, last = found.nodes.values()
        assert (first.attribution.module, first.attribution.confidence) == ("a.c", Confidence.INFERRED)
        assert last.attribution.confidence is Confidence.STRONG
        assert first.attribution.evidence[0].detail == "its output is named otherwise"


def name_weights(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """Weights are called as the modules are that these names of nodes lead to."""
    renamed: dict[str, str] = {}
    for made, name in zip(model.graph.node, names, strict=True):
        if len(made.input) > 1:
            kind = "weight" if made.op_type == "MatMul" else "bias"
            path = ".".join(name.split("/")[1:-1])
            renamed[made.input[1]] = made.input[1] = f"{path}.{kind}{len(renamed)}"
    for tensor in model.graph.initializer:
        tensor.name = renamed[tensor.name]
    return model


class TestParameters:
    def attention(self) -> Provenance:
        """query and key are known by their biases, the rest of attention by what it reads and is read by."""
        nodes = [
            node("MatMul", ["x", "v1"], "q0"),
            node("Add", ["q0", "layer.0.attn.query.bias"], "q"),
            node("MatMul", ["x", "v2"], "k0"),
            node("Add", ["k0", "layer.0.attn.key.bias"], "k"),
            node("Transpose", ["k"], "kt"),
            node("MatMul", ["q", "kt"], "scores"),
            node("Softmax", ["scores"], "weights"),
            node("MatMul", ["weights", "layer.0.out.dense.weight"], "out"),
        ]
        named = [weight(f"layer.0.attn.{name}.bias", WIDTH) for name in ("query", "key")]
        others = [weight(name, WIDTH, WIDTH) for name in ("v1", "v2", "layer.0.out.dense.weight")]
        return find(nodes, [*named, *others], "out")

    def test_readers_and_products_behind_a_bias(self) -> None:
        found = modules(self.attention())
        assert (found["q0"], found["q"], found["out"]) == (
            "layer.0.attn.query",
            "layer.0.attn.query",
            "layer.0.out.dense",
        )

    def test_what_joins_two_modules_is_that_of_the_module_around_them(self) -> None:
        found = self.attention()
        assert {modules(found)[key] for key in ("kt", "scores", "weights")} == {"layer.0.attn"}
        assert {levels(found)[key] for key in ("kt", "scores", "weights")} == {Confidence.INFERRED}

    def test_a_weight_that_was_stored_once_for_several_proves_less(self) -> None:
        nodes = [node("Add", ["x", "a.bias"], "y"), node("Add", ["y", "a.bias"], "z")]
        assert set(levels(find(nodes, [weight("a.bias", WIDTH)], "z")).values()) == {Confidence.INFERRED}

    def test_a_copy_bears_the_name_of_its_own(self) -> None:
        nodes = [
            node("Identity", ["a.bias"], "b.bias"),
            node("Add", ["x", "b.bias"], "y"),
            node("Add", ["y", "a.bias"], "z"),
        ]
        found = modules(find(nodes, [weight("a.bias", WIDTH)], "z"))
        assert (found["b.bias"], found["y"], found["z"]) == ("b", "b", "a")


def test_what_says_how_is_no_parameter() -> None:
    """The shape of a Reshape is an input as a weight is, and no content of what comes out."""
    shape = numpy_helper.from_array(np.array([1, WIDTH]), "enc.shape")
    nodes = [
        node("MatMul", ["x", "enc.fc.weight"], "y", "/enc/fc/MatMul"),
        node("Reshape", ["y", "enc.shape"], "z", "/enc/Reshape"),
    ]
    found = find(nodes, [weight("enc.fc.weight", WIDTH, WIDTH), shape], "z").hierarchy.modules
    assert {path: [tensor.name for tensor in module.parameters] for path, module in found.items()} == {
        "": [],
        "enc": [],
        "enc.fc": ["weight"],
    }


def test_functions_with_weights_are_modules() -> None:
    body = [helper.make_node("MatMul", ["a", "w"], ["t"]), helper.make_node("Relu", ["t"], ["b"])]
    opset = [helper.make_opsetid("", 20), helper.make_opsetid("pkg", 1)]
    block = helper.make_function("pkg", "Block", ["a", "w"], ["b"], body, opset[:1])
    gelu = helper.make_function("pkg", "my_gelu", ["a"], ["b"], [helper.make_node("Gelu", ["a"], ["b"])], opset[:1])
    nodes = [
        helper.make_node("Block", ["x", "w0"], ["y"], domain="pkg"),
        helper.make_node("Block", ["y", "w1"], ["z"], domain="pkg"),
        helper.make_node("my_gelu", ["z"], ["out"], domain="pkg"),
    ]
    model = model_of(nodes, [weight("w0", WIDTH, WIDTH), weight("w1", WIDTH, WIDTH)], "out")
    model.functions.extend([block, gelu])
    found = find_hierarchy(index_model(model))
    assert set(found.hierarchy.modules) == {"", "Block", "Block_1"}
    assert modules(found)["y"] == "Block"
    inside = found.nodes["pkg::Block|t"].attribution
    assert [owner.path for owner in inside.owners] == ["Block", "Block_1"]


class TestNothingKnown:
    def test_it_is_the_root_as_a_fallback(self) -> None:
        nodes = [node("MatMul", ["x", "1"], "2", "MatMul_0"), node("Relu", ["2"], "3", "Relu_1")]
        found = find(nodes, [weight("1", WIDTH, WIDTH)], "3")
        assert set(levels(found).values()) == {Confidence.FALLBACK}
        assert (found.origin.strategy, found.origin.exporter) == (FROM_FILE, "")

    def test_an_unconnected_part_stays_unknown(self) -> None:
        nodes = [node("Add", ["x", "fc.bias"], "y"), node("Relu", ["x"], "z")]
        found = find(nodes, [weight("fc.bias", WIDTH)], "y")
        assert levels(found)["z"] is Confidence.FALLBACK


class TestRoot:
    """What lies between two modules is inferred to be the root's only where that could have been another module."""

    def between(self, *paths: str) -> Confidence:
        weights = [weight(f"{path}.weight", WIDTH, WIDTH) for path in paths]
        nodes, value = [], "x"
        for number, tensor in enumerate(weights):
            nodes += [node("MatMul", [value, tensor.name], f"m{number}"), node("Relu", [f"m{number}"], f"r{number}")]
            value = f"r{number}"
        provenance = find(nodes, weights, value)
        assert modules(provenance)["r0"] == ""
        return levels(provenance)["r0"]

    @pytest.mark.parametrize("paths", [("conv_0", "conv_1", "fc"), ("attn.attn", "fc"), ("a.0", "a.1", "b.0", "b.1")])
    def test_modules_beside_each_other_tell_nothing(self, paths: Sequence[str]) -> None:
        assert self.between(*paths) is Confidence.FALLBACK

    @pytest.mark.parametrize("paths", [("stem", "enc.a", "enc.b"), ("stem", "enc.layer.0", "enc.layer.1")])
    def test_a_module_around_others_is_another_answer(self, paths: Sequence[str]) -> None:
        assert self.between(*paths) is Confidence.INFERRED

    def test_a_root_that_is_known_to_compute(self) -> None:
        nodes = [
            node("MatMul", ["x", "a.weight"], "m"),
            node("Relu", ["m"], "r"),
            node("Add", ["r", "bias"], "s", **dynamo([""], ["m.Net"])),
            node("Relu", ["s"], "t"),
            node("MatMul", ["t", "b.weight"], "y"),
        ]
        weights = [weight("a.weight", WIDTH, WIDTH), weight("b.weight", WIDTH, WIDTH), weight("bias", WIDTH)]
        assert levels(find(nodes, weights, "y"))["t"] is Confidence.INFERRED


class TestClasses:
    def test_what_the_nodes_do(self) -> None:
        nodes = [
            node("Gather", ["emb.weight", "x"], "e", "/emb/Gather"),
            node("LayerNormalization", ["e", "norm.weight"], "n", "/norm/LayerNormalization"),
            node("MatMul", ["n", "fc.weight"], "m", "/fc/MatMul"),
            node("Add", ["m", "fc.bias"], "y", "/fc/Add"),
        ]
        weights = [weight("emb.weight", 9, WIDTH), weight("fc.weight", WIDTH, WIDTH)]
        found = find(nodes, [*weights, weight("norm.weight", WIDTH), weight("fc.bias", WIDTH)], "y")
        names = {path: module.class_name for path, module in found.hierarchy.modules.items()}
        assert names == {"": "", "emb": "Embedding-like", "norm": "LayerNorm-like", "fc": "Linear-like"}
        assert not any(module.is_class_known for module in found.hierarchy.modules.values())

    def test_tags_are_made_of_path_segments(self) -> None:
        found = torchscript({"a": "/enc/layer.0/fc/Add", "b": "/enc/layer.1/fc/Add", "c": "/enc/Add"})
        assert found.tags.tag("enc.layer.1.fc") == "/model/enc/layer.1/fc"
        assert len(set(found.tags.by_path.values())) == len(found.tags.by_path)


def test_layers_are_numbered_in_the_order_of_execution() -> None:
    names = [f"{scope}/{op}" for op, scope, _ in layers(3)]
    found = find_hierarchy(index_model(chain(names, 3)))
    assert [found.nodes[f"v{n}_0"].attribution.layer_id for n in range(3)] == [0, 1, 2]
