"""Finding a hierarchy: what a file without a record says about its own modules.

    find_hierarchy(graph)  ->  Provenance: modules, one attribution for every node and initializer

Every source in `SOURCES` reads the graph. Of several that speak of one node, the strongest decides, and the others are
kept as its evidence or as claims that lost. What no source speaks of follows from dataflow, `inferred`; what is left is
the root's, as `fallback`: nothing is known of it. Structure is asked only where names explain next to nothing, because
its names (`layers.0`) are its own and would stand beside those of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from modelexport.attribute.dataflow import claim_by_dataflow, claim_initializers_by_dataflow
from modelexport.attribute.resolve import build_provenance
from modelexport.attribute.roles.assign import assign_roles
from modelexport.attribute.sources.exporter_metadata import read_dynamo, read_namespaces, read_winml
from modelexport.attribute.sources.node_names import read_node_names
from modelexport.attribute.sources.parameter_names import module_of_parameter, read_parameter_names
from modelexport.attribute.sources.reading import Reading
from modelexport.graph.index import Graph, Tensor, edges_of
from modelexport.record.hierarchy import (
    ROOT,
    CallSite,
    Hierarchy,
    Module,
    ModuleCall,
    TensorInfo,
    lineage_of,
    parent_path,
)
from modelexport.record.provenance import Claim, Confidence, Evidence, EvidenceKind, Origin, Provenance

# The strategy of a record that was found in the file itself.
FILE = "file"
# Below this share of nodes, names tell nothing about how a model is built.
_LEAST_NAMED = 0.1

Reader = Callable[[Graph], Iterable[Reading]]


def _each(read: Callable[[Graph], Reading | None]) -> Reader:
    return lambda graph: [reading] if (reading := read(graph)) is not None else []


# Strongest first.
SOURCES: tuple[Reader, ...] = (
    _each(read_dynamo),
    _each(read_winml),
    _each(read_namespaces),
    _each(read_node_names),
    read_parameter_names,
)


def find_hierarchy(graph: Graph) -> Provenance:
    readings = [reading for read in SOURCES for reading in read(graph)]
    hierarchy = _build_hierarchy(graph, readings)
    nodes, initializers = _claims(readings)
    known = {key: claims[0] for key, claims in nodes.items()}
    inferred = claim_by_dataflow(graph, hierarchy, known, FILE)
    held = {name: claims[0] for name, claims in initializers.items()}
    read_by = claim_initializers_by_dataflow(graph, hierarchy, {**known, **inferred}, held, FILE)
    fallback = Claim((ModuleCall(ROOT),), Confidence.FALLBACK, (), FILE)
    for node in graph.nodes:
        nodes.setdefault(node.key, [inferred.get(node.key, fallback)])
    for name in graph.initializers:
        initializers.setdefault(name, [read_by.get(name, fallback)])
    origin = Origin(FILE, ", ".join(dict.fromkeys(reading.source for reading in readings)), graph.fingerprint)
    provenance = build_provenance(graph, hierarchy, nodes, initializers, origin)
    return assign_roles(graph, replace(provenance, edges=edges_of(graph)))


def _claims(readings: Sequence[Reading]) -> tuple[dict[str, list[Claim]], dict[str, list[Claim]]]:
    """Claims on nodes and on initializers, the deciding one first."""
    nodes: dict[str, list[Claim]] = {}
    initializers: dict[str, list[Claim]] = {}
    for reading in readings:
        for claims, said in ((nodes, reading.nodes), (initializers, reading.initializers)):
            for key, paths in said.items():
                evidence = Evidence(EvidenceKind.SCOPE, reading.source, reading.details.get(key, ""))
                # A weaker source that contradicts is kept, and does not weaken what a stronger one says.
                confidence = min(reading.confidence, Confidence.INFERRED) if key in claims else reading.confidence
                owners = tuple(map(ModuleCall, paths))
                claims.setdefault(key, []).append(Claim(owners, confidence, (evidence,), FILE))
    return nodes, initializers


def _build_hierarchy(graph: Graph, readings: Sequence[Reading]) -> Hierarchy:
    """Modules in the order in which the graph comes to them, each called once, from inside of the module around it."""
    classes = {path: name for reading in reversed(readings) for path, name in reading.classes.items()}
    tensors = _tensors_by_module(graph)
    owners = [paths for node in graph.nodes for reading in readings for paths in [reading.nodes.get(node.key, ())]]
    issuing = {path for paths in owners for path in paths}
    held = (path for reading in readings for paths in reading.initializers.values() for path in paths)
    named = [path for paths in owners for path in paths]
    every = dict.fromkeys(above for path in (*named, *held, *classes) for above in lineage_of(path))
    every.setdefault(ROOT, None)
    children: dict[str, list[str]] = {}
    for path in every:
        if path != ROOT:
            children.setdefault(parent_path(path), []).append(path)

    def is_list(path: str) -> bool:
        """It holds numbered modules and does nothing itself."""
        inside = children.get(path, ())
        return path != ROOT and path not in issuing and all(child.rpartition(".")[2].isdecimal() for child in inside)

    modules = [
        _describe_module(path, classes.get(path, ""), tensors.get(path, ()), bool(children.get(path)) and is_list(path))
        for path in every
    ]
    lists = {module.path for module in modules if module.container}
    return Hierarchy.of(modules, _calls(every, lists))


def _calls(paths: Iterable[str], lists: set[str]) -> Iterator[CallSite]:
    for path in paths:
        if path in lists:
            continue
        above = [name for name in lineage_of(parent_path(path)) if name not in lists] if path != ROOT else []
        yield CallSite(ModuleCall(path), ModuleCall(above[-1]) if above else None)


def _describe_module(path: str, qualified: str, tensors: tuple[TensorInfo, ...], container: bool) -> Module:
    package, _, class_name = qualified.rpartition(".")
    return Module(path, class_name, package, tensors, container=container)


def _tensors_by_module(graph: Graph) -> Mapping[str, tuple[TensorInfo, ...]]:
    tensors: dict[str, list[TensorInfo]] = {}
    for name, tensor in graph.initializers.items():
        path = module_of_parameter(name)
        if path is not None:
            tensors.setdefault(path, []).append(_tensor_info(name.rpartition(".")[2], tensor))
    return {path: tuple(several) for path, several in tensors.items()}


def _tensor_info(name: str, tensor: Tensor) -> TensorInfo:
    from onnx import TensorProto

    return TensorInfo(name, tensor.shape, TensorProto.DataType.Name(tensor.dtype).lower(), tensor.nbytes)
