"""Coherence: whether names can be those of modules, or were shuffled or given to other nodes.

Nodes of one module follow each other, in the dataflow and in the order of the file. So of two neighbours, both lie in
one module more often than two nodes at random do (modularity), at some depth of the hierarchy:

    encoder/0/fc ─► encoder/0/act ─► encoder/1/fc ─► encoder/1/act     two of three edges stay in one
    encoder/1/act ─► encoder/0/fc ─► encoder/1/fc ─► encoder/0/act     none does: not believed

Names of single nodes say nothing about it, and where there are no others, nothing is refuted.
https://en.wikipedia.org/wiki/Modularity_(networks)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

Scope = tuple[str, ...]

# Below this, scopes are not borne out: how much more often than by chance both ends of an edge lie in one scope.
LEAST_COHERENCE = 0.15
# Below this number of edges, or of witnesses, chance decides.
FEW = 12


def measure_coherence(edges: Iterable[tuple[str, str]], scopes: Mapping[str, Scope]) -> float | None:
    """0 for scopes at random, 1 where no edge leaves its scope; None if too little speaks for or against them.

    edges   pairs of neighbours, by key; those without a scope do not count
    scopes  by key of a node
    """
    pairs = [(scopes[source], scopes[reader]) for source, reader in edges if source in scopes and reader in scopes]
    counts = Counter(scopes.values())
    shares = (_modularity(pairs, counts, groups) for groups in _groups_by_depth(counts))
    return max((share for share in shares if share is not None), default=None)


def is_refuted(coherence: float | None) -> bool:
    return coherence is not None and coherence < LEAST_COHERENCE


def _groups_by_depth(scopes: Iterable[Scope]) -> Iterator[Mapping[Scope, int]]:
    """For depth 1, 2, …: the number of the group of every scope. Scopes are in one group if they begin with the same.

    Each depth divides the groups of the one before, so that no scope is read twice.
    """
    groups = dict.fromkeys(scopes, 0)
    for depth in range(max(map(len, groups), default=0)):
        numbers: dict[tuple[int, str], int] = {}
        parts = ((scope, group, scope[depth] if depth < len(scope) else "") for scope, group in groups.items())
        groups = {scope: numbers.setdefault((group, part), len(numbers)) for scope, group, part in parts}
        yield groups


def _modularity(
    edges: Iterable[tuple[Scope, Scope]], counts: Mapping[Scope, int], groups: Mapping[Scope, int]
) -> float | None:
    """0 for scopes at random, 1 where no edge leaves its group; None if too few edges could stay inside of one."""
    sizes: Counter[int] = Counter()
    for scope, count in counts.items():
        sizes[groups[scope]] += count
    pairs = [(groups[source], groups[reader]) for source, reader in edges]
    pairs = [pair for pair in pairs if sizes[pair[0]] > 1]
    by_chance = sum(count * count for count in sizes.values()) / sizes.total() ** 2
    if len(pairs) < FEW or by_chance == 1:
        return None
    inside = sum(source == reader for source, reader in pairs) / len(pairs)
    return (inside - by_chance) / (1 - by_chance)
