"""Cost of a package: that of each file, and the bytes of the cache by module, as a formula of the open axes.

    modelexport cost qwen3/                                        cache   2 KB·batch·past_sequence in each of 28 layers
    modelexport cost qwen3/ --at past_sequence=4096,sequence=1     one step with so long a past

Files are not added up: how often each runs is up to whoever generates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.inspect.cost.totals import count
from modelexport.inspect.package.cache_bytes import CacheTensor, ModuleCache, add_bytes, find_cache, sum_by_module
from modelexport.record.package import Axis, PackageInfo
from modelexport.record.polynomial import Polynomial
from modelexport.record.results import cost as results
from modelexport.record.results.cost import Cost, ModuleCost, NodeCost


@dataclass(frozen=True)
class PackageCost:
    """
    at          the sizes that open axes were given, in any of the files
    components  what one run of each file costs, by the name of its component
    cache       the states that are handed from step to step
    """

    folder: str
    at: Mapping[str, int]
    components: Mapping[str, Cost]
    cache: tuple[CacheTensor, ...]
    notes: tuple[str, ...] = ()

    @property
    def axes(self) -> tuple[results.OpenAxis, ...]:
        """Open axes of all files; one name is one axis."""
        by_name: dict[str, results.OpenAxis] = {}
        for cost in self.components.values():
            for axis in cost.axes:
                by_name.setdefault(axis.name, axis)
        return tuple(by_name.values())

    @property
    def modules(self) -> tuple[tuple[str, ModuleCost], ...]:
        """Of all files, each with its component."""
        return tuple((name, module) for name, cost in self.components.items() for module in cost.modules)

    @property
    def nodes(self) -> tuple[tuple[str, NodeCost], ...]:
        return tuple((name, node) for name, cost in self.components.items() for node in cost.nodes)

    @property
    def cache_by_module(self) -> tuple[ModuleCache, ...]:
        return sum_by_module(self.cache)

    @property
    def cache_bytes(self) -> Mapping[str, Polynomial | None]:
        """By component: of all of its states together."""
        names = dict.fromkeys(tensor.component for tensor in self.cache)
        return {name: add_bytes(tensor.nbytes for tensor in self.cache if tensor.component == name) for name in names}


def count_package(
    folder: str, info: PackageInfo, files: Mapping[str, TaggedFile], at: Mapping[str, int]
) -> PackageCost:
    """What each file costs; an axis that only some files have is given its size in those."""
    sizes = _add_window(info, _add_total(at))
    components = {name: _count_file(file, sizes) for name, file in files.items()}
    return PackageCost(folder, dict(at), components, find_cache(info, files, sizes))


def _add_total(at: Mapping[str, int]) -> Mapping[str, int]:
    """A mask covers what the cache holds and what is new: who gives both sizes has given that one too."""
    if Axis.TOTAL in at or Axis.PAST not in at or Axis.SEQUENCE not in at:
        return at
    return {**at, Axis.TOTAL: at[Axis.PAST] + at[Axis.SEQUENCE]}


def _add_window(info: PackageInfo, at: Mapping[str, int]) -> Mapping[str, int]:
    """A layer with a sliding window holds what is past until the window is full, where the package says how long it is.

    {"past_sequence": 4096}, a window of 512 tokens      {"past_sequence": 4096, "past_window": 511}
    """
    windows = {pair.window for component in info.components for pair in component.cache if pair.window}
    # One axis has one size: with several windows, who asks has to say which one is meant.
    if Axis.WINDOW in at or Axis.PAST not in at or len(windows) != 1:
        return at
    return {**at, Axis.WINDOW: min(at[Axis.PAST], *windows)}


def _count_file(file: TaggedFile, at: Mapping[str, int]) -> Cost:
    counted = count(str(file.path), file, file.provenance, at)
    names = {axis.name for axis in counted.axes}
    return replace(counted, at={name: size for name, size in at.items() if name in names})
