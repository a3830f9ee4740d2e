"""Finding a hierarchy: what a file without a record says about its own modules.

    find_hierarchy(graph)  ->  Provenance: modules, one attribution for every node and initializer

Every source in `SOURCES` reads the graph. Of several that speak of one node, the strongest decides, and the others are
kept as its evidence or as claims that lost. What no source speaks of follows from dataflow, `inferred`; what is left is
the root's, as `fallback`: nothing is known of it. Structure is asked only where names explain next to nothing, because
its names (`layers.0`) are its own and would stand beside those of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from onnx import TensorProto

from modelexport.attribute.dataflow import claim_initializers_by_dataflow
from modelexport.attribute.resolve import build_provenance
from modelexport.attribute.roles.assign import assign_roles
from modelexport.attribute.roles.value_origins import trace_flow
from modelexport.attribute.sources.descriptions import describe_classes
from modelexport.attribute.sources.exporter_metadata import read_dynamo, read_namespaces, read_winml
from modelexport.attribute.sources.inference import infer_claims
from modelexport.attribute.sources.local_functions import read_functions
from modelexport.attribute.sources.node_names import read_node_names
from modelexport.attribute.sources.parameter_names import module_of_parameter, read_parameter_names
from modelexport.attribute.sources.reading import Reading
from modelexport.attribute.sources.structure import read_structure
from modelexport.graph.index import Graph, Tensor, edges_of
from modelexport.graph.operators import data_inputs
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
from modelexport.record.provenance import FROM_FILE, Claim, Confidence, Evidence, Origin, Provenance

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
    read_node_names,
    read_parameter_names,
    _each(read_functions),
)


def find_hierarchy(graph: Graph) -> Provenance:
    flow = trace_flow(graph)
    readings = [reading for read in SOURCES for reading in read(graph)]
    is_named = _share_named(graph, readings) >= _LEAST_NAMED
    if not is_named and (structure := read_structure(graph, flow)) is not None:
        readings.append(structure)
        is_named = True
    hierarchy = _build_hierarchy(graph, readings)
    nodes, initializers = _claims(readings)
    known = {key: claims[0] for key, claims in nodes.items()}
    # From a few names, nothing follows for the rest.
    inferred = infer_claims(flow, hierarchy, known, FROM_FILE) if is_named else {}
    if not _can_tell_root(hierarchy, known.values()):
        inferred = {key: claim for key, claim in inferred.items() if not _is_root(claim)}
    held = {name: claims[0] for name, claims in initializers.items()}
    read_by = claim_initializers_by_dataflow(graph, hierarchy, {**known, **inferred}, held, FROM_FILE)
    fallback = Claim((ModuleCall(ROOT),), Confidence.FALLBACK, (), FROM_FILE)
    for node in graph.nodes:
        nodes.setdefault(node.key, [inferred.get(node.key, fallback)])
    for name in graph.initializers:
        initializers.setdefault(name, [read_by.get(name, fallback)])
    origin = Origin(FROM_FILE, ", ".join(_deciding_sources(readings)), graph.fingerprint)
    provenance = build_provenance(graph, hierarchy, nodes, initializers, origin)
    provenance = replace(provenance, hierarchy=_add_parameters(graph, provenance), edges=edges_of(graph))
    return describe_classes(graph, assign_roles(graph, provenance, flow))


def _share_named(graph: Graph, readings: Sequence[Reading]) -> float:
    """How much is named: of the nodes that compute with data, or of the weights, whichever share is larger."""
    computing = graph.computed & graph.by_key.keys()
    weights = {name for name, tensor in graph.initializers.items() if tensor.shape}
    named = {key for reading in readings for key in (*reading.nodes, *reading.initializers)}
    return max((len(whole & named) / len(whole) for whole in (computing, weights) if whole), default=1.0)


def _can_tell_root(hierarchy: Hierarchy, known: Iterable[Claim]) -> bool:
    """Whether it means something that a node is inferred to be the root's.

    Inference goes by the innermost module around two that are known. Where no module but the root is around two others
    (`conv2d_0`, `conv2d_1`, …), that is the root whatever there is between them, unless it is known to compute.
    """
    if any(map(_is_root, known)):
        return True
    modules = hierarchy.modules
    runners: set[str] = set()
    for path, module in modules.items():
        if path == ROOT or module.container:
            continue
        # A list runs nothing: its modules are run by the one around it.
        runner = next(above for above in reversed([*lineage_of(parent_path(path))]) if not modules[above].container)
        if runner != ROOT and runner in runners:
            return True
        runners.add(runner)
    return False


def _is_root(claim: Claim) -> bool:
    return all(owner.path == ROOT for owner in claim.owners)


def _deciding_sources(readings: Sequence[Reading]) -> list[str]:
    """The sources that say something which no stronger one says, in the order of how much it is."""
    known: set[str] = set()
    decided: Counter[str] = Counter()
    for reading in readings:
        decided[reading.source] += len(reading.nodes.keys() - known)
        known.update(reading.nodes)
    return [source for source, count in decided.most_common() if count]


def _claims(readings: Sequence[Reading]) -> tuple[dict[str, list[Claim]], dict[str, list[Claim]]]:
    """Claims on nodes and on initializers, the deciding one first."""
    nodes: dict[str, list[Claim]] = {}
    initializers: dict[str, list[Claim]] = {}
    for reading in readings:
        for claims, said in ((nodes, reading.nodes), (initializers, reading.initializers)):
            for key, paths in said.items():
                evidence = Evidence(reading.kind, reading.source, reading.detail)
                # A weaker source that contradicts is kept, and does not weaken what a stronger one says.
                confidence = min(reading.confidence, Confidence.INFERRED) if key in claims else reading.confidence
                owners = tuple(map(ModuleCall, paths))
                claims.setdefault(key, []).append(Claim(owners, confidence, (evidence,), FROM_FILE))
    return nodes, initializers


def _build_hierarchy(graph: Graph, readings: Sequence[Reading]) -> Hierarchy:
    """Modules in the order in which the graph comes to them, each called once, from inside of the module around it."""
    classes = {path: name for reading in reversed(readings) for path, name in reading.classes.items()}
    # Constants stand anywhere in a file; what computes stands in the order of execution.
    in_order = sorted(graph.nodes, key=lambda node: node.key not in graph.computed)
    owners = [reading.nodes[node.key] for node in in_order for reading in readings if node.key in reading.nodes]
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
        _make_module(path, classes.get(path, ""), container=bool(children.get(path)) and is_list(path))
        for path in _walk_tree(children)
    ]
    lists = {module.path for module in modules if module.container}
    return Hierarchy.of(modules, _calls(every, lists))


def _walk_tree(children: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Every path after the one around it; modules of a list by their numbers, others in the order of execution."""
    waiting = [ROOT]
    while waiting:
        path = waiting.pop()
        yield path
        inside = children.get(path, ())
        names = {child: child.rpartition(".")[2] for child in inside}
        if all(name.isdecimal() for name in names.values()):
            # As numbers are sorted, but without making numbers of them: a name may have thousands of digits.
            digits = {child: name.lstrip("0") for child, name in names.items()}
            inside = sorted(inside, key=lambda child: (len(digits[child]), digits[child]))
        waiting += reversed(inside)


def _calls(paths: Iterable[str], lists: set[str]) -> Iterator[CallSite]:
    for path in paths:
        if path in lists:
            continue
        above = [name for name in lineage_of(parent_path(path)) if name not in lists] if path != ROOT else []
        yield CallSite(ModuleCall(path), ModuleCall(above[-1]) if above else None)


def _make_module(path: str, qualified: str, *, container: bool) -> Module:
    package, _, class_name = qualified.rpartition(".")
    return Module(path, class_name, package, container=container)


def _add_parameters(graph: Graph, provenance: Provenance) -> Hierarchy:
    """Modules with the weights that belong to each alone; a name that is not the module's own is kept whole."""
    tensors: dict[str, list[TensorInfo]] = {}
    contents = {value for node in graph.nodes for value in data_inputs(node)}
    for name, attribution in provenance.initializers.items():
        paths = {owner.path for owner in attribution.owners}
        # Scalars and what only says how (a shape of Reshape) are no parameters; what nobody knows of is no module's.
        is_parameter = graph.initializers[name].shape and name in contents
        if len(paths) == 1 and is_parameter and attribution.confidence > Confidence.FALLBACK:
            path = paths.pop()
            own = name.rpartition(".")[2] if module_of_parameter(name) == path else name
            tensors.setdefault(path, []).append(_tensor_info(own, graph.initializers[name]))
    hierarchy = provenance.hierarchy
    modules = (replace(each, parameters=tuple(tensors.get(each.path, ()))) for each in hierarchy.modules.values())
    return Hierarchy.of(modules, hierarchy.calls)


def _tensor_info(name: str, tensor: Tensor) -> TensorInfo:
    return TensorInfo(name, tensor.shape, TensorProto.DataType.Name(tensor.dtype).lower(), tensor.nbytes)
