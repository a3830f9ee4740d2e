"""How much of a graph belongs to each module."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import onnx

from modelexport.analysis.facts import Amounts
from modelexport.graph.index import Graph, Tensor
from modelexport.graph.weights import storage_size
from modelexport.record.evidence import Attribution
from modelexport.record.hierarchy import Hierarchy, lineage_of
from modelexport.record.provenance import Provenance

# Exporters make constants of these types for shapes, indices and masks; trained weights never have them.
_NEVER_WEIGHTS = frozenset(
    {onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.BOOL, onnx.TensorProto.STRING}
)


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
        size, nbytes = math.prod(tensor.shape), _nbytes(tensor)
        trained = name in parameters or _is_folded_weight(tensor, attribution, provenance.hierarchy)
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


def _is_folded_weight(tensor: Tensor, attribution: Attribution, hierarchy: Hierarchy) -> bool:
    """Whether a tensor without a name in the model stands for a parameter: transposed, scaled or merged."""
    if tensor.name in hierarchy.tensor_owners or tensor.dtype in _NEVER_WEIGHTS or math.prod(tensor.shape) < 2:
        return False
    owners = (hierarchy.modules.get(owner.path) for owner in attribution.owners)
    return any(module is not None and module.parameters for module in owners)


def _nbytes(tensor: Tensor) -> int:
    return storage_size(onnx.TensorProto(data_type=tensor.dtype, dims=tensor.shape))
