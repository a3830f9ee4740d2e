"""What is written is read back by the rules of the tool that it is for, and means the selected nodes and no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

import pytest
from onnx import TensorProto, helper
from tests.support.building import body, model, node

from modelexport.errors import SelectionInexpressible, UnknownName, UserError
from modelexport.graph.index import Graph, index_model
from modelexport.transform.select import catalogue as modelopt
from modelexport.transform.select import catalogue as named
from modelexport.transform.select import catalogue as ort
from modelexport.transform.select import catalogue as tensorrt
from modelexport.transform.select import splits as layer_ann
from modelexport.transform.select.catalogue import DIALECTS
from modelexport.transform.select.dialect import Selection, Settings, check


def chain(*names: str, op_type: str = "Relu") -> Graph:
    """Nodes of these names, one after the other; node `i` makes `v{i}`."""
    nodes = [node(op_type, f"v{place - 1}" if place else "x", f"v{place}") for place in range(len(names))]
    for one, name in zip(nodes, names, strict=True):
        one.name = name
    return index_model(model(*nodes, outputs=f"v{len(names) - 1}"))


def chosen(graph: Graph, *groups: Iterable[str], types: Mapping[str, int] | None = None) -> Selection:
    """By the first outputs of nodes."""
    return Selection(graph, tuple(tuple(graph.by_key[key] for key in group) for group in groups), types or {})


def refusal(selection: Selection, dialect: str) -> str:
    with pytest.raises(SelectionInexpressible) as caught:
        check(selection, DIALECTS[dialect])
    return str(caught.value)


class TestNames:
    def test_one_on_each_line(self) -> None:
        assert named.write_names(chosen(chain("a", "b b", "c"), ["v0", "v1"]), Settings()).text == "a\nb b\n"

    def test_a_name_of_two_lines_is_refused(self) -> None:
        assert "control characters" in refusal(chosen(chain("a\nb", "c"), ["v0"]), "names")


class TestOrtExclude:
    def test_a_json_list(self) -> None:
        text = ort.write_ort(chosen(chain("a", 'b"\n', "c"), ["v1", "v0"]), Settings()).text
        assert json.loads(text) == ["a", 'b"\n']

    def test_a_gemm_is_also_known_by_what_the_dynamic_quantizer_makes_of_it(self) -> None:
        gemm = helper.make_node("Gemm", ["x", "w"], ["y"], name="fc")
        graph = index_model(model(gemm, outputs="y"))
        assert json.loads(ort.write_ort(chosen(graph, ["y"]), Settings()).text) == ["fc", "fc_MatMul"]

    def test_another_node_must_not_be_called_like_that(self) -> None:
        gemm = helper.make_node("Gemm", ["x", "w"], ["y"], name="fc")
        other = helper.make_node("MatMul", ["y", "w"], ["z"], name="fc_MatMul")
        graph = index_model(model(gemm, other, outputs="z"))
        assert "called fc_MatMul as well" in refusal(chosen(graph, ["y"]), "ort-exclude")
        check(chosen(graph, ["y", "z"]), DIALECTS["ort-exclude"])


class TestNodesThatCannotBeTold:
    def test_without_a_name(self) -> None:
        message = refusal(chosen(chain("a", "", "c"), ["v0", "v1"]), "ort-exclude")
        assert "'v1' (it has no name" in message
        assert "--named" in message

    def test_with_the_name_of_one_that_is_not_selected(self) -> None:
        graph = chain("a", "twin", "twin")
        assert "twin" in refusal(chosen(graph, ["v1"]), "modelopt")
        check(chosen(graph, ["v1", "v2"]), DIALECTS["modelopt"])  # a name that means all of them will do

    def test_twins_in_two_groups(self) -> None:
        assert "twin" in refusal(chosen(chain("twin", "twin"), ["v0"], ["v1"]), "olive-split")

    def test_a_node_in_two_groups(self) -> None:
        message = refusal(chosen(chain("a", "b"), ["v0", "v1"], ["v1"]), "layer-ann")
        assert "more than one query selects 'b'" in message

    def test_inside_of_another_node(self) -> None:
        inner = helper.make_node("Neg", ["x"], ["inner"], name="deep")
        branch = helper.make_node(
            "If", ["c"], ["y"], name="choice",
            then_branch=body(inner, outputs="inner"), else_branch=body(inner, outputs="inner"),
        )  # fmt: skip
        graph = index_model(model(branch, outputs="y"))
        keys = [one.key for one in graph.nodes if one.op_type == "Neg"]
        for dialect in ("modelopt", "tensorrt", "olive-split"):
            message = refusal(chosen(graph, keys), dialect)
            assert "'deep'" in message
            assert ("as well" if dialect == "olive-split" else "instead") + " ('choice')" in message
        for dialect in ("names", "ort-exclude", "layer-ann"):
            check(chosen(graph, keys), DIALECTS[dialect])
        check(chosen(graph, ["y"]), DIALECTS["modelopt"])
        check(chosen(graph, [*keys, "y"]), DIALECTS["olive-split"])  # the body goes where its node goes

    def test_in_a_function(self) -> None:
        inner = helper.make_node("Neg", ["a"], ["b"], name="deep")
        function = helper.make_function("local", "F", ["a"], ["b"], [inner], [helper.make_opsetid("", 20)])
        proto = model(helper.make_node("F", ["x"], ["y"], name="call", domain="local"), outputs="y")
        proto.functions.append(function)
        graph = index_model(proto)
        key = next(one.key for one in graph.nodes if one.op_type == "Neg")
        for dialect in ("ort-exclude", "layer-ann", "modelopt", "tensorrt", "olive-split"):
            assert "flatten" in refusal(chosen(graph, [key]), dialect)
        for dialect in ("ort-exclude", "modelopt", "tensorrt"):  # nor do they make anything of the name of a call
            assert "'call' is a call of one" in refusal(chosen(graph, ["y"]), dialect)
        for dialect in ("names", "layer-ann", "olive-split"):
            check(chosen(graph, ["y"]), DIALECTS[dialect])


class TestModelOpt:
    def test_patterns_mean_these_names_and_no_others(self) -> None:
        names = ("MatMul_1", "MatMul_10", "a.b", "axb", "/layer.0/fc[1]", "/layer.0/fc1", "x+", "xx")
        graph = chain(*names)
        wanted = {"MatMul_1", "a.b", "/layer.0/fc[1]", "x+"}
        text = modelopt.write_modelopt(
            chosen(graph, [one.key for one in graph.nodes if one.name in wanted]), Settings()
        ).text
        patterns = json.loads(text)["nodes_to_exclude"]
        assert {name for name in names if any(re.match(pattern, name) for pattern in patterns)} == wanted


def trtexec_reads(arguments: str, option: str, layers: Iterable[str]) -> dict[str, str]:
    """Entries end at commas, names at their last colon; quotes are dropped, and one asterisk is any characters."""
    line = next((one for one in arguments.splitlines() if one.startswith(f"{option}=")), f"{option}=")
    entries = dict(entry.rpartition(":")[::2] for entry in line.partition("=")[2].split(",") if entry)
    entries = {name.replace("'", ""): value for name, value in entries.items()}
    found = {}
    for layer in layers:
        for name, value in entries.items():
            before, star, after = name.partition("*")
            fits = layer.startswith(before) and layer.endswith(after) and len(layer) >= len(name) - 1
            if layer == name or (star and fits):
                found[layer] = value
    return found


class TestTensorRT:
    def test_these_layers_and_no_others(self) -> None:
        names = ("a", "a:b", "/layer.0/fc/MatMul", "with space", "ab", "a=b")
        graph = chain(*names)
        types = {f"v{place}": TensorProto.FLOAT for place in range(len(names))}
        selection = chosen(graph, ["v0", "v1", "v2", "v3", "v5"], types=types)
        check(selection, DIALECTS["tensorrt"])
        text = tensorrt.write_tensorrt(selection, Settings("fp16")).text
        wanted = dict.fromkeys(set(names) - {"ab"}, "fp16")
        assert trtexec_reads(text, "--layerPrecisions", names) == wanted
        assert trtexec_reads(text, "--layerOutputTypes", names) == wanted
        assert text.splitlines()[0] == "--precisionConstraints=obey"

    @pytest.mark.parametrize("name", ["a,b", "a*", "it's", "a\tb"])
    def test_names_that_trtexec_reads_otherwise(self, name: str) -> None:
        assert repr(name)[1:-1] in refusal(chosen(chain(name, "b"), ["v0"]), "tensorrt").replace(name, repr(name)[1:-1])
        check(chosen(chain(name, "b"), ["v1"]), DIALECTS["tensorrt"])

    def test_what_computes_no_floats_has_no_precision(self) -> None:
        graph = chain("ints", "floats", "unknown")
        types = {"v0": TensorProto.INT64, "v1": TensorProto.FLOAT}
        found = tensorrt.write_tensorrt(chosen(graph, ["v0", "v1", "v2"], types=types), Settings())
        assert set(trtexec_reads(found.text, "--layerPrecisions", ("ints", "floats", "unknown"))) == {
            "floats",
            "unknown",
        }
        assert set(trtexec_reads(found.text, "--layerOutputTypes", ("ints", "floats", "unknown"))) == {"floats"}
        assert found.notes == ("1 of 3 nodes left out: they hold constants, or compute no floating-point numbers",)
        with pytest.raises(SelectionInexpressible, match="no precision"):
            tensorrt.write_tensorrt(chosen(graph, ["v0"], types=types), Settings())

    def test_an_unknown_precision(self) -> None:
        with pytest.raises(UnknownName, match="fp33"):
            tensorrt.write_tensorrt(chosen(chain("a"), ["v0"]), Settings("fp33"))

    def test_more_than_an_argument_can_hold(self) -> None:
        graph = chain(*(f"{'n' * 200}{place}" for place in range(700)))
        with pytest.raises(SelectionInexpressible, match="longer than"):
            tensorrt.write_tensorrt(chosen(graph, [one.key for one in graph.nodes]), Settings())


class TestLayerAnn:
    def test_a_rule_for_each_group(self) -> None:
        selection = chosen(chain("a", "b", "c"), ["v0"], ["v1"], ["v2"])
        settings = Settings(devices=("gpu", "cpu", "gpu"), labels=("head", "body", "tail"))
        assert layer_ann.write_layer_ann(selection, settings).text == "gpu(=head, =tail); cpu(=body)\n"

    def test_labels_are_made_where_none_are_given(self) -> None:
        selection = chosen(chain("a", "b"), ["v0"], ["v1"])
        assert layer_ann.write_layer_ann(selection, Settings(devices=("npu",))).text == "npu(=selection, =selection1)\n"

    @pytest.mark.parametrize("label", ["", " ", "a,b", "f(x)", "a;b", "=a", " a", "a\nb"])
    def test_labels_that_mean_something_else(self, label: str) -> None:
        with pytest.raises(UserError, match="label"):
            layer_ann.write_layer_ann(chosen(chain("a"), ["v0"]), Settings(labels=(label,)))

    @pytest.mark.parametrize("labels", [("a", "b"), ("a", "b", "c", "d"), ("a", "b", "a")])
    def test_one_label_for_each_query(self, labels: tuple[str, ...]) -> None:
        with pytest.raises(UserError):
            layer_ann.write_layer_ann(chosen(chain("a", "b", "c"), ["v0"], ["v1"], ["v2"]), Settings(labels=labels))

    @pytest.mark.parametrize("device", ["gpuu", "", "gpu:0;cpu", "cpu("])
    def test_devices_that_nobody_knows(self, device: str) -> None:
        with pytest.raises(UserError):
            layer_ann.write_layer_ann(chosen(chain("a"), ["v0"]), Settings(devices=(device,)))

    @pytest.mark.parametrize("device", ["cpu", "gpu:1", "gpu:nvidia", "QNNExecutionProvider"])
    def test_devices_that_onnx_runtime_knows(self, device: str) -> None:
        assert layer_ann.write_layer_ann(chosen(chain("a"), ["v0"]), Settings(devices=(device,))).text.startswith(
            f"{device}("
        )

    def test_a_label_that_others_bear_is_refused(self) -> None:
        proto = model(node("Relu", "x", "a"), node("Relu", "a", "b"), outputs="b")
        proto.graph.node[1].metadata_props.add(key="layer_ann", value="mine")
        graph = index_model(proto)
        with pytest.raises(SelectionInexpressible, match="bear the label already"):
            layer_ann.write_layer_ann(chosen(graph, ["a"]), Settings(labels=("mine",)))
        layer_ann.annotate(proto, chosen(graph, ["a", "b"]), Settings(labels=("mine",)))
        assert [[(e.key, e.value) for e in one.metadata_props] for one in proto.graph.node] == [
            [("layer_ann", "mine")]
        ] * 2
