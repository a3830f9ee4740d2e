"""The whole lineage of a graph: its nodes, its constants, and whether it all fits together."""

from __future__ import annotations

from modelexport.graph.index import Graph
from modelexport.graph.inlining import inlined
from modelexport.lineage.consistency import consistency
from modelexport.lineage.functions import called
from modelexport.lineage.heirs import ConstantHeirs
from modelexport.lineage.linking import linked, matched
from modelexport.lineage.matching import Matching
from modelexport.lineage.swapping import doubted
from modelexport.record.lineage import Kinship, Lineage
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
    nodes = doubted(linked(matching), matching)
    constants = ConstantHeirs(matching, nodes)
    folded = constants.folded()
    return Lineage(nodes, folded, constants.stands_for(), consistency(matching, nodes, folded), _kinship(matching))


def _kinship(matching: Matching) -> Kinship:
    done = {**matching.works, **matching.matches}
    origins = {origin.key for origin in done.values()}
    return Kinship(_share(len(done), len(matching.after.nodes)), _share(len(origins), len(matching.before.nodes)))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
