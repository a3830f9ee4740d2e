"""Which module a node's cost is charged to, and which a weight belongs to.

Every node is charged to exactly one module, so that the parts add up to the whole. A node that does the work of several
is charged to the one whose weight it multiplies by: a convolution that a normalization was folded into remains the
convolution's. If that is none or several of them, to the one around them all, as in a profile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from modelexport.graph.index import Graph
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Provenance, is_within


class Charging:
    def __init__(self, graph: Graph, record: Provenance | None) -> None:
        self._graph = graph
        self._record = record

    def owners(self, key: str) -> tuple[ModuleCall, ...]:
        if self._record is None or key not in self._record.nodes:
            return ()
        return self._record.nodes[key].attribution.owners

    def place(self, key: str, calls: Sequence[str] = (), weights: Sequence[str] = ()) -> str | None:
        """The path of the module that a node is charged to; `calls` are those of functions that it runs for."""
        owners = self.owners_within(key, calls)
        if self._record is None or not owners:
            return self.place(calls[-1], calls[:-1]) if calls else None
        paths = list(dict.fromkeys(owner.path for owner in owners))
        if len(paths) > 1 and weights:
            paths = self._holding(paths, weights) or paths
        return paths[0] if len(paths) == 1 else self._record.hierarchy.common_module(owners)

    def owners_within(self, key: str, calls: Sequence[str]) -> tuple[ModuleCall, ...]:
        """Of the owners of a function's node, those that the calls around it are made for."""
        owners = self.owners(key)
        for call in calls:
            around = {owner.path for owner in self.owners(call)}
            inside = tuple(owner for owner in owners if any(is_within(owner.path, path) for path in around))
            owners = inside or owners
        return owners

    def _holding(self, paths: Sequence[str], weights: Sequence[str]) -> list[str]:
        """The one that has a parameter as large as the largest weight that is multiplied by."""
        if self._record is None:
            return []
        tensors = [self._graph.initializers[name] for name in weights if name in self._graph.initializers]
        size = max((math.prod(tensor.shape) for tensor in tensors), default=0)
        modules = self._record.hierarchy.modules
        found = [
            path for path in paths if path in modules and any(one.size == size for one in modules[path].parameters)
        ]
        return found if len(found) == 1 else []

    def holders(self, name: str) -> tuple[str | None, ...]:
        """The modules that a weight belongs to."""
        if self._record is None or name not in self._record.initializers:
            return (None,)
        owners = self._record.initializers[name].owners
        return tuple(dict.fromkeys(owner.path for owner in owners)) or (None,)
