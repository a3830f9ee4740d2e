"""Layers: the repeated blocks of a model, numbered in the order in which they run.

A block holds parameters, lies in a ModuleList, ModuleDict or Sequential, and has modules inside or is not one of
torch's own. What is numbered are calls made from inside of one call, so a single block called N times is N layers. A
list holds blocks only, and all of them are numbered; a Sequential runs what it holds and may hold anything, so of
its modules only those of a class that repeats are. Of lists in lists, and of layers in layers, the outermost counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from modelexport.record.evidence import Attribution
from modelexport.record.hierarchy import Hierarchy, ModuleCall, lineage_of, parent_path


@dataclass(frozen=True)
class Layers:
    hierarchy: Hierarchy

    def of(self, attribution: Attribution) -> int | None:
        block = self.block(attribution)
        return None if block is None else self._numbers[block]

    def block(self, attribution: Attribution) -> ModuleCall | None:
        """The outermost repeated block that something is part of."""
        call = attribution.ancestor
        if call is not None and call not in self._known:
            self._known[call] = self._block(call)
        return None if call is None else self._known[call]

    @cached_property
    def _known(self) -> dict[ModuleCall, ModuleCall | None]:
        """Blocks that were asked for before: most nodes share their call with others."""
        return {}

    def _block(self, call: ModuleCall) -> ModuleCall | None:
        for above in self.hierarchy.stack(call):
            found = next((block for block in self._blocks_at(above) if block in self._numbers), None)
            if found is not None:
                return found
        return None

    def _blocks_at(self, call: ModuleCall) -> Iterator[ModuleCall]:
        """The call if it is one of a block; before it, blocks around it whose forward was run without calling them."""
        for path in lineage_of(parent_path(call.path)):
            if path not in self.hierarchy.call_counts and self._is_block(path) and not self._is_list(path):
                yield ModuleCall(path)
        if self._is_block(call.path):
            yield call

    @cached_property
    def _numbers(self) -> Mapping[ModuleCall, int]:
        groups: dict[tuple[str, ModuleCall | None], dict[ModuleCall, None]] = {}
        for site in self.hierarchy.calls:
            for block in self._blocks_at(site.call):
                groups.setdefault((self.container(block.path), site.parent), {})[block] = None
        numbers: dict[ModuleCall, int] = {}
        for (container, _), calls in groups.items():
            for number, call in enumerate(self._repeated(container, list(calls))):
                numbers.setdefault(call, number)
        return numbers

    def container(self, path: str) -> str:
        """The list that holds a block; of lists in lists the outermost."""
        above = parent_path(path)
        while self._is_list(parent_path(above)) and self._is_list(above):
            above = parent_path(above)
        return above

    def _is_list(self, path: str) -> bool:
        """It holds modules and is never called itself."""
        module = self.hierarchy.modules.get(path)
        return module is not None and module.container and path not in self.hierarchy.call_counts

    def _repeated(self, container: str, calls: list[ModuleCall]) -> list[ModuleCall]:
        if self._is_list(container):
            return calls
        classes = Counter(self._class(call) for call in calls)
        return [call for call in calls if classes[self._class(call)] > 1]

    def _class(self, call: ModuleCall) -> tuple[str, str]:
        module = self.hierarchy.modules[call.path]
        return module.package, module.class_name

    @cached_property
    def _with_parameters(self) -> frozenset[str]:
        modules = self.hierarchy.modules.values()
        return frozenset(above for module in modules if module.parameters for above in lineage_of(module.path))

    def _is_block(self, path: str) -> bool:
        container = self.hierarchy.modules.get(parent_path(path))
        module = self.hierarchy.modules.get(path)
        if not path or container is None or not container.container or module is None:
            return False
        if path not in self._with_parameters:
            return False
        return bool(self.hierarchy.children(path)) or not module.package.startswith("torch.nn")
