"""How much of a graph belongs to each module."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from modelexport.analysis.facts import Amounts
from modelexport.graph.index import Graph
from modelexport.graph.trained import is_folded_weight
from modelexport.record.evidence import Attribution
from modelexport.record.hierarchy import lineage_of
from modelexport.record.provenance import Provenance


@dataclass
class _Sum:
    op_types: Counter[str] = field(default_factory=Counter)
    tensors: int = 0
    parameters: int = 0
    nbytes: int = 0

    def frozen(self) -> Amounts:
        ordered = dict(sorted(self.op_types.items(), key=lambda item: (-item[1], item[0])))
        return Amounts(self.op_types.total(), self.parameters, self.nbytes, ordered)


@dataclass(frozen=True)
class ModuleSums:
    """Sums by module path: of what a module owns itself, and of what it or a module inside of it owns."""

    _own: dict[str, _Sum]
    _total: dict[str, _Sum]

    def own(self, path: str) -> Amounts:
        return self._own.get(path, _Sum()).frozen()

    def total(self, path: str) -> Amounts:
        return self._total.get(path, _Sum()).frozen()

    def owns(self, path: str) -> bool:
        return path in self._own

    def owns_inside(self, path: str) -> bool:
        return path in self._total


def sum_by_module(provenance: Provenance, graph: Graph) -> ModuleSums:
    sums = ModuleSums({}, {})
    for entry in provenance.nodes.values():
        for found in _holders(sums, entry.attribution):
            found.op_types[entry.op_type] += 1
    parameters = provenance.hierarchy.parameter_owners
    for name, attribution in provenance.initializers.items():
        tensor = graph.initializers[name]
        size, nbytes = math.prod(tensor.shape), tensor.nbytes
        trained = name in parameters or is_folded_weight(tensor, attribution, provenance.hierarchy)
        for found in _holders(sums, attribution):
            found.tensors += 1
            found.parameters += size if trained else 0
            found.nbytes += nbytes
    return sums


def _holders(sums: ModuleSums, attribution: Attribution) -> Iterable[_Sum]:
    """The sums that something with this attribution goes into, each of them once."""
    owners = {owner.path for owner in attribution.owners}
    around = {above for path in owners for above in lineage_of(path)}
    yield from (sums._own.setdefault(path, _Sum()) for path in owners)
    yield from (sums._total.setdefault(path, _Sum()) for path in around)
