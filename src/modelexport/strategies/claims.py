"""What strategies say of one graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from modelexport.record.evidence import Claim


@dataclass(frozen=True)
class GraphClaims:
    """What a strategy says of one graph: at most one claim for each node and for each initializer."""

    nodes: Mapping[str, Claim]
    initializers: Mapping[str, Claim]


def by_node(*said: GraphClaims) -> dict[str, tuple[Claim, ...]]:
    """What several strategies say of each node."""
    return _gathered(claims.nodes for claims in said)


def by_initializer(*said: GraphClaims) -> dict[str, tuple[Claim, ...]]:
    """What several strategies say of each initializer."""
    return _gathered(claims.initializers for claims in said)


def _gathered(said: Iterable[Mapping[str, Claim]]) -> dict[str, tuple[Claim, ...]]:
    found: dict[str, tuple[Claim, ...]] = {}
    for claims in said:
        for key, claim in claims.items():
            found[key] = (*found.get(key, ()), claim)
    return found
