"""The whole lineage of a graph: its nodes, its constants, and whether it all fits together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from modelexport.graph.index import Graph
from modelexport.graph.inlining import inlined
from modelexport.lineage.functions import called
from modelexport.lineage.heirs import ConstantHeirs
from modelexport.lineage.linking import linked, matched
from modelexport.lineage.matching import Matching
from modelexport.record.lineage import Consistency, Kinship, Lineage, Link, Relation
from modelexport.record.sketch import Sketches


def _unseen(_: str) -> None:
    return None


def trace_lineage(before: Graph, after: Graph, sketches: tuple[Sketches, Sketches] = (_unseen, _unseen)) -> Lineage:
    """Where everything in `after` comes from.

    sketches  of both graphs, in this order; without them, nobody looks into weights
    """
    old, new = inlined(before, after.yields), inlined(after, before.yields)
    lineage = _traced(old.graph, new.graph, sketches)
    return called(lineage, (before, old), (after, new)) if old.origins or new.origins else lineage


def _traced(before: Graph, after: Graph, sketches: tuple[Sketches, Sketches]) -> Lineage:
    matching = matched(before, after, sketches)
    nodes = linked(matching)
    constants = ConstantHeirs(matching, nodes)
    folded = constants.folded()
    return Lineage(nodes, folded, constants.stands_for(), _consistency(matching, nodes, folded), _kinship(matching))


def _kinship(matching: Matching) -> Kinship:
    done = {**matching.works, **matching.matches}
    origins = {origin.key for origin in done.values()}
    return Kinship(_share(len(done), len(matching.after.nodes)), _share(len(origins), len(matching.before.nodes)))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _consistency(matching: Matching, nodes: Mapping[str, Link], folded: Mapping[str, Link]) -> Consistency:
    before, after = matching.before.graph, matching.after.graph
    computing = [node.key for node in before.nodes if node.key in before.computed]
    covered = {key for link in nodes.values() for key in link.sources}
    constant = {key for link in folded.values() for key in link.sources}
    return Consistency(
        nodes=len(computing),
        folded=tuple(key for key in computing if key not in covered and key in constant),
        removed=tuple(key for key in computing if key not in covered and key not in constant),
        disorder=_disorder(before, after, nodes),
        strayed=tuple(_strayed(matching, nodes)),
    )


_SAME = (Relation.KEPT, Relation.RENAMED, Relation.REWRITTEN, Relation.SPLIT)


def _disorder(before: Graph, after: Graph, nodes: Mapping[str, Link]) -> int:
    """How many edges run against the order of the graph before."""

    def place(key: str) -> int | None:
        link = nodes.get(key)
        one = link is not None and link.relation in _SAME and len(link.sources) == 1
        return before.by_key[link.sources[0]].position if link is not None and one else None

    count = 0
    for node in after.nodes:
        end = place(node.key)
        starts = (place(one.key) for one in after.predecessors(node))
        count += sum(end is not None and start is not None and start > end for start in starts)
    return count


def _strayed(matching: Matching, nodes: Mapping[str, Link]) -> Iterable[str]:
    """Nodes that read a weight which none of their sources read, if any of them read one."""
    before, after, anchors = matching.before, matching.after, matching.anchors
    for node in after.nodes:
        link = nodes.get(node.key)
        if link is None or link.relation is Relation.INTRODUCED:
            continue
        weights = [place for place in after.constant_inputs(node) if place in anchors and after.size(place) > 1]
        origins = [before.graph.by_key[key] for key in link.sources]
        theirs = {place for origin in origins for place in before.constant_inputs(origin)}
        if weights and theirs and not any(anchors.is_like(anchors.get(place), theirs) for place in weights):
            yield node.key
