"""Names that are written to mislead, or by mistake: what is no module path is not believed, and nothing fails."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from tests.attribute.sources.test_find import WIDTH, dynamo, levels, modules, node, weight

import modelexport as mx
from modelexport.attribute.sources.find import SOURCES, find_hierarchy
from modelexport.attribute.sources.inlining import InlinedNames
from modelexport.attribute.sources.local_functions import read_functions
from modelexport.attribute.sources.node_names import read_node_names
from modelexport.attribute.sources.parameter_names import module_of_parameter
from modelexport.attribute.sources.reading import MOST_LEVELS, is_module_path
from modelexport.graph.index import Graph, index_model
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Confidence, Provenance
from modelexport.show.module_tree import join_paths, path_numbers


def names(*texts: str) -> Provenance:
    """A chain of products with these names."""
    return find_hierarchy(chain([(text, {}) for text in texts]))


def metadata(*texts: Mapping[str, str]) -> Provenance:
    return find_hierarchy(chain([("", text) for text in texts]))


def chain(nodes: Sequence[tuple[str, Mapping[str, str]]]) -> Graph:
    return index_model(chain_model(nodes))


def chain_model(nodes: Sequence[tuple[str, Mapping[str, str]]]) -> onnx.ModelProto:
    protos, weights, value = [], [], "x"
    for number, (name, texts) in enumerate(nodes):
        protos.append(node("MatMul", [value, f"w{number}"], f"v{number}", name, **texts))
        weights.append(weight(f"w{number}", WIDTH, WIDTH))
        value = f"v{number}"
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, WIDTH]) for name in ("x", value)]
    return helper.make_model(helper.make_graph(protos, "g", values[:1], values[1:], weights), ir_version=10)


@pytest.mark.parametrize("path", ["", "encoder.layer.0", "a b", "é.字", "a/b", ".".join("a" * MOST_LEVELS)])
def test_paths_of_modules(path: str) -> None:
    assert is_module_path(path)


REFUSED = ["a..b", ".a", "a.", ".", "..", "a#2", "a#2.b", "a\nb", "a\x1b[31m", "a\u202eb", "\ud800x", "a\x00"]


@pytest.mark.parametrize("path", [*REFUSED, ".".join("a" * (MOST_LEVELS + 1))])
def test_what_is_no_path_of_a_module(path: str) -> None:
    assert not is_module_path(path)


class TestAreNotBelieved:
    @pytest.mark.parametrize("path", [path for path in REFUSED if "\ud800" not in path])
    def test_in_names_of_nodes(self, path: str) -> None:
        found = names(f"/{path}/MatMul", "/fc/MatMul")
        assert list(found.hierarchy.modules) == ["", "fc"]
        assert levels(found)["v0"] < Confidence.STRONG
        assert (modules(found)["v1"], levels(found)["v1"]) == ("fc", Confidence.STRONG)

    @pytest.mark.parametrize("path", REFUSED)
    def test_in_metadata_of_torch(self, path: str) -> None:
        # As a literal, because a surrogate cannot be written into a file as it is.
        bad = {"pkg.torch.onnx.name_scopes": ascii(["", path, "op"])}
        found = metadata(bad, dynamo(["", "fc"], ["m.Net", "m.Linear"]))
        assert list(found.hierarchy.modules) == ["", "fc"]

    @pytest.mark.parametrize("tag", ["/A/../B.", "/Net/.x", "/Net/a#2", "/Net/a\x07"])
    def test_in_tags_of_winml(self, tag: str) -> None:
        found = metadata({"winml.hierarchy.tag": tag}, {"winml.hierarchy.tag": "/Net/Linear"})
        assert list(found.hierarchy.modules) == ["", "Linear"]

    @pytest.mark.parametrize("namespace", ["a#1/op", "a\x1b[31m/b", ": m.Net/a..b: m.A/op"])
    def test_in_namespaces(self, namespace: str) -> None:
        found = metadata({"namespace": namespace}, {"namespace": "fc/act"})
        assert list(found.hierarchy.modules) == ["", "fc", "fc.act"]

    def test_in_names_of_parameters(self) -> None:
        assert module_of_parameter(".".join([*"a" * (MOST_LEVELS + 1), "weight"])) is None
        assert module_of_parameter("a#2/MatMul/ReadVariableOp") is None

    def test_classes_that_cannot_be_written(self) -> None:
        odd = {
            "pkg.torch.onnx.name_scopes": "['', 'fc', 'op']",
            "pkg.torch.onnx.class_hierarchy": r"['m.Net', 'm.\ud800', 'op']",
        }
        found = metadata(odd)
        assert next(module.class_name for module in found.hierarchy.modules.values()) == "Net"
        assert not found.hierarchy.modules["fc"].is_class_known


def test_a_path_with_two_classes_is_of_unknown_class() -> None:
    found = metadata(dynamo(["", "enc"], ["m.Net", "m.A"]), dynamo(["", "enc"], ["m.Net", "m.B"]))
    assert found.hierarchy.modules[""].class_name == "Net"
    assert not found.hierarchy.modules["enc"].is_class_known
    assert set(modules(found).values()) == {"enc"}


def test_a_module_that_another_one_calls_is_in_its_stack() -> None:
    """Torch writes this where module `a` calls `enc.0`, which it does not hold: the innermost one issued the node."""
    found = metadata(dynamo(["", "a", "enc.0"], ["m.Net", "m.A", "m.Linear"]))
    assert modules(found) == {"v0": "enc.0"}


class TestLongNumbers:
    def test_of_modules(self) -> None:
        long, longer = "9" * 5_000, "1" + "0" * 5_000
        paths = [f"layers.{number}" for number in (longer, "10", long, "9", "0")]
        found = metadata(*(dynamo(["", path], ["m.Net", "m.Layer"]) for path in paths))
        assert list(found.hierarchy.modules) == [
            "",
            "layers",
            *(f"layers.{number}" for number in ("0", "9", "10", long, longer)),
        ]

    def test_in_texts(self) -> None:
        long = f"layers.{'9' * 5_000}"
        assert ModuleCall.parse(f"a#{'9' * 5_000}").index == 0
        assert str(ModuleCall.parse("a#12")) == "a#12"
        assert path_numbers(f"{long}.3") == (3, 0)
        assert join_paths([f"{long}.3", f"{long}.4"]) == f"{long}.{{3,4}}"

    def test_verbs_get_by_with_them(self, tmp_path: Path) -> None:
        scopes: list[tuple[str, dict[str, str]]] = [(f"/layers.{number}/MatMul", {}) for number in ("9" * 5_000, "1")]
        onnx.save(chain_model(scopes), tmp_path / "a.onnx")
        mx.analyze(tmp_path / "a.onnx")
        mx.view(tmp_path / "a.onnx", tmp_path / "a.html")
        mx.attach(tmp_path / "a.onnx", None, tmp_path / "b.onnx")
        assert len(mx.load(tmp_path / "b.onnx").hierarchy.modules) == 4


def test_a_surrogate_in_metadata_can_be_attached(tmp_path: Path) -> None:
    surrogate = {"pkg.torch.onnx.name_scopes": r"['', '\ud800x', 'op']"}
    onnx.save(chain_model([("", surrogate), ("", dynamo(["", "b"], ["m.Net", "m.B"]))]), tmp_path / "a.onnx")
    mx.attach(tmp_path / "a.onnx", None, tmp_path / "b.onnx")
    assert list(mx.load(tmp_path / "b.onnx").hierarchy.modules) == ["", "b"]


def count_lines(run: Callable[[], object]) -> int:
    """How many lines of Python run: what time is made of, without the machine's other work."""
    count = 0

    def trace(frame: object, event: str, argument: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def deep_names(depth: int) -> Graph:
    parts = [f"p{level}" for level in range(depth)]
    return chain([("/" + "/".join([*parts[: depth - 1], str(number), "MatMul"]), {}) for number in range(20)])


def nested_functions(calls: list[int]) -> Graph:
    """Each function calls the next one so many times."""
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("l", 1)]
    functions = []
    for level, count in enumerate([*calls[1:], 1]):
        op_type, domain = (f"F{level + 1}", "l") if level + 1 < len(calls) else ("MatMul", "")
        values = ["x", *(f"h{number}" for number in range(count - 1)), "y"]
        pairs = itertools.pairwise(values)
        inner = [helper.make_node(op_type, [read, "w"], [made], domain=domain) for read, made in pairs]
        functions.append(helper.make_function("l", f"F{level}", ["x", "w"], ["y"], inner, opsets))
    values = ["x", *(f"h{number}" for number in range(calls[0] - 1)), "y"]
    main = [helper.make_node("F0", [read, "w"], [made], domain="l") for read, made in itertools.pairwise(values)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, WIDTH]) for name in ("x", "y")]
    graph = helper.make_graph(main, "g", ends[:1], ends[1:], [weight("w", WIDTH, WIDTH)])
    return index_model(helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=10))


def test_a_name_of_many_underscores_costs_no_more_than_another() -> None:
    """Every two of them may be where the prefix of an inlined graph ends: cut there, it would be read over and over."""
    graph = chain([("If__/stft/Conv", {}), ("/fc/MatMul", {})])
    assert InlinedNames(graph).split("_" * 200_000 + "w") == ("", "_" * 200_000 + "w")
    assert InlinedNames(graph)._lengths == {len("If__")}


class TestDepth:
    def test_as_deep_as_models_are(self) -> None:
        (reading,) = read_node_names(deep_names(MOST_LEVELS))
        assert set(reading.nodes) == {f"v{number}" for number in range(20)}

    def test_deeper_names_are_not_believed_and_cost_nothing(self) -> None:
        assert all(not list(read(deep_names(2_000))) for read in SOURCES)
        assert count_lines(lambda: find_hierarchy(deep_names(2_000))) < 2 * count_lines(
            lambda: find_hierarchy(deep_names(4))
        )

    def test_functions_inside_of_functions(self) -> None:
        reading = read_functions(nested_functions([1] * 200))
        assert reading is not None
        assert max(len(path.split(".")) for paths in reading.nodes.values() for path in paths) == MOST_LEVELS

    def test_functions_that_unfold_to_more_than_anybody_can_read(self) -> None:
        graph = nested_functions([2] * 18)
        reading = read_functions(graph)
        assert reading is not None
        # Of the deeper ones only a part of the owners would be known: they are not spoken of.
        spoken_of = {graph.by_key[key].graph for key in reading.nodes}
        assert spoken_of == {"", *(f"l::F{level}" for level in range(11))}
        assert all(len(reading.nodes[node.key]) == 2**11 for node in graph.members["l::F10"])

    def test_a_depth_more_costs_as_much_as_the_one_before(self) -> None:
        """Names without coherence, because coherence is looked for from the outside until there is some."""

        def shuffled(depth: int) -> Graph:
            scopes = ["/" + "/".join([*"abcdefgh"[:1] * depth, f"q{number % 5}", "MatMul"]) for number in range(40)]
            random.Random(0).shuffle(scopes)
            return chain([(scope, {}) for scope in scopes])

        short, long, longer = (
            count_lines(lambda depth=depth: list(read_node_names(shuffled(depth))))  # type: ignore[misc]
            for depth in (10, 20, 40)
        )
        assert longer - long < 2.5 * (long - short)
