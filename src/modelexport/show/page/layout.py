"""Where the boxes of a drawing stand: in layers, by igraph's Sugiyama layout.

Drawings of equal layers of a model are equal, so that each is laid out once. Boxes that a longer edge passes get a
place for it, which becomes a bend of the edge.

    A ──────────► D        A            layer 0
    └─► B ─► C ──┘         B  │         layer 1     the edge A → D passes layers 1 and 2: two bends
                           C  │         layer 2
                           D            layer 3

Layers are chosen here; igraph (https://igraph.org/c/html/latest/igraph-Layout.html) orders boxes: few edges cross.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module

from modelexport.errors import ExtraMissing
from modelexport.graph.algorithms import topological_order

_GRID = 20  # parts of a box's width that coordinates are rounded to
_GAPS = (0.3, 0.65, 1.0)  # columns between two bends, between a bend and a box, and between two boxes

Pair = tuple[int, int]
Point = tuple[int, int]


@dataclass(frozen=True)
class LayeredLayout:
    """In twentieths of a column and in rows.

    boxes  one point for each box
    bends  for each edge, the points that it passes on its way from source to target
    """

    boxes: tuple[Point, ...]
    bends: tuple[tuple[Point, ...], ...]


@lru_cache(maxsize=4096)
def laid_out(count: int, edges: tuple[Pair, ...]) -> LayeredLayout:
    """Cached by its arguments: flows of equal layers of a model ask for the same one."""
    order = flow_order(count, edges)
    # Sugiyama needs a graph without cycles: edges that close one are turned round, and their bends back again below.
    downward = [(a, b) if order[a] < order[b] else (b, a) for a, b in edges]
    layers = _layers(order, downward)
    links: list[Pair] = []
    chains: list[list[int]] = []
    for source, target in downward:
        passed = list(range(len(layers), len(layers) + layers[target] - layers[source] - 1))
        layers += range(layers[source] + 1, layers[target])
        links += itertools.pairwise([source, *passed, target])
        chains.append(passed)
    points = _coordinates(layers, links, count)
    bends = (
        [points[stop] for stop in (chain if order[a] < order[b] else reversed(chain))]
        for (a, b), chain in zip(edges, chains, strict=True)
    )
    return LayeredLayout(tuple(points[:count]), tuple(map(tuple, bends)))


def _coordinates(layers: Sequence[int], links: Sequence[Pair], count: int) -> list[Point]:
    """The first `count` are boxes, the others bends."""
    if not layers:
        return []
    try:
        igraph = import_module("igraph")
    except ImportError as error:
        hint = "Install it: pip install modelexport[view]"
        raise ExtraMissing.of_import("the page", "igraph", error, hint) from error
    graph = igraph.Graph(len(layers), list(links), directed=True)
    layout = graph.layout_sugiyama(layers=list(layers), maxiter=50)
    columns = _apart([layout[number][0] for number in range(len(layers))], layers, count)
    left = min(columns)
    return [(round((column - left) * _GRID), layer) for column, layer in zip(columns, layers, strict=True)]


def _apart(columns: Sequence[float], layers: Sequence[int], count: int) -> list[float]:
    """igraph lets boxes of one layer overlap now and then. They are moved apart to both sides, in the same order."""
    coordinates = list(columns)
    rows: dict[int, list[int]] = {}
    for number in sorted(range(len(columns)), key=lambda number: columns[number]):
        rows.setdefault(layers[number], []).append(number)
    for row in rows.values():
        for left, right in itertools.pairwise(row):
            gap = _GAPS[(left < count) + (right < count)]
            coordinates[right] = max(coordinates[right], coordinates[left] + gap)
        moved = sum(coordinates[number] - columns[number] for number in row) / len(row)
        for number in row:
            coordinates[number] -= moved
    return coordinates


def flow_order(count: int, edges: Sequence[Pair]) -> list[int]:
    """The position of each box in an order in which edges lead forward, but those that close a cycle."""
    needs: dict[int, set[int]] = {box: set() for box in range(count)}
    for source, target in edges:
        needs[target].add(source)
    order = [0] * count
    for position, box in enumerate(topological_order(needs, rank=int), start=1):
        order[box] = position
    return order


def _layers(order: Sequence[int], edges: Sequence[Pair]) -> list[int]:
    """As high as what a box reads allows; what reads nothing stands right above the first that reads it."""
    layers = [0] * len(order)
    for source, target in sorted(edges, key=lambda pair: order[pair[0]]):
        layers[target] = max(layers[target], layers[source] + 1)
    targets = {target for _, target in edges}
    nearest: dict[int, int] = {}
    for source, target in edges:
        if source not in targets:
            nearest[source] = min(nearest.get(source, layers[target]), layers[target])
    for box, layer in nearest.items():
        layers[box] = layer - 1
    return layers
