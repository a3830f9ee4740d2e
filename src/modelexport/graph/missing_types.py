"""Missing types: what ONNX Runtime says where it cannot compute in a type, and what to do about it.

    Could not find an implementation for Mul(14) node with name 'node_mul'           the build has no such kernel
    Type 'tensor(bfloat16)' of input parameter (x) of operator (Conv) … is invalid   the operator is not for the type
    No corresponding Numpy type for Tensor Type. bfloat16                            results cannot be handed to Python

    explain_missing_type(error, proto)  ─►  "ONNX Runtime has no Mul for bfloat16 on this machine"

Messages are all that there is: onnxruntime has no error class for it that says operator or type. Which types there are
depends on the build and the device, so that nothing is known before a session is started.
"""

from __future__ import annotations

import re

import onnx

from modelexport.graph.types import float_types, stated_types, type_name

USE_FLOAT32 = "Export the model in a type that it can run: --dtype float32."
_NO_KERNEL = re.compile(r"Could not find an implementation for (?P<op>\w+)\(\d+\) node with name '(?P<node>[^']*)'")
_NO_SCHEMA = re.compile(r"Type 'tensor\((?P<type>\w+)\)' of input parameter \(.*?\) of operator \((?P<op>\w+)\)")
_NO_ARRAY = re.compile(r"No corresponding Numpy type for Tensor Type\. (?P<type>\w+)")
_UNUSUAL = ("float16", "bfloat16", "double")  # as ONNX and its messages call them


def explain_missing_type(error: Exception, proto: onnx.ModelProto) -> str:
    """One sentence if the type of a float is why a file cannot be run; else empty."""
    text = str(error)
    if returned := _NO_ARRAY.search(text):
        return f"ONNX Runtime cannot hand {returned['type']} to Python"
    if (refused := _NO_SCHEMA.search(text)) and refused["type"] in _UNUSUAL:
        return _explain(refused["op"], refused["type"])
    missing = _NO_KERNEL.search(text)
    kind = "" if missing is None else _find_type(proto, missing["node"])
    return "" if missing is None or not kind else _explain(missing["op"], kind)


def _explain(operator: str, kind: str) -> str:
    return f"ONNX Runtime has no {operator} for {kind} on this machine"


def _find_type(proto: onnx.ModelProto, name: str) -> str:
    """The unusual float that a node reads; where that is not stated, the one of the file, if it has no other."""
    types = dict(stated_types(proto))
    node = next((node for node in proto.graph.node if name and node.name == name), None)
    read = [] if node is None else [types[value].tensor_type.elem_type for value in node.input if value in types]
    unusual = [type_name(kind) for kind in (read or sorted(float_types(proto))) if type_name(kind) in _UNUSUAL]
    return unusual[0] if unusual else ""
