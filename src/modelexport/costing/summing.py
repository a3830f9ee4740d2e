"""Sums by module: of what is charged to it itself, and of that with all modules inside of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from modelexport.record.cost import MEASURES, ZERO, Amounts, ModuleCost
from modelexport.record.hierarchy import Hierarchy, lineage_of
from modelexport.record.polynomial import Polynomial, sizes_sum

Place = str | None


@dataclass
class _Sum:
    nodes: set[str] = field(default_factory=set)
    sizes: dict[str, list[Polynomial]] = field(default_factory=dict)
    unknown: dict[str, set[str]] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)
    weight_bytes: int = 0

    def add(self, key: str, sizes: Mapping[str, Polynomial | None]) -> None:
        self.nodes.add(key)
        for measure, size in sizes.items():
            if size is None:
                self.unknown.setdefault(measure, set()).add(key)
            elif size:
                self.sizes.setdefault(measure, []).append(size)

    def frozen(self) -> Amounts:
        sums = {measure: sizes_sum(sizes) for measure, sizes in self.sizes.items()}
        return Amounts(
            nodes=len(self.nodes),
            flops=sums.get("flops", ZERO),
            other=sums.get("other", ZERO),
            parameters=sum(self.parameters.values()),
            weight_bytes=self.weight_bytes,
            activation_bytes=sums.get("activation_bytes", ZERO),
            unknown={measure: len(self.unknown[measure]) for measure in MEASURES if measure in self.unknown},
        )


class Sums:
    """By the path of a module; None for what belongs to none."""

    def __init__(self) -> None:
        self._own: dict[Place, _Sum] = {}
        self._total: dict[Place, _Sum] = {}
        self._whole = _Sum()

    def add(self, place: Place, key: str, sizes: Mapping[str, Polynomial | None]) -> None:
        """The cost of a node."""
        for one in self._concerned([place]):
            one.add(key, sizes)

    def add_weight(self, places: Iterable[Place], nbytes: int) -> None:
        """A weight is of all modules that own it, and counts once for each module around them."""
        for one in self._concerned(places):
            one.weight_bytes += nbytes

    def add_parameter(self, places: Iterable[Place], name: str, size: int) -> None:
        """As a weight; what the file holds twice is still one."""
        for one in self._concerned(places):
            one.parameters[name] = max(size, one.parameters.get(name, 0))

    def _concerned(self, places: Iterable[Place]) -> Iterator[_Sum]:
        paths = list(places)
        around = {above for path in paths for above in ([None] if path is None else lineage_of(path))}
        yield self._whole
        yield from (self._own.setdefault(path, _Sum()) for path in paths)
        yield from (self._total.setdefault(path, _Sum()) for path in around)

    @property
    def whole(self) -> Amounts:
        return self._whole.frozen()

    def modules(self, hierarchy: Hierarchy | None) -> Iterator[ModuleCost]:
        """In the order of the hierarchy; what belongs to no module comes last."""
        for path, module in hierarchy.modules.items() if hierarchy is not None else ():
            calls = 0 if hierarchy is None else hierarchy.call_counts.get(path, 0)
            yield ModuleCost(path, module.class_name, calls, *self._amounts(path))
        if None in self._own:
            yield ModuleCost(None, "", 0, *self._amounts(None))

    def _amounts(self, place: Place) -> tuple[Amounts, Amounts]:
        own, total = (sums.get(place, _Sum()).frozen() for sums in (self._own, self._total))
        return own, total
