"""Which parameters of the model each initializer holds.

Exporters and tools rename weights, transpose and merge them, store one twice that modules share, and store those once
that happen to be equal. Parameters that the file does not hold under their names are looked for among the initializers
that their modules read: those of the same size first, and what is left of them in what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from modelexport.costing.charging import Charging
from modelexport.costing.parameters import Parameters
from modelexport.costing.unfolded import Unfolded
from modelexport.graph.index import Tensor
from modelexport.record.hierarchy import TensorInfo, join, lineage_of
from modelexport.record.provenance import Provenance

Place = str | None


@dataclass(frozen=True)
class Holding:
    """A parameter, or parts of several.

    parameter  its name; the initializer's own if it is none of the model's, or parts of several
    places     the modules that it belongs to
    """

    parameter: str
    places: tuple[Place, ...]
    size: int


class Holdings:
    def __init__(self, unfolded: Unfolded, record: Provenance | None, charging: Charging) -> None:
        self._unfolded = unfolded
        self._record = record
        self._charging = charging
        self._parameters = Parameters(unfolded)
        self._tensors = unfolded.graph.initializers
        self._left = {} if record is None else dict(self._absent())
        self._found = dict(self._all())

    def __getitem__(self, name: str) -> tuple[Holding, ...]:
        return self._found.get(name, ())

    def size(self, name: str) -> int:
        """How many trained numbers an initializer has, whatever they are called."""
        return max((one.size for one in self[name]), default=0)

    def _all(self) -> Iterator[tuple[str, tuple[Holding, ...]]]:
        weights = [name for name, tensor in self._tensors.items() if self._is_weight(name, tensor)]
        sizes = {name: self._parameters.numbers(name, self._tensors[name]) for name in weights}
        # Large ones first: two weights that were put together must not lose one of them to a constant of its size.
        for name in sorted(weights, key=lambda one: (one not in self._names, -sizes[one])):
            yield name, tuple(self._held(name, sizes[name]))

    def _is_weight(self, name: str, tensor: Tensor) -> bool:
        if self._record is None or name in self._names:
            return name in self._names or self._parameters.may_be_weight(name, tensor)
        is_buffer = name in self._record.hierarchy.tensor_owners
        return not is_buffer and self._parameters.may_be_weight(name, tensor)

    def _held(self, name: str, size: int) -> Iterator[Holding]:
        if self._record is None:
            yield Holding(name, (None,), size)
            return
        same = list(self._same(name, size))
        yield from same
        if name in self._names:
            yield Holding(self._names[name], self._owners[self._names[name]], size)
        elif not same:
            yield from self._again_or_parts(name, self._charging.holders(name), size)

    def _same(self, name: str, size: int) -> Iterator[Holding]:
        """Absent parameters of this size, one for each module that reads the initializer for itself."""
        readers = list(self._readers(name))
        everybody = set().union(*readers)
        served = {*self._owners.get(self._names.get(name, ""), ())}
        for reader in readers:
            found = "" if served & reader else self._take(reader, size, name)
            if found:
                tied = [path for path in self._owners[found] if path in everybody]
                served |= {*reader, *tied}
                yield Holding(found, tuple(tied), size)

    def _readers(self, name: str) -> Iterator[set[str]]:
        """The modules of each node that reads it, and those that it belongs to and that are inside of these."""
        holders = {place for place in self._charging.holders(name) if place is not None}
        inside: dict[str, set[str]] = {}
        for holder in holders:
            for above in lineage_of(holder):
                inside.setdefault(above, set()).add(holder)
        for node, _ in self._parameters.uses(name):
            calls, key = self._unfolded.origin(node)
            paths = {owner.path for owner in self._charging.owners_within(key, calls)}
            found = paths.union(*(inside.get(path, ()) for path in paths))
            holders -= found
            yield found
        yield holders

    def _take(self, reader: Iterable[str], size: int, name: str) -> str:
        """An absent parameter of just this size, of the innermost module that has one. A weight that is there under its
        name stands for others of that name alone."""
        called = name.rpartition(".")[2] if name in self._names else ""
        for path in sorted(reader, key=lambda one: (-one.count("."), one)):
            for one in self._of_module(path):
                full = self._full(path, one)
                if self._left.get(full) == size and called in ("", one.name):
                    del self._left[full]
                    return full
        return ""

    def _again_or_parts(self, name: str, places: tuple[Place, ...], size: int) -> Iterator[Holding]:
        """One more copy of a parameter, or parts of several that are put together, cut or folded."""
        paths = {path for path in places if path is not None}.union(*self._readers(name))
        full = {self._full(path, one): one.size for path in sorted(paths) for one in self._of_module(path)}
        again = [parameter for parameter, count in full.items() if count == size and parameter not in self._left]
        if len(again) == 1:
            yield Holding(again[0], places, size)
            return
        # Of what belongs to nobody, all that is known is that it may be any parameter which is not there.
        parts = self._drawn(full if paths else list(self._left), size)
        if parts:
            yield Holding(name, places, parts)

    def _drawn(self, parameters: Iterable[str], size: int) -> int:
        """How much of a size is there of these parameters; what is drawn from them is gone."""
        drawn = 0
        for parameter in parameters:
            part = min(size - drawn, self._left.get(parameter, 0))
            drawn += part
            if part:
                self._left[parameter] -= part
            if drawn == size:
                break
        return drawn

    def _of_module(self, path: str) -> tuple[TensorInfo, ...]:
        modules = {} if self._record is None else self._record.hierarchy.modules
        return modules[path].parameters if path in modules else ()

    def _full(self, path: str, parameter: TensorInfo) -> str:
        return self._names[join(path, parameter.name)]

    @cached_property
    def _names(self) -> Mapping[str, str]:
        """Every name of every parameter, mapped to the first of its names."""
        found: dict[str, str] = {}
        for module in () if self._record is None else self._record.hierarchy.modules.values():
            for parameter in module.parameters:
                names = {join(path, parameter.name) for path in (module.path, *module.aliases)} | {*parameter.tied}
                first = min(found.get(name, name) for name in names)
                found.update(dict.fromkeys(names, first))
        return found

    @cached_property
    def _owners(self) -> Mapping[str, tuple[str, ...]]:
        """The modules that have each parameter."""
        found: dict[str, tuple[str, ...]] = {}
        for path in () if self._record is None else self._record.hierarchy.modules:
            for parameter in self._of_module(path):
                name = self._full(path, parameter)
                found[name] = (*found.get(name, ()), path)
        return found

    def _absent(self) -> Iterator[tuple[str, int]]:
        """Parameters that the file does not hold under one of their names, with their sizes."""
        present = {self._names[name] for name in self._tensors if name in self._names}
        modules = {} if self._record is None else self._record.hierarchy.modules
        for path in modules:
            for parameter in self._of_module(path):
                if self._full(path, parameter) not in present:
                    yield self._full(path, parameter), parameter.size
