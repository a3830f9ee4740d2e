"""Structure: a hierarchy of a graph in which no name means anything, from blocks that repeat.

    layers.0 … layers.11                  one run of equal blocks
    stages.1.layers.0                     a run that changes its width, or is cut by something else
    encoder.layers.0, decoder.layers.0    every block of the second run reads what the first one made
    down.layers.0, up.layers.0            blocks of the second run start where skips out of the first one end
    stack_0.layers.0, stack_1.layers.0    other runs beside each other or behind each other
    stem, head                            what the first block is made of, and what is made of the last one
    layers.3.attention.query              the part of a block that a node plays, from its role

    x ─► cut_trunk ─► link_chains ─► find_runs ─► name_runs ─► name_parts ─► Reading
         segments     in a row       repeats      encoder, …   attention, …

Where nothing repeats, nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from modelexport.attribute.roles.assign import find_roles
from modelexport.attribute.roles.value_origins import RoleFlow, trace_flow
from modelexport.attribute.sources.parts import name_parts
from modelexport.attribute.sources.reading import Reading
from modelexport.attribute.sources.repeats import Run, find_runs
from modelexport.attribute.sources.runs import name_runs, name_surroundings
from modelexport.attribute.sources.segments import Trunk, cut_trunk
from modelexport.graph.index import Graph
from modelexport.record.hierarchy import join, parent_path
from modelexport.record.provenance import Confidence, EvidenceKind

SOURCE = "structure"


def read_structure(graph: Graph, flow: RoleFlow | None = None) -> Reading | None:
    """The repeated blocks of a graph and their parts; None if nothing repeats. `flow` if it was traced already."""
    trunk = cut_trunk(flow or trace_flow(graph))
    runs = find_runs(trunk)
    if not runs:
        return None
    names = name_runs(trunk, runs)
    layers = [list(_layer_paths(run, name)) for run, name in zip(runs, names, strict=True)]
    paths = name_surroundings(trunk, runs, names, layers)
    paths.update(_name_nodes(trunk, runs, layers))
    nodes = {key: (path,) for key, path in _with_bodies(graph, paths)}
    return Reading(SOURCE, Confidence.INFERRED, nodes, _weight_paths(graph, nodes), kind=EvidenceKind.DATAFLOW)


def _layer_paths(run: Run, name: str) -> Iterator[str]:
    """`stages.1.layers.0` if a stage has several layers, else `layers.3`."""
    stages = [block.stage for block in run.blocks]
    is_staged = 1 < len(set(stages)) < len(stages)
    for number, stage in enumerate(stages):
        layer = f"stages.{stage}.layers.{number - stages.index(stage)}" if is_staged else f"layers.{number}"
        yield join(name, layer)


def _name_nodes(trunk: Trunk, runs: Sequence[Run], layers: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    blocks = [pair for run, paths in zip(runs, layers, strict=True) for pair in zip(run.blocks, paths, strict=True)]
    lists = {node.key: parent_path(path) for block, path in blocks for node in block.nodes}
    roles = find_roles(trunk.flow, lists)
    for block, path in blocks:
        parts = name_parts(trunk.flow, block, roles)
        for node in block.nodes:
            yield node.key, join(path, parts[node.key]) if node.key in parts else path


def _with_bodies(graph: Graph, paths: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Nodes in the body of an If or a Loop are where the node is that holds the body."""
    for key, path in paths.items():
        yield key, path
        yield from ((inner.key, path) for inner in graph.subgraph_nodes(graph.by_key[key]))


def _weight_paths(graph: Graph, nodes: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    paths: dict[str, tuple[str, ...]] = {}
    for name in graph.initializers:
        readers = (path for reader in graph.consumers.get(name, ()) for path in nodes.get(reader.key, ()))
        if distinct := tuple(dict.fromkeys(readers)):
            paths[name] = distinct
    return paths
