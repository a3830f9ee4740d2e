"""Nodes under their old names that read the same values in other places: they compute something else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from modelexport.graph.index import Node
from modelexport.lineage.classes import NOTHING
from modelexport.lineage.matching import Matching
from modelexport.lineage.operators import family, is_commutative
from modelexport.record.evidence import Confidence
from modelexport.record.lineage import Link, Relation


def doubted(links: Mapping[str, Link], matching: Matching) -> dict[str, Link]:
    """The same links, but for those of nodes whose inputs were swapped: names alone say that these are as they were."""
    found = dict(links)
    for node in matching.after.graph.nodes:
        link = links[node.key]
        if link.relation in (Relation.KEPT, Relation.RENAMED) and len(link.sources) == 1:
            origin = matching.before.graph.by_key[link.sources[0]]
            if not is_commutative(family(node.op_type)) and _is_swapped(node, origin, matching):
                found[node.key] = replace(
                    link, relation=Relation.REWRITTEN, confidence=min(link.confidence, Confidence.STRONG)
                )
    return found


def _is_swapped(node: Node, origin: Node, matching: Matching) -> bool:
    """Whether two inputs have changed places."""
    anchors = matching.anchors
    now = [anchors.get(place) for place in matching.after.inputs(node)]
    pairs = [pair for pair in zip(now, matching.before.inputs(origin), strict=False) if NOTHING not in pair]
    told = {(anchors.alike.get(here, here), anchors.alike.get(there, there)) for here, there in pairs}
    return any(here != there and (there, here) in told for here, there in told)
