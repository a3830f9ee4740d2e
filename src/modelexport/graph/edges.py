"""The edges of a graph, for a record that knows nothing of ONNX."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from modelexport.graph.domains import ONNX_DOMAINS
from modelexport.graph.index import KEY_SEPARATOR, Graph
from modelexport.record.edges import Edges


def edges_of(graph: Graph) -> Edges:
    runners = graph.runners
    consumers = _consumers(graph, runners)
    producers = {value: (node.key,) for value, node in graph.producers.items()}
    given = {
        value: runners[holder]
        for value in consumers
        if value not in producers and value not in graph.initializers
        for holder in _holders(value, runners)
    }
    return Edges(
        producers=MappingProxyType(producers | given),
        consumers=MappingProxyType(consumers),
        inputs=graph.inputs,
        outputs=graph.outputs,
        initializers=MappingProxyType({name: math.prod(tensor.shape) for name, tensor in graph.initializers.items()}),
        domains=MappingProxyType({node.key: node.domain for node in graph.nodes if node.domain not in ONNX_DOMAINS}),
    )


def _consumers(graph: Graph, runners: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """What the nodes themselves read, and what comes back to them from a body or a function."""
    found = {value: tuple(node.key for node in nodes) for value, nodes in graph.consumers.items()}
    returned: dict[str, list[str]] = {}
    for graph_id, keys in runners.items():
        for value in filter(None, graph.yields[graph_id]):
            returned.setdefault(value, []).extend(keys)
    for value, added in returned.items():
        readers = {*found.get(value, ()), *added}
        found[value] = tuple(sorted(readers, key=lambda key: graph.by_key[key].position))
    return found


def _holders(value: str, runners: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """The body or function that a value belongs to; none for a value of the main graph."""
    graph_id = value
    while KEY_SEPARATOR in graph_id:
        graph_id = graph_id.rpartition(KEY_SEPARATOR)[0]
        if graph_id in runners:
            yield graph_id
            return
