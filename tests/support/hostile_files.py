"""Small files that are a danger to whoever opens them: malformed parts, and parts that unfold to gigabytes.

MALFORMED["short raw data"]()     a model whose weight has half of its bytes
EXPLOSIVE["doubling functions"]() a model of 2 KB with a thousand million nodes
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import onnx
from onnx import TensorProto, helper
from tests.support.building import body, model, module, node, provenance, run, weight

from modelexport.graph.file.metadata import embed_record
from modelexport.graph.index import index_model
from modelexport.record.hierarchy import Hierarchy, Module
from modelexport.record.packed import PACKED_VERSION, squeeze
from modelexport.record.provenance import Origin

Make = Callable[[], onnx.ModelProto]
LONG = "N" * 1_000_000


@cache
def _serialized_tagged() -> bytes:
    proto = model(
        node("MatMul", "x w", "h", "mm"),
        node("Add", "h b", "s", "add"),
        node("Relu", "s", "y", "act"),
        weights=[weight("w", *range(600)), weight("b", 1, 2)],
    )
    modules = [module("", "Net"), module("fc", "Linear"), module("act", "ReLU")]
    hierarchy = Hierarchy.of(modules, run("", "fc", "act"))
    record = provenance(proto, hierarchy, {"h": ["fc"], "s": ["fc"], "y": ["act"]})
    embed_record(proto, replace(record, origin=Origin("hand", "hand", index_model(proto).fingerprint)))
    return proto.SerializeToString()


def tagged() -> onnx.ModelProto:
    """A sound model with a record: three nodes, one large and one small weight."""
    return onnx.ModelProto.FromString(_serialized_tagged())


def _changed(change: Callable[[onnx.ModelProto], object]) -> Make:
    def make() -> onnx.ModelProto:
        proto = tagged()
        change(proto)
        return proto

    return make


def _weight(name: str, **fields: Any) -> Callable[[onnx.ModelProto], None]:
    """Other fields for a weight."""

    def change(proto: onnx.ModelProto) -> None:
        tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == name)
        for field, value in fields.items():
            if field == "dims":
                tensor.dims[:] = value
            elif field == "external":
                tensor.ClearField("raw_data")
                tensor.ClearField("float_data")
                tensor.data_location = TensorProto.EXTERNAL
                for key, entry in value.items():
                    tensor.external_data.add(key=key, value=entry)
            elif field == "float_data":
                tensor.ClearField("raw_data")
                tensor.float_data[:] = value
            else:
                setattr(tensor, field, value)

    return change


def _constant(tensor: onnx.TensorProto) -> Callable[[onnx.ModelProto], object]:
    return lambda proto: proto.graph.node.insert(0, helper.make_node("Constant", [], ["c"], value=tensor))


def _strange_type(proto: onnx.ModelProto) -> None:
    proto.graph.value_info.append(helper.make_tensor_value_info("h", 77, [1]))


def _strange_sequence(proto: onnx.ModelProto) -> None:
    inner = helper.make_tensor_type_proto(-1, None)
    proto.graph.value_info.append(helper.make_value_info("h", helper.make_sequence_type_proto(inner)))


def _untyped_attribute(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].attribute.add(name="alpha", f=1.0)


def _sparse(proto: onnx.ModelProto) -> None:
    indices = helper.make_tensor("i", TensorProto.INT64, [2], [0, 1])
    indices.dims[:] = [5]
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(weight("sparse", 1, 2), indices, [4]))


def _in_body(proto: onnx.ModelProto) -> None:
    inner = body(node("Neg", "k", "t"), outputs="t")
    inner.initializer.append(onnx.TensorProto(name="k", data_type=1, dims=[3], raw_data=b"1234"))
    proto.graph.node.append(node("If", "x", "z", then_branch=inner, else_branch=inner))


MALFORMED: dict[str, Make] = {
    "short raw data": _changed(_weight("w", raw_data=b"1234")),
    "long raw data": _changed(_weight("b", raw_data=b"1" * 40)),
    "short typed data": _changed(_weight("b", float_data=[1.0])),
    "large short typed data": _changed(_weight("w", float_data=[1.0] * 500)),
    "data of another type": _changed(_weight("b", data_type=TensorProto.INT64)),
    "strings as raw data": _changed(_weight("b", data_type=TensorProto.STRING)),
    "unknown type": _changed(_weight("b", data_type=99)),
    "type minus one": _changed(_weight("w", data_type=-1)),
    "no type": _changed(_weight("w", data_type=0)),
    "negative side": _changed(_weight("b", dims=[-2])),
    "huge sides": _changed(_weight("b", dims=[2**40, 2**40])),
    "a segment": _changed(
        lambda proto: proto.graph.initializer[0].segment.MergeFrom(TensorProto.Segment(begin=0, end=1))
    ),
    "constant of no type": _changed(_constant(onnx.TensorProto(dims=[1], raw_data=b"1234"))),
    "constant too short": _changed(_constant(onnx.TensorProto(data_type=7, dims=[3], raw_data=b"1234"))),
    "unknown type of a value": _changed(_strange_type),
    "unknown type in a sequence": _changed(_strange_sequence),
    "attribute of no type": _changed(_untyped_attribute),
    "sparse tensor": _changed(_sparse),
    "tensor in a body": _changed(_in_body),
    "external data nowhere": _changed(_weight("w", external={"offset": "0"})),
    "external data at no number": _changed(_weight("w", external={"location": "w.bin", "offset": "zero"})),
    "external data before its file": _changed(_weight("w", external={"location": "w.bin", "offset": "-4"})),
    "external data of another size": _changed(_weight("w", external={"location": "w.bin", "length": "12"})),
}


def not_utf8(marker: bytes = b"mm") -> bytes:
    """The serialized model with one byte that is no UTF-8 in a name."""
    return _serialized_tagged().replace(marker, b"\xff" + marker[1:])


def doubling(levels: int) -> onnx.ModelProto:
    """Functions that call the one before twice."""
    functions = [_function(0, ["Neg"], "")]
    functions += [_function(level, [f"F{level - 1}"] * 2, "local") for level in range(1, levels)]
    return model(node(f"F{levels - 1}", "x", "y", domain="local"), functions=functions)


def chained(length: int) -> onnx.ModelProto:
    """Functions of which each calls the one before."""
    functions = [_function(0, ["Neg"], "")]
    functions += [_function(number, [f"F{number - 1}"], "local") for number in range(1, length)]
    return model(node(f"F{length - 1}", "x", "y", domain="local"), functions=functions)


def _function(number: int, operators: list[str], domain: str) -> onnx.FunctionProto:
    values = ["a", *(f"v{step}" for step in range(len(operators)))]
    steps = zip(operators, values, values[1:], strict=False)
    nodes = [node(op, read, made, domain=domain) for op, read, made in steps]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    return helper.make_function("local", f"F{number}", ["a"], [values[-1]], nodes, opsets)


def _everybody_calls_everybody() -> onnx.ModelProto:
    names = [f"F{number}" for number in range(12)]
    functions = [_function(number, names[number + 1 :] * 3 or ["Neg"], "local") for number in range(12)]
    return model(node("F0", "x", "y", domain="local"), functions=functions)


def _long_ids() -> onnx.ModelProto:
    inner = body(*(node("Neg", f"v{step}" if step else "x", f"v{step + 1}") for step in range(300)), outputs="v300")
    return model(node("If", "x", LONG, then_branch=inner, else_branch=inner), node("Neg", LONG, "y"))


def _long_call() -> onnx.ModelProto:
    function = _function(0, ["Neg"] * 300, "")
    return model(node("F0", "x", LONG, domain="local"), node("Neg", LONG, "y"), functions=[function])


EXPLOSIVE: dict[str, Make] = {
    "doubling functions": lambda: doubling(30),
    "a chain of functions": lambda: chained(2000),
    "functions that all call each other": _everybody_calls_everybody,
    "long ids of bodies": _long_ids,
    "long names of calls": _long_call,
}


def with_record(content: dict[str, Any]) -> onnx.ModelProto:
    """The tagged model with another record, given as it is before it is packed."""
    proto = tagged()
    for entry in proto.metadata_props:
        if entry.key.endswith(".record"):
            entry.value = f"modelexport-record-{PACKED_VERSION}:{squeeze(content)}"
    return proto


def _record(modules: Iterator[tuple[int, str, int]], rows: list[list[Any]], **changes: Any) -> dict[str, Any]:
    parents, names, numbers = (list(column) for column in zip(*modules, strict=True))
    policy = {"scope": "any", "torch_nn": "exceptions", "torch_nn_exceptions": [], "keep": [], "drop": []}
    return {
        "origin": {
            "strategy": "",
            "exporter": "",
            "graph": index_model(tagged()).fingerprint,
            "model": "",
            "tools": {},
        },
        "policy": policy,
        "absent": [[], []],
        "modules": {"parents": parents, "names": names, "rows": numbers, "aliases": {}, "row_table": rows},
        "calls": [[], []],
        "keys": ["h", "s", "y"],
        "names": ["mm", "add", "act"],
        "operators": [0, 1, 2],
        "answers": [0, 0, 0],
        "initializers": [],
        "owners": [],
        "operator_table": ["MatMul", "Add", "Relu"],
        "answer_table": [[[[0, 0]], "exact", [["scope", "hand", ""]], "", [], None]],
    } | changes


def _row(class_name: str = "Layer", tensors: int = 0, tied: int = 0, package: str = "nets") -> list[Any]:
    tensor = {"shape": [1], "dtype": "float32", "nbytes": 4}
    parameters: list[dict[str, Any]] = [{"name": f"p{number}", **tensor} for number in range(tensors)]
    if tied:
        parameters.append({"name": "tied", **tensor, "tied": [f"t{number}" for number in range(tied)]})
    return [class_name, package, parameters, [], [], False]


def _tree(count: int, parent: Callable[[int], int], first: str = "m1") -> Iterator[tuple[int, str, int]]:
    yield -1, "", 0
    for number in range(1, count):
        yield parent(number), first if number == 1 else f"m{number}", 0


def _nested_calls(count: int) -> dict[str, Any]:
    return _record(_tree(1, int), [_row()], calls=[[0] * count, [0, *([1] * (count - 1))]])


RECORDS: dict[str, Callable[[], dict[str, Any]]] = {
    "modules 3,000 deep": lambda: _record(_tree(3000, lambda number: number - 1), [_row()]),
    "wide below a long name": lambda: _record(_tree(20_000, lambda number: min(number - 1, 1), "m" * 9000), [_row()]),
    "one list of tensors for all": lambda: _record(_tree(5000, lambda _: 0), [_row(tensors=2000)]),
    "a long class above many": lambda: _record(_tree(3000, lambda _: 0), [_row(LONG)]),
    "tensors tied to thousands": lambda: _record(_tree(5000, lambda _: 0), [_row(tied=5000)]),
    "a long package of many": lambda: _record(_tree(300, lambda _: 0), [_row(package=LONG)]),
    "modules without end": lambda: _record(_tree(300_000, lambda _: 0), [_row()]),
    "calls 3,000 deep": lambda: _nested_calls(3000),
    "half of a surrogate pair": lambda: _record(_tree(2, lambda _: 0), [_row("\ud800")]),
    "owners without end": lambda: _record(
        _tree(300, lambda number: number - 1),
        [_row()],
        answer_table=[[[[299, call] for call in range(30_000)], "exact", [], "", [], None]],
    ),
}


def long_class() -> onnx.ModelProto:
    """A class name of a million characters: odd, and no danger to anybody."""
    return with_record(_record(_tree(3, lambda _: 0), [_row(LONG)]))


__all__ = ["EXPLOSIVE", "MALFORMED", "RECORDS", "Make", "Module", "long_class", "not_utf8", "tagged", "with_record"]
