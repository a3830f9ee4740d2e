"""All strategies, what each of them needs to be recorded, and which graph it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from modelexport.graph.index import Graph
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.signals import Signals
from modelexport.strategies import enhanced_semantic, fx_graph, htp, universal, usage_based
from modelexport.strategies.claims import GraphClaims


class Need(StrEnum):
    """A signal that costs a run of its own."""

    TRACE = "trace"
    VALUES = "values"
    FX = "fx"


@dataclass(frozen=True)
class Strategy:
    """One way to judge a graph.

    needs     signals without which it says nothing
    before    it rests on what the exporter wrote, and so reads the exporter's graph before any optimizer touched it
    infers    it also says what follows from the neighbours of a node
    """

    name: str
    judge: Callable[[Graph, Hierarchy, Signals], GraphClaims]
    needs: frozenset[Need] = frozenset()
    before: bool = False
    infers: bool = True


_RUN = frozenset({Need.TRACE, Need.VALUES})

# In the order in which people choose: the default, the independent one, then those for particular wishes.
CATALOGUE = {
    strategy.name: strategy
    for strategy in (
        Strategy(enhanced_semantic.NAME, enhanced_semantic.enhanced_semantic, before=True),
        Strategy(htp.NAME, htp.htp, _RUN),
        Strategy(fx_graph.NAME, fx_graph.fx_graph, frozenset({Need.FX, Need.VALUES}), before=True),
        Strategy(usage_based.NAME, usage_based.usage_based, _RUN, infers=False),
        Strategy(universal.NAME, universal.universal, before=True, infers=False),
    )
}
ALL = "all"
NAMES = (*CATALOGUE, ALL)


def chosen(name: str) -> tuple[Strategy, ...]:
    """The strategies that a name stands for."""
    return tuple(CATALOGUE.values()) if name == ALL else (CATALOGUE[name],)
