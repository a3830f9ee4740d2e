"""Nodes with a wrong number of inputs or outputs: a reason when a file is opened, no fault of whoever reads them."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper
from tests.support.building import body, model, node, weight
from tests.support.command_line import run

from modelexport.errors import FileUnreadable
from modelexport.graph.arity import ensure_arity
from modelexport.graph.index import index_model
from modelexport.graph.soundness import ensure_sound


def check(proto: onnx.ModelProto) -> None:
    ensure_arity(proto, index_model(proto), "a.onnx")


def with_opset(proto: onnx.ModelProto, version: int, domain: str = "") -> onnx.ModelProto:
    del proto.opset_import[:]
    proto.opset_import.append(helper.make_opsetid(domain, version))
    return proto


def function_of(op_type: str, inputs: str, version: int) -> onnx.FunctionProto:
    return helper.make_function(
        "local", "F", ["a"], ["b"], [node(op_type, inputs, "b")], [helper.make_opsetid("", version)]
    )


class TestWrong:
    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (node("Add", "x", "y"), "the Add that makes 'y' has 1 input, and the operator takes 2"),
            (node("Pow", "", "y"), "the Pow that makes 'y' has 0 inputs, and the operator takes 2"),
            (node("Pow", "x _", "y"), "the Pow that makes 'y' leaves out its input Y, which is not optional"),
            (node("Add", "x x", "_"), "the Add called 'n' leaves out its output C, which is not optional"),
            (node("Relu", "x", ""), "the Relu called 'n' has 0 outputs, and the operator takes 1"),
            (node("Concat", "", "y", axis=0), "has 0 inputs, and the operator takes 1 at least"),
            (node("Add", "x x x", "y"), "has 3 inputs, and the operator takes 2"),
            (node("Clip", "x x x x", "y"), "has 4 inputs, and the operator takes 1 to 3"),
            (node("Add", "x", "y", domain="com.microsoft"), "has 1 input, and the operator takes 2"),
            (node("Add", "x", "y", domain="ai.onnx"), "has 1 input"),
            (node("GatherBlockQuantized", "x", "y", domain="com.microsoft"), "has 1 input"),
            (node("Add", "_ x", "y"), "leaves out its input A"),
        ],
    )
    def test_it_is_said(self, wrong: onnx.NodeProto, message: str) -> None:
        wrong.name = "n"
        with pytest.raises(FileUnreadable) as caught:
            check(model(wrong))
        assert message in caught.value.message

    def test_in_a_body(self) -> None:
        inner = body(node("Mul", "x", "t"), outputs="t")
        with pytest.raises(FileUnreadable, match=r"the Mul that makes 'y\|then_branch\|t' has 1 input"):
            check(model(node("If", "x", "y", then_branch=inner)))

    def test_a_function_has_versions_of_its_own(self) -> None:
        # Since version 13, Unsqueeze takes the axes as an input.
        call = node("F", "x", "y", domain="local")
        check(model(call, functions=[function_of("Unsqueeze", "a", 11)]))
        with pytest.raises(FileUnreadable, match="Unsqueeze"):
            check(model(call, functions=[function_of("Unsqueeze", "a", 13)]))

    @pytest.mark.parametrize("version", [-5, 0, onnx.defs.onnx_opset_version() + 1, 2**40])
    def test_whatever_version_the_file_names(self, version: int) -> None:
        with pytest.raises(FileUnreadable, match="has 0 inputs, and the operator takes 2"):
            check(with_opset(model(node("Add", "", "y")), version))


class TestNothingIsSaid:
    @pytest.mark.parametrize(
        "right",
        [
            node("Add", "x", "y", domain="my.domain"),
            node("NoSuchOperator", "", "y"),
            node("Clip", "x _ x", "y"),
            node("Loop", "_ _ x", "y", body=body(node("Neg", "s", "t"), inputs="i k s", outputs="k t")),
            node("LSTM", "x x x", "_ y"),
            node("Sum", "x x x x", "y"),
            node("Conv", "x x x x", "y", domain="com.microsoft.nchwc"),  # the last one is added to the result
            node("Range", "x x", "y", domain="com.microsoft"),
            node("SkipLayerNormalization", "x x x", "y", domain="com.microsoft"),
        ],
    )
    def test_of_what_is_allowed_or_not_known(self, right: onnx.NodeProto) -> None:
        check(model(right))

    def test_of_a_function_with_the_name_of_an_operator(self) -> None:
        own = helper.make_function("", "Add", ["a"], ["b"], [node("Relu", "a", "b")], [helper.make_opsetid("", 20)])
        check(model(node("Add", "x", "y"), functions=[own]))

    def test_of_an_older_operator(self) -> None:
        check(with_opset(model(node("Unsqueeze", "x", "y", axes=[0])), 7))
        with pytest.raises(FileUnreadable):
            check(with_opset(model(node("Unsqueeze", "x", "y")), 13))

    def test_of_what_versions_that_are_not_known_yet_may_bring(self) -> None:
        check(with_opset(model(node("NotKnownYet", "x", "y")), onnx.defs.onnx_opset_version() + 1))


@pytest.mark.parametrize("verb", ["analyze", "view", "attach"])
def test_every_verb_ends_with_a_reason(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(model(node("Pow", "x", "h"), node("Relu", "h", "y")), tmp_path / "a.onnx")
    target = {"view": ["-o", tmp_path / "page.html"], "attach": ["-o", tmp_path / "b.onnx"]}.get(verb, [])
    assert run(verb, tmp_path / "a.onnx", *target) == 2
    assert "the Pow that makes 'h' has 1 input" in capsys.readouterr().err


def test_an_initializer_without_a_name() -> None:
    proto = model(node("Relu", "x", "y"), weights=[weight("", 1)])
    with pytest.raises(FileUnreadable, match="an initializer has no name"):
        ensure_sound(proto, index_model(proto), "a.onnx")
