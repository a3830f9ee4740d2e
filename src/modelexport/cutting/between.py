"""What lies between the nodes of a cut, and has to come along.

Whatever reads a result of a module call and is read by that call again ran while the call did, so it belongs inside.
Between several modules lies what the module around them does with their results; another module there is in the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from modelexport.cutting.inside import Inside
from modelexport.cutting.nest import Nest
from modelexport.cutting.selection import Selection
from modelexport.graph.index import Node
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Provenance


class Between:
    def __init__(self, nest: Nest, provenance: Provenance, selection: Selection, inside: Inside) -> None:
        self._nest = nest
        self._provenance = provenance
        self._selection = selection
        self._inside = inside

    def glue(self) -> frozenset[str]:
        """Keys of the nodes on a way from inside to inside that no other module did."""
        return self._on_the_way(self._is_glue)

    def in_the_way(self) -> tuple[ModuleCall, ...]:
        """Other modules on such a way, in file order."""
        found = self._on_the_way(lambda _: True) - self.glue()
        nodes = sorted((self._nest.graph.by_key[key] for key in found), key=lambda node: node.position)
        owners = (owner for node in nodes for owner in self._owners(node))
        return tuple(dict.fromkeys(self._outermost(owner) for owner in owners if not self._is_near(owner)))

    def _outermost(self, owner: ModuleCall) -> ModuleCall:
        """The outermost call around one that has none of the selected ones inside."""
        stack = self._selection.hierarchy.stack(owner)
        return next((call for call in stack if not self._selection.encloses(call)), owner)

    def _owners(self, node: Node) -> tuple[ModuleCall, ...]:
        return self._provenance.nodes[node.key].attribution.owners

    def _is_near(self, owner: ModuleCall) -> bool:
        return self._selection.covers(owner) or self._selection.encloses(owner)

    def _is_glue(self, node: Node) -> bool:
        owners = self._owners(node)
        return not owners or any(map(self._is_near, owners)) or node.key not in self._nest.graph.computed

    def _on_the_way(self, may_pass: Callable[[Node], bool]) -> frozenset[str]:
        graph, inside = self._nest.graph, self._inside.keys
        # What is shared with others is copied, and what others do with theirs is not on the way.
        starts = [key for key in inside - self._inside.shared if key in graph.computed]
        reached: set[str] = set()
        read_by: dict[str, list[str]] = {}
        waiting = [graph.by_key[key] for key in starts]
        while waiting:
            node = waiting.pop()
            for after in graph.successors(node):
                read_by.setdefault(after.key, []).append(node.key)
                if after.key not in inside and after.key not in reached and may_pass(after):
                    reached.add(after.key)
                    waiting.append(after)
        return frozenset(_backwards(inside, read_by, reached))


def _backwards(ends: Iterable[str], read_by: dict[str, list[str]], within: set[str]) -> set[str]:
    found: set[str] = set()
    waiting = list(ends)
    while waiting:
        for before in read_by.get(waiting.pop(), ()):
            if before in within and before not in found:
                found.add(before)
                waiting.append(before)
    return found
