"""A tensor and everything that it connects; the tensors that go into a module and come out of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from modelexport.record.edges import Edges
from modelexport.record.evidence import Attribution
from modelexport.record.hierarchy import ModuleCall


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One value of the graph: where it comes from and everything that reads it.

    producers    by key: the node that makes it. For what a body or a function is given, the nodes that run it.
                 None for inputs and initializers
    initializer  where it belongs, if it is stored in the file
    consumers    by key, in file order: all nodes that read it
    is_input     the model is given it
    is_output    the model returns it
    """

    name: str
    producers: Mapping[str, Attribution]
    initializer: Attribution | None
    consumers: Mapping[str, Attribution]
    is_input: bool
    is_output: bool

    @property
    def producer(self) -> Attribution | None:
        """Of the node that makes it, or of the initializer. None for an input, or if several nodes run its function."""
        if self.initializer is not None:
            return self.initializer
        return next(iter(self.producers.values())) if len(self.producers) == 1 else None

    @property
    def consuming_modules(self) -> tuple[ModuleCall, ...]:
        """Every module call that reads it, once, in file order."""
        return tuple(dict.fromkeys(owner for found in self.consumers.values() for owner in found.owners))


@dataclass(frozen=True, slots=True)
class Boundary:
    """Names of the tensors between a module and the rest of the graph, in file order.

    enters  read inside, made outside; the module's own weights are not among them
    leaves  made inside, read outside or returned by the model
    """

    module: str
    enters: tuple[str, ...]
    leaves: tuple[str, ...]


def find_boundary(module: str, edges: Edges, inside: Collection[str], own: Collection[str]) -> Boundary:
    """From the keys of the nodes inside, and the initializers that belong there."""
    enters, leaves = [], []
    for value in edges.values:
        makers, readers = edges.producers.get(value, ()), edges.consumers.get(value, ())
        read_outside = any(key not in inside for key in readers)
        if any(key in inside for key in makers):
            if read_outside or value in edges.outputs:
                leaves.append(value)
        # A stored value that nothing else reads is the module's, whoever it is credited to.
        elif (
            any(key in inside for key in readers)
            and value not in own
            and (read_outside or value not in edges.initializers)
        ):
            enters.append(value)
    return Boundary(module, tuple(enters), tuple(leaves))
