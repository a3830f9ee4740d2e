"""Structure: a hierarchy of a graph in which no name means anything, from blocks that repeat.

    layers.0 … layers.11          one run of equal blocks
    stages.1.layers.0             a run that changes its width, or is cut by something else
    encoder.layers.0, decoder.layers.0    every block of the second run reads what the first one made
    down.layers.0, up.layers.0    blocks of the second run start where skips of the first one end
    stack_0.layers.0              runs that have nothing to do with each other
    stem, head                    what the first block is made of, and what is made of the last one
    layers.3.attention.query      the part of a block that a node plays, from its role

Where nothing repeats, nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from modelexport.attribute.roles.assign import find_roles
from modelexport.attribute.roles.value_origins import RoleFlow, trace_flow
from modelexport.attribute.sources.reading import Reading
from modelexport.attribute.sources.repeats import Run, find_runs
from modelexport.attribute.sources.segments import Trunk, cut_trunk
from modelexport.graph.index import Graph
from modelexport.record.hierarchy import join
from modelexport.record.provenance import Confidence

SOURCE = "structure"


def read_structure(graph: Graph) -> Reading | None:
    """The repeated blocks of a graph and their parts; None if nothing repeats."""
    flow = trace_flow(graph)
    trunk = cut_trunk(flow)
    runs = find_runs(trunk)
    if not runs:
        return None
    names = name_runs(trunk, runs)
    blocks = _block_paths(trunk, runs, names)
    nodes = {key: (path,) for key, path in blocks.items()}
    return Reading(SOURCE, Confidence.INFERRED, nodes, _weight_paths(graph, nodes))


def name_runs(trunk: Trunk, runs: Sequence[Run]) -> list[str]:
    if len(runs) == 1:
        return [""]
    return [f"stack_{number}" for number in range(len(runs))]


def _block_paths(trunk: Trunk, runs: Sequence[Run], names: Sequence[str]) -> dict[str, str]:
    paths: dict[str, str] = {}
    for run, name in zip(runs, names, strict=True):
        for path, block in zip(_layer_paths(run, name), run.blocks, strict=True):
            for segment in block.segments:
                paths.update((node.key, path) for node in segment.members)
    return paths


def _layer_paths(run: Run, name: str) -> Iterator[str]:
    sizes: dict[int, int] = {}
    for block in run.blocks:
        sizes[block.stage] = sizes.get(block.stage, 0) + 1
    staged = len(sizes) > 1 and max(sizes.values()) > 1
    counts: dict[int, int] = {}
    for number, block in enumerate(run.blocks):
        place = counts.get(block.stage, 0)
        counts[block.stage] = place + 1
        yield join(name, f"stages.{block.stage}.layers.{place}" if staged else f"layers.{number}")


def _weight_paths(graph: Graph, nodes: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    paths: dict[str, tuple[str, ...]] = {}
    for name in graph.initializers:
        readers = (path for reader in graph.consumers.get(name, ()) for path in nodes.get(reader.key, ()))
        if distinct := tuple(dict.fromkeys(readers)):
            paths[name] = distinct
    return paths
