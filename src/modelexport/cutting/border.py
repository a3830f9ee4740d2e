"""The values that a cut is given and returns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from modelexport.cutting.nest import Nest
from modelexport.cutting.selection import Selection
from modelexport.graph.index import Node
from modelexport.graph.value_types import ValueTypes
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Provenance


class Border:
    """
    taken   keys of the nodes of the cut, with all that is in their bodies
    copied  those of them that others have as well
    """

    def __init__(
        self,
        nest: Nest,
        provenance: Provenance,
        selection: Selection,
        types: ValueTypes,
        *,
        taken: Collection[str],
        copied: Collection[str],
    ) -> None:
        self._nest = nest
        self._provenance = provenance
        self._selection = selection
        self._types = types
        self._taken = frozenset(taken)
        self._copied = frozenset(copied)

    def enters(self, nodes: Sequence[Node], unread: Collection[str] = ()) -> tuple[str, ...]:
        """Values that the nodes read and do not make, in file order; those of the model first.

        unread  keys of nodes whose inputs do not count
        """
        graph = self._nest.graph
        read = {value for node in nodes if node.key not in unread for value in self._nest.reads(node)}
        outside = [value for value in read if not self._is_made(value) and value not in graph.initializers]
        places = {value: place for place, value in enumerate(graph.inputs)}
        first = len(places)

        def place(value: str) -> tuple[int, str]:
            maker = graph.producers.get(value)
            return (places.get(value, first) if maker is None else first + 1 + maker.position), value

        return tuple(sorted(outside, key=place))

    def _is_made(self, value: str) -> bool:
        maker = self._nest.graph.producers.get(value)
        return maker is not None and maker.key in self._taken

    def leaves(self, nodes: Sequence[Node]) -> tuple[str, ...]:
        """Values that the nodes make and somebody outside reads, in file order; results of the model in their own."""
        values = [value for node in nodes for value in node.outputs if value]
        found = [value for value in values if self._is_read_outside(value)]
        if not found:  # nobody needs what it returns
            found = [value for value in values if not any(True for _ in self._nest.readers(value))]
        data = [value for value in found if not self._is_arithmetic(value)]
        returned = data or found
        places = {value: place for place, value in enumerate(self._nest.graph.outputs)}
        if places.keys() >= set(returned):
            returned.sort(key=places.__getitem__)
        return tuple(returned)

    def _is_arithmetic(self, value: str) -> bool:
        """A size that somebody else happens to use as well is not what a module returns."""
        return value not in self._nest.graph.computed and self._types.may_be_sizes(value)

    def _is_read_outside(self, value: str) -> bool:
        graph = self._nest.graph
        if value in graph.outputs:
            return True
        maker = graph.producers[value]
        return any(self._reads_ours(reader, maker) for reader in self._nest.readers(value))

    def _reads_ours(self, reader: Node, maker: Node) -> bool:
        """Whether a node outside reads a value as that of the cut, not as that of another module that shares it.

        A node that others have as well reads for them what only the cut makes.
        """
        if reader.key in self._taken:
            return reader.key in self._copied and maker.key not in self._copied
        owners = self._provenance.nodes[maker.key].attribution.owners
        ours = [owner for owner in owners if self._selection.covers(owner)]
        others = [owner for owner in owners if owner not in ours]
        if not ours or not others:
            return True
        readers = self._provenance.nodes[reader.key].attribution.owners
        return self._nearness(ours, readers) >= self._nearness(others, readers)

    def _nearness(self, makers: Sequence[ModuleCall], readers: Sequence[ModuleCall]) -> int:
        return max((self._depth(maker, reader) for maker in makers for reader in readers), default=0)

    def _depth(self, maker: ModuleCall, reader: ModuleCall) -> int:
        """How many calls around both of them are the same."""
        stack = self._selection.hierarchy.stack
        return sum(1 for _ in _shared(stack(maker), stack(reader)))


def _shared(a: Sequence[ModuleCall], b: Sequence[ModuleCall]) -> Iterator[ModuleCall]:
    for one, other in zip(a, b, strict=False):
        if one != other:
            return
        yield one
