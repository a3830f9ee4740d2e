"""Sums by module: how many nodes and parameters a module has itself, and with the modules inside of it.

One definition for `analyze`, `cost`, `profile`, `view` and `diff`:

- A node is the own node of the innermost module around all of its owners (`Hierarchy.common_module`). What two layers
  share belongs to the module around both, and is told apart as `shared`. So every node counts once, and the parts of a
  module add up to it:

      encoder             3 own, all shared by its layers    87 in all
      encoder.layer.0    42 own                              42
      encoder.layer.1    42 own                              42

- A parameter belongs to every module that holds it, as in torch, and counts once in each module around them: of two
  modules with one tied weight, each has it, and the model has it once. Which parameter an initializer is, `parameters`
  says.

What only one verb counts (FLOPs, time) is summed up by that verb, for the same modules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from modelexport.graph.index import Graph
from modelexport.graph.parameters import ModulePath, ParameterMatching, initializer_modules
from modelexport.record.hierarchy import lineage_of
from modelexport.record.provenance import NodeEntry, Provenance


@dataclass(frozen=True)
class ModuleAmounts:
    """What belongs to a module.

    shared      of its nodes, those that do the work of several modules
    parameters  numbers of trained weights that the file still has
    bytes       size of all initializers, by their types and shapes
    """

    op_types: Mapping[str, int] = field(default_factory=dict)
    shared: int = 0
    parameters: int = 0
    bytes: int = 0

    @property
    def nodes(self) -> int:
        return sum(self.op_types.values())


@dataclass
class _Sum:
    op_types: Counter[str] = field(default_factory=Counter)
    shared: int = 0
    parameters: dict[str, int] = field(default_factory=dict)
    bytes: int = 0

    def freeze(self) -> ModuleAmounts:
        ordered = dict(sorted(self.op_types.items(), key=lambda item: (-item[1], item[0])))
        return ModuleAmounts(ordered, self.shared, sum(self.parameters.values()), self.bytes)


def own_module(record: Provenance | None, entries: Iterable[NodeEntry | None]) -> ModulePath:
    """The module that a node is an own node of; of nodes that nothing tells apart, the one around them all."""
    owners = [() if entry is None else entry.attribution.owners for entry in entries]
    return record.hierarchy.common_module(chain.from_iterable(owners)) if record is not None and all(owners) else None


class ModuleTotals:
    """Amounts by the path of a module; None stands for what belongs to no module."""

    def __init__(self) -> None:
        self._own: dict[ModulePath, _Sum] = {}
        self._total: dict[ModulePath, _Sum] = {}
        self._whole = _Sum()
        self._served: set[str] = set()
        self._served_inside: set[str] = set()

    @classmethod
    def of(cls, graph: Graph, record: Provenance | None, matching: ParameterMatching | None = None) -> ModuleTotals:
        """The sums of a graph. Nodes that the record does not have, or all if there is none, belong to no module."""
        totals = cls()
        for node in graph.nodes:
            totals.add_node(None if record is None else record.nodes.get(node.key), node.op_type, record)
        totals.add_initializers(graph, record, matching or ParameterMatching(graph, record), graph.initializers)
        return totals

    def add_node(self, entry: NodeEntry | None, op_type: str, record: Provenance | None) -> None:
        module = own_module(record, [entry])
        owners = set() if entry is None else {owner.path for owner in entry.attribution.owners}
        self._note_owners(owners)
        # Around the module that it belongs to, not around its owners: that is what makes parts add up.
        for amounts in self._around([module]):
            amounts.op_types[op_type] += 1
            amounts.shared += len(owners) > 1

    def add_initializers(
        self, graph: Graph, record: Provenance | None, matching: ParameterMatching, names: Iterable[str]
    ) -> None:
        for name in names:
            modules = initializer_modules(record, name)
            self._note_owners(path for path in modules if path is not None)
            tensor = graph.initializers[name]
            for amounts in self._around(modules):
                amounts.bytes += tensor.nbytes
            for held in matching[name]:
                for amounts in self._around(held.modules):
                    # What the file holds twice is still one parameter.
                    known = amounts.parameters.get(held.parameter, 0)
                    amounts.parameters[held.parameter] = max(held.size, known)

    def _note_owners(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._served.add(path)
            self._served_inside.update(lineage_of(path))

    def _around(self, paths: Iterable[ModulePath]) -> Iterator[_Sum]:
        """The sums that something of these modules goes into, each once."""
        modules = dict.fromkeys(paths)
        above = {outer for path in modules for outer in ([None] if path is None else lineage_of(path))}
        yield self._whole
        yield from (self._own.setdefault(path, _Sum()) for path in modules)
        yield from (self._total.setdefault(path, _Sum()) for path in above)

    def own(self, path: ModulePath) -> ModuleAmounts:
        return self._own.get(path, _Sum()).freeze()

    def total(self, path: ModulePath) -> ModuleAmounts:
        """With everything inside of the module."""
        return self._total.get(path, _Sum()).freeze()

    @property
    def whole(self) -> ModuleAmounts:
        """Of the file, what belongs to no module included."""
        return self._whole.freeze()

    def is_served(self, path: str) -> bool:
        """Whether a node or an initializer is there for this very module, be it for others as well."""
        return path in self._served

    def is_served_inside(self, path: str) -> bool:
        """The same of this module or one inside of it."""
        return path in self._served_inside
