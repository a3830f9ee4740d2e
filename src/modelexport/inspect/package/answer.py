"""Answer of a package to a query: the nodes of every file that are meant, with the component that they are in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from modelexport.inspect.query.answer import Answer
from modelexport.record.provenance import NodeEntry


@dataclass(frozen=True)
class PackageAnswer:
    """
    components  the answer of each file, by the name of its component
    remarks     why there are no nodes at all, and that a record is not up to date
    """

    folder: str
    query: str
    components: Mapping[str, Answer]
    remarks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[tuple[str, NodeEntry], ...]:
        """With their components, in file order."""
        return tuple((name, entry) for name, answer in self.components.items() for entry in answer.nodes)
