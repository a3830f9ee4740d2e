"""Attributes that a function is given by those who call it, and that nodes inside of it refer to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx

from modelexport.graph.index import called_id

# By name.
Attributes = Mapping[str, onnx.AttributeProto]


def resolved(attributes: Iterable[onnx.AttributeProto], given: Attributes) -> Iterator[onnx.AttributeProto]:
    """Attributes as the call has them. One that refers to something the call does not give is not there."""
    for one in attributes:
        if not one.ref_attr_name:
            yield one
        elif one.ref_attr_name in given:
            value = onnx.AttributeProto()
            value.CopyFrom(given[one.ref_attr_name])
            value.name = one.name
            yield value


def given_by(
    calls: Iterable[onnx.NodeProto], functions: Mapping[str, onnx.FunctionProto], around: Attributes | None = None
) -> Attributes:
    """What the last of these calls gives to its function, or else the function's own.

    calls      each but the first is made in the function that the one before it calls
    functions  by id
    around     what the function is given that the first call is in
    """
    found = around or {}
    for call in calls:
        function = functions.get(called_id(call))
        usual = () if function is None else function.attribute_proto
        found = {one.name: one for one in (*usual, *resolved(call.attribute, found))}
    return found
