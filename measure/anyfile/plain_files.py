"""Plain files: an export as it would be without this project, and without what exporters leave beside the weights.

strip_record(model)           no key of ours; the same as a plain `torch.onnx.export`
strip_node_names(model)       besides, no metadata, and nodes without names; values keep theirs
keep_parameter_names(model)   besides, no names but those of parameters, inputs and outputs:

    node_linear_1: linear_1 = Gemm(addmm, fc.weight, val_3)     becomes     v7 = Gemm(v6, fc.weight, v2)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx

from modelexport.graph.file.metadata import strip_metadata, strip_own_metadata
from modelexport.graph.protos import rename_values, subgraphs

# Every key starts with it.
_ANY = ("",)
_PREFIX = "v"


def strip_record(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without anything of ours; what torch and tools wrote stays."""
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    strip_own_metadata(plain, frozenset())
    return plain


def strip_node_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which nodes have neither names nor metadata."""
    nameless = onnx.ModelProto()
    nameless.CopyFrom(model)
    strip_metadata(nameless, _ANY, ())
    nameless.graph.doc_string = ""
    _rename_graph(nameless.graph, {})
    for function in nameless.functions:
        _rename_nodes(function.node, {})
    return nameless


def keep_parameter_names(model: onnx.ModelProto, parameters: Collection[str]) -> onnx.ModelProto:
    """A copy in which nodes have no names, and values meaningless ones unless they are parameters, inputs or outputs.

    parameters  full names; an initializer that is none of them was named by the exporter
    """
    nameless = strip_node_names(model)
    stored = {tensor.name for tensor in nameless.graph.initializer}
    ends = {value.name for value in (*nameless.graph.input, *nameless.graph.output)}
    kept = ends | stored.intersection(parameters)
    _rename_graph(nameless.graph, _number_names(_names_in(nameless.graph), kept))
    for function in nameless.functions:
        values = [*function.input, *function.output, *_names_made(function.node)]
        names = _number_names(values, ())
        function.input[:] = [names[name] for name in function.input]
        function.output[:] = [names[name] for name in function.output]
        function.ClearField("value_info")
        _rename_nodes(function.node, names)
    return nameless


def _number_names(names: Iterator[str] | Sequence[str], kept: Collection[str]) -> dict[str, str]:
    """Other names for all but those that are kept. A number says no more than the order of the file."""
    distinct = [name for name in dict.fromkeys(names) if name not in kept]
    free = (name for number in range(len(distinct) + len(kept)) if (name := f"{_PREFIX}{number}") not in kept)
    return dict(zip(distinct, free, strict=False))


def _names_in(graph: onnx.GraphProto) -> Iterator[str]:
    """Of weights, of whatever nodes make, in bodies too, and of what graphs are given."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    yield from _names_made(graph.node)


def _names_made(nodes: Sequence[onnx.NodeProto]) -> Iterator[str]:
    for node in nodes:
        yield from filter(None, node.output)
        for body in subgraphs(node):
            yield from _names_in(body)


def _rename_graph(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    rename_values(graph, names)
    _rename_nodes(graph.node, names)


def _rename_nodes(nodes: Sequence[onnx.NodeProto], names: Mapping[str, str]) -> None:
    for node in nodes:
        node.name = node.doc_string = ""
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for body in subgraphs(node):
            body.name = "body"
            _rename_graph(body, names)
