"""Where NaN and infinity come from."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from modelexport.graph.index import Graph, Node
from modelexport.record.provenance import Provenance
from modelexport.record.verification import NotFinite

NAN, INF = "NaN", "Inf"


def trouble_in(array: np.ndarray) -> str:
    """`NaN` or `Inf` if there is one in the array, NaN first; else empty."""
    if array.dtype.kind != "f":
        return ""
    with np.errstate(all="ignore"):
        total = float(array.sum())
    if math.isfinite(total):
        return ""
    if np.isnan(array).any():
        return NAN
    return INF if np.isinf(array).any() else ""


def origins(
    graph: Graph, provenance: Provenance, troubled: Mapping[str, str], expected: Collection[str]
) -> Iterator[NotFinite]:
    """Nodes that make a NaN of what has none, or an infinity of what is finite.

    troubled  values with something in them that is not finite, and what
    expected  values that hold the same in the run that they are compared with
    """
    for node in graph.nodes:
        for kind in (NAN, INF):
            made = [value for value in node.outputs if troubled.get(value) == kind]
            if made and node.key in graph.computed and not _has_before(node, troubled, kind):
                owners = provenance.nodes[node.key].attribution.owners
                yield NotFinite(kind, node.key, owners, all(value in expected for value in made))


def _has_before(node: Node, troubled: Mapping[str, str], kind: str) -> bool:
    """A mask is full of infinities, and what it is added to or chosen from becomes so."""
    return any(troubled.get(value) == NAN or (kind == INF and troubled.get(value)) for value in node.inputs)
