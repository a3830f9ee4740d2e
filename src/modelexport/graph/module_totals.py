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

from collections.abc import Iterable, Mapping
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
    op_types: dict[str, int] = field(default_factory=dict)
    shared: int = 0
    parameters: dict[str, int] = field(default_factory=dict)
    bytes: int = 0

    def add(self, other: _Sum) -> None:
        for op_type, count in other.op_types.items():
            self.op_types[op_type] = self.op_types.get(op_type, 0) + count
        self.shared += other.shared
        self.bytes += other.bytes
        if self.parameters.keys().isdisjoint(other.parameters):
            self.parameters |= other.parameters
        else:
            for parameter, size in other.parameters.items():
                self.hold(parameter, size)

    def hold(self, parameter: str, size: int) -> None:
        # What the file holds twice is still one parameter.
        self.parameters[parameter] = max(size, self.parameters.get(parameter, 0))

    def freeze(self) -> ModuleAmounts:
        ordered = dict(sorted(self.op_types.items(), key=lambda item: (-item[1], item[0])))
        return ModuleAmounts(ordered, self.shared, sum(self.parameters.values()), self.bytes)


@dataclass(frozen=True)
class _ModuleSums:
    """Of each module itself, with everything inside of it, and of the file."""

    own: Mapping[ModulePath, _Sum]
    total: Mapping[ModulePath, _Sum]
    whole: _Sum


def own_module(record: Provenance | None, entries: Iterable[NodeEntry | None]) -> ModulePath:
    """The module that a node is an own node of; of nodes that nothing tells apart, the one around them all."""
    owners = [() if entry is None else entry.attribution.owners for entry in entries]
    if record is not None and len(owners) == len(owners[0]) == 1:  # as of nearly every node
        return owners[0][0].path
    return record.hierarchy.common_module(chain.from_iterable(owners)) if record is not None and all(owners) else None


class ModuleTotals:
    """Amounts by the path of a module; None stands for what belongs to no module.

    What belongs to the same modules is put together first: there are fewer sets of modules than there are nodes.
    """

    def __init__(self) -> None:
        self._groups: dict[tuple[ModulePath, ...], _Sum] = {}
        self._served: set[str] = set()
        self._summed: _ModuleSums | None = None
        self._served_inside: set[str] | None = None

    @classmethod
    def of(cls, graph: Graph, record: Provenance | None, matching: ParameterMatching | None = None) -> ModuleTotals:
        """The sums of a graph. Nodes that the record does not have, or all if there is none, belong to no module."""
        totals = cls()
        for node in graph.nodes:
            totals.add_node(None if record is None else record.nodes.get(node.key), node.op_type, record)
        totals.add_initializers(graph, record, matching or ParameterMatching(graph, record), graph.initializers)
        return totals

    def add_node(self, entry: NodeEntry | None, op_type: str, record: Provenance | None) -> None:
        owners = () if entry is None else entry.attribution.owners
        # Around the module that it belongs to, not around its owners: that is what makes parts add up.
        group = self._group((own_module(record, [entry]),))
        group.op_types[op_type] = group.op_types.get(op_type, 0) + 1
        if len(owners) == 1:
            self._served.add(owners[0].path)
        elif owners:
            paths = {owner.path for owner in owners}
            group.shared += len(paths) > 1
            self._served |= paths

    def add_initializers(
        self, graph: Graph, record: Provenance | None, matching: ParameterMatching, names: Iterable[str]
    ) -> None:
        for name in names:
            modules = initializer_modules(record, name)
            self._served.update(path for path in modules if path is not None)
            self._group(modules).bytes += graph.initializers[name].nbytes
            for held in matching[name]:
                self._group(tuple(dict.fromkeys(held.modules))).hold(held.parameter, held.size)

    def _group(self, modules: tuple[ModulePath, ...]) -> _Sum:
        """What belongs to exactly these modules, each of them named once."""
        self._summed = self._served_inside = None
        group = self._groups.get(modules)
        if group is None:
            group = self._groups[modules] = _Sum()
        return group

    @property
    def _sums(self) -> _ModuleSums:
        if self._summed is None:
            own: dict[ModulePath, _Sum] = {}
            total: dict[ModulePath, _Sum] = {}
            whole = _Sum()
            for modules, group in self._groups.items():
                whole.add(group)
                for path in modules:
                    own.setdefault(path, _Sum()).add(group)
                # The modules that something of these goes into, each once.
                for outer in {outer for path in modules for outer in ([None] if path is None else lineage_of(path))}:
                    total.setdefault(outer, _Sum()).add(group)
            self._summed = _ModuleSums(own, total, whole)
        return self._summed

    def own(self, path: ModulePath) -> ModuleAmounts:
        return self._sums.own.get(path, _Sum()).freeze()

    def total(self, path: ModulePath) -> ModuleAmounts:
        """With everything inside of the module."""
        return self._sums.total.get(path, _Sum()).freeze()

    @property
    def whole(self) -> ModuleAmounts:
        """Of the file, what belongs to no module included."""
        return self._sums.whole.freeze()

    def is_served(self, path: str) -> bool:
        """Whether a node or an initializer is there for this very module, be it for others as well."""
        return path in self._served

    def is_served_inside(self, path: str) -> bool:
        """The same of this module or one inside of it."""
        if self._served_inside is None:
            self._served_inside = {outer for served in self._served for outer in lineage_of(served)}
        return path in self._served_inside
