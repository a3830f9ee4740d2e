"""Where NaN and infinity come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from modelexport.graph.index import Graph, Node
from modelexport.graph.sample import INF, NAN, Sample
from modelexport.record.provenance import Provenance
from modelexport.record.verification import NotFinite


def origins(
    graph: Graph, provenance: Provenance, seen: Mapping[str, Sample], expected: Callable[[str, str], bool]
) -> Iterator[NotFinite]:
    """Nodes that make a NaN of what has none, or an infinity of what is finite.

    expected  whether a value has such a thing in the run that it is compared with as well
    """
    troubled = {value: one.trouble for value, one in seen.items() if one.trouble}
    for node in graph.nodes:
        for kind in (NAN, INF):
            made = [value for value in node.outputs if troubled.get(value) == kind]
            # A constant that is infinite is a mask.
            if made and (kind == NAN or node.key in graph.computed) and not _has_before(node, troubled, kind):
                owners = provenance.nodes[node.key].attribution.owners
                yield NotFinite(kind, node.key, owners, all(expected(value, kind) for value in made))


def _has_before(node: Node, troubled: Mapping[str, str], kind: str) -> bool:
    """A mask is full of infinities, and what it is added to or chosen from becomes so."""
    return any(troubled.get(value) == NAN or (kind == INF and troubled.get(value)) for value in node.inputs)
