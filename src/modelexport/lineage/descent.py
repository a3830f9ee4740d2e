"""The whole lineage of a graph: its nodes, its constants, and whether it all fits together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from modelexport.graph.index import Graph
from modelexport.graph.inlining import inlined
from modelexport.lineage.functions import called
from modelexport.lineage.linking import Linker, matched
from modelexport.lineage.matching import Matching
from modelexport.record.evidence import Confidence
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
    nodes = Linker(matching).links()
    constants = _Constants(matching)
    folded = constants.folded()
    return Lineage(nodes, folded, constants.stands_for(), _consistency(matching, nodes, folded), _kinship(matching))


def _kinship(matching: Matching) -> Kinship:
    done = {**matching.works, **matching.matches}
    origins = {origin.key for origin in done.values()}
    return Kinship(_share(len(done), len(matching.after.nodes)), _share(len(origins), len(matching.before.nodes)))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


class _Constants:
    def __init__(self, matching: Matching) -> None:
        self._before, self._after = matching.before, matching.after
        self._matching = matching
        self._anchors = matching.anchors

    def stands_for(self) -> dict[str, tuple[str, ...]]:
        """By the name of an initializer after: those before that it is a copy of, under other names."""
        held: dict[int, list[str]] = {}
        for name in self._before.graph.initializers:
            held.setdefault(self._before.of[name], []).append(name)
        found: dict[str, tuple[str, ...]] = {}
        for name in self._after.graph.initializers:
            names = held.get(self._anchors.get(self._after.of[name]), ())
            if names and name not in names:
                found[name] = tuple(names)
        return found

    def folded(self) -> dict[str, Link]:
        """Initializers after that stand where something was computed, with the nodes that computed it."""
        found: dict[str, dict[str, None]] = {}
        for key, origin in self._matching.matches.items():
            node = self._after.graph.by_key[key]
            for value, was in zip(node.inputs, origin.inputs, strict=False):
                if value in self._after.graph.initializers and was in self._before.graph.producers:
                    found.setdefault(value, {}).update(dict.fromkeys(self._computed_by(was)))
        by_key = self._before.graph.by_key
        return {
            name: Link(tuple(sorted(keys, key=lambda key: by_key[key].position)), Relation.FOLDED, Confidence.STRONG)
            for name, keys in found.items()
            if keys
        }

    def _computed_by(self, value: str) -> Iterable[str]:
        """The node that made a value, and those before it as far back as nothing but constants is read."""
        graph = self._before.graph
        found: dict[str, None] = {}
        waiting = [graph.producers[value]]
        while waiting:
            node = waiting.pop()
            if node.key in found or not node.inputs:
                continue  # a literal is data, not work
            found[node.key] = None
            waiting += (one for one in graph.predecessors(node) if one.key not in graph.computed)
        return found


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


_SAME = (Relation.KEPT, Relation.RENAMED, Relation.REWRITTEN)


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
