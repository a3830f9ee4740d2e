"""What a function is given: by the call, else by itself, and by the one of two functions of one name that is meant."""

from __future__ import annotations

import onnx
from onnx import helper

from modelexport.graph.functions import call_attributes, resolve_references
from modelexport.graph.index import function_id


def functions() -> dict[str, onnx.FunctionProto]:
    found = {}
    for overload, usual in (("", 1.0), ("other", 2.0)):
        one = onnx.FunctionProto(domain="mine", name="F", overload=overload)
        one.attribute_proto.append(helper.make_attribute("alpha", usual))
        found[function_id(one)] = one
    return found


def call(overload: str, *attributes: onnx.AttributeProto) -> onnx.NodeProto:
    return onnx.NodeProto(domain="mine", op_type="F", overload=overload, attribute=attributes)


def referring(name: str, to: str) -> onnx.AttributeProto:
    return onnx.AttributeProto(name=name, ref_attr_name=to, type=onnx.AttributeProto.FLOAT)


def given(*calls: onnx.NodeProto) -> float:
    [found] = resolve_references([referring("slope", "alpha")], call_attributes(calls, functions()))
    assert found.name == "slope"
    return found.f


def test_a_function_has_attributes_of_its_own_for_what_the_call_leaves_out() -> None:
    assert given(call("")) == 1.0
    assert given(call("other")) == 2.0
    assert given(call("other", helper.make_attribute("alpha", 3.0))) == 3.0


def test_calls_hand_on_what_they_are_given() -> None:
    inner = call("other", referring("alpha", "beta"))
    assert given(call("", helper.make_attribute("beta", 4.0)), inner) == 4.0
    assert given(call(""), inner) == 2.0


def test_what_nobody_gives_is_not_there() -> None:
    assert not list(resolve_references([referring("slope", "gamma")], call_attributes([call("")], functions())))
