"""Links between graphs of which one has functions that the other has not.

They are linked with the functions put in the place of their calls. What was found there is said here of the calls and
of the nodes inside of functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from modelexport.graph.index import Graph
from modelexport.graph.inlining import Inlined, root_of
from modelexport.record.evidence import Confidence
from modelexport.record.lineage import Lineage, Link, Relation

_SINGLE = (Relation.KEPT, Relation.RENAMED, Relation.REWRITTEN)


def called(lineage: Lineage, before: tuple[Graph, Inlined], after: tuple[Graph, Inlined]) -> Lineage:
    """`lineage` is that of the graphs without functions; the other graphs are those of the files."""
    sources = _Sources(*before)
    found = lineage.consistency

    def call(key: str) -> str:
        return after[1].origins.get(key, (key,))[0]

    return replace(
        lineage,
        nodes=_regrouped({key: sources.link(link, key) for key, link in lineage.nodes.items()}, sources, *after),
        initializers={name: sources.link(link, name) for name, link in lineage.initializers.items()},
        consistency=replace(
            found,
            folded=tuple(map(sources.key, found.folded)),
            removed=tuple(map(sources.key, found.removed)),
            unexplained=tuple(map(sources.key, found.unexplained)),
            disorder=tuple(dict.fromkeys((call(maker), call(reader)) for maker, reader in found.disorder)),
            strayed=tuple(dict.fromkeys(map(call, found.strayed))),
        ),
    )


class _Sources:
    """The nodes of the file before.

    A node of a function that is called once is one node. Of one that is called several times, the call tells more.
    """

    def __init__(self, graph: Graph, flat: Inlined) -> None:
        self._graph = graph
        self._origins = flat.origins
        gone = graph.yields.keys() - flat.graph.yields.keys() - graph.owners.keys()
        self._calls = {key for name in gone for key in graph.runners[name]}
        self._several = {name for name in gone if len(graph.runners[name]) > 1}

    def key(self, key: str) -> str:
        origins = self._origins.get(key, (key,))
        roots = [root_of(self._graph.by_key[one].graph, self._graph) for one in origins]
        shared = [place for place, root in enumerate(roots) if root in self._several]
        return origins[shared[0] - 1] if shared else origins[-1]

    def ordered(self, keys: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(set(keys), key=lambda one: self._graph.by_key[one].position))

    def link(self, link: Link, key: str) -> Link:
        """The same link to nodes of the file. What is linked to a call does a part of its work."""
        keys = {self.key(source) for source in link.sources}
        ordered = self.ordered(keys)
        relation = link.relation
        if relation in _SINGLE and not keys.isdisjoint(self._calls):
            relation = Relation.SPLIT
        elif relation is Relation.KEPT and ordered != (key,):
            relation = Relation.RENAMED
        return replace(link, sources=ordered, relation=relation)


def _regrouped(links: dict[str, Link], sources: _Sources, graph: Graph, flat: Inlined) -> dict[str, Link]:
    """A link for every node of the file: a call comes from all that the nodes of its function come from there."""
    groups: dict[str, list[Link]] = {}
    for key, link in links.items():
        for origin in flat.origins.get(key, (key,)):
            groups.setdefault(origin, []).append(link)
    nothing = Link((), Relation.INTRODUCED, Confidence.NONE)
    return {node.key: _joined(groups.get(node.key, [nothing]), sources) for node in graph.nodes}


def _joined(links: list[Link], sources: _Sources) -> Link:
    if len(links) == 1:
        return links[0]
    keys = sources.ordered(key for link in links for key in link.sources)
    relation = Relation.FUSED if len(keys) > 1 else Relation.REWRITTEN
    return Link(keys, relation, min(link.confidence for link in links))
